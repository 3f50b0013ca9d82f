"""recompute.mode = "auto" in thirty layouts (defaults.py), simulated for budgets between the peaks of the fixed modes:
the peak fits, and the step is at most 0.1 % longer than that of the fastest fixed mode that fits; where only "full"
fits, so does "auto". The plan prints what it chose, and the same rules given by hand make the same plan.

    recompute.py                     the layouts of the test
    recompute.py measure [TEXT ...]  all, or those whose name holds a TEXT; prints every difference
"""
import json, os, sys, tempfile

from defaults import LAYOUTS
from support.runs import launch
from support.side_by_side import compare_all

AT_ONCE = 2
SLOWER = 0
MODES = ["none", "attention", "selective", "full"]
TEST = ["1b h200", "8b h100-8x400g dp_shard 16 cp 4", "70b h100-8x400g pp 8", "gpt3-6.7b h100-8x400g pp 4 tp 2"]


def plan(layout, keys):
    """The JSON of plan --cluster; exit status 4 only says that it does not fit a device."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        done = launch(1, ["plan", layout.deck, "--ranks", str(layout.ranks), "--cluster", layout.cluster, "--json",
                          path, *layout.keys, *keys])
        if done.returncode not in (0, 4):
            sys.exit(f"{layout.name} {' '.join(keys)}: exit status {done.returncode}\n{done.stdout}")
        with open(path) as file:
            return json.load(file)


def budgets(peaks, full):
    """Between the peaks of two modes, at a peak, and below all but the smallest. `full`: all of them."""
    distinct = sorted(set(peaks.values()))
    between = [(a + b) // 2 for a, b in zip(distinct, distinct[1:])]
    return sorted({distinct[0], *between, *distinct}) if full else [distinct[0], *between[-1:]]


def compare(layout, full):
    """Lines of a table, and what must hold: (text, whether it does)."""
    fixed = {mode: plan(layout, [f"recompute.mode={mode}"]) for mode in MODES}
    peaks = {mode: fixed[mode]["peak_bytes"] for mode in MODES}
    lines, checks = [], []
    for budget in budgets(peaks, full):
        auto = plan(layout, ["recompute.mode=auto", f"recompute.budget={budget}"])
        fits = {mode: fixed[mode]["step_ms"] for mode in MODES if peaks[mode] <= budget}
        best = min(fits, key=fits.get)
        gain = 1 - auto["step_ms"] / fits[best]
        made = auto["recompute"]
        lines.append(f"{layout.name:<60} {budget / 1e9:7.2f} GB {auto['peak_bytes'] / 1e9:7.2f} "
                     f"{best:<9} {fits[best]:10.2f} ms {auto['step_ms']:10.2f} {100 * gain:6.2f} % "
                     f"{made['compilations']:3}")
        checks += [(f"{layout.name}, {budget} bytes: the peak fits", auto["peak_bytes"] <= budget),
                   (f"{layout.name}, {budget} bytes: {auto['step_ms']:.3f} ms is not longer than {best}, "
                    f"{fits[best]:.3f} ms", gain >= -SLOWER)]
        stated = max(stage["peak_bytes"] for stage in made["stages"])
        checks.append((f"{layout.name}, {budget} bytes: the choice states the peak", stated == auto["peak_bytes"]))
    hand = plan(layout, [f"recompute.mode={made['mode']}", f"recompute.layers={json.dumps(made['layers'])}"])
    checks.append((f"{layout.name}: the rules by hand make the same plan",
                   hand["rank_peak_bytes"] == auto["rank_peak_bytes"] and hand["step_ms"] == auto["step_ms"]))
    return lines, checks


def main():
    measures, texts = sys.argv[1:2] == ["measure"], sys.argv[2:]
    chosen = [layout for layout in LAYOUTS if any(layout.name.startswith(text) for text in TEST)]
    if measures:
        chosen = [layout for layout in LAYOUTS if not texts or any(text in layout.name for text in texts)]
    compare_all(chosen, lambda layout: compare(layout, measures), AT_ONCE)


if __name__ == "__main__":
    main()
