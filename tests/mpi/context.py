"""Context parallelism beyond the table of layouts: validation, bf16, bitwise equality, and a checkpoint that continues
without it."""
import os

from support.runs import Checks, ROOT, difference, scratch, train
from support.sizes import Sizes

WAYS = ("ring", "all_gather", "all_to_all")
VALIDATION = [
    f"data.validation=['{ROOT}/tests/oracle/data/text.txt']", "data.validate_every_steps=3",
    "data.validate_sequences=16"
]


def main():
    checks, sizes = Checks(), Sizes()
    with scratch() as folder:
        def run(name, ranks, *overrides, flags=()):
            return train(os.path.join(folder, name), ranks, ["run.steps=6", *overrides], flags=flags)

        def same(a, b):
            return all(a.curve(c) == b.curve(c) for c in ("loss", "grad_norm"))

        serial, serial_bf16 = run("serial", 1, *VALIDATION), run("serial_bf16", 1, "precision.compute=bf16")
        for way in WAYS:
            cut = ["parallel.cp=2", f"parallel.context={way}"]
            validated = run(f"{way}_validation", 2, *cut, *VALIDATION)
            steps = sorted(serial.validation)
            worst = difference([validated.validation[s] for s in steps], [serial.validation[s] for s in steps])
            checks.that(len(steps) == 2 and worst <= 1e-5, f"{way}: validation loss differs by {worst:.1e}")
            checks.that([validated.steps[s]["tokens"]
                         for s in validated.steps] == [serial.steps[s]["tokens"] for s in serial.steps],
                        f"{way}: every token counts once")
            narrow = run(f"{way}_bf16", 4, *cut, "parallel.tp=2" if way != "all_to_all" else "parallel.dp_shard=2",
                         "precision.compute=bf16")
            for curve in ("loss", "grad_norm"):
                worst = difference(narrow.curve(curve), serial_bf16.curve(curve))
                checks.that(worst <= 1e-2, f"{way}: {curve} in bf16 differs by {worst:.1e}")
            keys = ["parallel.cp=4", f"parallel.context={way}"]
            keys += sizes.draw(keys, micro=(1, 2))
            twice = [run(f"{way}_{i}", 4, *keys) for i in range(2)]
            checks.that(same(*twice), f"the same deck twice agrees bitwise: {' '.join(keys)}")
            checks.that(same(run(f"{way}_pp", 4, *cut, "parallel.pp=2", "parallel.zero=3"), validated),
                        f"{way}: pipeline degree is bitwise neutral")
        steady = "lr.decay=constant"  # the same rates, independent of the number of steps in the deck
        whole = run("whole", 1, steady)
        run("half", 4, steady, "parallel.cp=2", "parallel.tp=2", "run.steps=3")
        resumed = run("half", 1, steady, "parallel.cp=1", "parallel.tp=1", flags=["-r", "latest"])
        for curve in ("loss", "grad_norm"):
            worst = difference(resumed.curve(curve), whole.curve(curve))
            checks.that(worst <= 1e-5, f"restart without context parallelism: {curve} differs by {worst:.1e}")
    checks.finish()


main()
