"""The batch ramp: a run whose batch grows is, bit for bit, a chain of runs with constant sizes, each from the
checkpoint of the previous one; in every kind of layout, in models of random sizes, at restarts in the middle, and with
another ramp from a checkpoint on. Several layouts train as one rank does. The planned peak of every rank is the used
one.
ESPALIER_DEVICE=cuda sends the runs to a device, ESPALIER_TRANSPORT=nccl their messages over NCCL."""
import json, os, re

from support.checkpoints import same_bits, tensors
from support.runs import Checks, DECK, ON_DEVICE, difference, launch, planned_peaks, scratch, train
from support.sizes import Sizes

RTOL = 1e-5
# Rates do not depend on run.steps.
BASE = ["model.layers=4", "lr.decay_steps=20", "optimizer.eps=1e-6", "checkpoint.restart=auto", "checkpoint.keep=100"]
STEPS, LENGTH = 8, 24
SEQUENCE = f"model.seq_len={LENGTH}"


class Ramp:
    """`each` steps with every size."""

    def __init__(self, start, step, end, each):
        self.start, self.step, self.end, self.each = start, step, end, each
        self.keys = [f"batch.global={end}", f"batch.ramp_start={start}", f"batch.ramp_step={step}",
                     f"batch.ramp_steps={each}"]

    def of(self, step):
        return min(self.end, self.start + (step - 1) // self.each * self.step)

    def sizes(self, steps):
        """(size, its last step) for a run of `steps` steps."""
        all = [self.of(step) for step in range(1, steps + 1)]
        return [(size, max(s for s in range(1, steps + 1) if all[s - 1] == size)) for size in sorted(set(all))]

    def __str__(self):
        return f"{self.start} to {self.end} by {self.step} every {self.each} steps"


V = ["pipeline.schedule=zbv"]
# Ranks, keys, ramp. A step of one microbatch stores gradients; other steps accumulate them.
LAYOUTS = {
    "one rank": (1, [], Ramp(1, 2, 5, 2)),
    "dp_shard 2": (2, ["parallel.dp_shard=2"], Ramp(2, 4, 10, 3)),
    "hsdp 2 x 2, microbatch": (4, ["parallel.dp_replicate=2", "parallel.dp_shard=2", "parallel.zero=2"],
                               Ramp(4, 4, 12, 2)),
    "tp 2": (2, ["parallel.tp=2"], Ramp(1, 2, 5, 2)),
    "cp 2": (2, ["parallel.cp=2"], Ramp(3, 1, 5, 2)),
    "pp 2, 1f1b": (2, ["parallel.pp=2"], Ramp(1, 3, 7, 2)),
    "pp 2, zbv": (2, ["parallel.pp=2", *V], Ramp(3, 2, 7, 2)),
    "pp 2 x dp 2 x tp 2": (8, ["parallel.pp=2", "parallel.dp_shard=2", "parallel.tp=2"], Ramp(2, 4, 10, 2)),
}
ON_GPUS = ("one rank", "dp_shard 2", "pp 2, zbv")  # rows for emulated GPUs, which are slow


def manifest(checkpoint, name):
    with open(os.path.join(checkpoint, "MANIFEST")) as file:
        return int(re.search(rf"^{name} (\d+)$", file.read(), re.M)[1])


def events(run, event):
    with open(os.path.join(run.dir, "metrics.jsonl")) as file:
        return [line for line in map(json.loads, file) if line.get("event") == event]


def same(mine, theirs, first=1):
    return all(mine.curve(key, first) == theirs.curve(key, first) for key in ("loss", "grad_norm", "lr"))


def by_hand(home, name, ranks, keys, ramp):
    """The chain of runs: one start for each size."""
    for size, last in ramp.sizes(STEPS):
        run = train(home(name), ranks, [*keys, f"batch.global={size}", f"run.steps={last}"])
    return run


def check_layout(checks, home, sizes, name, ranks, keys, ramp):
    keys = [*BASE, SEQUENCE, *keys, *sizes.draw([SEQUENCE, *keys])]
    grown = train(home(f"{name}-grown"), ranks, [*keys, *ramp.keys, f"run.steps={STEPS}"])
    chained = by_hand(home, f"{name}-hand", ranks, keys, ramp)
    what = f"{name}, {ramp}, {' '.join(keys)}"
    checks.that(len(grown.steps) == len(chained.steps) == STEPS and same(grown, chained),
                f"{what}: losses, norms and rates of a start for each size, bitwise")
    checks.that(same_bits(tensors(grown.checkpoint(STEPS)), tensors(chained.checkpoint(STEPS))),
                f"{what}: weights and moments of a start for each size, bitwise")
    read = sum(map(ramp.of, range(1, STEPS + 1)))
    counted = [manifest(run.checkpoint(STEPS), "samples") for run in (grown, chained)]
    checks.that(counted == [read, read], f"{what}: {read} samples are consumed {counted}")
    planned = planned_peaks(home(""), ranks, [*keys, *ramp.keys])
    checks.that(grown.end["rank_peak_bytes"] == planned, f"{what}: planned peak is what was used")
    check_report(checks, what, grown, ramp)
    halves = home(f"{name}-halves")
    for steps in (3, STEPS):  # in the middle of a size, or at its end
        half = train(halves, ranks, [*keys, *ramp.keys, f"run.steps={steps}"])
    checks.that(same(half, grown) and same_bits(tensors(half.checkpoint(STEPS)), tensors(grown.checkpoint(STEPS))),
                f"{what}: continued after step 3, bitwise")


def check_report(checks, what, run, ramp):
    sequences = [ramp.of(step) for step in range(1, STEPS + 1)]
    checks.that(run.curve("sequences") == sequences and
                run.curve("tokens") == [LENGTH * sum(sequences[:step + 1]) for step in range(STEPS)],
                f"{what}: sequences and tokens of each step are reported")
    grows = [(event["step"], event["sequences"]) for event in events(run, "batch")]
    checks.that(grows == [(s, ramp.of(s)) for s in range(2, STEPS + 1) if ramp.of(s) != ramp.of(s - 1)],
                f"{what}: the steps at which the batch grows are reported {grows}")


def check_parallel(checks, home):
    """Layouts of one ramp against one rank."""
    ramp = Ramp(4, 4, 12, 3)
    keys = [*BASE, *ramp.keys, f"run.steps={STEPS}"]
    one = train(home("serial"), 1, keys)
    for name, (ranks, degrees, _) in LAYOUTS.items():
        if ranks > 1 and (not ON_DEVICE or name in ON_GPUS):
            run = train(home(f"{name}-parallel"), ranks, [*keys, *degrees])
            far = max(difference(run.curve(key), one.curve(key)) for key in ("loss", "grad_norm"))
            checks.that(far <= RTOL, f"{name}, {ramp}: losses and norms of one rank to {far:.1e}")


def check_changed(checks, home):
    """Another ramp, or none, from a checkpoint on: sizes follow the step's number, samples continue after the ones
    already read."""
    ramp, at = Ramp(1, 2, 5, 2), 3
    first = [*BASE, *ramp.keys, "data.shuffle=false"]
    saved = train(home("changed"), 1, [*first, f"run.steps={at}"]).checkpoint(at)
    read = sum(map(ramp.of, range(1, at + 1)))
    for other in (Ramp(1, 1, 5, 1), Ramp(3, 3, 9, 2)):
        name = f"changed-{other.end}"
        on = train(home(name), 1, [*first, *other.keys, "run.steps=6"], flags=["-r", saved])
        keys = {event["key"] for event in events(on, "changed")}
        expected = {f"batch.{key}" for key, before, now in (("global", ramp.end, other.end),
                    ("ramp_start", ramp.start, other.start), ("ramp_step", ramp.step, other.step),
                    ("ramp_steps", ramp.each, other.each)) if before != now}
        checks.that(expected <= keys, f"another ramp, {other}: the changes are reported {sorted(keys)}")
        checks.that(on.curve("sequences") == [other.of(step) for step in (4, 5, 6)],
                    f"another ramp, {other}: sizes follow the steps {on.curve('sequences')}")
        consumed = read + sum(other.of(step) for step in (4, 5, 6))
        counted = manifest(on.checkpoint(6), "samples")
        checks.that(counted == consumed, f"another ramp, {other}: {counted} samples, after {read} of the first")
        hand = saved
        for step in (4, 5, 6):
            by = train(home(f"{name}-hand-{step}"), 1, [*first, f"batch.global={other.of(step)}", "batch.ramp_start=0",
                                                        f"run.steps={step}"], flags=["-r", hand])
            hand = by.checkpoint(step)
            checks.that(by.curve("loss") == on.curve("loss")[step - 4:step - 3],
                        f"another ramp, {other}: step {step} is that of a start with its size, bitwise")


def check_plan(checks, home):
    """A plan shows how the batch grows, and its peak is the largest of all sizes."""
    ramp, path = Ramp(2, 2, 6, 3), home("plan.json")
    keys = ["parallel.pp=2", "run.device=cpu", *ramp.keys]
    text = launch(1, ["plan", DECK, "--ranks", "2", "--json", path, *keys]).stdout
    with open(path) as file:
        plan = json.load(file)
    expected = [{"first_step": first, "sequences": n, "microbatches": n} for first, n in ((1, 2), (4, 4), (7, 6))]
    checks.that(plan["batch_sizes"] == expected and
                "batch       2 sequences a step, 2 more every 3 steps, 6 from step 7 on\n" in text,
                f"plan: how the batch grows {plan['batch_sizes']}")
    alone = [planned_peaks(home(""), 2, ["parallel.pp=2", "run.device=cpu", f"batch.global={n}"]) for n in (2, 4, 6)]
    checks.that(plan["rank_peak_bytes"] == [max(peaks) for peaks in zip(*alone)],
                f"plan: peaks are the largest of the sizes alone {alone}")


def check_trace(checks, home):
    """Traces follow the program that runs: larger steps have more instructions."""
    ramp = Ramp(2, 2, 6, 2)
    keys = [*BASE, "parallel.pp=2", *ramp.keys, "run.steps=6"]
    run = train(home("trace"), 2, [*keys, "report.trace=1:6", f"report.costs='{home('costs.toml')}'"])
    spans = []
    for step in range(1, 7):
        with open(os.path.join(run.dir, "trace", f"step-{step:08d}.json")) as file:
            spans.append(sum(event.get("ph") == "X" for event in json.load(file)["traceEvents"]))
    checks.that(spans[0] == spans[1] < spans[2] == spans[3] < spans[4] == spans[5],
                f"traces of steps 1 to 6 have the instructions of their program {spans}")
    checks.that(os.path.getsize(home("costs.toml")) > 0, "times of kernels are measured in steps of any size")
    plain = train(home("plain"), 2, keys)
    checks.that(same(plain, run), "with or without a trace: bitwise")


def main():
    checks, sizes = Checks(), Sizes()
    with scratch() as folder:
        home = lambda name: os.path.join(folder, re.sub(r"[^\w.-]+", "-", name))
        for name, layout in LAYOUTS.items():
            if not ON_DEVICE or name in ON_GPUS:
                check_layout(checks, home, sizes, name, *layout)
        check_parallel(checks, home)
        if not ON_DEVICE:
            check_plan(checks, home)
            check_changed(checks, home)
            check_trace(checks, home)
    checks.finish()


main()
