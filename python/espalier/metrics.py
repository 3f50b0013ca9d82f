"""metrics.jsonl of a run as arrays. The fields and their units: doc/metrics.md of Espalier."""
from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Union

import numpy as np

from .errors import DataError, unknown

NAME = "metrics.jsonl"


class Columns(Mapping[str, np.ndarray]):
    """A read-only mapping from the fields of steps to arrays with one element per row: `step` as int64, all others as
    float64. What a line does not have, and `null`, which stands for a number that is not finite, is NaN. Members of
    objects have dotted names ("exposed_ms.tp"). An unknown name raises UnknownName (a KeyError)."""

    def __init__(self, path: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self.path = path
        flat = [dict(_numbers(row)) for row in rows]
        names = dict.fromkeys(name for row in flat for name in row)
        # A null that stands for an object has no column of its own.
        names = [name for name in names if not any(other.startswith(name + ".") for other in names)]
        self._columns = {name: np.array([row.get(name, np.nan) for row in flat], np.float64) for name in names}
        self._columns["step"] = np.array([row["step"] for row in rows], np.int64)
        for column in self._columns.values():
            column.flags.writeable = False

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self._columns[name]
        except KeyError:
            raise unknown(self.path, "metric", name, self._columns) from None

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}: {len(self['step'])} steps, {', '.join(self)}>"


class Metrics(Columns):
    """The steps of a run as they now count: one row per step, in ascending order. `val_loss` is in the row of its step.

    Steps that were given up are in `history`: those after the point where a later start or a rollback continued. So
    every step that was done again is there, once for each time before.

    Attributes:
        path      the file; run: its directory
        steps     the column "step"
        starts    the "start" events, one dict per start of the run
        restarts  the first steps of all starts but the first, an int64 array
        events    all events, in the order of the file
        history   the rows that do not count, as Columns, in the order in which they were given up
    """

    def __init__(self, path: str, lines: Sequence[Dict[str, Any]]) -> None:
        rows = Rows()
        for line in lines:
            rows.add(line)
        super().__init__(path, [rows.counted[step] for step in sorted(rows.counted)])
        self.run = os.path.dirname(path) or "."
        self.history = Columns(path, rows.history)
        self.events: List[Dict[str, Any]] = [line for line in lines if "event" in line]
        self.starts = [event for event in self.events if event["event"] == "start"]
        self.restarts = np.array([start["first_step"] for start in self.starts[1:]], np.int64)

    @property
    def steps(self) -> np.ndarray:
        return self["step"]

    @property
    def time_s(self) -> np.ndarray:
        """Seconds of training until the end of each step: the sum of `step_ms` over the steps that count. Starts,
        steps that were given up and the time between jobs are not in it."""
        return np.nancumsum(self["step_ms"]) / 1e3 if "step_ms" in self else np.zeros(len(self.steps))


def read_metrics(run: Union[str, os.PathLike]) -> Metrics:
    """The metrics of a run: its directory, or a file metrics.jsonl. A torn last line is left out: the run may be
    writing it. Raises DataError if there is no such file or another line is damaged."""
    path = os.fspath(run)
    if os.path.isdir(path):
        path = os.path.join(path, NAME)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file: this is no run, or one that has not begun") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot read it: {error}") from None
    whole, _, last = text.rpartition("\n")
    lines = [parse_line(line, f"{path}:{number}") for number, line in enumerate(whole.split("\n"), 1) if line]
    if last:
        try:
            lines.append(parse_line(last, path))
        except DataError:
            pass  # torn
    return Metrics(path, lines)


def parse_line(text: str, where: str) -> Dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: damaged: {error}") from None
    known = isinstance(line, dict) and ("event" in line or isinstance(line.get("step"), int))
    if not known or (line.get("event") == "start" and "first_step" not in line):
        raise DataError(f"{where}: neither a step nor an event: {text[:80]}")
    return line


class Rows:
    """Which steps count, line by line: `counted` has the rows by step, `history` those that were given up."""

    def __init__(self) -> None:
        self.counted: Dict[int, Dict[str, Any]] = {}
        self.history: List[Dict[str, Any]] = []

    def add(self, line: Mapping[str, Any]) -> int:
        """Takes the next line of the file; returns how many rows it has given up."""
        before = len(self.history)
        event, step = line.get("event"), line.get("step")
        if event == "start":
            self._keep_until(line["first_step"] - 1)
        elif event == "rollback":
            self._keep_until(line["to"])
        elif event is None and "val_loss" in line:
            self.counted.setdefault(step, {"step": step})["val_loss"] = line["val_loss"]
        elif event is None:
            if step in self.counted:
                self.history.append(self.counted[step])
            self.counted[step] = dict(line)
        return len(self.history) - before

    def _keep_until(self, last: int) -> None:
        self.history.extend(self.counted.pop(step) for step in sorted(self.counted) if step > last)


def _numbers(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple]:
    """(dotted name, number) of all fields that are numbers or null."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif value is None or isinstance(value, (int, float)):
            yield prefix + name, np.nan if value is None else value
