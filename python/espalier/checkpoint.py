"""Checkpoints, read by their MANIFEST as the program itself reads them. Format: doc/checkpoint.md of Espalier."""
from __future__ import annotations

import math
import os
import re
from functools import cached_property
from typing import Any, Dict, List, Optional, Tuple, Union

from .decks import parse_deck
from .errors import DataError, UsageError
from .tensors import TYPES, Box, Piece, Tensor, Tensors

FORMATS = ("1", "2", "3", "4")
MAGIC = "espalier-checkpoint"
END = re.compile(rb"end ([0-9a-f]{8})\n")
HEAD = re.compile(MAGIC + r"|id|parent|branch|step|samples|ranks|mesh|version|git|losses|window|proof|data")
FILE = re.compile(r"file ([\w.-]+) (\d+) [0-9a-f]{8}")
TENSOR = re.compile(r"tensor (\S+) (\S+) \[(\d+(?:,\d+)*)\]")
PIECE = re.compile(r"piece (shard-\d{5,9}\.h5) \[(\d+:\d+(?:,\d+:\d+)*)\] (\d+) [0-9a-f]{8}")
STEP_NAME = re.compile(r"step-(\d{8,})")
PENDING = re.compile(r"latest-([0-9a-f]{32})")
TOKENIZERS = ("tokenizer.json", "tokenizer.model")


class Checkpoint(Tensors):
    """A checkpoint: a mapping from full names ("parameters/model.norm.weight", "optimizer/exp_avg/...") to tensors.

    Attributes:
        path        its directory
        step        steps done
        samples     samples consumed
        ranks       ranks that wrote it
        layout      degree of each mesh axis: {"pp": 2, "dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 2}
        deck        its deck as a dict of sections; deck_text: as text
        tokenizer   path of its tokenizer, or None
        losses      of the last steps, oldest first
        version     of the program that wrote it
        id, parent  32 hex digits; parent is None if it came from no checkpoint, or its format does not say it
    """

    def __init__(self, path: str) -> None:
        where = os.path.join(path, "MANIFEST")
        with open(where, "rb") as file:
            head, files, tensors = _parse(_checked(file.read(), where), path, where)
        super().__init__(path, tensors)
        try:
            self.step, self.samples, self.ranks = int(head["step"]), int(head["samples"]), int(head["ranks"])
            self.layout: Dict[str, int] = {axis: int(n) for axis, n in re.findall(r"(\w+) (\d+)", head["mesh"])}
            self.losses = tuple(float(loss) for loss in head["losses"].split())
            self.id, self.version = head["id"], head["version"]
        except (KeyError, ValueError) as error:
            raise DataError(f"{where}: a line is missing or wrong: {error}") from None
        self.parent = None if head.get("parent", "none") == "none" else head["parent"]
        self.tokenizer: Optional[str] = next((os.path.join(path, name) for name in TOKENIZERS if name in files), None)
        with open(os.path.join(path, "deck.toml"), encoding="utf-8") as file:
            self.deck_text: str = file.read()

    @cached_property
    def deck(self) -> Dict[str, Any]:
        return parse_deck(self.deck_text, os.path.join(self.path, "deck.toml"))

    @property
    def parameters(self) -> Tensors:
        """The weights by their own names, which are those of an export."""
        return self.group("parameters")


def open_checkpoint(path: Union[str, os.PathLike], step: Optional[int] = None) -> Checkpoint:
    """Opens a checkpoint: its directory, or that of a run, of which the latest one is taken, or the one of `step`.

    `path` may also be the directory `checkpoints` of a run, or the file `latest` in it. Raises DataError if there is no
    checkpoint or its MANIFEST is damaged, UsageError if there is none of this step. Checksums of tensors are not
    compared: `espalier inspect CHECKPOINT --verify` does that.
    """
    path = os.fspath(path)
    for _ in range(3):  # a run may remove a checkpoint that it has just replaced
        found = _resolve(path, step)
        try:
            return Checkpoint(found)
        except FileNotFoundError as error:
            gone = error
    raise DataError(f"{gone.filename} is missing: was the checkpoint removed while it was read?") from None


def _resolve(path: str, step: Optional[int]) -> str:
    """The directory of a checkpoint."""
    if os.path.basename(path) == "latest" and os.path.isfile(path):
        path = os.path.dirname(path) or "."
    if os.path.isfile(os.path.join(path, "MANIFEST")):
        if step is not None:
            raise UsageError(f"{path} is one checkpoint; step={step} needs the directory of its run")
        return path
    if not os.path.isdir(path):
        raise DataError(f"{path}: there is no such directory")
    if STEP_NAME.fullmatch(os.path.basename(os.path.normpath(path))):
        raise DataError(f"{path}: there is no MANIFEST in it, so it is no checkpoint: it was not written to its end")
    for place in (path, os.path.join(path, "checkpoints")):
        steps = _steps(place)
        if step is not None and steps:
            if step not in steps:
                raise UsageError(f"{place}: no checkpoint of step {step}; there are: {', '.join(map(str, steps))}")
            return os.path.join(place, steps[step])
        if name := _latest(place):
            return os.path.join(place, name)
        if steps:
            raise DataError(f"{place}: `latest` names no checkpoint; choose one by step=: {', '.join(map(str, steps))}")
    raise DataError(f"{path}: no MANIFEST in it, so it is no checkpoint, and no run with one")


def _steps(place: str) -> Dict[int, str]:
    """The names of all checkpoints, by step."""
    names = os.listdir(place) if os.path.isdir(place) else []
    found = {int(match[1]): match[0] for match in map(STEP_NAME.fullmatch, names) if match}
    return {step: found[step] for step in sorted(found) if os.path.isfile(os.path.join(place, found[step], "MANIFEST"))}


def _latest(place: str) -> Optional[str]:
    """The name of the checkpoint that was committed last. `latest-ID` is there if the run ended after the commit and
    before it renewed `latest`; the id proves the commit."""
    for entry in sorted(os.listdir(place)) if os.path.isdir(place) else []:
        if pending := PENDING.fullmatch(entry):
            name = _named_by(place, entry)
            if name and _id_of(os.path.join(place, name, "MANIFEST")) == pending[1]:
                return name
    return _named_by(place, "latest")


def _named_by(place: str, entry: str) -> Optional[str]:
    try:
        with open(os.path.join(place, entry), encoding="ascii", errors="replace") as file:
            name = file.read(100).strip()
    except OSError:
        return None
    committed = STEP_NAME.fullmatch(name) and os.path.isfile(os.path.join(place, name, "MANIFEST"))
    return name if committed else None


def _id_of(manifest: str) -> Optional[str]:
    try:
        with open(manifest, encoding="ascii", errors="replace") as file:
            found = re.search(r"^id (\w+)$", file.read(256), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


def _checked(text: bytes, where: str) -> str:
    """The text of a MANIFEST whose first and last lines are right."""
    if not text.startswith(MAGIC.encode() + b" "):
        raise DataError(f"{where}: not the MANIFEST of a checkpoint")
    format_ = text.split(b"\n", 1)[0][len(MAGIC) + 1:].decode(errors="replace")
    if format_ not in FORMATS:
        raise DataError(f"{where}: format '{format_[:20]}' is not known here; this package reads formats "
                        f"{', '.join(FORMATS)}: install the package of the program that wrote it")
    body, last = text[:-13], END.fullmatch(text[-13:])
    if not last:
        raise DataError(f"{where}: incomplete: it does not end with its checksum")
    found = f"{crc32c(body):08x}"
    if found != last[1].decode():
        raise DataError(f"{where}: damaged: its checksum is {found}, its last line says {last[1].decode()}")
    return body.decode("ascii", errors="replace")


def _parse(text: str, path: str, where: str) -> Tuple[Dict[str, str], List[str], Dict[str, Tensor]]:
    """The first lines by their first word, the names of the files, the tensors."""
    head: Dict[str, str] = {}
    files: List[str] = []
    found: List[Tuple[str, str, Tuple[int, ...], List[Piece]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        word, _, rest = line.partition(" ")
        if HEAD.fullmatch(word):
            head[word] = rest
        elif file := FILE.fullmatch(line):
            files.append(file[1])
        elif (tensor := TENSOR.fullmatch(line)) and tensor[2] in TYPES:
            found.append((tensor[1], tensor[2], tuple(map(int, tensor[3].split(","))), []))
        elif (piece := PIECE.fullmatch(line)) and found:
            found[-1][3].append(Piece(os.path.join(path, piece[1]), int(piece[3]), _box(piece[2])))
        else:
            raise DataError(f"{where}:{number}: not a line of a MANIFEST: {line[:80]}")
    for name, _, shape, pieces in found:
        if not _fills(shape, [piece.box for piece in pieces]):
            raise DataError(f"{where}: {name}: its pieces do not fill {list(shape)}")
    return head, files, {name: Tensor(name, stored, shape, pieces) for name, stored, shape, pieces in found}


def _box(text: str) -> Box:
    return tuple((int(begin), int(end)) for begin, end in (dim.split(":") for dim in text.split(",")))


def _fills(shape: Tuple[int, ...], boxes: List[Box]) -> bool:
    """All boxes are in the tensor, and together they have as many elements. The program also checks that none
    overlaps another one; here the checksum of the MANIFEST says that the program wrote them."""
    inside = all(
        len(box) == len(shape) and all(0 <= begin < end <= extent for (begin, end), extent in zip(box, shape))
        for box in boxes)
    return inside and sum(math.prod(end - begin for begin, end in box) for box in boxes) == math.prod(shape)


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82f63b78 if byte & 1 else 0)
    return byte


_CRC_TABLE = tuple(_crc_of_byte(byte) for byte in range(256))


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli, RFC 3720), a byte at a time: some 10 MB/s, enough for a MANIFEST."""
    crc = 0xffffffff
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xffffffff
