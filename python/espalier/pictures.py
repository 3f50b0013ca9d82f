"""Curves of runs, drawn by matplotlib without pyplot: no window, no state between two pictures."""
from __future__ import annotations

import os
from typing import Iterable, List, Optional, Sequence, Tuple, Union

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from .errors import UsageError, unknown
from .metrics import Metrics, read_metrics

Run = Union[str, os.PathLike, Metrics]

WIDTH, HEIGHT, MARGIN, DPI = 8.0, 3.0, 0.6, 150  # inches, of each panel, around all; dots per inch
AXES = ("step", "tokens", "time")
FEW = 40  # so many points are marked each


def plot(runs: Union[Run, Iterable[Run]], keys: Union[str, Sequence[str]] = ("loss",), x: str = "step",
         smooth: float = 0.0, logy: bool = False, out: Union[str, os.PathLike, None] = None) -> Figure:
    """Draws metrics of runs: one panel per key, one curve per run, dotted lines where a run was restarted.

    runs    directories of runs, or what read_metrics returns; one or several
    keys    names of columns, such as "loss", "val_loss", "exposed_ms.tp"; a run that has no such column is named in the
            legend
    x       "step"; "tokens" (so far); "time": training time, as in Metrics.time_s
    smooth  from 0 (the values themselves) to below 1: weight of the values before in an exponential moving average that
            begins at the first value (its weights are normalized). The values stay visible behind it
    logy    logarithmic y axes
    out     a file to write, of a type that matplotlib knows (.png, .pdf, .svg); PNG: 1200 pixels wide, 90 + 450 high
            per key

    Values that are missing or not finite are left out. Returns matplotlib's Figure. Raises UsageError for an argument
    that is not allowed or a key that no run has, DataError if metrics cannot be read.
    """
    metrics = [run if isinstance(run, Metrics) else read_metrics(run) for run in _list(runs)]
    keys = [keys] if isinstance(keys, str) else list(keys)
    _check(metrics, keys, x, smooth)
    scale, label = _time_unit(metrics) if x == "time" else (1.0, x)
    figure = Figure(figsize=(WIDTH, MARGIN + HEIGHT * len(keys)), dpi=DPI, layout="constrained")
    panels = figure.subplots(len(keys), 1, sharex=True, squeeze=False)[:, 0]
    for panel, key in zip(panels, keys):
        for run, color in zip(metrics, _colors(len(metrics))):
            _curve(panel, run, key, _positions(run, x) / scale, smooth, color)
        panel.set_ylabel(key)
        panel.set_yscale("log" if logy else "linear")
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    panels[-1].set_xlabel(label)
    if out is not None:
        _save(figure, os.fspath(out))
    return figure


def _list(runs: Union[Run, Iterable[Run]]) -> List[Run]:
    return [runs] if isinstance(runs, (str, os.PathLike, Metrics)) else list(runs)


def _check(metrics: Sequence[Metrics], keys: Sequence[str], x: str, smooth: float) -> None:
    if not metrics or not keys:
        raise UsageError("a picture needs at least one run and one key")
    if x not in AXES:
        raise UsageError(f"x = {x!r} is not allowed (allowed: {', '.join(AXES)})")
    if not 0 <= smooth < 1:
        raise UsageError(f"smooth = {smooth} is not allowed (allowed: 0 to below 1)")
    for run in metrics:
        if x == "tokens" and len(run.steps) and x not in run:
            raise unknown(run.run, "metric", x, run)
    for key in keys:
        if not any(key in run for run in metrics):
            raise unknown(", ".join(run.run for run in metrics), "metric", key,
                          dict.fromkeys(name for run in metrics for name in run))


def _colors(count: int) -> List[Tuple[float, ...]]:
    if count <= 10:
        return [matplotlib.colormaps["tab10"](k) for k in range(count)]
    return [matplotlib.colormaps["viridis"](k / (count - 1)) for k in range(count)]


def _positions(run: Metrics, x: str) -> np.ndarray:
    """Where each row is on the x axis; seconds for time."""
    if x == "time" or not len(run.steps):
        return run.time_s
    return run[x].astype(np.float64)


def _time_unit(metrics: Sequence[Metrics]) -> Tuple[float, str]:
    """Seconds of the unit of time, and the label of its axis."""
    longest = max((run.time_s[-1] for run in metrics if len(run.steps)), default=0.0)
    return next((unit, f"training time, {name}") for unit, name in ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
                if longest >= 3 * unit or unit == 1.0)


def _curve(panel, run: Metrics, key: str, positions: np.ndarray, smooth: float, color: Tuple[float, ...]) -> None:
    if key not in run:
        panel.plot([], [], color=color, label=f"{run.run}: has no {key}")
        return
    there = np.isfinite(run[key]) & np.isfinite(positions)
    at, values = positions[there], run[key][there]
    marker = "." if len(at) <= FEW else None
    label = run.run
    if len(run.restarts):
        label += f" ({len(run.restarts)} restart{'s' if len(run.restarts) > 1 else ''}, dotted)"
    if smooth > 0:
        panel.plot(at, values, color=color, alpha=0.25, linewidth=1)
        values = moving_average(values, smooth)
    panel.plot(at, values, color=color, linewidth=1.2, marker=marker, label=label)
    for first in run.restarts:
        before = positions[(run.steps < first) & np.isfinite(positions)]
        panel.axvline(before[-1] if len(before) else 0.0, color=color, linestyle=":", linewidth=1)


def moving_average(values: np.ndarray, smooth: float) -> np.ndarray:
    """Exponential moving average: element i is the mean of elements 0 to i with weights smooth^(i - k)."""
    sum_, weight, out = 0.0, 0.0, np.empty(len(values))
    for i, value in enumerate(values):
        sum_, weight = smooth * sum_ + value, smooth * weight + 1
        out[i] = sum_ / weight
    return out


def _save(figure: Figure, out: str) -> None:
    kinds = figure.canvas.get_supported_filetypes()
    kind = os.path.splitext(out)[1][1:].lower()
    if kind not in kinds:
        raise UsageError(f"{out}: the name must end with a type of picture (allowed: {', '.join(sorted(kinds))})")
    try:
        figure.savefig(out)
    except FileNotFoundError:
        raise UsageError(f"{out}: there is no such folder") from None
