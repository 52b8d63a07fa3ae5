"""The files of a minimal checkpoint, made without a library of models."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping


def safetensors_of(tensors: Mapping[str, tuple[list[int], bytes]]) -> bytes:
    """Return a weights file with these shapes and bytes of float32 values."""
    header, body = {}, b""
    for name, (shape, values) in tensors.items():
        ends = [len(body), len(body) + len(values)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": ends}
        body += values
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def weights(seed: str = "weights", rows: int = 8, width: int = 4) -> bytes:
    values = hashlib.shake_256(seed.encode()).digest(rows * width * 4)
    return safetensors_of({"model.embed_tokens.weight": ([rows, width], values)})


def tokenizer(tokens: int = 8) -> bytes:
    return json.dumps({"model": {"vocab": {f"t{n}": n for n in range(tokens)}}}).encode()


def checkpoint(seed: str = "weights", **others: bytes | None) -> dict[str, bytes]:
    """Return a checkpoint's files; `others` replaces or removes (None) files: `_` is `.`, and `__` is `-`."""
    files: dict[str, bytes | None] = {
        "config.json": json.dumps({"architectures": ["LlamaForCausalLM"], "vocab_size": 8}).encode(),
        "tokenizer.json": tokenizer(),
        "model.safetensors": weights(seed),
        "README.md": b"---\nlicense: mit\n---\n# A model\n\nIt *plays*.\n",
    }
    given = {name.replace("__", "-").replace("_", "."): body for name, body in others.items()}
    return {name: body for name, body in {**files, **given}.items() if body is not None}


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
