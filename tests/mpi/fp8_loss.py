"""The default deck, and the same with experts, learn equally in fp8 and in bf16: the mean losses of steps 181 to 200
differ by less than 0.5 %. The rate is a tenth of the deck's, so that rounding does not make the runs diverge
(doc/numerics.md). One rank with large microbatches takes the least time. Seeds may be given: fp8_loss.py 1234 5."""
import itertools, os, statistics, sys

from support.runs import Checks, ROOT, layout, scratch, train

TINY = os.path.join(ROOT, "inputs", "llama", "tiny-8.toml")
FP8 = ["precision.matmul=fp8"]
RUNS = {"bf16": [], "fp8, scales by tensor": FP8,
        **{f"fp8, scales by {name}": [*FP8, f"precision.fp8_scaling={name}"] for name in ("row", "mx")}}
MODELS = {"dense": [], "experts": ["experts.count=8", "experts.per_token=2", "experts.ffn_dim=192",
                                   "experts.balance_loss=0.01"]}
# The settings that the matmuls of experts alone add.
OF_EXPERTS = {"fp8 but for experts": [*FP8, "precision.bf16_matmuls=['lm_head.weight','*.experts.*']"]}


def main():
    checks = Checks()
    seeds = sys.argv[1:] or ["1234"]
    with scratch() as folder:
        for seed, (model, of_model) in itertools.product(seeds, MODELS.items()):
            loss, runs = {}, {**RUNS, **OF_EXPERTS} if of_model else RUNS
            for name, keys in runs.items():
                run = train(os.path.join(folder, f"{model} {name} {seed}"), 1,
                            [*layout("111")[0], "batch.micro=8", "precision.compute=bf16", "optimizer.lr=3e-4",
                             "run.steps=200", f"run.seed={seed}", *of_model, *keys], deck=TINY, timeout=1200)
                loss[name] = statistics.mean(run.steps[step]["loss"] for step in range(181, 201))
                relative = loss[name] / loss["bf16"] - 1
                checks.that(abs(relative) < 0.005,
                            f"seed {seed}: {model}, {name}: {loss[name]:.4f}, {100 * relative:+.2f} %")
            checks.that(len(set(loss.values())) == len(runs), "they are different runs")
    checks.finish()


main()
