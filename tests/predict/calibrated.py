"""Predictions from measured times: calibrates this machine, predicts steps with `espalier simulate`, and runs them.

As a test it checks what files and predictions hold, never a time. `calibrated.py measure [GROUP ...]` prints predicted
over measured step time for shapes that were not calibrated; it wants a quiet machine (doc/calibrate.md). In each group
the calibration, the prediction and the run follow one another, and this is done several times, since machines drift:
the median of the predictions over the median of the runs counts.
"""
import json, os, re, statistics, sys, tempfile, tomllib

from support.runs import Checks, DECK, Metrics, ROOT, launch

TINY, LLAMA, GPT2 = (os.path.join(ROOT, "inputs", *path) for path in
                     (("llama", "tiny.toml"), ("llama", "124m.toml"), ("gpt2", "124m.toml")))
SOURCES = ("measured", "interpolated", "formula")
ON_CPU = ["run.device=cpu"]
TEXT = ["data.format=text", f"data.paths=[\"{ROOT}/src/**/*.cpp\", \"{ROOT}/include/**/*.hpp\"]"]
ALONE = ["parallel.pp=1", "parallel.dp_shard=1", "parallel.tp=1"]
SHARDED = ["parallel.pp=1", "parallel.dp_shard=2", "parallel.tp=1"]
STAGES = ["parallel.pp=2", "parallel.dp_shard=1", "parallel.tp=1"]
TENSOR = ["parallel.pp=1", "parallel.dp_shard=1", "parallel.tp=2"]
ROUNDS, ROUNDS_OF_TINY = 3, 9  # a tiny step takes milliseconds, so that it meets the noise of a moment


def sizes(micro, seq_len, sequences):
    return [f"batch.micro={micro}", f"model.seq_len={seq_len}", f"batch.global={sequences}"]


class Group:
    """A deck on so many ranks: sizes to calibrate, sizes to predict, and steps to run."""

    def __init__(self, name, ranks, deck, layout, calibrated, predicted, steps):
        self.name, self.ranks, self.deck, self.calibrated, self.steps = name, ranks, deck, calibrated, steps
        self.common = [*ON_CPU, *layout, *TEXT]
        self.predicted = predicted


# Calibrated are a shape and its neighbours; predicted are sizes between them.
GROUPS = [
    Group("tiny", 1, TINY, ALONE, sizes(2, 128, 8), {
        "micro 3, seq_len 128": sizes(3, 128, 12),
        "micro 2, seq_len 192": sizes(2, 192, 8),
        "micro 1, seq_len 160": sizes(1, 160, 4)
    }, 60),
    Group("llama-124m", 1, LLAMA, ["parallel.dp_shard=1"], sizes(1, 256, 2), {
        "micro 1, seq_len 384": sizes(1, 384, 2),
        "micro 1, seq_len 192": sizes(1, 192, 4)
    }, 12),
    Group("gpt2-124m", 1, GPT2, ["parallel.dp_shard=1"], sizes(1, 256, 2), {"micro 1, seq_len 384": sizes(1, 384, 2)},
          12),
    Group("tiny-dp", 2, TINY, SHARDED, sizes(2, 128, 8), {"micro 3, seq_len 128": sizes(3, 128, 12)}, 60),
    Group("tiny-pp", 2, TINY, STAGES, sizes(2, 128, 16), {"micro 3, seq_len 128": sizes(3, 128, 24)}, 60),
    Group("tiny-tp", 2, TINY, TENSOR, sizes(2, 128, 8), {"micro 3, seq_len 128": sizes(3, 128, 12)}, 60),
    Group("llama-124m-dp", 2, LLAMA, ["parallel.dp_shard=2"], sizes(1, 256, 4),
          {"micro 1, seq_len 384": sizes(1, 384, 4)}, 12),
]


def succeed(ranks, arguments, timeout=3000):
    done = launch(ranks, arguments, timeout)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def calibrate(cluster, ranks, deck, overrides, *flags):
    return succeed(ranks, ["calibrate", cluster, "--deck", deck, *flags, *overrides])


def simulate(cluster, ranks, deck, overrides, folder):
    path = os.path.join(folder, "step.json")
    succeed(1, ["simulate", deck, "--ranks", str(ranks), "--cluster", cluster, "--json", path, *overrides])
    with open(path) as file:
        return json.load(file)


def steps_ms(folder, ranks, deck, overrides, steps):
    """Step times of a run but for the first ones."""
    run_dir = os.path.join(folder, "run")
    succeed(ranks, [
        "run", deck, "-d", run_dir, f"run.steps={steps}", "lr.warmup_steps=1", "checkpoint.restart=never",
        "report.every_steps=1000", *overrides
    ])
    times = Metrics(run_dir).curve("step_ms", first=3)
    return times


def rows(cluster, kind):
    with open(cluster) as file:
        return len(re.findall(rf"^\[\[{kind}\]\]$", file.read(), re.MULTILINE))


# Figures.


def measure_round(group, folder):
    """{shape: (predicted ms, median ms, fastest ms, shares by source)}."""
    cluster = os.path.join(folder, f"{group.name}.toml")
    if os.path.exists(cluster):
        os.remove(cluster)
    print(calibrate(cluster, group.ranks, group.deck, [*group.common, *group.calibrated], "--neighbours"), flush=True)
    found = {}
    for shape, overrides in group.predicted.items():
        overrides = [*group.common, *overrides]
        predicted = simulate(cluster, group.ranks, group.deck, overrides, folder)
        with tempfile.TemporaryDirectory() as run:
            times = steps_ms(run, group.ranks, group.deck, overrides, group.steps)
        found[shape] = (predicted["step_ms"], statistics.median(times), min(times), predicted["sources"])
    return found


def report(group, rounds):
    for shape in group.predicted:
        of_shape = [found[shape] for found in rounds]
        ratio = statistics.median(found[0] for found in of_shape) / statistics.median(found[1] for found in of_shape)
        each = ", ".join(f"{predicted / median:.3f}" for predicted, median, _, _ in of_shape)
        predicted, median, fastest, sources = of_shape[-1]
        shares = ", ".join(f"{100 * sources[s]:.1f} % {s}" for s in SOURCES)
        print(f"{group.name:<14} {group.ranks} rank{'s' if group.ranks > 1 else ' '} {shape}: "
              f"predicted / measured {ratio:.3f} (rounds {each}); last {predicted:.1f} / {median:.1f} ms, "
              f"fastest {fastest:.1f}; {shares}",
              flush=True)


def measure(names):
    for group in GROUPS:
        if names and group.name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            rounds = ROUNDS_OF_TINY if group.deck == TINY else ROUNDS
            report(group, [measure_round(group, folder) for _ in range(rounds)])


# The test.

SMALL = [*ON_CPU, "run.threads=1", "lr.warmup_steps=1"]


def calibrated_shape_is_measured(checks, folder):
    """One rank: every kernel of the calibrated shape has a row, so that nothing is left to formulas."""
    cluster = os.path.join(folder, "one.toml")
    printed = calibrate(cluster, 1, DECK, SMALL)
    checks.that("spread" in printed and f"{rows(cluster, 'kernel')} kernels" in printed, "calibrate says what it did")
    step = simulate(cluster, 1, DECK, SMALL, folder)
    checks.that(step["step_ms"] > 0 and step["sources"]["measured"] == 1.0, f"all is measured: {step['sources']}")
    other = simulate(cluster, 1, DECK, [*SMALL, "batch.micro=2"], folder)
    shares = other["sources"]
    checks.that(shares["interpolated"] > 0.5 and abs(sum(shares.values()) - 1) < 1e-9,
                f"another shape is interpolated: {shares}")
    with open(cluster, "rb") as file:
        host = tomllib.load(file)["host"]
    checks.that(all(host[key] > 0 for key in ("out_bytes_per_us", "in_bytes_per_us", "dram_bytes_per_us", "copy_us")),
                f"the link to the host is measured: {host}")
    moved = simulate(cluster, 1, DECK, [*SMALL, "offload.optimizer=all"], folder)
    checks.that(moved["step_ms"] > step["step_ms"], "copies by these rates take time")
    far = simulate(cluster, 1, DECK, [*SMALL, "model.vocab=65536", "batch.micro=8"], folder)
    checks.that(far["sources"]["formula"] > 0, f"far sizes go by formulas: {far['sources']}")


def load_is_measured(checks, folder):
    """--steady: what is left of the rates of formulas."""
    cluster = os.path.join(folder, "steady.toml")
    printed = calibrate(cluster, 1, DECK, SMALL, "--steady", "1")
    with open(cluster, "rb") as file:
        share = tomllib.load(file)["device"].get("sustained_share", 1)  # 1 is the default
    said = re.search(r"^load .* ([\d.e+]+) ms in the first .*\(burst\), ([\d.e+]+) ms .*\(steady\)", printed,
                     re.MULTILINE)
    expected = min(1, float(said[1]) / float(said[2]))
    checks.that(0 < share <= 1 and abs(share - expected) < 1e-3, f"burst {said[1]}, steady {said[2]}: {share}")
    step = simulate(cluster, 1, DECK, SMALL, folder)
    checks.that(step["sources"]["measured"] == 1.0, f"rows are of the load's end: {step['sources']}")
    again = launch(1, ["calibrate", cluster, "--deck", DECK, *SMALL, "--steady", "1"])
    checks.that(again.returncode == 2 and "its keys stay as they are" in again.stdout, "not in a file that exists")


def neighbours_are_calibrated(checks, folder):
    cluster = os.path.join(folder, "neighbours.toml")
    printed = calibrate(cluster, 1, DECK, SMALL, "--neighbours")
    decks = [line for line in printed.splitlines() if line.startswith("deck ")]
    checks.that(len(decks) >= 4, f"the deck and its neighbours: {len(decks)} shapes")
    twice = simulate(cluster, 1, DECK, [*SMALL, "batch.micro=2"], folder)
    checks.that(twice["sources"]["measured"] > 0.9, f"twice the microbatch is measured: {twice['sources']}")


def messages_are_measured(checks, folder):
    """Two ranks: transfers in their place."""
    cluster = os.path.join(folder, "two.toml")
    overrides = [*SMALL, *SHARDED]
    printed = calibrate(cluster, 2, DECK, overrides)
    checks.that("transfers   all_gather" in printed and rows(cluster, "collective") >= 6, "every kind of transfer")
    step = simulate(cluster, 2, DECK, overrides, folder)
    checks.that(step["sources"]["formula"] < 0.01, f"little goes by formulas: {step['sources']}")
    alone = launch(1, ["calibrate", cluster, "--deck", DECK, *SMALL])
    checks.that(alone.returncode == 2 and "cluster.ranks_per_node = 2, and this machine has 1" in alone.stdout,
                "a file of two ranks per node takes no rows of one")


def runs_add_rows(checks, folder):
    """report.costs: a new file, then more rows; comments stay."""
    cluster = os.path.join(folder, "run.toml")
    run = ["run", DECK, *SMALL, "run.steps=6", f"report.costs={cluster}"]
    printed = succeed(1, [*run, "-d", os.path.join(folder, "first")])
    first = rows(cluster, "kernel")
    checks.that(f"times of {first} kernels, {first} of them new, " in printed and first > 10,
                f"a run makes a file of {first} kernels")
    with open(cluster) as file:
        text = file.read()
    with open(cluster, "w") as file:
        file.write("# by hand\n" + text)
    succeed(1, [*run, "-d", os.path.join(folder, "second"), "batch.micro=2"])
    with open(cluster) as file:
        checks.that(file.readline() == "# by hand\n" and rows(cluster, "kernel") > first, "another run adds to it")
    step = simulate(cluster, 1, DECK, [*SMALL, "batch.micro=2"], folder)
    checks.that(step["sources"]["measured"] == 1.0, f"predicted from both: {step['sources']}")


def wrong_files_are_refused_at_the_start(checks, folder):
    cluster = os.path.join(folder, "wrong.toml")
    with open(cluster, "w") as file:
        file.write("[cluster]\nname = 5\n")
    for arguments in (["run", DECK, *SMALL, f"report.costs={cluster}", "-d", os.path.join(folder, "no")],
                      ["calibrate", cluster, "--deck", DECK, *SMALL]):
        done = launch(1, arguments)
        checks.that(done.returncode == 2 and f"{cluster}:2: cluster.name = 5: must be a string" in done.stdout,
                    f"{arguments[0]} refuses a wrong file")
    checks.that(not os.path.exists(os.path.join(folder, "no", "metrics.jsonl")), "no step was made")


def main():
    if sys.argv[1:2] == ["measure"]:
        return measure(sys.argv[2:])
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        checks.each([
            calibrated_shape_is_measured, load_is_measured, neighbours_are_calibrated, messages_are_measured,
            runs_add_rows, wrong_files_are_refused_at_the_start
        ], folder)
    checks.finish()


main()
