"""run.epochs: a run of N passes is, bit for bit, the run of the corresponding steps; with a batch ramp, on several
ranks, over a restart. The output of check, plan, simulate and import about it. More data make a longer run, which is
reported."""
import pathlib

from support.checkpoints import same_bits, tensors
from support.runs import Checks, DECK, Metrics, launch, scratch, train

LENGTH = 24  # bytes of a sequence in tests/decks/small.toml
BASE = ["data.format=text", "lr.warmup_steps=2", "batch.global=12", "checkpoint.restart=auto"]


def write_text(path, samples):
    """A text of `samples` samples."""
    path.write_bytes(bytes(32 + (k * k * 7 + k) % 90 for k in range(samples * LENGTH + 1)))


def said(*arguments, expect=0):
    done = launch(1, list(map(str, arguments)))
    assert done.returncode == expect, (arguments, done.returncode, done.stdout)
    return done.stdout


def curves(metrics):
    return [metrics.curve(key) for key in ("loss", "grad_norm", "lr")]


def equals_its_steps(checks, folder, text):
    ramp = ["batch.ramp_start=3", "batch.ramp_step=3", "batch.ramp_steps=1"]
    # 40 samples: 3 steps of 12; twice over, 6 of 12; a ramp of 3, 6, 9 and 12 has 4 steps of 30 samples.
    cases = [("0.9", 1, [], 3), ("2", 2, ["parallel.dp_shard=2"], 6), ("1", 1, ramp, 4)]
    for number, (epochs, ranks, keys, steps) in enumerate(cases):
        paths = BASE + [f"data.paths=['{text}']", *keys]
        a = train(str(folder / f"epochs{number}"), ranks, [*paths, f"run.epochs={epochs}"])
        b = train(str(folder / f"steps{number}"), ranks, [*paths, f"run.steps={steps}"])
        checks.that(max(a.steps) == steps and curves(a) == curves(b), f"{epochs} epochs are {steps} steps: {keys}")
        checks.that(same_bits(tensors(a.checkpoint(steps)), tensors(b.checkpoint(steps))), "with the same weights")


def restarts(checks, folder, text):
    """A run that stops early continues; a finished run stays finished; more samples are more steps."""
    run, paths = str(folder / "stops"), BASE + [f"data.paths=['{text}']"]
    train(run, 1, [*paths, "run.steps=4", "lr.decay_steps=4"])
    again = launch(1, ["run", DECK, "-d", run, *paths, "run.epochs=2"])
    whole = Metrics(run)
    said_steps = "(from run.epochs = 2 of 40 samples)" in again.stdout
    checks.that(again.returncode == 0 and max(whole.steps) == 6 and said_steps,
                f"from 4 steps to 2 epochs:\n{again.stdout}")
    checks.that("run.steps" in again.stdout and "4 in the checkpoint" in again.stdout, "the change is said")
    done = launch(1, ["run", DECK, "-d", run, *paths, "run.epochs=2"])
    checks.that(done.returncode == 0 and "none left of 6" in done.stdout and
                "and a larger run.epochs" in done.stdout, f"nothing is left:\n{done.stdout}")
    fewer = launch(1, ["run", DECK, "-d", run, *paths, "run.epochs=1"])
    checks.that(fewer.returncode == 0 and "the deck asks for 3 steps: nothing is done" in fewer.stdout and
                "a larger run.epochs" in fewer.stdout,
                f"a checkpoint beyond the last step:\n{fewer.stdout}")
    more = folder / "more.txt"
    write_text(more, 54)
    longer = launch(1, ["run", DECK, "-d", run, *BASE, f"data.paths=['{more}']", "run.epochs=2"])
    changed = "of 54 samples" in longer.stdout and "6 in the checkpoint" in longer.stdout
    checks.that(longer.returncode == 0 and changed and max(Metrics(run).steps) == 9, f"more samples:\n{longer.stdout}")


def other_commands(checks, folder, text):
    deck = [DECK, *BASE, f"data.paths=['{text}']", "run.epochs=2"]
    check = said("check", *deck)
    checks.that("6 steps" in check and "# run.steps: 6, from run.epochs = 2 of 40 samples" in check and
                "steps " in check, f"check counts:\n{check[:300]}")
    plan = said("plan", *deck)
    checks.that("run.steps   6, from run.epochs = 2 of 40 samples" in plan, f"plan counts:\n{plan[:600]}")
    there = [DECK, *BASE, "data.paths=/nowhere/a.txt", "run.epochs=2"]
    unknown = said("check", *there)
    checks.that("not known before the data are open (run.epochs = 2)" in unknown and "No such file" in unknown,
                f"data that are not here:\n{unknown[:300]}")
    checks.that("not known" in said("plan", *there), "nor for plan")
    cluster = "inputs/clusters/h100-8x400g.toml"
    needs = said("simulate", *there, "--cluster", cluster, expect=2)
    checks.that("set run.steps instead" in needs, f"simulate needs them:\n{needs}")
    few = said("run", *deck, "run.epochs=0.1", "-d", folder / "few", expect=2)
    checks.that("4 of 40 samples, and the first step alone has 12" in few, f"less than a step:\n{few}")
    both = said("check", *deck, "run.steps=7", expect=2)
    checks.that("run.steps = 7 is set too" in both, f"both:\n{both}")


def imports(checks, folder, text):
    """An import may set epochs; its checkpoint does not know the steps yet, which is no difference at the start."""
    train(str(folder / "first"), 1, BASE + [f"data.paths=['{text}']", "run.steps=1"])
    said("export", folder / "first" / "checkpoints" / "latest", folder / "hf")
    said("import", folder / "hf", folder / "imported", "run.epochs=1", f"data.paths={text}", "batch.global=4")
    deck = (folder / "imported" / "deck.toml").read_text()
    checks.that("epochs = 1" in deck and "\nsteps" not in deck, f"its deck has epochs:\n{deck}")
    checks.that("warmup_steps = 1 " in deck, "the warm-up is a tenth of them")
    run = launch(1, ["run", str(folder / "imported" / "deck.toml")])
    checks.that(run.returncode == 0 and max(Metrics(str(folder / "imported")).steps) == 10 and
                "in the checkpoint" not in run.stdout, f"which trains 10 steps:\n{run.stdout}")


def main():
    checks = Checks()
    with scratch() as name:
        folder = pathlib.Path(name)
        text = folder / "text.txt"
        write_text(text, 40)
        checks.each([equals_its_steps, restarts, other_commands, imports], folder, text)
    checks.finish()


if __name__ == "__main__":
    main()
