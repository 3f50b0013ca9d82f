"""Where two runs differ: their decks and their metrics."""
from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np

from .decks import flat, parse_deck
from .metrics import Metrics, read_metrics


@dataclass(frozen=True)
class Difference:
    """The largest difference of one metric over the steps that both runs have a value for."""
    relative: float  # |a - b| / max(|a|, |b|); 0: equal at all these steps
    step: int        # where it is
    a: float
    b: float
    steps: int       # compared
    only_one: int    # common steps at which just one run has a value


@dataclass(frozen=True)
class Comparison:
    """Where run `a` and run `b` differ; print it to read it.

    a, b                  directories of the runs
    steps                 number of steps that both have
    deck                  (key, value in a, value in b) of the keys that differ, without run.dir, which always does.
                          A value of None: the key is not there. None: a run has no deck.toml
    first_different_step  the first common step whose losses differ in any bit; None if all are equal
    losses                the losses of that step, or None
    metrics               the largest difference of each metric that both have
    only_a, only_b        steps that only one of them has
    """
    a: str
    b: str
    steps: int
    deck: Optional[List[Tuple[str, Any, Any]]]
    first_different_step: Optional[int]
    losses: Optional[Tuple[float, float]]
    metrics: Dict[str, Difference] = field(repr=False)
    only_a: int
    only_b: int

    def __str__(self) -> str:
        return "\n".join([
            f"a  {self.a}: {_steps(self.steps + self.only_a)}",
            f"b  {self.b}: {_steps(self.steps + self.only_b)}", "", *self._deck_lines(), "", *self._metric_lines()
        ])

    def _deck_lines(self) -> List[str]:
        if self.deck is None:
            return ["deck: not compared, since a run has no deck.toml"]
        if not self.deck:
            return ["deck: no key differs (run.dir is left out)"]
        width = max(len(key) for key, _, _ in self.deck)
        return [f"deck: {len(self.deck)} key{'s differ' if len(self.deck) > 1 else ' differs'} (run.dir is left out)",
                *(f"  {key:<{width}}  a {_toml(a)}   b {_toml(b)}" for key, a, b in self.deck)]

    def _metric_lines(self) -> List[str]:
        if self.steps == 0:
            return ["metrics: the runs have no step in common"]
        if self.first_different_step is None:
            first = f"loss: equal at {_steps(self.steps)}, all that both have"
        else:
            a, b = self.losses
            first = f"loss: first differs at step {self.first_different_step}: a {a:.9g}   b {b:.9g}"
        width = max(map(len, self.metrics), default=0)
        lines = [first, f"largest relative difference over {_steps(self.steps)} that both have"]
        for name, found in self.metrics.items():
            text = f"  {name:<{width}}  "
            if found.steps == 0:
                text += "no step where both have a value"
            elif found.relative == 0:
                text += "equal"
            else:
                text += f"{found.relative:<8.2g}  at step {found.step}: a {found.a:.9g}   b {found.b:.9g}"
            lines.append(text + (f" (only one run has a value at {_steps(found.only_one)})" if found.only_one else ""))
        return lines


def compare(a: Union[str, os.PathLike, Metrics], b: Union[str, os.PathLike, Metrics]) -> Comparison:
    """Compares two runs: directories, or what read_metrics returns. Losses are compared as they are written, with nine
    digits, so equal means equal in every bit. Steps of the history of a run do not count. Raises DataError if metrics
    or a deck cannot be read."""
    a, b = (run if isinstance(run, Metrics) else read_metrics(run) for run in (a, b))
    common, at_a, at_b = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
    first = losses = None
    if "loss" in a and "loss" in b:
        mine, theirs = a["loss"][at_a], b["loss"][at_b]
        different = (mine != theirs) & ~(np.isnan(mine) & np.isnan(theirs))
        if different.any():
            k = int(np.argmax(different))
            first, losses = int(common[k]), (float(mine[k]), float(theirs[k]))
    names = [name for name in a if name in b and name != "step"]
    return Comparison(a.run, b.run, len(common), _decks(a.run, b.run), first, losses,
                      {name: _difference(common, a[name][at_a], b[name][at_b]) for name in names},
                      len(a.steps) - len(common), len(b.steps) - len(common))


def _difference(steps: np.ndarray, a: np.ndarray, b: np.ndarray) -> Difference:
    both, one = ~np.isnan(a) & ~np.isnan(b), np.isnan(a) != np.isnan(b)
    if not both.any():
        return Difference(float("nan"), -1, float("nan"), float("nan"), 0, int(one.sum()))
    steps, a, b = steps[both], a[both], b[both]
    largest = np.maximum(np.abs(a), np.abs(b))
    relative = np.abs(a - b) / np.where(largest > 0, largest, 1)
    k = int(np.argmax(relative))
    return Difference(float(relative[k]), int(steps[k]), float(a[k]), float(b[k]), len(steps), int(one.sum()))


def _decks(a: str, b: str) -> Optional[List[Tuple[str, Any, Any]]]:
    paths = [os.path.join(run, "deck.toml") for run in (a, b)]
    if not all(os.path.isfile(path) for path in paths):
        return None
    mine, theirs = (flat(_read(path)) for path in paths)
    keys = [key for key in dict.fromkeys([*mine, *theirs]) if key != "run.dir"]
    return [(key, mine.get(key), theirs.get(key)) for key in keys if mine.get(key) != theirs.get(key)]


def _read(path: str) -> Dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        return parse_deck(file.read(), path)


def _steps(count: int) -> str:
    return f"{count} step{'s' if count != 1 else ''}"


def _toml(value: Any) -> str:
    return "(not there)" if value is None else json.dumps(value, default=str)
