"""Published step times against `espalier simulate`: rows of Megatron-LM on A100 clusters (Narayanan et al. 2021, tables
1 and 2; Megatron-LM's README; Korthikanti et al. 2022, table 5), and of Megatron-Core on H100s (README,
2024). Prints the error of each row.

Each software stack is a cluster file in tests/predict/published: what is known of its kernels, and one fitted number,
`efficiency`. Within a stack the errors are at most 10 %, and 5 % on average. Nothing else is fitted to these rows. To
those of Megatron-Core on H100s (2024) nothing is fitted at all: their `efficiency` is the mean of the stacks on A100s.

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
LIMITS = {"zero3-2021": None, "megatron-2024": (0.08, 0.25)}
VOCABULARY = 51200
SHAPES = {  # layers, width, heads
    "1.16B": (24, 1920, 15), "1.7B": (24, 2304, 24), "2.03B": (30, 2304, 18), "3.6B": (30, 3072, 32),
    "4.24B": (36, 3072, 24), "7.5B": (36, 4096, 32), "8.67B": (42, 4096, 32), "18.4B": (40, 6144, 48),
    "22B": (48, 6144, 64), "39.1B": (48, 8192, 64), "76.1B": (60, 10240, 80), "145.6B": (80, 12288, 96),
    "175B": (96, 12288, 96), "310B": (96, 16384, 128), "530B": (105, 20480, 128), "1T": (128, 25600, 160),
    "1.7B wide": (24, 2048, 16), "7.1B": (30, 4096, 32), "16B": (32, 6144, 48), "32B": (48, 7168, 56),
    "70B": (84, 8192, 64), "119B": (92, 10240, 80), "177B": (96, 12288, 96), "314B": (96, 16384, 128),
    "462B": (112, 18432, 144)}


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
        """The figures of `espalier simulate`, as a dictionary."""
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            cluster = os.path.join(FOLDER, self.stack + ".toml")
            done = launch(1, ["simulate", os.path.join(FOLDER, "gpt2.toml"), *self.settings(), "--ranks",
                              str(self.gpus), "--cluster", cluster, "--json", out.name])
            if done.returncode != 0:
                sys.exit(f"{self.name}: exit status {done.returncode}\n{done.stdout}")
            return json.load(out)


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


class Experts:
    """A deck of published/experts.toml with some keys, on H100s, by a stack to which nothing is fitted."""

    def __init__(self, name, gpus, keys, tflops=None, milliseconds=None):
        self.name, self.gpus, self.keys, self.tflops, self.milliseconds = name, gpus, keys, tflops, milliseconds

    def simulate(self, *flags):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            done = launch(1, ["simulate", os.path.join(FOLDER, "experts.toml"), *self.keys, "--ranks", str(self.gpus),
                              "--cluster", os.path.join(FOLDER, "megatron-2025.toml"), "--json", out.name, *flags])
            if done.returncode != 0:
                sys.exit(f"{self.name}: exit status {done.returncode}\n{done.stdout}")
            return json.load(out)

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
    print(f"{stack}\n  {'row':26} {'published s':>11} {'predicted s':>11} {'error':>7}")
    errors = [result["step_ms"] / (1e3 * row.seconds) - 1 for row, result in zip(rows, results)]
    for row, result, error in zip(rows, results, errors):
        print(f"  {row.name:26} {row.seconds:11.2f} {result['step_ms'] / 1e3:11.2f} {100 * error:+6.1f} %")
    mean, largest = sum(map(abs, errors)) / len(errors), max(map(abs, errors))
    print(f"  mean {100 * mean:.1f} %, maximum {100 * largest:.1f} %; the fit would divide the efficiency by "
          f"{fitted(rows, results):.3f}", flush=True)
    if limits:
        checks.that(mean <= limits[0] and largest <= limits[1], f"{stack}: mean {mean:.3f}, maximum {largest:.3f}")


def main():
    if "--experts" in sys.argv:
        return print_experts()
    stacks = {"megatron-2020": megatron_2020(), "megatron-2021": megatron_2021(),
              "korthikanti-2022": korthikanti_2022(), "megatron-2024": megatron_2024()}
    if "--zero3" in sys.argv:
        stacks = {"zero3-2021": zero3_2021()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if "--choose" in sys.argv:
            opened = [row for rows in stacks.values() for row in rows if row.open_micro or row.open_chunks]
            return list(pool.map(choose, opened))
        # The longest first, so that no core is left alone with one.
        rows = [row for rows in stacks.values() for row in rows]
        longest = sorted(rows, key=lambda row: -row.layers * row.batch // row.replicas() // row.micro)
        results = dict(zip(map(id, longest), pool.map(Row.simulate, longest)))
    checks = Checks()
    for stack, rows in stacks.items():
        report(checks, stack, rows, [results[id(row)] for row in rows], LIMITS.get(stack, (MEAN, MAXIMUM)))
    if "--zero3" not in sys.argv:
        row = experts_rows()[0]
        error = row.error()
        checks.that(abs(error) <= MAXIMUM, f"{row.name}: {error:+.3f}, with nothing fitted")
    checks.finish()


if __name__ == "__main__":
    main()
