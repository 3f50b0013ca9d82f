"""Hugging Face folders: the tensors of their safetensors files.

A file is 8 bytes with the length of the header (little-endian), the header in JSON, then the tensors:
https://github.com/huggingface/safetensors#format
"""
from __future__ import annotations

import json
import math
import os
from typing import Any, Dict, Union

import numpy as np

from .errors import DataError
from .tensors import TYPES, Piece, Tensor, Tensors

MOST_HEADER = 100 << 20  # bytes, as in the safetensors library


class Export(Tensors):
    """A Hugging Face folder: a mapping from names to tensors. The names are those of `Checkpoint.parameters`.

    Attributes: `path`; `config`, the content of config.json; `tokenizer`, the path of its tokenizer, or None.
    """

    def __init__(self, path: str, tensors: Dict[str, Tensor], config: Dict[str, Any]) -> None:
        super().__init__(path, tensors)
        self.config = config
        names = (os.path.join(path, name) for name in ("tokenizer.json", "tokenizer.model"))
        self.tokenizer = next((name for name in names if os.path.isfile(name)), None)

    @property
    def parameters(self) -> Tensors:
        """All tensors: what `Checkpoint.parameters` is of a checkpoint."""
        return self


def open_export(path: Union[str, os.PathLike]) -> Export:
    """Opens a folder that `espalier export` or transformers wrote: model.safetensors, or the files that
    model.safetensors.index.json lists. bf16 is read as float32, fp16 as float16. Raises DataError if a file is missing,
    damaged or has an element type that is not known here."""
    path = os.fspath(path)
    index, single = (os.path.join(path, name) for name in ("model.safetensors.index.json", "model.safetensors"))
    if os.path.isfile(index):
        weights = _json(index).get("weight_map")
        if not isinstance(weights, dict) or any(not _plain(name) for name in weights.values()):
            raise DataError(f"{index}: no weight_map from tensors to files of this folder")
        found = {}
        for name in dict.fromkeys(weights.values()):
            found.update(_tensors(os.path.join(path, name)))
        if lost := next((name for name in weights if name not in found), None):
            raise DataError(f"{index}: {lost} is not in {weights[lost]}")
        tensors = {name: found[name] for name in weights}
    elif os.path.isfile(single):
        tensors = _tensors(single)
    else:
        raise DataError(f"{path}: neither model.safetensors nor model.safetensors.index.json is there")
    config = os.path.join(path, "config.json")
    return Export(path, tensors, _json(config) if os.path.isfile(config) else {})


def _plain(name: Any) -> bool:
    return isinstance(name, str) and os.path.basename(name) == name != ""


def _json(path: str) -> Dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot read it: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a JSON object")
    return value


def _tensors(path: str) -> Dict[str, Tensor]:
    """The tensors of one file; each must have the bytes of its shape, inside the file."""
    try:
        with open(path, "rb") as file:
            bytes_ = int.from_bytes(file.read(8), "little")
            if bytes_ > MOST_HEADER:
                raise DataError(f"{path}: not safetensors: a header of {bytes_} bytes")
            header = json.loads(file.read(bytes_))
            room = os.fstat(file.fileno()).st_size - 8 - bytes_
        header.pop("__metadata__", None)
        return {name: _tensor(path, name, entry, 8 + bytes_, room) for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not safetensors: {type(error).__name__}: {error}") from None


def _tensor(path: str, name: str, entry: Dict[str, Any], start: int, room: int) -> Tensor:
    stored, shape, (begin, end) = entry["dtype"], [int(extent) for extent in entry["shape"]], entry["data_offsets"]
    if stored not in TYPES:
        raise DataError(f"{path}: {name} has element type {stored}; this package reads {', '.join(TYPES)}")
    bytes_ = math.prod(shape) * np.dtype(TYPES[stored][0]).itemsize
    if min(shape, default=0) < 0 or not 0 <= begin <= end <= room or end - begin != bytes_:
        raise DataError(f"{path}: {name} {shape} needs {bytes_} bytes; it has bytes {begin} to {end} of {room}")
    return Tensor(name, stored, shape, [Piece(path, start + begin, tuple((0, extent) for extent in shape))])
