"""Routing that sends all tokens to one expert: large steps of the router's biases choose one expert for all tokens of a
step. Whatever ranks share experts and however large their pools are, losses are those of one rank, loads are equal, and
every rank uses the memory that was planned. What was trained so is evaluated and sampled. Needs ESPALIER."""
import math, os, shutil

from support.runs import Checks, ROOT, difference, launch, planned_peaks, scratch, train

TEXT = os.path.join(ROOT, "tests", "oracle", "data", "text.txt")
RTOL = 1e-5  # rounding grows where a token is between two experts
COUNT, STEPS, TOKENS = 8, 12, 16 * 24  # of a step
MODEL = [f"experts.count={COUNT}", "experts.per_token=1", "experts.ffn_dim=23", "experts.scores=sigmoid",
         "experts.bias=true", "experts.bias_rate=2", "optimizer.lr=1e-4", f"run.steps={STEPS}"]
LAYOUTS = [(1, []), (4, ["parallel.dp_shard=4", "parallel.ep=4"]), (2, ["parallel.tp=2", "parallel.ep=2"]),
           (8, ["parallel.pp=2", "parallel.dp_shard=2", "parallel.tp=2", "parallel.ep=4", "recompute.mode=selective"])]
# Chunks of a stage that do not follow one another.
CHUNKS = [(2, ["parallel.pp=2", "pipeline.chunks=2", f"pipeline.schedule={name}"])
          for name in ("interleaved", "dualpipev")]
BUFFERS = [0.5, 1, 1.5, 100]


def check_uses(checks, run):
    text = shutil.copy(TEXT, run.dir)
    for ranks, command in ((2, ["evaluate", run.dir, text]), (1, ["sample", run.dir, "--ids", "3 5 8"])):
        done = launch(ranks, command)
        checks.that(done.returncode == 0, f"{command[0]} takes its checkpoint: {done.stdout[-400:]}")


def main():
    checks = Checks()
    with scratch() as folder:
        one = train(os.path.join(folder, "one"), 1, MODEL)
        highest, by_layer = loads = one.curve("experts_max_load"), one.curve("experts_max_loads")
        checks.that(max(highest) == COUNT, f"all tokens of some layer go to one of {COUNT} experts: {highest}")
        checks.that(all(max(layers) == most and len(layers) == 4 and min(layers) >= 1
                        for most, layers in zip(highest, by_layer)), "loads by layer")
        counts = one.curve("experts_loads")
        checks.that(all(sum(layer) == TOKENS and len(layer) == COUNT for step in counts for layer in step),
                    f"every layer routes {TOKENS} tokens: {counts[0]}")
        checks.that([[float(f"{max(layer) * COUNT / TOKENS:.4g}") for layer in step] for step in counts] == by_layer,
                    "largest loads are those of the counts")
        alone = [layer for step in counts for layer in step if sorted(layer) == [0] * (COUNT - 1) + [TOKENS]]
        checks.that(len(alone) > 0, f"in {len(alone)} layers of steps one expert serves all tokens")
        entropy = one.curve("router_entropy")
        checks.that(all(0 < value <= math.log(COUNT) for value in entropy), f"entropies of routers: {entropy}")
        for ranks, layout in LAYOUTS + CHUNKS:
            for buffer in BUFFERS[2:3] if (ranks, layout) in CHUNKS else BUFFERS:
                keys = [*MODEL, *layout, f"experts.buffer={buffer}"]
                what = " ".join(key.split(".", 1)[1] for key in keys[len(MODEL):])
                run = train(os.path.join(folder, what.replace(" ", "-")), ranks, keys)
                apart = difference(run.curve("loss"), one.curve("loss"))
                checks.that(apart <= RTOL, f"{what}: losses of one rank to {apart:.1e}")
                checks.that((run.curve("experts_max_load"), run.curve("experts_max_loads")) == loads
                            and run.curve("experts_loads") == counts, f"{what}: loads")
                apart = difference(run.curve("router_entropy"), entropy)
                checks.that(apart <= RTOL, f"{what}: entropies of one rank to {apart:.1e}")
                if ranks == 4 and buffer == 1:
                    check_uses(checks, run)
                checks.that(run.end["rank_peak_bytes"] == planned_peaks(folder, ranks, keys),
                            f"{what}: planned peak is what was used")
    checks.finish()


main()
