"""Recomputation by ops, by layers and by budget on 1, 2 and 4 ranks: losses, norms, weights and moments are those of
the run that keeps everything, bit for bit; the planned peak of every rank is exactly the used one, and at most the
budget; a run without a budget takes it from the free memory and states it in its deck."""
import os, re

from support.checkpoints import same_bits, tensors
from support.runs import Checks, planned_peaks, scratch, train

STEPS = 3
KEYS = [f"run.steps={STEPS}", "model.layers=6", "batch.global=8", "batch.micro=1", "model.ffn_dim=192"]
EXPERTS = ["experts.count=4", "experts.per_token=2", "experts.ffn_dim=23", "experts.shared_ffn_dim=17"]
LAYOUTS = [
    (1, [], []),
    (2, ["parallel.pp=2"], []),
    (2, ["parallel.tp=2"], []),
    (4, ["parallel.pp=2", "parallel.tp=2", "pipeline.schedule=interleaved", "pipeline.chunks=3"], []),
    (4, ["parallel.pp=2", "parallel.dp_shard=2", "pipeline.schedule=zb-h1"], []),
    (2, ["parallel.dp_shard=2", "parallel.ep=2"], EXPERTS),
]
BY_HAND = ['recompute.ops=["norm","activation"]',
           'recompute.ops=["core_attention","qkv","mlp","router","rows","experts"]',
           'recompute.layers=["full: first 1", "norm+mlp: every 2", "selective: 0-2, 5"]']


def main():
    checks = Checks()
    with scratch() as folder:
        def run(name, ranks, keys):
            metrics = train(os.path.join(folder, re.sub(r"\W+", "-", name)), ranks, keys)
            state = tensors(metrics.checkpoint(STEPS))
            return metrics, metrics.end["rank_peak_bytes"], (metrics.curve("loss"), metrics.curve("grad_norm")), state

        for at, (ranks, degrees, more) in enumerate(LAYOUTS):
            keys, name = [*KEYS, *degrees, *more], f"{at}: {' '.join([*degrees, *more])}"
            _, most, curves, state = run(name, ranks, keys)
            least = planned_peaks(folder, ranks, [*keys, "recompute.mode=full"])
            budgets = [max(least), (max(least) + 2 * max(most)) // 3]
            rows = [[row] for row in BY_HAND] + [["recompute.mode=auto", f"recompute.budget={b}"] for b in budgets]
            for row in rows:
                what = f"{name} {' '.join(row)}"
                _, used, other_curves, other_state = run(what, ranks, [*keys, *row])
                checks.that(other_curves == curves and same_bits(other_state, state), f"{what}: same bits")
                checks.that(used == planned_peaks(folder, ranks, [*keys, *row]), f"{what}: planned peak is used")
                if row[0] == "recompute.mode=auto":
                    checks.that(max(used) <= int(row[1].split("=")[1]) and max(used) < max(most),
                                f"{what}: at most the budget, and less than without")
            if at < 2:
                metrics, used, other_curves, _ = run(f"{name} unstated", ranks, [*keys, "recompute.mode=auto"])
                with open(os.path.join(metrics.dir, "deck.toml")) as file:
                    stated = re.search(r"^budget *= *(\d+)", file.read(), re.MULTILINE)
                checks.that(stated is not None and int(stated[1]) > max(most), f"{name}: the run states its budget")
                checks.that(used == most and other_curves == curves, f"{name}: nothing is recomputed in vain")
    checks.finish()


if __name__ == "__main__":
    main()
