"""Published step times against `espalier simulate`: rows of Megatron-LM on A100 clusters (Narayanan et al. 2021, tables
1 and 2; Megatron-LM's README; Korthikanti et al. 2022, table 5), of Megatron-Core on H100s (README, 2024), of the zero
bubble paper (Qi et al. 2023, table 4), of nanotron (its playbook, 2025), of torchtitan (its performance pages, 2024 and
2025), of Llama 3 405B (Llama Team 2024, table 4), of llm.c (its scripts, 2024) and of LLMQ (its benchmarks, 2025).
Prints the error of each row.

Each software stack is a cluster file in tests/predict/published: what is known of its kernels, and one number,
`efficiency`. For the stacks of 2020 to 2022 it is fitted. For torchtitan on H100s, llm.c, and LLMQ on RTX 4090 it is
fitted to one row, which does not count. LLMQ on H100s has llm.c's; all others have the mean of the first three. Nothing
is fitted to their rows. Other keys of [software] come from the stack's sources or papers, and each says which.

Where the microbatch or the number of chunks is not published, a row has the fastest of those that were tried of 1, 2, 4
and 8 sequences and 1 to 4 chunks; `published.py --choose` tries all. `published.py --zero3` prints the
ZeRO-3 rows instead. They are no test: that stack was limited by its own gathers, at a sixth of the links' rate, which
no scalar of kernels describes. `published.py --experts` prints one layer of experts by itself, and all rows of
Megatron-Core with experts; of these the one whose configuration and software are published is a test."""
import json, os, sys, tempfile
from concurrent.futures import ThreadPoolExecutor

from support.runs import Checks, ROOT, launch

FOLDER = os.path.join(ROOT, "tests", "predict", "published")
MEAN, MAXIMUM = 0.05, 0.10
# Other limits: none for a stack that no scalar describes; wider ones where nothing is fitted to the rows.
LIMITS = {"zero3-2021": None, "megatron-2024": (0.05, 0.15), "torchtitan-a100": (0.08, 0.10),
          "torchtitan-2024": (0.06, 0.15), "nanotron-2025": (0.08, 0.25), "llama3-2024": (0.07, 0.13),
          "zero-bubble-2023": (0.05, 0.13)}
VOCABULARY = 51200
SHAPES = {  # layers, width, heads
    "1.16B": (24, 1920, 15), "1.7B": (24, 2304, 24), "2.03B": (30, 2304, 18), "3.6B": (30, 3072, 32),
    "4.24B": (36, 3072, 24), "7.5B": (36, 4096, 32), "8.67B": (42, 4096, 32), "18.4B": (40, 6144, 48),
    "22B": (48, 6144, 64), "39.1B": (48, 8192, 64), "76.1B": (60, 10240, 80), "145.6B": (80, 12288, 96),
    "175B": (96, 12288, 96), "310B": (96, 16384, 128), "530B": (105, 20480, 128), "1T": (128, 25600, 160),
    "1.7B wide": (24, 2048, 16), "7.1B": (30, 4096, 32), "16B": (32, 6144, 48), "32B": (48, 7168, 56),
    "70B": (84, 8192, 64), "119B": (92, 10240, 80), "177B": (96, 12288, 96), "314B": (96, 16384, 128),
    "462B": (112, 18432, 144)}


def simulate(name, deck, stack, gpus, keys, *flags):
    """The figures of `espalier simulate`, as a dictionary."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        done = launch(1, ["simulate", os.path.join(FOLDER, deck + ".toml"), *keys, "--ranks", str(gpus), "--cluster",
                          os.path.join(FOLDER, stack + ".toml"), "--json", out.name, *flags])
        if done.returncode not in (0, 4):  # 4: it does not fit; the figures are there
            sys.exit(f"{name}: exit status {done.returncode}\n{done.stdout}")
        return json.load(out)


class Row:
    """A published step: layout, then seconds, or TFLOP/s per GPU as Narayanan et al. count them (equation 3)."""

    def __init__(self, stack, model, gpus, batch, tp=8, pp=1, micro=1, chunks=1, open_micro=False, open_chunks=False,
                 seconds=None, tflops=None, recompute="full", sequence_parallel=False, length=2048, note=""):
        self.stack, self.model, self.gpus, self.batch = stack, model, gpus, batch
        self.tp, self.pp, self.micro, self.chunks = tp, pp, micro, chunks
        self.open_micro, self.open_chunks = open_micro, open_chunks
        self.recompute, self.sequence_parallel, self.length = recompute, sequence_parallel, length
        self.layers, self.width, self.heads = SHAPES[model]
        self.seconds = seconds or self.flops() / (gpus * tflops * 1e12)
        self.name = f"{model} on {gpus}" + (f", {note}" if note else "")
        self.fits = False  # nothing is fitted to this row alone
        self.microbatches = batch // self.replicas() // micro * self.layers

    def flops(self):
        l, h, s = self.layers, self.width, self.length
        return 96 * self.batch * s * l * h * h * (1 + s / (6 * h) + VOCABULARY / (16 * l * h))

    def replicas(self):
        return self.gpus // (self.tp * self.pp)

    def settings(self):
        """The keys of the deck."""
        keys = {"model.layers": self.layers, "model.dim": self.width, "model.heads": self.heads,
                "model.ffn_dim": 4 * self.width, "model.seq_len": self.length, "parallel.tp": self.tp,
                "parallel.pp": self.pp, "batch.global": self.batch, "batch.micro": self.micro,
                "parallel.sequence_parallel": str(self.sequence_parallel).lower(), "recompute.mode": self.recompute}
        keys["parallel.dp_replicate"], keys["parallel.dp_shard"] = self.replicas(), 1
        if self.stack == "zero3-2021":
            keys["parallel.dp_replicate"], keys["parallel.dp_shard"] = 1, self.gpus
            keys.update({"parallel.zero": 3, "recompute.regather": "always"})
        if self.stack == "megatron-2024":  # the distributed optimizer, and all messages overlapped
            keys["parallel.dp_replicate"], keys["parallel.dp_shard"] = 1, self.replicas()
            keys.update({"model.vocab": 131072, "parallel.reduce": "step", "overlap.tensor": "true"})
            if self.tp > 1:
                keys["overlap.tensor_strips"] = 2
        elif self.stack in ("zero3-2021", "megatron-2020"):  # gradients are reduced as backward makes them
            keys["parallel.reduce"] = "microbatch"
        else:  # after the last backward
            keys["overlap.gradients"] = "false"
        parts = self.pp * self.chunks
        if parts > 1:
            keys["pipeline.split"] = [self.layers // parts] * parts
        if self.chunks > 1:
            keys.update({"pipeline.schedule": "interleaved", "pipeline.chunks": self.chunks,
                         "overlap.interleave": "false"})
        return [f"{key}={value}" for key, value in keys.items()]

    def simulate(self):
        return simulate(self.name, "gpt2", self.stack, self.gpus, self.settings())


def megatron_2020():
    """Megatron-LM's README of 2020: 16 sequences per model-parallel group, no accumulation, length 1024; ms."""
    rows = []
    for model, tp, alone, with_128 in (("1.16B", 1, 1.076, 1.153), ("2.03B", 2, 1.026, 1.101),
                                       ("4.24B", 4, 1.162, 1.242), ("8.67B", 8, 1.343, 1.380)):
        for replicas, seconds in ((1, alone), (128, with_128)):
            rows.append(Row("megatron-2020", model, tp * replicas, 16 * replicas, tp=tp, micro=16, seconds=seconds,
                            length=1024))
    return rows


def megatron_2021():
    """Narayanan et al. 2021: table 1 (weak scaling), figure 10 and table 2 (strong scaling); Megatron-LM's README."""
    stack, rows = "megatron-2021", []
    for model, tp, pp, gpus, batch, tflops, micro, chunks in (
            ("1.7B", 1, 1, 32, 512, 137, 8, 1), ("3.6B", 2, 1, 64, 512, 138, 8, 1), ("7.5B", 4, 1, 128, 512, 142, 8, 1),
            ("18.4B", 8, 1, 256, 1024, 135, 8, 1), ("39.1B", 8, 2, 512, 1536, 138, 8, 4),
            ("76.1B", 8, 4, 1024, 1792, 140, 2, 3), ("145.6B", 8, 8, 1536, 2304, 148, 2, 2),
            ("310B", 8, 16, 1920, 2160, 155, 1, 3), ("530B", 8, 35, 2520, 2520, 163, 1, 3),
            ("1T", 8, 64, 3072, 3072, 163, 1, 2)):
        rows.append(Row(stack, model, gpus, batch, tp=tp, pp=pp, micro=micro, chunks=chunks, tflops=tflops,
                        open_micro=True, open_chunks=pp > 1, note="weak"))
    for gpus, tflops in ((384, 153), (768, 149), (1536, 141)):
        rows.append(Row(stack, "175B", gpus, 1536, pp=12, chunks=4, tflops=tflops, open_chunks=True, note="strong"))
    for gpus, tflops in ((560, 171), (1120, 167), (2240, 159)):
        rows.append(Row(stack, "530B", gpus, 2240, pp=35, chunks=3, tflops=tflops, open_chunks=True, note="strong"))
    rows.append(Row(stack, "175B", 1024, 1536, pp=16, micro=2, chunks=3, seconds=32.0, open_micro=True,
                    open_chunks=True, note="README"))
    return rows


def korthikanti_2022():
    """Korthikanti et al. 2022, table 5; the last pair from the model flops utilisation of section 6.3."""
    rows = []
    for model, pp, chunks, gpus, batch, micro, full, selective in (
            ("22B", 1, 1, 8, 4, 4, 1.42, 1.10), ("175B", 8, 3, 64, 64, 1, 18.13, 13.75),
            ("530B", 35, 3, 280, 280, 1, 49.05, 37.83), ("1T", 64, 1, 512, 512, 1, 94.42, 71.49),
            ("530B", 35, 3, 2240, 2240, 1, 50.4, 39.1)):
        rows.append(Row("korthikanti-2022", model, gpus, batch, pp=pp, chunks=chunks, micro=micro, seconds=full,
                        note="full"))
        # Plain attention computes its core again in backward, which is what selective recomputation does there.
        rows.append(Row("korthikanti-2022", model, gpus, batch, pp=pp, chunks=chunks, micro=micro, seconds=selective,
                        recompute="none", sequence_parallel=True, note="selective"))
    return rows


def megatron_2024():
    """Megatron-Core's README of 2024: 48 replicas, length 4096, a vocabulary of 131,072; seconds from its TFLOP/s.
    Neither microbatch nor chunks are published: the fastest of those that were tried."""
    return [Row("megatron-2024", model, gpus, batch, tp=tp, pp=pp, micro=micro, chunks=chunks, seconds=seconds,
                recompute="none", sequence_parallel=tp > 1, length=4096, open_micro=True, open_chunks=pp > 1)
            for model, tp, pp, gpus, batch, micro, chunks, seconds in (
                ("1.7B wide", 1, 1, 48, 192, 4, 1, 0.45), ("7.1B", 2, 1, 96, 192, 4, 1, 0.80),
                ("16B", 4, 1, 192, 192, 4, 1, 0.85), ("32B", 8, 1, 384, 192, 4, 1, 0.89),
                ("70B", 8, 2, 768, 384, 2, 7, 2.18), ("119B", 8, 4, 1536, 768, 1, 23, 3.65),
                ("177B", 8, 6, 2304, 1152, 1, 4, 5.26), ("314B", 8, 8, 3072, 1536, 1, 6, 8.40),
                ("462B", 8, 16, 6144, 3072, 1, 7, 12.7))]


def zero3_2021():
    """Narayanan et al. 2021, table 2."""
    return [Row("zero3-2021", model, gpus, batch, tp=1, micro=micro, tflops=tflops)
            for model, gpus, batch, micro, tflops in (
                ("175B", 384, 1536, 4, 144), ("175B", 768, 1536, 2, 88), ("175B", 1536, 1536, 1, 44),
                ("530B", 640, 2560, 4, 138), ("530B", 1120, 2240, 2, 98), ("530B", 2240, 2240, 1, 48))]


class Keyed:
    """A published step, by keys of tests/predict/published/DECK.toml. `fits`: the stack's efficiency is fitted to this
    row, which counts for nothing then."""

    def __init__(self, stack, name, gpus, deck, keys, seconds, layers_of_all, fits=False):
        self.stack, self.name, self.gpus, self.deck, self.keys = stack, name, gpus, deck, keys
        self.seconds, self.microbatches, self.fits = seconds, layers_of_all // gpus, fits

    def simulate(self):
        return simulate(self.name, self.deck, self.stack, self.gpus, self.keys)


LLAMAS = {  # layers, width, heads, heads of keys, width of the MLP, vocabulary, tied
    "8B": (32, 4096, 32, 8, 14336, 128256, False), "70B": (80, 8192, 64, 8, 28672, 128256, False),
    "405B": (126, 16384, 128, 8, 53248, 128256, False), "Llama 2 13B": (40, 5120, 40, 40, 13824, 32000, False),
    "Llama 2 70B": (80, 8192, 64, 8, 28672, 32000, False), "1.34B": (16, 2048, 32, 32, 8192, 131072, True),
    "3.57B": (28, 3072, 32, 32, 8192, 131072, True), "8.86B": (32, 4096, 32, 32, 14336, 131072, False),
    "80B": (80, 8192, 64, 64, 28672, 131072, False), "Qwen2.5 0.5B": (24, 896, 14, 2, 4864, 151936, True),
    "Qwen2.5 1.5B": (28, 1536, 12, 2, 8960, 151936, True), "Qwen2.5 3B": (36, 2048, 16, 2, 11008, 151936, True),
    "Qwen2.5 7B": (28, 3584, 28, 4, 18944, 152064, False)}


def llama(stack, model, gpus, batch, length, keys, tokens=None, tflops=None, causal=False, note="", fits=False,
          seconds=None):
    """A row by seconds, or by tokens/s or TFLOP/s of one GPU, where attention counts as a whole square or, causal, as
    half of it."""
    layers, width, heads, kv_heads, ffn, vocabulary, tied = LLAMAS[model]
    parameters = layers * (width * width // heads * (2 * heads + 2 * kv_heads) + 3 * width * ffn) + vocabulary * width
    flops = 6 * parameters + (6 if causal else 12) * layers * width * length
    per_gpu = batch * length / gpus
    if seconds is None:
        seconds = per_gpu / tokens if tokens else per_gpu * flops / (tflops * 1e12)
    shape = [f"model.layers={layers}", f"model.dim={width}", f"model.heads={heads}", f"model.kv_heads={kv_heads}",
             f"model.ffn_dim={ffn}", f"model.vocab={vocabulary}", f"model.tie_embeddings={str(tied).lower()}",
             f"model.seq_len={length}", f"batch.global={batch}"]
    name = f"{model} on {gpus}" + (f", {note}" if note else "")
    return Keyed(stack, name, gpus, "llama", shape + keys, seconds, batch * layers, fits)


def degrees(shard=1, tp=1, pp=1, cp=1, micro=1):
    return [f"parallel.dp_shard={shard}", f"parallel.tp={tp}", f"parallel.pp={pp}", f"parallel.cp={cp}",
            f"batch.micro={micro}"]


# torchtitan's selective recomputation keeps the result of every second matmul, which is about this rule.
SELECTIVE = ['recompute.layers=["selective+qkv+mlp: every 2"]', "recompute.mode=selective"]


def torchtitan_2024():
    """torchtitan's performance pages (2024, 2025): FSDP, a length of 8192, H100s with 96 GB of HBM2e and 500 W."""
    full, fp8, hidden = ["recompute.mode=full"], ["precision.matmul=fp8"], ["overlap.tensor=true"]
    eager_tp, rows = ["overlap.tensor=false"], []
    def stack_of(keys):
        return "torchtitan-fp8" if fp8[0] in keys else "torchtitan-2024"

    for gpus, shard, plain, low in ((8, 8, 6667, 8532), (128, 128, 6514, 8380)):
        for tokens, keys, note in ((plain, [], "bf16"), (low, fp8, "fp8")):
            rows.append(llama(stack_of(keys), "8B", gpus, 2 * gpus, 8192, degrees(shard, micro=2) + SELECTIVE + keys,
                              tokens=tokens, note=note, fits=gpus == 8 and not keys))
    for tokens, keys, note in ((597.3, eager_tp, "bf16"), (652.4, hidden, "bf16, async tp"),
                               (829, eager_tp + fp8, "fp8"), (876, hidden + fp8, "fp8, async tp")):
        rows.append(llama(stack_of(keys), "70B", 256, 32 * 16, 8192, degrees(32, 8, micro=16) + full + keys,
                          tokens=tokens, note=note))
    for tokens, keys, note in ((109, eager_tp, "bf16"), (177, eager_tp + fp8, "fp8"),
                               (185, hidden + fp8, "fp8, async tp")):
        rows.append(llama(stack_of(keys), "405B", 128, 32, 8192, degrees(16, 8, micro=2) + full + keys,
                          tokens=tokens, note=note))
    return rows


def torchtitan_h200():
    """8B with fp8 on nodes of H200s (Trainy, torchtitan's benchmarks, 2025), at step 100."""
    keys = SELECTIVE + ["precision.matmul=fp8"]
    return [llama("torchtitan-h200", "8B", gpus, 2 * gpus, 8192, degrees(gpus, micro=2) + keys, tokens=tokens)
            for gpus, tokens in ((32, 10938), (64, 10753))]


def torchtitan_a100():
    """torchtitan's performance page of 2024 for 64 A100s: FSDP, no recomputation or all of it."""
    full = ["recompute.mode=full"]
    return [llama("torchtitan-a100", model, 64, 64 * micro, length, degrees(64, micro=micro) + keys, tokens=tokens)
            for model, length, micro, keys, tokens in (
                ("70B", 8192, 1, full, 331), ("Llama 2 13B", 4096, 2, [], 2162), ("Llama 2 70B", 4096, 2, full, 353))]


def gpt2(layers, width, heads):
    """Keys of a GPT-2 that computes nothing again."""
    return [f"model.layers={layers}", f"model.dim={width}", f"model.heads={heads}", f"model.ffn_dim={4 * width}",
            "model.seq_len=1024", "recompute.mode=none"]


def zero_bubble_2023():
    """Qi et al. 2023, tables 3 and 4: one rank per stage, the first and the last with a layer less; interleaved with
    one layer per chunk. ZB-1p is the best schedule with the memory of 1F1B, as ZB-H1 is. The vocabulary is the one with
    which all four models have their published sizes."""
    rows = []
    for layers, width, heads, gpus, micro, counts in (
            (22, 2304, 24, 8, 6, ((24, 11.8, 13.1, 12.9), (64, 13.6, 13.9, 14.2))),
            (30, 4096, 32, 8, 3, ((24, 3.50, 4.01, 3.88), (64, 4.03, 4.19, 4.20))),
            (46, 5120, 40, 16, 1, ((48, 1.40, 1.54, 1.61), (128, 1.64, 1.66, 1.76))),
            (62, 6144, 48, 32, 1, ((96, 0.76, 0.82, 0.87), (256, 0.88, 0.90, 0.96)))):
        each = (layers + 2) // gpus
        plain = [each - 1] + [each] * (gpus - 2) + [each - 1]
        chunks = [0] + [1] * layers + [0]
        for count, *rates in counts:
            for rate, schedule, split in zip(rates, ("1f1b", "interleaved", "zb-h1"), (plain, chunks, plain)):
                keys = gpt2(layers, width, heads) + [
                    f"pipeline.schedule={schedule}", f"pipeline.split={split}", f"batch.global={count * micro}",
                    "model.tie_embeddings=false", "model.vocab=32000", "overlap.interleave=false"]
                if schedule == "interleaved":
                    keys.append(f"pipeline.chunks={len(chunks) // gpus}")
                name = f"{layers} x {width} on {gpus}, {schedule}, {count}"
                rows.append(Keyed("zero-bubble-2023", name, gpus, "gpt2", keys + degrees(pp=gpus, micro=micro),
                                  count * micro / rate / gpus, count * layers))
    return rows


def nanotron_split(model, stages):
    """Layers per stage: a stage ends with the first block that brings the sum of costs, parameters of layers and of the
    head, above its share (nanotron's build_model)."""
    layers, width, heads, kv_heads, ffn, vocabulary, _ = LLAMAS[model]
    costs = [4 * width * width + 3 * width * ffn] * layers + [vocabulary * width]
    split, done, stage = [0] * stages, 0, 0
    for cost in costs[:-1]:
        done += cost
        split[stage] += 1
        stage += done > sum(costs) * (stage + 1) / stages
    return split


def nanotron_2025():
    """The best layouts of nanotron's playbook for a million tokens: its MFU counts whole squares of scores. Then its
    figure of tensor parallelism, one microbatch of the largest size that fits."""
    rows = []
    for model, nodes, replicas, tp, pp, micro, zero, mfu in (
            ("1.34B", 1, 4, 1, 2, 4, 1, 44.3), ("3.57B", 1, 4, 1, 2, 2, 1, 46.7), ("8.86B", 1, 2, 1, 4, 1, 1, 45.2),
            ("8.86B", 2, 4, 4, 1, 4, 1, 43.9), ("8.86B", 4, 16, 1, 2, 1, 1, 43.3), ("8.86B", 16, 16, 8, 1, 8, 0, 36.3),
            ("8.86B", 64, 128, 4, 1, 2, 0, 18.7), ("80B", 8, 1, 4, 16, 1, 0, 30.7), ("80B", 16, 1, 4, 32, 1, 0, 34.3),
            ("80B", 32, 4, 4, 16, 1, 1, 30.8), ("80B", 64, 32, 16, 1, 2, 1, 17.8)):
        keys = degrees(replicas if zero else 1, tp, pp, micro=micro)
        keys += [f"parallel.dp_replicate={1 if zero else replicas}", "parallel.zero=1", "parallel.reduce=step",
                 "overlap.tensor=false", f"pipeline.split={nanotron_split(model, pp)}"]
        rows.append(llama("nanotron-2025", model, 8 * nodes, 256, 4096, keys, tflops=9.895 * mfu))
    for tp, micro, tokens in ((2, 3, 13923), (4, 8, 12421), (8, 12, 10903), (16, 16, 6246), (32, 20, 2146)):
        keys = degrees(tp=tp, micro=micro) + ["parallel.dp_replicate=1", "overlap.tensor=false"]
        rows.append(llama("nanotron-2025", "3.57B", tp, micro, 4096, keys, tokens=tokens, note=f"tp {tp}"))
    return rows


def llama3_2024():
    """Llama Team 2024, table 4: TFLOP/s with attention counted as half a square. One layer per chunk, the first and the
    last chunk without one."""
    split = [0] + [1] * 126 + [0]
    pipeline = ["pipeline.schedule=interleaved", "pipeline.chunks=8", f"pipeline.split={split}",
                "overlap.interleave=false", "parallel.zero=1", "overlap.tensor=false"]
    return [llama("llama3-2024", "405B", gpus, batch, length, degrees(shard, 8, 16, cp) + pipeline + extra,
                  tflops=tflops, causal=True, note=note)
            for gpus, batch, length, shard, cp, tflops, extra, note in (
                (8192, 2048, 8192, 64, 1, 430, [], ""), (16384, 2048, 8192, 128, 1, 400, [], ""),
                (16384, 128, 131072, 8, 16, 380, ["parallel.context=all_gather"], "131,072 tokens"))]


def llm_c_2024():
    """llm.c's scripts run_gpt2_*.sh: GPT-2 with the optimizer sharded over a node. The largest took 2.7 to 2.8 s."""
    return [Keyed(stack, f"{model} on 8 {gpus}", 8, "gpt2", gpt2(layers, width, heads) + degrees(8, micro=micro) +
                  ["model.vocab=50304", f"batch.global={batch}", "parallel.reduce=step"], seconds, batch * layers,
                  fits=model == "124M")
            for model, stack, gpus, layers, width, heads, batch, micro, seconds in (
                ("124M", "llm-c-2024", "A100s", 12, 768, 12, 512, 64, 0.30),
                ("350M", "llm-c-2024", "A100s", 24, 1024, 16, 512, 64, 0.82),
                ("774M", "llm-c-2024", "A100s", 36, 1280, 20, 512, 32, 1.7),
                ("1558M", "llm-c-h100", "H100s", 48, 1600, 25, 1024, 16, 2.75))]


def llmq_2025():
    """LLMQ's benchmarks on H100 and RTX 4090, means of steps 1 to 5 of half a million tokens. All others recompute
    or move values to the host: 7B in fp8, 14B, and on RTX 4090 those above 1.5B and 1.5B in bf16 on four."""
    runs = {  # model, GPUs, sequences of a microbatch, chunks of the loss, matmuls, seconds
        ("llmq-2025", ""): (
            ("0.5B", 1, 32, 1, "bf16", 3.501), ("1.5B", 1, 32, 1, "bf16", 8.856), ("3B", 1, 16, 1, "bf16", 16.962),
            ("7B", 1, 4, 2, "bf16", 37.936), ("0.5B", 8, 32, 1, "bf16", 0.451), ("1.5B", 8, 32, 4, "bf16", 1.146),
            ("3B", 8, 16, 1, "bf16", 2.184), ("7B", 8, 8, 2, "bf16", 4.670), ("0.5B", 1, 32, 1, "fp8", 3.184),
            ("1.5B", 1, 32, 1, "fp8", 7.187), ("3B", 1, 16, 1, "fp8", 12.997), ("0.5B", 8, 64, 1, "fp8", 0.405),
            ("1.5B", 8, 32, 1, "fp8", 0.929), ("3B", 8, 16, 1, "fp8", 1.674)),
        ("llmq-4090", ", RTX 4090"): (
            ("0.5B", 1, 16, 16, "bf16", 13.156), ("1.5B", 1, 4, 4, "bf16", 37.266), ("0.5B", 4, 16, 2, "bf16", 3.387),
            ("0.5B", 1, 16, 16, "fp8", 11.006), ("1.5B", 1, 4, 4, "fp8", 25.785), ("0.5B", 4, 16, 2, "fp8", 2.887),
            ("1.5B", 4, 8, 2, "fp8", 7.284))}
    return [llama(stack, f"Qwen2.5 {model}", gpus, 512, 1024,
                  degrees(gpus, micro=micro) + ["parallel.zero=1", "parallel.reduce=step", f"loss.chunks={chunks}"] +
                  (["precision.matmul=fp8"] if matmuls == "fp8" else []), seconds=seconds, note=matmuls + card,
                  fits=(stack, model, gpus, matmuls) == ("llmq-4090", "0.5B", 1, "bf16"))
            for (stack, card), rows in runs.items() for model, gpus, micro, chunks, matmuls, seconds in rows]


class Experts:
    """A deck of published/experts.toml with some keys, on H100s, by a stack to which nothing is fitted."""

    def __init__(self, name, gpus, keys, tflops=None, milliseconds=None):
        self.name, self.gpus, self.keys, self.tflops, self.milliseconds = name, gpus, keys, tflops, milliseconds

    def simulate(self, *flags):
        return simulate(self.name, "experts", "megatron-2025", self.gpus, self.keys, *flags)

    def error(self):
        """MFU from the step's time. Megatron-Core counted the flops of whole squares of scores."""
        figures = self.simulate()
        predicted = figures["mfu_full"] * figures["peak_tflops"]
        print(f"  {self.name:40} {self.tflops:5.0f} TFLOP/s published, {predicted:5.0f} predicted: "
              f"{100 * (self.tflops / predicted - 1):+5.1f} % of the step's time")
        return self.tflops / predicted - 1

    def print_layer(self):
        """Forward and backward of the experts of a layer, from the router to the sum over its experts."""
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            self.simulate("--trace", out.name)
            spans = [event for event in json.load(out)["traceEvents"] if event.get("ph") == "X"]
        forward, backward = 0, 0
        for span in spans:
            op, layer, role = (span["args"][key] for key in ("op", "layer", "role"))
            exchange = op in ("all_gather", "reduce_scatter") and role in ("F", "B") and span["tid"] == EP_LANE
            if layer == 2 and (exchange or any(part in op for part in OF_EXPERTS)):
                forward += span["dur"] / 1e3 * (role == "F")
                backward += span["dur"] / 1e3 * (role != "F")
        published = self.milliseconds
        print(f"  {self.name:40} forward {published[0]:5.2f} ms published, {forward:5.2f} predicted; "
              f"backward {published[1]:5.2f}, {backward:5.2f}")


OF_EXPERTS = ("route", "dispatch", "grouped_matmul", "weighted_swiglu", "combine")
EP_LANE = 4  # "tid" of a trace


def experts_rows():
    """Megatron-Core's ModelZoo and its README for experts: dropless, balanced by force, length 4096."""
    large = ["model.layers=56", "model.dim=6144", "model.heads=48", "experts.ffn_dim=16384", "model.ffn_dim=16384",
             "model.vocab=32768", "parallel.tp=2", "parallel.pp=8", "parallel.dp_shard=8", "parallel.ep=8",
             "batch.global=256"]
    small = ["model.layers=32", "parallel.pp=4", "parallel.dp_shard=16", "parallel.ep=8", "batch.global=256",
             "pipeline.schedule=interleaved", "pipeline.chunks=8"]
    return [Experts("Mixtral 8x22B on 128", 128, large, tflops=455),
            Experts("Mixtral 8x7B on 64, Megatron-Core 0.9", 64, small, tflops=468)]


def print_experts():
    alone = ["parallel.dp_replicate=1", "parallel.dp_shard=8", "parallel.ep=8", "parallel.reduce=step",
             "overlap.gradients=false"]
    deepseek = ["model.dim=7168", "model.heads=56", "experts.count=32", "experts.per_token=8", "experts.ffn_dim=2048"]
    print("one layer of experts on 8, 4096 tokens per GPU (baseline.json of Megatron-LM's tests)")
    Experts("Mixtral 8x7B", 8, alone, milliseconds=(4.33, 7.68)).print_layer()
    # The published time includes the shared expert, 0.36 TFLOP forward and twice that backward.
    Experts("DeepSeek-V3 with 32 experts, HybridEP", 8, alone + deepseek, milliseconds=(5.39, 8.80)).print_layer()
    for row in experts_rows():
        row.error()


def fitted(rows, results):
    """The factor on kernels' time that makes the largest error smallest; the efficiency times its inverse fits best.
    Time of the slowest rank that is not communication counts as kernels: idle time is that of other ranks."""
    def largest(factor):
        return max(abs((r["step_ms"] + (factor - 1) * (r["compute_ms"] + r["idle_ms"])) / (1e3 * row.seconds) - 1)
                   for row, r in zip(rows, results))
    return min((step / 1000 for step in range(700, 1400)), key=largest)


def choose(row):
    """Prints the fastest open settings of a row that fit, by prediction."""
    found = []
    per_stage = row.layers // row.pp
    for row.micro in (1, 2, 4, 8) if row.open_micro else (row.micro,):
        for row.chunks in (1, 2, 3, 4) if row.open_chunks else (row.chunks,):
            per_replica = row.batch // row.replicas()
            if per_replica % row.micro or per_stage % row.chunks:
                continue
            if row.chunks > 1 and per_replica // row.micro % row.pp:
                continue
            result = row.simulate()
            if result["fits"]:
                found.append((result["step_ms"], row.micro, row.chunks))
    print(f"{row.name}: micro {min(found)[1]}, chunks {min(found)[2]}", flush=True)


def report(checks, stack, rows, results, limits):
    """Prints the rows. Rows to which the efficiency is fitted one by one do not count."""
    print(f"{stack}\n  {'row':34} {'published s':>11} {'predicted s':>11} {'error':>7}")
    errors = []
    for row, result in zip(rows, results):
        error = result["step_ms"] / (1e3 * row.seconds) - 1
        print(f"  {row.name:34} {row.seconds:11.2f} {result['step_ms'] / 1e3:11.2f} {100 * error:+6.1f} %" +
              (" (fitted)" if row.fits else "") + ("" if result["fits"] else " (does not fit)"))
        errors += [] if row.fits else [abs(error)]
    mean, largest = sum(errors) / len(errors), max(errors)
    print(f"  mean {100 * mean:.1f} %, maximum {100 * largest:.1f} %; the fit would divide the efficiency by "
          f"{fitted(rows, results):.3f}", flush=True)
    if limits:
        checks.that(mean <= limits[0] and largest <= limits[1], f"{stack}: mean {mean:.3f}, maximum {largest:.3f}")


STACKS = {"megatron-2020": megatron_2020, "megatron-2021": megatron_2021, "korthikanti-2022": korthikanti_2022,
          "zero-bubble-2023": zero_bubble_2023, "torchtitan-a100": torchtitan_a100, "megatron-2024": megatron_2024,
          "nanotron-2025": nanotron_2025, "torchtitan-2024": torchtitan_2024, "llama3-2024": llama3_2024,
          "torchtitan-h200": torchtitan_h200, "llm-c-2024": llm_c_2024, "llmq-2025": llmq_2025}


def main():
    if "--experts" in sys.argv:
        return print_experts()
    wanted = [name for name in sys.argv[1:] if not name.startswith("-")]
    stacks = {name: rows() for name, rows in STACKS.items() if not wanted or name in wanted}
    if "--zero3" in sys.argv:
        stacks = {"zero3-2021": zero3_2021()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if "--choose" in sys.argv:
            opened = [row for rows in stacks.values() for row in rows if row.open_micro or row.open_chunks]
            return list(pool.map(choose, opened))
        # The longest first, so that no core is left alone with one.
        rows = [row for rows in stacks.values() for row in rows]
        longest = sorted(rows, key=lambda row: -row.microbatches)
        results = dict(zip(map(id, longest), pool.map(lambda row: row.simulate(), longest)))
    checks = Checks()
    for stack, rows in stacks.items():
        report(checks, stack, rows, [results[id(row)] for row in rows], LIMITS.get(stack, (MEAN, MAXIMUM)))
    if len(sys.argv) == 1:
        row = experts_rows()[0]
        error = row.error()
        checks.that(abs(error) <= MAXIMUM, f"{row.name}: {error:+.3f}, with nothing fitted")
    checks.finish()


if __name__ == "__main__":
    main()
