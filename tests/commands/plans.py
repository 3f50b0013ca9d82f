"""The decks keep what their headers say: every `espalier plan` line in a comment of inputs/ compiles for its number of
ranks, and what it plans fits a device of 80 GB. Plans for GPUs say which attention cuDNN does not take. Every pass
changes something in some deck."""
import glob, json, os, re, tempfile

from support.runs import Checks, DECK, ROOT, launch

LINE = re.compile(r"^#\s+espalier plan (\S+) --ranks (\d+)", re.M)
DEVICE_BYTES = 80e9
# Settings with which passes find what they rewrite; by the first that each needs.
CHANGES = {
    (): ["differentiate", "merge_gradients", "optimize", "merge_updates", "fuse", "fuse_norm_gradients"],
    ("parallel.cp=2", "parallel.context=all_gather", "overlap.context=true"): ["context_parallel", "overlap_windows"],
    ("recompute.mode=full",): ["recompute"],
    ("parallel.dp_shard=2", "parallel.zero=3", "recompute.regather=always", "overlap.prefetch=1"): [
        "partition", "rematerialize", "lower_reshards", "coalesce", "prefetch"],
    ("parallel.dp_shard=2", "parallel.reduce=microbatch", "batch.global=4", "batch.micro=2"): ["store_gradients"],
    ("loss.chunks=2",): ["chunk_loss"],
    ("precision.compute=bf16",): ["keep_copies"],
    ("fusion.join_matmuls=always", "model.dim=64"): ["join"],
    ("parallel.tp=2", "overlap.tensor=true", "overlap.tensor_strips=2"): ["overlap_tensor", "tensor_strips"],
    ("precision.compute=bf16", "precision.matmul=fp8"): ["quantize"],
    ("parallel.pp=2",): ["cut"],
    ("experts.count=4", "experts.per_token=2", "experts.ffn_dim=16", "experts.buffer=0.5"): ["expert_passes"],
    ("precision.compute=bf16", "offload.optimizer=all"): ["place_states", "stream_states"],
    ("offload.activations=all",): ["offload_activations"],
    ("precision.compute=bf16", "offload.parameters=all"): ["place_states", "stream_parameters", "stream_states"],
    ("offload.gradients=all",): ["place_states", "stream_parameters", "stream_states"],
}


def unchanged(overrides):
    """The passes that change nothing."""
    done = launch(1, ["plan", DECK, "--passes", *overrides])
    assert done.returncode == 0, done.stdout
    rows = [line.split() for line in done.stdout.splitlines()[1:] if not line.startswith(" ")]
    return {row[0] for row in rows if row[2] == "unchanged"}, [row[0] for row in rows]


def main():
    checks = Checks()
    for path in sorted(glob.glob(os.path.join(ROOT, "inputs", "*", "*.toml"))):
        with open(path) as file:
            stated = LINE.findall(file.read())
        for deck, ranks in stated:
            checks.that(os.path.join(ROOT, deck) == path, f"{deck}: the line names its own deck")
            with tempfile.NamedTemporaryFile(suffix=".json") as out:
                done = launch(1, ["plan", path, "--ranks", ranks, "--json", out.name])
                plan = json.load(out) if done.returncode == 0 else {"ranks": 0, "peak_bytes": float("inf")}
            checks.that(plan["ranks"] == int(ranks) and plan["peak_bytes"] < DEVICE_BYTES,
                        f"{deck} on {ranks} ranks: {plan['peak_bytes']} bytes")
    for compute, reasons in (("fp32", ["it is fp32"]), ("bf16", None)):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            done = launch(1, ["plan", DECK, "--json", out.name, "run.device=cuda", f"precision.compute={compute}",
                              "model.head_dim=8"])
            plan = json.load(out)
        checks.that(plan.get("plain_attention") == reasons, f"{compute}: plain attention for {reasons}")
        checks.that(("attention   not by cuDNN (it is fp32)" in done.stdout) == (compute == "fp32"),
                    f"{compute}: the plan says whether cuDNN takes attention")
    for overrides, passes in CHANGES.items():
        idle = unchanged(overrides)[0]
        for name in passes:
            checks.that(name not in idle, f"{name} changes something with {' '.join(overrides) or 'the deck as it is'}")
    names = set(unchanged(())[1])
    checks.that(names - {"leave_copies"} == {name for passes in CHANGES.values() for name in passes},
                f"every pass is checked: {sorted(names)}")
    checks.that("fuse" in names and "quantize" in unchanged(())[0], "bf16 leaves no matmul to quantize")
    checks.finish()


main()
