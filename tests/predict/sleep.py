"""Runs that wait (run.device = "sleep") against `espalier simulate`.

As a test it checks what waiting guarantees, and what does not depend on times. `sleep.py measure [NAME ...]` prints
predicted and measured step time and exposed communication of every layout below; it wants a machine without other work.
Each run has eleven steps of about STEP_S seconds. The first is left out, and the medians of the other ten count. The
exposed communication is that of rank 0, in percent of the step, by the same definition on both sides (BreakDown). Where
values are on the host, the hidden share of the copies of rank 0 follows. `sleep.py ordered [NAME ...]` measures the
layouts without copies with programs that run.costs has put in order: strips, joint jobs, windows of cp.
"""
import os, signal, statistics, subprocess, sys, tempfile, time

from support.runs import Checks, ENVIRONMENT, Metrics, executable, launch, launcher
from support.sleeping import CLUSTER, DECK, here, predict, sleep

STEP_S = 6
STEPS = 11


def layout(pp=1, dp=1, tp=1, cp=1, replicate=1, schedule="1f1b", chunks=1, more=()):
    return [f"parallel.pp={pp}", f"parallel.dp_shard={dp}", f"parallel.tp={tp}", f"parallel.cp={cp}",
            f"parallel.dp_replicate={replicate}", f"pipeline.schedule={schedule}", f"pipeline.chunks={chunks}", *more]


# name: ranks, overrides
LAYOUTS = {
    "pp4-tp2": (8, layout(pp=4, tp=2)),
    "pp2-dp4-gpipe": (8, layout(pp=2, dp=4, schedule="gpipe", more=["batch.global=16"])),
    "dp4-tp2": (8, layout(dp=4, tp=2)),
    "dp2-pp4-interleaved": (8, layout(pp=4, dp=2, schedule="interleaved", chunks=2, more=["batch.global=16"])),
    "cp4-tp2-ring": (8, layout(cp=4, tp=2, more=["batch.global=2"])),
    "pp8-zbv": (8, layout(pp=8, schedule="zbv", chunks=2, more=["batch.global=16"])),
    "pp4-tp2-dp2-zbh1": (16, layout(pp=4, tp=2, dp=2, schedule="zb-h1", more=["batch.global=16"])),
    "pp8-tp2-dualpipev": (16, layout(pp=8, tp=2, schedule="dualpipev", chunks=2, more=["batch.global=16"])),
    "pp4-tp4-interleaved": (16, layout(pp=4, tp=4, schedule="interleaved", chunks=2)),
    "pp2-cp2-dp4": (16, layout(pp=2, cp=2, dp=4, more=["batch.global=16"])),
    "dp8-replicate2": (16, layout(dp=8, replicate=2, more=["batch.global=16"])),
    "tp8-dp2": (16, layout(tp=8, dp=2, more=["batch.global=4"])),
    "offload-state": (1, layout(more=["offload.optimizer=all"])),
    "offload-activations": (2, layout(tp=2, more=["offload.activations=all"])),
    "offload-weights": (2, layout(dp=2, more=["parallel.zero=3", "offload.parameters=all", "offload.gradients=all"])),
    "offload-all": (4, layout(pp=2, dp=2, schedule="zbv", chunks=2,
                              more=[f"offload.{what}=all" for what in ("optimizer", "activations", "parameters",
                                                                       "gradients")])),
}


def ordered(overrides):
    """The same layout with all that the times of run.costs put in order there."""
    keys = dict(key.split("=", 1) for key in overrides)
    more = [f"run.costs={CLUSTER}"]
    if keys["parallel.tp"] != "1":
        more.append("overlap.tensor_strips=2")
    if keys["parallel.pp"] != "1" and keys["pipeline.schedule"] in ("1f1b", "interleaved", "dualpipev"):
        more.append("overlap.interleave=true")
    if keys["parallel.cp"] != "1":
        more.append("parallel.context=all_gather")
    return [*overrides, *more]


def exposed_of(rank):
    return sum(rank["exposed_ms"].values())


def hidden_copies(rank):
    """The share of the time of copies to and from the host that is hidden."""
    hidden, exposed = rank["hidden_ms"]["host"], rank["exposed_ms"]["host"]
    return hidden / (hidden + exposed)


# Measuring.


def measure(name, changed=lambda overrides: overrides):
    ranks, overrides = LAYOUTS[name][0], changed(LAYOUTS[name][1])
    with tempfile.TemporaryDirectory() as folder:
        predicted = predict(folder, ranks, overrides)
        dilation = STEP_S * 1e3 / predicted["step_ms"]
        run = os.path.join(folder, "run")
        sleep(run, ranks, [*overrides, f"run.steps={STEPS}", f"run.dilation={dilation}"], timeout=60 * STEPS)
        metrics = Metrics(run)
    step_ms = statistics.median(metrics.curve("step_ms", first=2))
    exposed = statistics.median(metrics.curve("exposed_comm_ms", first=2)) / step_ms
    error = predicted["step_ms"] / step_ms - 1
    exposed_predicted = exposed_of(predicted["by_rank"][0]) / predicted["step_ms"]
    spread = [100 * (extreme(metrics.curve("step_ms", first=2)) / step_ms - 1) for extreme in (min, max)]
    print(f"{name:<22}{ranks:>6}{predicted['step_ms']:>14.3f}{step_ms:>13.3f}{100 * error:>+9.2f}"
          f"{spread[0]:>+9.2f}{spread[1]:>+7.2f}{100 * exposed_predicted:>12.2f}{100 * exposed:>10.2f}", flush=True)
    return abs(error), max(abs(exposed - exposed_predicted), measure_copies(predicted["by_rank"][0], metrics))


def measure_copies(predicted, metrics):
    """The error of the hidden share of copies; 0 if there are none."""
    if "host" not in predicted["exposed_ms"]:
        return 0
    expected = hidden_copies(predicted)
    measured = statistics.median(hidden_copies(line) for step, line in metrics.steps.items() if step >= 2)
    print(f"{'':<22}{100 * expected:.2f} % of the copies are hidden as predicted, {100 * measured:.2f} % as measured",
          flush=True)
    return abs(measured - expected)


def measure_all(names, changed=lambda overrides: overrides):
    print(f"{'':<22}{'':>6}{'step, ms':>27}{'error':>9}{'min':>9}{'max':>7}{'exposed, %':>22}")
    print(f"{'layout':<22}{'ranks':>6}{'predicted':>14}{'measured':>13}{'%':>9}{'%':>9}{'%':>7}"
          f"{'predicted':>12}{'measured':>10}")
    errors = [measure(name, changed) for name in names]
    print(f"largest error of the step {100 * max(e for e, _ in errors):.2f} %, "
          f"of exposed communication or hidden copies {100 * max(e for _, e in errors):.2f} percentage points")
    return 0 if all(step <= 0.02 and exposed <= 0.03 for step, exposed in errors) else 1


# As a test.


def check_layout(checks, folder, name, ranks, overrides, dilation):
    predicted = predict(folder, ranks, overrides)
    run = os.path.join(folder, name)
    done = sleep(run, ranks, [*overrides, "run.steps=2", f"run.dilation={dilation}", "data.validate_every_steps=1",
                              "data.validation=[\"none.bin\"]", "checkpoint.every_steps=1"])
    metrics = Metrics(run)
    start, steps = metrics.starts[0], metrics.steps
    checks.that(sorted(steps) == [1, 2], f"{name}: it has two steps")
    checks.that(all(line["loss"] is None and line["grad_norm"] is None for line in steps.values()),
                f"{name}: loss and gradient norm are null")
    checks.that(start["device"] == "sleep" and start["dilation"] == dilation and start["cluster"] == CLUSTER,
                f"{name}: the start says what it is")
    for line in steps.values():
        mine = predicted["by_rank"][0]
        checks.that(abs(line["compute_ms"] / mine["compute_ms"] - 1) < 1e-3,
                    f"{name}: kernels take their costs: {line['compute_ms']} ms, predicted {mine['compute_ms']:.3f} ms")
        parts = line["compute_ms"] + line["exposed_comm_ms"] + line["idle_ms"]
        checks.that(line["compute_ms"] <= parts <= line["step_ms"] + 0.01,
                    f"{name}: the parts of a step are {parts:.3f} of {line['step_ms']} ms")
        checks.that(abs(exposed_of(line) - line["exposed_comm_ms"]) < 0.01, f"{name}: exposed time is that of its axes")
        for axis, exposed in line["exposed_ms"].items():
            transfers = exposed + line["hidden_ms"][axis]
            expected = mine["exposed_ms"][axis] + mine["hidden_ms"][axis]
            checks.that(abs(transfers - expected) <= 0.01 + 0.05 * expected,
                        f"{name}: {axis} transfers for {transfers:.3f} ms, predicted {expected:.3f} ms")
    said = [text for text in done.stdout.splitlines() if text.startswith("messages ")]
    checks.that(len(said) == 1 and "% hidden" in said[0] and said[0].endswith("(rank 0, one step)"),
                f"{name}: it ends with {said}")
    checks.that(metrics.end["rank_peak_bytes"] == [rank["peak_bytes"] for rank in predicted["by_rank"]],
                f"{name}: every rank uses the bytes of the plan: {metrics.end['rank_peak_bytes'][0]}")
    checks.that(metrics.end["status"] == 0 and not metrics.validation, f"{name}: it ends well, and validates nothing")
    checks.that(not os.path.exists(os.path.join(run, "checkpoints")), f"{name}: there are no checkpoints")
    for words in ("nothing is computed or trained", "no checkpoint is read or written", "validation is left out"):
        checks.that(done.stdout.count(words) == 1, f"{name}: it says once that {words}")


def check_layouts(checks):
    with tempfile.TemporaryDirectory() as folder:
        check_layout(checks, folder, "pp2-tp2", 4, layout(pp=2, tp=2, more=["model.layers=2", "batch.global=2"]), 2)
        check_layout(checks, folder, "dp2-cp2", 4, layout(dp=2, cp=2, more=["model.layers=2", "batch.global=2"]), 2)
        check_layout(checks, folder, "offload", 2, layout(pp=2, more=["model.layers=4", "batch.global=2",
                                                                      *LAYOUTS["offload-all"][1][-4:]]), 2)


def check_program(checks):
    """The waiting programs are the ones that would run on the cluster's GPUs."""
    lines = {device: launch(1, ["plan", DECK, "--ranks", "2", "--program", "1", f"run.device={device}",
                                *here(layout(pp=2, more=["model.layers=2", "batch.global=2"]))]).stdout
             for device in ("sleep", "cuda", "cpu")}
    checks.that(lines["sleep"] == lines["cuda"] != lines["cpu"], "the program of a run that waits is the cluster's")
    done = launch(1, ["plan", DECK, "--ranks", "2", *here(layout(pp=2))])
    checks.that("planned for cuda" in done.stdout and "run.device = \"sleep\"" in done.stdout,
                "plan says what it is planned for")
    done = launch(1, ["check", DECK, *here([])])
    checks.that(done.returncode == 0 and "its programs are those of cuda" in done.stdout, "check says it too")


def check_errors(checks):
    small = layout(pp=2, more=["model.layers=2", "batch.global=2"])
    with tempfile.TemporaryDirectory() as folder:
        broken = os.path.join(folder, "broken.toml")
        with open(broken, "w") as file:
            file.write("[cluster]\nname = \"x\"\ndevices = \"cuda\"\n")
        trained = os.path.join(folder, "trained")
        os.makedirs(os.path.join(trained, "checkpoints"))
        for what, overrides, words in (
            ("no cluster file", ["run.cluster=\"\""], "needs run.cluster = FILE"),
            ("a missing cluster file", ["run.cluster=missing.toml"], "missing.toml"),
            ("a broken cluster file", [f"run.cluster={broken}"], "cluster.devices"),
            ("a checkpoint to read", ["checkpoint.restart=required"], "reads no checkpoint"),
            ("the directory of another run", [f"run.dir={trained}"], "needs a directory of its own"),
        ):
            done = launch(2, ["run", DECK, f"run.dir={folder}/run", *here([*small, *overrides])], 60)
            checks.that(done.returncode == 2 and done.stdout.count(words) == 1, f"{what} is refused once: {words}")
        for command in (["plan", DECK], ["check", DECK]):
            done = launch(1, [*command, "run.cluster=missing.toml"])
            checks.that(done.returncode == 2 and "missing.toml" in done.stdout, f"{command[0]} without its cluster")


def check_hang(checks):
    """The watchdog ends a run in which a rank stops, and not one whose kernels last longer than its limit."""
    small = layout(pp=2, more=["model.layers=2", "batch.global=2", "run.watchdog_s=2"])
    with tempfile.TemporaryDirectory() as folder:
        predicted = predict(folder, 2, small)
        long = sleep(os.path.join(folder, "long"), 2,
                     [*small, "run.steps=1", f"run.dilation={8e3 / predicted['step_ms']}"])
        checks.that("watchdog" not in long.stdout, "kernels that last longer than the watchdog's limit are no hang")
        run = subprocess.Popen([*launcher(2), executable(), "run", DECK, "-d", os.path.join(folder, "stop"),
                                *here([*small, "run.steps=1000", "run.dilation=10"])], env=ENVIRONMENT,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
        try:
            check_stop(checks, folder, run)
        finally:
            if run.poll() is None:
                run.kill()


def check_stop(checks, folder, run):
    metrics = os.path.join(folder, "stop", "metrics.jsonl")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (os.path.exists(metrics) and Metrics(os.path.dirname(metrics)).steps):
        time.sleep(0.1)
    run.send_signal(signal.SIGTERM)
    text, _ = run.communicate(timeout=60)
    checks.that("it begins at step 1 when it is started again" in text, "a stopped run says that it has no state")


def main():
    if sys.argv[1:2] == ["measure"]:
        sys.exit(measure_all(sys.argv[2:] or LAYOUTS))
    if sys.argv[1:2] == ["ordered"]:
        sys.exit(measure_all(sys.argv[2:] or [name for name in LAYOUTS if not name.startswith("offload")], ordered))
    checks = Checks()
    checks.each([check_program, check_layouts, check_errors, check_hang])
    checks.finish()


main()
