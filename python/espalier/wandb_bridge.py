"""The command espalier-wandb: shows a run in Weights & Biases. Exit status 0, 2 (command line), 3 (data), 1 (others).

It reads metrics.jsonl and deck.toml and writes nothing into the run. A W&B run holds exactly the steps that count. Its
id follows from the first start of the run, so another call, or a later job of the same run, goes on with it. W&B cannot
take steps back: when a restart or a rollback gives some up, a further W&B run of the same group begins, with all steps
that count, and the one before is tagged "superseded".
"""
from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence

from . import __version__
from .decks import parse_deck
from .errors import DataError, Error
from .metrics import NAME, Rows, parse_line

ALERTS = {"warning": "WARN", "skipped": "WARN", "spike": "WARN", "rollback": "WARN", "checkpoint_failed": "ERROR",
          "corruption": "ERROR", "console_lost": "WARN"}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command with `arguments` (default: those of the process); returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        _show(options, _wandb())
    except Error as error:
        print(f"espalier-wandb: {error}", file=sys.stderr)
        return error.status
    except OSError as error:
        print(f"espalier-wandb: {error}", file=sys.stderr)
        return Error.status
    except KeyboardInterrupt:
        pass  # what was read is sent
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="espalier-wandb", description="Shows a run of espalier in Weights & Biases.")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("run", metavar="RUN", help="directory of a run")
    parser.add_argument("--project", metavar="NAME", default="espalier", help="W&B's project (default: espalier)")
    parser.add_argument("--entity", metavar="NAME", help="W&B's team or user (default: that of the login)")
    parser.add_argument("--name", metavar="NAME", help="name of the run in W&B (default: the directory's)")
    parser.add_argument("--dir", metavar="FOLDER", help="folder for W&B's own files (default: ./wandb)")
    parser.add_argument("--follow", action="store_true",
                        help="go on until every step is done, over restarts too; Ctrl-C ends it")
    parser.add_argument("--poll", metavar="SECONDS", type=float, default=5.0,
                        help="with --follow: time between two looks at the file (default: 5)")
    parser.add_argument("--offline", action="store_true", help="no network: write files for `wandb sync`")
    return parser


def _wandb() -> Any:
    try:
        import wandb
    except ImportError:
        raise Error("the package wandb is missing: pip install wandb") from None
    return wandb


def _show(options: argparse.Namespace, wandb: Any) -> None:
    tail = _Tail(os.path.join(options.run, NAME), must_exist=not options.follow)
    shown = _Shown(options, wandb)
    try:
        shown.take(tail.lines())
        while options.follow and shown.status != 0:
            time.sleep(options.poll)
            shown.take(tail.lines())
    finally:
        shown.finish()


class _Tail:
    """The whole lines of a file that grows. A torn last line, which a restart of the run removes, is left for later."""

    def __init__(self, path: str, must_exist: bool) -> None:
        self.path, self._read, self._number, self._identity = path, 0, 0, None
        if must_exist and not os.path.exists(path):
            raise DataError(f"{path}: there is no such file: this is no run, or one that has not begun")

    def lines(self) -> List[Dict[str, Any]]:
        """Those that are new."""
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            return []
        with file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if self._identity not in (None, identity) or status.st_size < self._read:
                raise DataError(f"{self.path}: it was replaced by another file: start espalier-wandb again")
            self._identity = identity
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return []
        self._read += len(whole) + 1
        found = []
        for line in whole.split(b"\n"):
            self._number += 1
            if line:
                found.append(parse_line(line.decode("utf-8", "replace"), f"{self.path}:{self._number}"))
        return found


class _Shown:
    """The run as W&B shows it. `status` is the exit status of the last start, None while it runs."""

    def __init__(self, options: argparse.Namespace, wandb: Any) -> None:
        self.status: Optional[int] = None
        self._options, self._wandb = options, wandb
        self._began = time.time()
        self._rows = Rows()
        self._generation = 0  # how often steps were given up
        self._key = ""
        self._config: Dict[str, Any] = {}
        self._summary: Dict[str, Any] = {}
        self._run: Any = None  # W&B's
        self._last = 0  # the last step that was sent

    def take(self, lines: Sequence[Dict[str, Any]]) -> None:
        """Sends what further lines of the file say."""
        generation, touched = self._generation, set()
        for line in lines:
            self._generation += self._rows.add(line) > 0
            if "event" in line:
                self._take_event(line)
            else:
                touched.add(line["step"])
        if not self._key:
            return
        if self._run is None or generation != self._generation:
            self._begin()
            touched = set(self._rows.counted)
        for step in sorted(touched & set(self._rows.counted)):
            if step >= self._last:
                self._run.log(dict(_scalars(self._rows.counted[step])), step=step)
                self._last = step
        self._run.config.update(self._config, allow_val_change=True)
        self._run.summary.update(self._summary)
        for line in lines:
            self._alert(line)

    def finish(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=self.status or 0)
            self._run = None

    def _id(self) -> str:
        return self._key + (f"-{self._generation}" if self._generation else "")

    def _begin(self) -> None:
        if self._run is not None:
            self._run.tags = (*(self._run.tags or ()), "superseded")
            self._run.summary["superseded_by"] = self._id()
            self._run.finish()
        name = self._options.name or os.path.basename(os.path.abspath(self._options.run))
        self._run = self._wandb.init(project=self._options.project, entity=self._options.entity, id=self._id(),
                                     name=name, group=name, dir=self._options.dir, resume="allow",
                                     mode="offline" if self._options.offline else None, config=self._config)
        # A W&B run is resumed: its steps up to this one are there.
        self._last = int(getattr(self._run, "starting_step", 0) or 0)

    def _take_event(self, line: Dict[str, Any]) -> None:
        kind = line["event"]
        self._summary[f"events/{kind}"] = self._summary.get(f"events/{kind}", 0) + 1
        if kind == "start":
            self._key = self._key or _key(line)
            self._config = {**self._deck(), "start": {name: value for name, value in line.items() if name != "event"}}
            self.status = None
        if kind == "checkpoint":
            self._summary["checkpoint"] = line.get("dir")
        if kind == "end":
            self.status = self._summary["exit_status"] = line.get("status")

    def _deck(self) -> Dict[str, Any]:
        path = os.path.join(self._options.run, "deck.toml")
        if not os.path.exists(path):
            return {}
        with open(path, encoding="utf-8") as file:
            return parse_deck(file.read(), path)

    def _alert(self, line: Dict[str, Any]) -> None:
        """The warnings that come while this looks, but no earlier ones."""
        kind = line.get("event")
        if kind in ALERTS and line.get("time", 0) >= self._began:
            step = f"step {line['step']}: " if "step" in line else ""
            what = line.get("reason", line.get("text"))
            self._run.alert(title=f"{kind} in {self._options.run}", text=f"{step}{what}", level=ALERTS[kind])


def _key(start: Dict[str, Any]) -> str:
    """The first start of a run: its time and what it trains, wherever its folder is now."""
    fields = [start.get(name) for name in ("time", "deck", "data_fingerprint", "parameters")]
    return hashlib.sha256(repr(fields).encode()).hexdigest()[:12]


def _scalars(row: Dict[str, Any], prefix: str = "") -> Iterator[tuple]:
    """(name, number) of all fields that are numbers; members of objects are "exposed_ms/tp". A null that the note names
    was not finite: NaN. Others are not known here, and left out."""
    note = str(row.get("note", ""))
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield prefix + name, value
        elif value is None and f"{name} is " in note:
            yield prefix + name, math.nan


if __name__ == "__main__":
    sys.exit(main())
