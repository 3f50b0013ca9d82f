"""Tensors that stay in their files until they are indexed, and mappings of them."""
from __future__ import annotations

import math
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .errors import DataError, unknown

Box = Tuple[Tuple[int, int], ...]  # per dim a half-open range of indices

# Element type as MANIFEST and safetensors call it: how it is stored, how it is read.
TYPES = {
    "f32": ("<f4", "float32"), "bf16": ("<u2", "float32"),
    "F64": ("<f8", "float64"), "F32": ("<f4", "float32"), "F16": ("<f2", "float16"), "BF16": ("<u2", "float32"),
    "I64": ("<i8", "int64"), "I32": ("<i4", "int32"), "I16": ("<i2", "int16"), "I8": ("i1", "int8"),
    "U64": ("<u8", "uint64"), "U32": ("<u4", "uint32"), "U16": ("<u2", "uint16"), "U8": ("u1", "uint8"),
    "BOOL": ("?", "bool"),
}


class Piece(NamedTuple):
    """A box of a tensor, dense and row-major in a file."""
    path: str
    offset: int  # bytes from the start of the file
    box: Box


class Tensor(np.lib.mixins.NDArrayOperatorsMixin):
    """A tensor of a checkpoint or an export. Nothing is read before it is indexed.

    `t[:10]`, `t[3, ::2]` and other integers and slices read only the pages of the file that hold them. `t[...]` and
    `numpy.asarray(t)` read all of it; so do masks and lists of indices. Arithmetic and numpy's functions take it as an
    array. What is read is an array of its own in memory. Reading raises DataError if a file is missing or too short.

    Attributes: `name`; `shape`; `dtype` of the arrays; `stored`, the element type in the file, such as "bf16", which is
    read as float32, exactly.
    """

    def __init__(self, name: str, stored: str, shape: Sequence[int], pieces: Sequence[Piece]) -> None:
        self.name, self.stored, self.shape = name, stored, tuple(shape)
        self.dtype = np.dtype(TYPES[stored][1])
        self._pieces = tuple(pieces)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor in memory."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.name} has no dim")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self[...])

    def __getitem__(self, index: Any) -> Any:
        box, rest = _split(self.name, self.shape, index)
        return self._read(box)[rest]

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self.name} is in a file: it cannot be an array without a copy")
        return self[...].astype(dtype or self.dtype, copy=False)

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.stored} {list(self.shape)}>"

    def _read(self, box: Box) -> np.ndarray:
        out = np.empty([end - begin for begin, end in box], self.dtype)
        filled = 0
        for piece in self._pieces:
            common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, piece.box)]
            if all(begin < end for begin, end in common):
                part = self._map(piece)[_within(common, piece.box)]
                out[_within(common, box)] = _widen(part) if self.stored.lower() == "bf16" else part
                filled += part.size
        if filled != out.size:
            raise DataError(f"{self.name}: {filled} of {out.size} elements are in its files")
        return out

    def _map(self, piece: Piece) -> np.ndarray:
        shape = tuple(end - begin for begin, end in piece.box)
        try:
            return np.memmap(piece.path, TYPES[self.stored][0], "r", piece.offset, shape)
        except FileNotFoundError:
            raise DataError(f"{piece.path}: this file is missing, which holds a part of {self.name} (a run removes its "
                            "older checkpoints: checkpoint.keep)") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{piece.path}: cannot read {self.name} at byte {piece.offset}: {error}") from None


class Tensors(Mapping[str, Tensor]):
    """A read-only mapping from names to tensors, in the order in which the folder `path` lists them. An unknown name
    raises UnknownName (a KeyError), which says the nearest one."""

    def __init__(self, path: str, tensors: Mapping[str, Tensor]) -> None:
        self.path, self._tensors = path, dict(tensors)

    @property
    def names(self) -> Tuple[str, ...]:
        return tuple(self._tensors)

    def group(self, prefix: str) -> Tensors:
        """The tensors whose names begin with `prefix` and a slash, by the rest of their names: group("parameters"),
        group("optimizer/exp_avg")."""
        start = prefix.rstrip("/") + "/"
        found = {name[len(start):]: tensor for name, tensor in self._tensors.items() if name.startswith(start)}
        if not found:
            raise unknown(self.path, "group", prefix, dict.fromkeys(_groups(self._tensors)))
        return Tensors(self.path, found)

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise unknown(self.path, "tensor", name, self._tensors) from None

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}: {len(self)} tensors>"


def _groups(names: Sequence[str]) -> Iterator[str]:
    """parameters, optimizer/exp_avg, ...: all but the last word of each name."""
    return (name.rpartition("/")[0] for name in names if "/" in name)


def _widen(half: np.ndarray) -> np.ndarray:
    """fp32 of bf16, which is its upper half."""
    return (half.astype(np.uint32) << 16).view(np.float32)


def _within(inner: Sequence[Tuple[int, int]], outer: Box) -> Tuple[slice, ...]:
    """The slices that select a box from an array that holds a larger one."""
    return tuple(slice(begin - start, end - start) for (begin, end), (start, _) in zip(inner, outer))


def _split(name: str, shape: Tuple[int, ...], index: Any) -> Tuple[Box, Any]:
    """The smallest box that holds what the index selects, and the index that selects it from that box."""
    words = index if isinstance(index, tuple) else (index,)
    basic = all(
        word is Ellipsis or isinstance(word, (int, np.integer, slice)) and not isinstance(word, bool) for word in words)
    if not basic or sum(word is Ellipsis for word in words) > 1:
        return tuple((0, extent) for extent in shape), index
    dims = len(words) - (Ellipsis in words)
    if dims > len(shape):
        raise IndexError(f"{name}: {dims} indices for {len(shape)} dims")
    at = words.index(Ellipsis) if Ellipsis in words else len(words)
    end = (Ellipsis,) if Ellipsis in words else ()  # it makes an array even of a single element
    words = words[:at] + (slice(None),) * (len(shape) - dims) + words[at + 1:]
    box, rest = [], []
    for dim, (word, extent) in enumerate(zip(words, shape)):
        if isinstance(word, slice):
            taken = range(*word.indices(extent))
            box.append((min(taken[0], taken[-1]), max(taken[0], taken[-1]) + 1) if taken else (0, 0))
            rest.append(slice(None, None, taken.step))
        elif -extent <= word < extent:
            box.append((int(word) % extent, int(word) % extent + 1))
            rest.append(0)
        else:
            raise IndexError(f"{name}: index {word} is out of bounds for dim {dim} of {extent}")
    return tuple(box), (*rest, *end)
