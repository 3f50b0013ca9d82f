"""One table of layouts; each trains 20 steps in fp32 and must agree with one rank: every loss and gradient norm to rtol 1e-5, the
planned peak of every rank with the bytes really used, exactly. What only reorders (pipeline degree, schedule) is bitwise."""
import os, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from runs import Checks, difference, layout, planned_peaks, train

# name, pp dp tp, dp axis, further overrides
LAYOUTS = [
    ("211", "dp_shard", []), ("121", "dp_shard", []), ("112", "dp_shard", []), ("221", "dp_shard", []),
    ("212", "dp_shard", []), ("122", "dp_shard", []), ("222", "dp_shard", []), ("411", "dp_shard", []),
    ("141", "dp_shard", []), ("114", "dp_shard", ["model.heads=8", "model.kv_heads=4"]),
    ("131", "dp_shard", ["batch.global=18"]), ("112", "dp_shard", ["model.ffn_dim=89", "model.vocab=263", "model.seq_len=23"]),
    ("213", "dp_shard", ["model.dim=54", "model.heads=9", "model.kv_heads=3", "model.vocab=263", "model.seq_len=25"]), ("121", "dp_replicate", []), ("222", "dp_replicate", []),
    ("141", "dp_replicate", []), ("121", "dp_shard", ["parallel.zero=2"]), ("121", "dp_shard", ["parallel.zero=1"]),
    ("221", "dp_shard", ["recompute.regather=always"]), ("121", "dp_shard", ["recompute.regather=never"]),
    ("112", "dp_shard", ["parallel.sequence_parallel=false"]), ("112", "dp_shard", ["parallel.loss_parallel=false"]),
    ("222", "dp_shard", ["parallel.sequence_parallel=false", "parallel.loss_parallel=false"]),
    ("222", "dp_shard", ["model.tie_embeddings=true"]), ("411", "dp_shard", ["model.tie_embeddings=true"]),
    ("122", "dp_shard", ["model.tie_embeddings=true", "batch.micro=2"]), ("212", "dp_shard", ["pipeline.schedule=gpipe"]),
    ("311", "dp_shard", ["batch.global=4"]),
    # Context parallelism: each way alone, then among the other axes.
    ("111", "dp_shard", ["parallel.cp=2", "parallel.context=ring"]), ("111", "dp_shard", ["parallel.cp=2", "parallel.context=all_gather"]),
    ("111", "dp_shard", ["parallel.cp=2", "parallel.context=all_to_all"]), ("111", "dp_shard", ["parallel.cp=3", "parallel.context=ring"]),
    ("111", "dp_shard", ["parallel.cp=3", "parallel.context=all_gather"]),
    ("111", "dp_shard", ["parallel.cp=3", "parallel.context=all_to_all", "model.heads=6", "model.kv_heads=3"]),
    ("111", "dp_shard", ["parallel.cp=4", "parallel.context=ring"]), ("111", "dp_shard", ["parallel.cp=4", "parallel.context=all_gather", "batch.micro=2"]),
    ("111", "dp_shard", ["parallel.cp=4", "parallel.context=all_to_all", "model.heads=8", "model.kv_heads=4"]),
    ("112", "dp_shard", ["parallel.cp=2", "parallel.context=ring"]), ("112", "dp_shard", ["parallel.cp=2", "parallel.context=all_gather"]),
    ("112", "dp_shard", ["parallel.cp=2", "parallel.context=all_to_all", "model.heads=8", "model.kv_heads=4"]),
    ("112", "dp_shard", ["parallel.cp=2", "parallel.context=ring", "parallel.sequence_parallel=false", "parallel.loss_parallel=false"]),
    ("113", "dp_shard", ["parallel.cp=2", "parallel.context=ring", "model.dim=54", "model.heads=9", "model.kv_heads=3", "model.vocab=263", "model.seq_len=28"]),
    ("121", "dp_shard", ["parallel.cp=2", "parallel.context=ring"]), ("121", "dp_shard", ["parallel.cp=2", "parallel.context=all_gather", "parallel.zero=2"]),
    ("121", "dp_shard", ["parallel.cp=2", "parallel.context=all_to_all", "parallel.zero=1"]), ("122", "dp_replicate", ["parallel.cp=2", "parallel.context=all_gather"]),
    ("211", "dp_shard", ["parallel.cp=2", "parallel.context=all_to_all"]), ("212", "dp_shard", ["parallel.cp=2", "parallel.context=ring", "model.tie_embeddings=true"]),
    ("222", "dp_shard", ["parallel.cp=2", "parallel.context=ring"]),
    # more tensor-parallel ranks than kv heads
    ("112", "dp_shard", ["model.kv_heads=1"]), ("114", "dp_shard", []), ("214", "dp_shard", ["parallel.sequence_parallel=false"]),
    ("124", "dp_shard", ["model.tie_embeddings=true"]), ("124", "dp_replicate", ["model.kv_heads=1", "model.seq_len=23"]),
    ("116", "dp_shard", ["model.heads=6", "model.kv_heads=3"]),
    ("114", "dp_shard", ["parallel.cp=2", "parallel.context=ring"]), ("114", "dp_shard", ["parallel.cp=2", "parallel.context=all_gather"]),
    # rows that the degrees do not divide, fewer rows than ranks, under a tied embedding
    ("112", "dp_shard", ["model.tie_embeddings=true", "model.vocab=263"]), ("213", "dp_shard", ["model.tie_embeddings=true",
     "model.dim=54", "model.heads=9", "model.kv_heads=3", "model.vocab=263", "optimizer.eps=1e-6"]), ("122", "dp_shard", ["model.tie_embeddings=true", "model.vocab=261"]),
    ("141", "dp_shard", ["model.dim=6", "model.heads=1", "model.kv_heads=1", "model.ffn_dim=5"]),
    ("142", "dp_shard", ["model.dim=4", "model.heads=2", "model.kv_heads=1", "model.ffn_dim=5", "model.vocab=263"]),
]
RTOL = 1e-5


def model_keys(overrides):
    """What changes the numbers themselves, so that the run on one rank needs it too."""
    return [o for o in overrides if o.startswith(("model.", "optimizer.")) or o == "batch.global=18" or o == "batch.global=4"]


def context_degree(overrides):
    return int(next((o.split("=")[1] for o in overrides if o.startswith("parallel.cp=")), 1))


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        serial = {}
        for number, (digits, axis, more) in enumerate(LAYOUTS):
            degrees, ranks = layout(digits, axis)
            ranks *= context_degree(more)
            overrides = degrees + more
            name = f"{digits} {axis} {' '.join(more)}"
            key = tuple(model_keys(more))
            if key not in serial:
                serial[key] = train(os.path.join(folder, f"serial{len(serial)}"), 1, list(key))
            run = train(os.path.join(folder, f"run{number}"), ranks, overrides)
            for curve in ("loss", "grad_norm"):
                worst = difference(run.curve(curve), serial[key].curve(curve))
                checks.that(worst <= RTOL, f"{name}: {curve} differs by {worst:.1e}")
            if digits[1:] == "11" and ranks == int(digits[0]):
                checks.that(run.curve("loss") == serial[key].curve("loss") and run.curve("grad_norm") == serial[key].curve("grad_norm"),
                            f"{name}: pipeline degree is bitwise neutral")
            checks.that(run.end["rank_peak_bytes"] == planned_peaks(folder, ranks, overrides), f"{name}: planned peak is what was used")
        gpipe, one_f = (train(os.path.join(folder, s), 4, layout("212")[0] + [f"pipeline.schedule={s}"]) for s in ("gpipe", "1f1b"))
        checks.that(gpipe.curve("loss") == one_f.curve("loss") and gpipe.curve("grad_norm") == one_f.curve("grad_norm"),
                    "212: gpipe and 1f1b agree bitwise")
        twice = [train(os.path.join(folder, f"twice{i}"), 8, layout("222")[0]) for i in range(2)]
        checks.that(twice[0].curve("loss") == twice[1].curve("loss"), "222: the same deck twice agrees bitwise")
    checks.finish()


main()
