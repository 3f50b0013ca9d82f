"""The command espalier-runs: looks at runs. Exit status 0, 2 (command line), 3 (data), 1 (anything else)."""
from __future__ import annotations

import argparse
import sys
from typing import Iterator, List, Optional, Sequence

import numpy as np

from . import __version__
from .comparison import compare
from .errors import Error, UsageError
from .metrics import Metrics, read_metrics
from .pictures import AXES, plot

SHOWN_EVENTS = ("changed", "skipped", "spike", "rollback", "checkpoint_failed", "console_lost", "stop")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command with `arguments` (default: those of the process); returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except Error as error:
        print(f"espalier-runs: {error}", file=sys.stderr)
        return error.status
    except OSError as error:
        print(f"espalier-runs: {error}", file=sys.stderr)
        return Error.status
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="espalier-runs", description="Looks at runs of espalier.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    show = commands.add_parser("show", help="print what a run has done")
    show.add_argument("run", metavar="RUN", help="directory of a run")
    show.set_defaults(command=lambda options: print("\n".join(_show(read_metrics(options.run)))))
    picture = commands.add_parser("plot", help="draw metrics of runs")
    picture.add_argument("runs", metavar="RUN", nargs="+", help="directories of runs")
    picture.add_argument("-o", "--out", metavar="FILE", required=True, help="picture to write: .png, .pdf or .svg")
    picture.add_argument("--keys", default="loss", help="names of metrics with commas between them (default: loss)")
    picture.add_argument("--x", default="step", help=f"x axis: {', '.join(AXES)} (default: step)")
    picture.add_argument("--smooth", type=float, default=0.0, help="0 to below 1: weight of the values before (0)")
    picture.add_argument("--logy", action="store_true", help="logarithmic y axes")
    picture.set_defaults(command=_plot)
    difference = commands.add_parser("compare", help="print where two runs differ")
    difference.add_argument("runs", metavar="RUN", nargs=2, help="directories of runs")
    difference.set_defaults(command=lambda options: print(compare(*options.runs)))
    return parser


def _plot(options: argparse.Namespace) -> None:
    keys = [key for key in options.keys.split(",") if key]
    if not keys:
        raise UsageError("--keys names no metric")
    plot(options.runs, keys, options.x, options.smooth, options.logy, options.out)
    print(options.out)


def _show(run: Metrics) -> Iterator[str]:
    """The lines of `show`."""
    yield f"run         {run.run}"
    if run.starts:
        yield from _setup(run.starts[-1])
    yield from _progress(run)
    yield from _starts(run)
    yield from _events(run)


def _setup(start: dict) -> Iterator[str]:
    mesh = " x ".join(f"{axis} {degree}" for axis, degree in start.get("mesh", {}).items() if degree > 1)
    yield f"version     {start.get('version', '?')}"
    yield f"deck        {start.get('deck', '?')}"
    ranks = start.get("ranks", "?")
    words = f"{ranks} rank{'s' if ranks != 1 else ''}{': ' + mesh if mesh else ''}"
    yield f"layout      {words}, {start.get('device', '?')}"
    yield f"parameters  {start.get('parameters', '?')}"


def _progress(run: Metrics) -> Iterator[str]:
    planned = f" of {run.starts[-1]['steps']}" if run.starts and "steps" in run.starts[-1] else ""
    done = int(run.steps[-1]) if len(run.steps) else 0
    tokens = f", {np.nanmax(run['tokens']):.0f} tokens" if done and "tokens" in run else ""
    yield f"steps       {done}{planned}{tokens}"
    for key in ("loss", "val_loss", "grad_norm"):
        if key in run and np.isfinite(run[key]).any():
            at = np.flatnonzero(np.isfinite(run[key]))
            low = at[np.argmin(run[key][at])]
            yield (f"{key:<11} {run[key][at[-1]]:.9g} at step {run.steps[at[-1]]}"
                   f" (lowest {run[key][low]:.9g} at step {run.steps[low]})")
    if len(speeds := _values(run, "tokens_per_s")):
        mfu = _values(run, "mfu")
        mfu = f", mfu {np.median(mfu):.3g}" if len(mfu) else ""
        yield f"speed       {np.median(speeds):.4g} tokens/s{mfu} (medians since the last start)"
        yield f"time        {run.time_s[-1]:.1f} s in steps"


def _values(run: Metrics, key: str) -> np.ndarray:
    """The finite values of a metric since the last start."""
    values = run[key][run.steps >= (run.starts[-1]["first_step"] if run.starts else 0)] if key in run else np.empty(0)
    return values[np.isfinite(values)]


def _starts(run: Metrics) -> Iterator[str]:
    firsts = ", ".join(str(start["first_step"]) for start in run.starts)
    given_up = len(run.history["step"])
    yield f"starts      {len(run.starts)}, at step{'s' if len(run.starts) != 1 else ''} {firsts or '-'}" + (
        f"; {given_up} steps were given up or done again" if given_up else "")
    last = next((event for event in reversed(run.events) if event["event"] == "checkpoint"), None)
    yield f"checkpoint  {'none' if last is None else 'step {step}: {dir}'.format(**last)}"
    ended = run.events[-1] if run.events and run.events[-1]["event"] == "end" else None
    yield f"ended       {'not yet, or killed' if ended is None else 'with exit status {status}'.format(**ended)}"


def _events(run: Metrics) -> List[str]:
    """Warnings and other unusual events."""
    lines = []
    for event in run.events:
        kind = event["event"]
        if kind in SHOWN_EVENTS:
            what = f"{event.get('key')}: {event.get('old')} is now {event.get('new')}" if kind == "changed" else str(
                event.get("reason", "")).replace("\n", "; ")
            step = f" step {event['step']}" if "step" in event else ""
            back = f", back to step {event['to']}" if "to" in event else ""
            lines.append(f"{kind:<11}{step}{back} {what}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
