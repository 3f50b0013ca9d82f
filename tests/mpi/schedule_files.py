"""A schedule from a file. Every built-in schedule is written by `plan --schedule` and read back: the programs of all
ranks are the same, line by line, and so are losses, norms, weights and moments of a run. A file with a placement that
no built-in schedule has agrees, too. A deck that does not fit its file, and ranks that read different files, are
refused. The page about a run needs the file that the run had."""
import os, subprocess

from support.checkpoints import same_bits, tensors
from support.runs import Checks, DECK, ENVIRONMENT, executable, launch, launcher, program, scratch, train

STEPS = 2
KEYS = [f"run.steps={STEPS}", "lr.warmup_steps=1", "model.layers=4", "batch.global=10", "batch.micro=2",
        "parallel.reduce=step"]
# Name, pp, tp, chunks, whether forward and backward share jobs.
SCHEDULES = [("1f1b", 2, 1, 1, False), ("1f1b", 2, 2, 1, True), ("gpipe", 4, 1, 1, False),
             ("interleaved", 2, 2, 2, True), ("zb-h1", 4, 1, 1, False), ("zb-interleaved", 2, 1, 2, False),
             ("zbv", 2, 1, 2, False),
             ("dualpipev", 2, 2, 2, True)]
NEIGHBOURS = """0F0,1F0,0F1,1F1,1B0,0B0,0F2,1F2,1B1,0B1,0F3,1F3,1B2,0B2,0F4,1F4,1B3,0B3,1B4,0B4
2F0,3F0,3I0,2B0,2F1,3W0,3F1,3B1,2B1,2F2,3F2,3B2,2B2,2F3,3F3,3B3,2B3,2F4,3F4,3B4,2B4
"""


def degrees(pp, tp, chunks, joint):
    return [*KEYS, f"parallel.pp={pp}", f"parallel.tp={tp}", f"pipeline.chunks={chunks}",
            f"overlap.interleave={str(joint).lower()}"]


def from_file(path):
    return ["pipeline.schedule=file", f"pipeline.file={path}"]


def results(folder, ranks, keys):
    run = train(folder, ranks, keys)
    return run, (run.curve("loss"), run.curve("grad_norm")), tensors(run.checkpoint(STEPS))


def round_trip(checks, folder):
    for name, *layout in SCHEDULES:
        label, ranks, keys = f"{name} {layout}", layout[0] * layout[1], degrees(*layout)
        named, path = [*keys, f"pipeline.schedule={name}"], os.path.join(folder, f"{name}-{layout[1]}.csv")
        with open(path, "w") as file:
            file.write(launch(1, ["plan", DECK, "--ranks", str(ranks), "--schedule", *named]).stdout)
        given = [*keys, *from_file(path)]
        for rank in range(ranks):
            checks.that(program(ranks, rank, given) == program(ranks, rank, named), f"{label}: program of rank {rank}")
        run, curves, state = results(os.path.join(folder, f"{label} file"), ranks, given)
        _, named_curves, named_state = results(os.path.join(folder, label), ranks, named)
        checks.that(curves == named_curves and same_bits(state, named_state), f"{label}: the same bits")
        checks.that(run.starts[0]["schedule"].startswith(path + " (checksum "), f"{label}: the start names the file")


def placement(checks, folder):
    path = os.path.join(folder, "neighbours.csv")
    with open(path, "w") as file:
        file.write(NEIGHBOURS)
    keys = [*degrees(2, 1, 2, False), *from_file(path)]
    _, curves, state = results(os.path.join(folder, "neighbours"), 2, [*keys, *validation()])
    _, alone, state_alone = results(os.path.join(folder, "one stage"), 1, [*KEYS, *validation()])
    checks.that(curves == alone and same_bits(state, state_alone), "neighbouring chunks on a stage: the same bits")
    for changed in (False, True):
        if changed:
            with open(path, "a") as file:
                file.write("\n")
        launch(1, ["report", os.path.join(folder, "neighbours")])
        with open(os.path.join(folder, "neighbours", "report.html")) as page:
            checks.that(("the order of the run's programs was by" in page.read()) == changed,
                        f"the page says whether the file has changed: {changed}")


def validation():
    return [f"data.validation=['{os.path.join(os.path.dirname(DECK), '..', 'oracle', 'data', 'text.txt')}']",
            "data.validate_every_steps=2", "data.validate_sequences=10"]


def refusals(checks, folder):
    path = os.path.join(folder, "neighbours.csv")
    suited = degrees(2, 1, 2, False)
    for ranks, more, words in ((2, ["batch.global=8"], "the batch makes 4 microbatches"),
                               (2, ["pipeline.chunks=1"], "2 stages on each and 5 microbatches, but parallel.pp = 2, "
                                                          "pipeline.chunks = 1"),
                               (4, ["parallel.pp=4", "pipeline.chunks=1"], "has 2 lines"),
                               (2, ["batch.ramp_start=2", "batch.ramp_step=2"], "batch.ramp_start must be 0")):
        done = launch(1, ["plan", DECK, "--ranks", str(ranks), *suited, *from_file(path), *more])
        checks.that(done.returncode == 2 and words in done.stdout, f"{more}: refused\n{done.stdout}")
    done = launch(1, ["check", DECK, *KEYS, f"pipeline.file={path}"])
    checks.that('pipeline.file' in done.stdout and 'pipeline.schedule is "1f1b", not "file"' in done.stdout,
                f"a file without effect\n{done.stdout}")


def agreement(checks, folder):
    """Two ranks read order.csv in folders of their own."""
    start = []
    for rank, text in enumerate([NEIGHBOURS, NEIGHBOURS.replace("3W0,3F1", "3F1,3W0")]):
        place = os.path.join(folder, f"rank{rank}")
        os.mkdir(place)
        with open(os.path.join(place, "order.csv"), "w") as file:
            file.write(text)
        start += [":"] * bool(start) + ["-n", "1", "--wdir", place, executable(), "run", DECK, "-d",
                                        os.path.join(folder, "refused"), *degrees(2, 1, 2, False),
                                        *from_file("order.csv")]
    options = launcher(2)
    done = subprocess.run([options[0], *options[3:], *start], env=ENVIRONMENT, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120)
    checks.that(done.returncode == 2, f"agreement: exit status 2, not {done.returncode}")
    checks.that("pipeline.file: rank 1 on " in done.stdout, f"agreement: rank 1 is named\n{done.stdout}")
    checks.that(not os.path.exists(os.path.join(folder, "refused")), "agreement: nothing is written")


def main():
    checks = Checks()
    with scratch() as folder:
        checks.each([round_trip, placement, refusals, agreement], folder)
    checks.finish()


main()
