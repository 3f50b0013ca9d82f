"""The default deck in bf16 trains as in fp32, tested on two ranks, which take less time: with a low rate, so that
rounding does not make the runs diverge, the mean losses of steps 181 to 200 differ by less than 3 %. Also evaluation:
the validation loss, and its memory, do not depend on the layout."""
import os, statistics

from support.runs import Checks, ROOT, difference, layout, scratch, train

TINY = os.path.join(ROOT, "inputs", "llama", "tiny-8.toml")


def main():
    checks = Checks()
    with scratch() as folder:
        loss = {}
        for compute, ranks, degrees in (("fp32", 2, layout("121")[0]), ("bf16", 8, [])):
            keys = [f"precision.compute={compute}", "optimizer.lr=1e-3", "run.steps=200", *degrees]
            run = train(os.path.join(folder, compute), ranks, keys, deck=TINY, timeout=600)
            loss[compute] = statistics.mean(run.steps[step]["loss"] for step in range(181, 201))
        relative = abs(loss["bf16"] - loss["fp32"]) / loss["fp32"]
        checks.that(relative < 0.03,
                    f"steps 181 to 200: bf16 {loss['bf16']:.4f}, fp32 {loss['fp32']:.4f}: {100 * relative:.2f} %")
        checks.that(loss["fp32"] < 2.5, "the default deck learns")
        text = os.path.join(ROOT, "tests", "oracle", "data", "text.txt")
        validate = [
            f'data.validation=["{text}"]', "data.validate_every_steps=3", "run.steps=6", "data.validate_sequences=32"
        ]
        serial = train(os.path.join(folder, "serial"), 1, validate)
        checks.that(sorted(serial.validation) == [3, 6], "validation after steps 3 and 6")
        checks.that(serial.validation[6] < serial.validation[3], "the validation loss falls")
        plain = train(os.path.join(folder, "plain"), 1, ["run.steps=6"])
        checks.that(serial.curve("loss") == plain.curve("loss"), "validation changes no training step")
        for digits in ("222", "121", "411"):
            degrees, ranks = layout(digits)
            run = train(os.path.join(folder, digits), ranks, degrees + validate)
            worst = difference(list(run.validation.values()), list(serial.validation.values()))
            checks.that(worst <= 1e-5, f"{digits}: validation losses differ by {worst:.1e}")
    checks.finish()


main()
