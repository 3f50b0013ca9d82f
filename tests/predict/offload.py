"""Keys of [offload] that are "auto", for clusters of inputs/clusters and budgets between the peaks of the fixed
choices: the peak fits, and the simulated step is at most 0.1 % longer than that of the fastest fixed choice that fits;
where only "all" fits, so does "auto". The choice by hand makes the same plan. What fits without is not moved.

    offload.py          two decks
    offload.py measure  all of them, with every difference
    offload.py figures  the models of doc/offload.md: its figures, and what was asked of them
"""
import itertools, json, os, re, sys, tempfile

from support.runs import Checks, ROOT, launch
from support.side_by_side import compare_all

AT_ONCE = 2
SLOWER = 1e-3
STATES = ["optimizer", "parameters", "gradients"]
H100 = "inputs/clusters/h100-8x400g.toml"
LLAMA_8B = ["parallel.dp_shard=-1", "parallel.tp=1", "loss.chunks=0"]
# Name, deck, ranks, cluster, keys, which keys are open: "states", "activations", "recompute".
DECKS = [
    ("1b, micro 4", "inputs/llama/1b.toml", 1, H100, ["parallel.dp_shard=1", "batch.micro=4", "batch.global=16"],
     ["states", "activations"]),
    ("1b, states", "inputs/llama/1b.toml", 1, H100, ["parallel.dp_shard=1", "batch.micro=1", "batch.global=4"],
     ["states"]),
    ("8b, micro 1", "inputs/llama/8b.toml", 1, H100, [*LLAMA_8B, "batch.micro=1", "batch.global=16"],
     ["states", "activations", "recompute"]),
    ("8b, micro 4", "inputs/llama/8b.toml", 1, H100, [*LLAMA_8B, "batch.micro=4", "batch.global=16"],
     ["states", "activations", "recompute"]),
    ("8b on 8, zero 3", "inputs/llama/8b.toml", 8, H100, [*LLAMA_8B, "batch.micro=2", "batch.global=64"],
     ["states", "activations"]),
    ("8b on 8, pp 4", "inputs/llama/8b.toml", 8, H100,
     [*LLAMA_8B, "parallel.pp=4", "batch.micro=1", "batch.global=32"], ["states", "activations"]),
    ("8b, one microbatch", "inputs/llama/8b.toml", 1, H100,
     [*LLAMA_8B, "recompute.mode=full", "batch.micro=4", "batch.global=4"], ["states"]),
    ("8b, 24 GB", "inputs/llama/8b.toml", 1, "inputs/clusters/rtx4090-pcie4.toml",
     [*LLAMA_8B, "recompute.mode=full", "batch.micro=2", "batch.global=16"], ["states", "activations"]),
]
TEST = ["1b, micro 4", "8b, one microbatch"]


# The models of doc/offload.md by their row there: deck, ranks, cluster, keys.
EVERYTHING = ["recompute.mode=auto", *(f"offload.{key}=auto" for key in [*STATES, "activations"])]
RTX4090 = "inputs/clusters/rtx4090-pcie4.toml"
FIGURES = {
    "Llama 8B, 1 H100": ("inputs/llama/8b.toml", 1, H100, [*LLAMA_8B, "batch.micro=1", "batch.global=32"]),
    "Llama 70B, 8 H100": ("inputs/llama/70b.toml", 8, H100,
                          ["parallel.dp_shard=8", "parallel.tp=1", "parallel.pp=1", "loss.chunks=0", "batch.micro=1",
                           "batch.global=64"]),
}
QWEN_14B = ("inputs/qwen/qwen2.5-0.5b.toml", 1, RTX4090,
            ["parallel.dp_shard=1", "model.layers=48", "model.dim=5120", "model.heads=40", "model.kv_heads=8",
             "model.ffn_dim=13824", "model.vocab=152064", "model.tie_embeddings=false", "model.seq_len=2048",
             "batch.global=256", "batch.micro=16", "loss.chunks=0"])
# As LLMQ trains it: sequences of 1,024, 32 at a time, blocks recomputed, everything on the host.
LLMQ_14B = [*QWEN_14B[3], "model.seq_len=1024", "batch.global=512", "batch.micro=32", "loss.chunks=32",
            "recompute.mode=full", *(f"offload.{key}=all" for key in [*STATES, "activations"])]
LLMQ_CLUSTER = "tests/predict/published/llmq-4090.toml"
MOST_ABOVE_COMPUTE = 0.15
LLMQ_TOKENS_PER_S = 1349  # published for 14B in bf16 on this card (benchmarks/4090x1.md)
LLMQ_WITHIN = 0.1


def plan(deck, ranks, cluster, keys):
    """The JSON of plan --cluster; exit status 4 only says that it does not fit a device."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        done = launch(1, ["plan", deck, "--ranks", str(ranks), "--cluster", cluster, "--json", path, *keys])
        if done.returncode not in (0, 4):
            sys.exit(f"{deck} {' '.join(keys)}: exit status {done.returncode}\n{done.stdout}")
        with open(path) as file:
            return json.load(file)


def fixed_choices(open_keys):
    """Every combination of none and all, and of modes."""
    states = STATES if "states" in open_keys else []
    shares = [*states, *(["activations"] if "activations" in open_keys else [])]
    modes = ["none", "selective", "full"] if "recompute" in open_keys else [None]
    for mode in modes:
        for values in itertools.product(["none", "all"], repeat=len(shares)):
            yield [f"offload.{key}={value}" for key, value in zip(shares, values)] + (
                [f"recompute.mode={mode}"] if mode else [])


def compare(entry, full):
    """Lines of a table, and what must hold: (text, whether it does)."""
    name, deck, ranks, cluster, keys, open_keys = entry
    fixed = [(choice, plan(deck, ranks, cluster, [*keys, *choice])) for choice in fixed_choices(open_keys)]
    opened = [key.split("=")[0] + "=auto" for key in next(iter(fixed_choices(open_keys)))]
    peaks = sorted({made["peak_bytes"] for _, made in fixed})
    budgets = [peaks[0], *[(a + b) // 2 for a, b in zip(peaks, peaks[1:])]]
    budgets = budgets[:: max(1, len(budgets) // 6)] if full else [budgets[0], budgets[len(budgets) // 2]]
    lines, checks = [], []
    for budget in budgets:
        auto = plan(deck, ranks, cluster, [*keys, *opened, f"recompute.budget={budget}"])
        best, fastest = min(((choice, made) for choice, made in fixed if made["peak_bytes"] <= budget),
                            key=lambda one: one[1]["step_ms"])
        gain = 1 - auto["step_ms"] / fastest["step_ms"]
        made = auto["offload"]
        taken = made["trials"][made["choice"]]
        lines.append(f"{name:<20} {budget / 1e9:6.1f} GB {auto['peak_bytes'] / 1e9:6.1f} {fastest['step_ms']:10.1f} ms "
                     f"{auto['step_ms']:10.1f} {100 * gain:6.2f} % {len(made['trials']):3}  best fixed: "
                     f"{' '.join(key.split('.')[1] for key in best if not key.endswith('none'))}")
        checks += [(f"{name}, {budget} bytes: the peak, {auto['peak_bytes']}, fits", auto["peak_bytes"] <= budget),
                   (f"{name}, {budget} bytes: {auto['step_ms']:.3f} ms is not longer than {' '.join(best)}, "
                    f"{fastest['step_ms']:.3f} ms", gain >= -SLOWER)]
    hand = [f"offload.{key}={taken[key]}" for key in [*STATES, "activations"]]
    hand += [f"offload.layers={json.dumps(taken['layers'])}"] if taken["layers"] else []
    if "recompute" in open_keys:
        hand += [f"recompute.mode={taken['recompute_mode']}",
                 f"recompute.layers={json.dumps(taken['recompute_layers'])}"]
    by_hand = plan(deck, ranks, cluster, [*keys, *hand])
    checks.append((f"{name}: the choice by hand makes the same plan",
                   by_hand["rank_peak_bytes"] == auto["rank_peak_bytes"] and by_hand["step_ms"] == auto["step_ms"]))
    roomy = plan(deck, ranks, cluster, [*keys, *opened, f"recompute.budget={max(peaks)}"])
    checks.append((f"{name}: nothing is moved that fits", "host_bytes" not in roomy))
    return lines, checks


def digits(text, value):
    """`value` with as many decimals as the number in `text` has."""
    return f"{value:.{len(text.partition('.')[2])}f}"


def check_figures(checks):
    """The plans of the documentation still have its figures."""
    with open(os.path.join(ROOT, "doc", "offload.md")) as file:
        text = file.read()
    for name, (deck, ranks, cluster, keys) in FIGURES.items():
        cells = re.search(rf"^\| {re.escape(name)} .*$", text, re.M)[0].strip("| ").split(" | ")[2:]
        made = plan(deck, ranks, cluster, [*keys, *EVERYTHING])
        compute = made["step_ms"] - made["exposed_comm_ms"] - made["idle_ms"]
        found = [made["peak_bytes"] / 1e9, max(made["rank_host_bytes"]) / 1e9, made["step_ms"] / 1e3, compute / 1e3]
        printed = [digits(cell, value) for cell, value in zip(cells, found)]
        checks.that(cells == printed, f"{name}: {cells} in the documentation, {printed} planned")
        checks.that(made["offload"]["fits"], f"{name}: it fits")
        above = made["step_ms"] / compute - 1
        checks.that(above <= MOST_ABOVE_COMPUTE, f"{name}: {100 * above:.1f} % above compute")
    deck, ranks, cluster, keys = QWEN_14B
    made = plan(deck, ranks, cluster, [*keys, *EVERYTHING])
    rate = made["tokens_per_step"] / made["step_ms"] * 1e3
    checks.that(made["offload"]["fits"], "14B on an RTX 4090 fits")
    checks.that(f"{rate / 1e3:.2f}k\ntokens/s in bf16 with `batch.micro=16`" in text,
                "14B on an RTX 4090: the documentation has this rate")
    made = plan(deck, ranks, LLMQ_CLUSTER, LLMQ_14B)
    rate = made["tokens_per_step"] / made["step_ms"] * 1e3
    checks.that(abs(rate / LLMQ_TOKENS_PER_S - 1) <= LLMQ_WITHIN,
                f"14B on an RTX 4090 as LLMQ: {rate:.0f} tokens/s, {LLMQ_TOKENS_PER_S} published")
    checks.that(f"{rate / 1e3:.2f}k for them" in text, "14B as LLMQ: the documentation has this rate")


def main():
    if sys.argv[1:2] == ["figures"]:
        checks = Checks()
        check_figures(checks)
        checks.finish()
        return
    measures, texts = sys.argv[1:2] == ["measure"], sys.argv[2:]
    chosen = [entry for entry in DECKS if entry[0] in TEST]
    if measures:
        chosen = [entry for entry in DECKS if not texts or any(text in entry[0] for text in texts)]
    compare_all(chosen, lambda entry: compare(entry, measures), AT_ONCE)


if __name__ == "__main__":
    main()
