"""The loss in chunks of rows: every layout has the losses, gradient norms, validation losses and final weights of a
single chunk, for chunks of equal and unequal rows. Only the grouping of sums differs: rtol 1e-5 in fp32, 1e-2 in bf16.
The planned peak of every rank is the used one, and it is smaller with chunks if logits wait for backward."""
import os

from support.checkpoints import distance, tensors
from support.runs import Checks, DECK, ROOT, difference, planned_peaks, scratch, train

STEPS = 4
TEXT = os.path.join(ROOT, "tests", "oracle", "data", "text.txt")
BASE = [f"run.steps={STEPS}", "lr.warmup_steps=1", "checkpoint.at_start=true", f"data.validation=['{TEXT}']",
        "data.validate_every_steps=4", "optimizer.eps=1e-6"]
GPT2 = os.path.join(ROOT, "tests", "decks", "small_gpt2.toml")
RTOL = {"fp32": 1e-5, "bf16": 1e-2}
EACH, STEP = "parallel.reduce=microbatch", "parallel.reduce=step"
TIED, Z_LOSS = "model.tie_embeddings=true", "loss.z_loss=0.01"
NO_SP, NO_LP = "parallel.sequence_parallel=false", "parallel.loss_parallel=false"
SELECTIVE, FULL = "recompute.mode=selective", "recompute.mode=full"
THREES = ["model.dim=54", "model.heads=9", "model.kv_heads=3", "model.ffn_dim=89", "model.vocab=263", "batch.global=12"]


def degrees(**by_axis):
    return [f"parallel.{axis}={n}" for axis, n in by_axis.items()]


def schedule(name):
    return f"pipeline.schedule={name}"


# Number of chunks, and the layout; 24 rows in a microbatch of one sequence. bf16 and GPT-2 by name.
ROWS = [
    (5, []),
    (24, [Z_LOSS, TIED]),
    (7, ["batch.micro=2", "data.isolate_documents=true", "data.end_token=32"]),
    (3, degrees(tp=2)),
    (5, [*degrees(tp=2), NO_SP, NO_LP, Z_LOSS]),
    (2, [*degrees(tp=3), *THREES]),
    (5, [*degrees(cp=2), "parallel.context=ring"]),
    (3, [*degrees(dp_shard=2), "parallel.zero=3", "recompute.regather=always", STEP]),
    (3, [*degrees(dp_shard=2), "parallel.zero=2", EACH]),
    (3, [*degrees(dp_shard=2), "parallel.zero=1", EACH, "overlap.gradients=false"]),
    (3, [*degrees(dp_shard=2), "batch.global=2"]),  # one microbatch
    (3, [*degrees(dp_shard=2, tp=2), TIED, EACH, SELECTIVE]),
    (5, [*degrees(dp_replicate=2, dp_shard=2), "parallel.reduce_dtype=bf16", EACH]),
    (5, [*degrees(pp=2), schedule("gpipe")]),
    (4, [*degrees(pp=2, tp=2), schedule("zb-h1"), FULL]),
    (3, [*degrees(pp=2, dp_shard=2), schedule("zbv"), EACH, TIED]),
    (3, [*degrees(pp=2, tp=2), schedule("dualpipev"), SELECTIVE]),
    (3, [*degrees(pp=2, dp_shard=2), schedule("interleaved"), "parallel.zero=3", "overlap.interleave=true"]),
    (3, [*degrees(tp=2), "batch.micro=2", "overlap.tensor_strips=2"]),
    (5, [*degrees(pp=2, tp=2), "precision.compute=bf16"]),
    (5, [*degrees(dp_shard=2, tp=2), "gpt2"]),
]
# Layouts in which logits of several microbatches wait for backward.
SMALLER = schedule("gpipe")


def apart(mine, before, after):
    """Largest distance of a parameter from the other run's, relative to how far that one moved."""
    names = [n for n in after if n.startswith("parameters/") and not n.endswith("attn.c_attn.bias")]
    return max(distance(mine[n], after[n]) / distance(before[n], after[n]) for n in names)


def ranks_of(keys):
    ranks = 1
    for key in keys:
        name, value = key.split("=", 1) if "=" in key else (key, "")
        if name in ("parallel.pp", "parallel.dp_replicate", "parallel.dp_shard", "parallel.cp", "parallel.tp"):
            ranks *= int(value)
    return ranks


class Runner:
    def __init__(self, folder, checks):
        self.folder, self.checks, self.count = folder, checks, 0

    def run(self, name, keys, deck):
        self.count += 1
        ranks, overrides = ranks_of(keys), BASE + keys
        run = train(os.path.join(self.folder, f"run{self.count}"), ranks, overrides, deck=deck)
        planned = planned_peaks(self.folder, ranks, overrides, deck=deck)
        self.checks.that(run.end["rank_peak_bytes"] == planned, f"{name}: planned peak is what was used")
        return run

    def compare(self, chunks, keys):
        deck, own = (GPT2 if "gpt2" in keys else DECK), [k for k in keys if k != "gpt2"]
        name = f"{chunks} chunks, {' '.join(keys)}"
        whole = self.run(f"1 chunk, {' '.join(keys)}", [*own, "loss.chunks=1"], deck)
        cut = self.run(name, [*own, f"loss.chunks={chunks}"], deck)
        compute = "bf16" if "precision.compute=bf16" in keys else "fp32"
        for curve in ("loss", "grad_norm", *(["z_loss"] if Z_LOSS in keys else [])):
            worst = difference(cut.curve(curve), whole.curve(curve))
            self.checks.that(worst <= RTOL[compute], f"{name}: {curve} differs by {worst:.1e}")
        worst = difference(list(cut.validation.values()), list(whole.validation.values()))
        self.checks.that(worst <= RTOL[compute], f"{name}: validation loss differs by {worst:.1e}")
        if compute == "fp32" and "parallel.reduce_dtype=bf16" not in keys:
            before, after, mine = (tensors(r.checkpoint(s)) for r, s in ((whole, 0), (whole, STEPS), (cut, STEPS)))
            far = apart(mine, before, after)
            self.checks.that(far <= 1e-4, f"{name}: weights are {far:.1e} of their way apart")
        if SMALLER in keys:
            peaks = [max(r.end["rank_peak_bytes"]) for r in (cut, whole)]
            self.checks.that(peaks[0] < peaks[1], f"{name}: {peaks[0]} bytes instead of {peaks[1]}")


def main():
    checks = Checks()
    with scratch() as folder:
        runner = Runner(folder, checks)
        for row in ROWS:
            runner.compare(*row)
    checks.finish()


main()
