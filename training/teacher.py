"""The teacher, all-MiniLM-L6-v2: a sentence's vector, which the table learns to come near to.

    python -m training.teacher --model site-packages/…/all-MiniLM-L6-v2 --out data/corpus

makes teacher.npz and tokenizer.json of a downloaded model, small enough to carry to a machine without a network: whole
numbers of one byte, a scale for each row. Needs torch and transformers to teach, numpy and safetensors to be made.
"""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

DIMENSIONS: Final = 384
LONGEST: Final = 128
"""Tokens of a text that are read."""
AT_ONCE: Final = 160_000
"""Tokens of a batch."""


def packed(weights: dict[str, Any]) -> dict[str, Any]:
    """Matrices as whole numbers of one byte with a scale for each row; the rest in half precision."""
    small: dict[str, Any] = {}
    for name, array in weights.items():
        if array.dtype.kind != "f":
            continue
        if array.ndim == 2 and len(array) > 2:
            scale = np.abs(array).max(axis=1, keepdims=True) / 127
            small[f"{name}|q"] = np.round(array / scale).astype(np.int8)
            small[f"{name}|s"] = scale.astype(np.float16)
        else:
            small[name] = array.astype(np.float16)
    return small


def unpacked(small: dict[str, Any]) -> dict[str, Any]:
    whole = {name: array.astype(np.float32) for name, array in small.items() if "|" not in name}
    for name, array in small.items():
        if name.endswith("|q"):
            plain = name.removesuffix("|q")
            whole[plain] = array.astype(np.float32) * small[f"{plain}|s"].astype(np.float32)
    return whole


class Teacher:
    def __init__(self, folder: Path, device: str) -> None:
        import torch  # noqa: PLC0415 - only where somebody is taught
        from tokenizers import Tokenizer  # noqa: PLC0415
        from transformers import BertConfig, BertModel  # noqa: PLC0415

        config = BertConfig(
            vocab_size=30522,
            hidden_size=DIMENSIONS,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
        )
        self._model = BertModel(config, add_pooling_layer=False)
        with np.load(folder / "teacher.npz") as arrays:
            weights = {name: torch.tensor(array) for name, array in unpacked(dict(arrays)).items()}
        missing = self._model.load_state_dict(weights, strict=False).missing_keys
        assert not [name for name in missing if "position_ids" not in name], missing
        self._device = device
        self._model = self._model.to(device).to(torch.float16 if device == "cuda" else torch.float32).eval()
        self._tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokens.no_padding()
        self._tokens.enable_truncation(LONGEST)

    def vectors(self, texts: Sequence[str]) -> Any:
        """A row of length one for each text, in half precision, on the device."""
        import torch  # noqa: PLC0415

        ids = [one.ids for one in self._tokens.encode_batch(list(texts))]
        order = sorted(range(len(ids)), key=lambda nth: len(ids[nth]))
        found = torch.zeros(len(ids), DIMENSIONS, dtype=torch.float16, device=self._device)
        start = 0
        while start < len(order):
            size = max(1, min(4096, AT_ONCE // max(len(ids[order[min(start + 4095, len(order) - 1)]]), 8)))
            batch = order[start : start + size]
            found[torch.tensor(batch, device=self._device)] = self._batch([ids[nth] for nth in batch]).half()
            start += size
        return found

    def _batch(self, ids: Sequence[Sequence[int]]) -> Any:
        import torch  # noqa: PLC0415

        longest = max(map(len, ids))
        tokens = torch.tensor([[*one, *[0] * (longest - len(one))] for one in ids], device=self._device)
        mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in ids], device=self._device)
        with torch.no_grad():
            states = self._model(input_ids=tokens, attention_mask=mask).last_hidden_state
        summed = (states * mask[..., None]).sum(1).float()
        return torch.nn.functional.normalize(summed, dim=-1)


def main() -> None:
    from safetensors.numpy import load_file  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder with model.safetensors and tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    np.savez(given.out / "teacher.npz", **packed(load_file(given.model / "model.safetensors")))
    shutil.copy(given.model / "tokenizer.json", given.out / "tokenizer.json")
    print(given.out / "teacher.npz", (given.out / "teacher.npz").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
