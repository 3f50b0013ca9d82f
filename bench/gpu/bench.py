"""Training steps of Espalier and of PyTorch on one GPU, in turns within one run: bench/gpu/run.sh [option ...] [SHAPE ...]

SHAPE: 124m, 1.5b, 8b-4k, 8b-8k, or tiny to rehearse on a CPU (--device cpu). Model, samples, batch and optimizer are the same on
both sides; the decks stand beside this file. The batch fills the memory: of the deck's layers as many as fit with a microbatch of
--least-tokens, then the largest microbatch whose planned peak fits.

Each round runs every way to train for --steps steps, of which the first --warmup do not count, and the bare products of the model.
Prints medians: tokens/s, the ratio to torch.compile, model flops utilisation against the datasheet, causal and full, and the step's
rate over that of the bare products."""
import argparse, json, os, statistics, subprocess, sys, tempfile, time, tomllib

import sides
from sides import HERE, Failed
from tokens import write_random_tokens

GIB = 1 << 30
# Dense bf16, in TFLOP/s, by NVIDIA's datasheets; a name stands for all that begin with it.
DATASHEET = {"NVIDIA H200": 989.4, "NVIDIA H100 80GB HBM3": 989.4, "NVIDIA H100 NVL": 835.5, "NVIDIA H100 PCIe": 756.5, "NVIDIA A100": 312.0}
# CUDA's context and modules, cuBLAS, cuDNN: what a run needs beside its arena.
OUTSIDE_BYTES = 4 * GIB
MICRO = sorted({n for k in range(12) for n in (2**k, 3 * 2**k)})
WAYS = {  # name -> deck keys of Espalier, or flags of torch_llama.py
    "espalier": ["run.deterministic=true"],
    "espalier-fast": ["run.deterministic=false"],
    "compile": ["--compile"],
    "compile-deterministic": ["--compile", "--deterministic"],
    "eager": [],
}


def gpu():
    """Name and bytes of the first GPU."""
    text = subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits", "-i", "0"],
                          capture_output=True, text=True, check=True).stdout
    name, mib = text.strip().rsplit(",", 1)
    return name, int(mib) << 20


class Shape:
    """A deck with the layers and the batch that fit."""

    def __init__(self, name, options):
        self.name, self.o = name, options
        self.deck = os.path.join(HERE, f"{name}.toml")
        if not os.path.exists(self.deck):
            sys.exit(f"no shape is called {name}; they are the decks of {HERE}")
        self.tokens_file = os.path.join(options.folder, f"{name}.tokens")
        self.layers, self.micro = self.effective([])["model"]["layers"], 1
        seq = self.effective([])["model"]["seq_len"]
        self.write_tokens(2)
        self.choose(max(1, options.least_tokens // seq))
        self.write_tokens(2 * self.micro)
        self.values = self.effective(self.overrides())
        self.plan = self.planned(self.layers, self.micro)

    def write_tokens(self, samples):
        model = self.effective([])["model"]
        write_random_tokens(self.tokens_file, samples * model["seq_len"] + 1, model["vocab"])

    def overrides(self, layers=None, micro=None):
        layers, micro = layers or self.layers, micro or self.micro
        return [f"run.device={self.o.device}", f"model.layers={layers}", f"batch.micro={micro}", f"batch.global={micro}", f"run.threads={self.o.threads}",
                f'data.paths=["{self.tokens_file}"]']

    def effective(self, overrides):
        return tomllib.loads(sides.check(self.o.espalier, self.deck, overrides))

    def planned(self, layers, micro):
        return sides.plan(self.o.espalier, self.deck, self.overrides(layers, micro))

    def fits(self, layers, micro):
        return self.planned(layers, micro)["peak_bytes"] + OUTSIDE_BYTES <= self.o.memory

    def choose(self, least):
        layers = next((n for n in range(self.layers, 0, -1) if self.fits(n, least)), None)
        if layers is None:
            sys.exit(f"{self.name}: not one layer fits into {self.o.memory} bytes; --least-tokens below {self.o.least_tokens} asks for less")
        self.layers, self.micro = layers, least
        for micro in (m for m in MICRO if m > least):
            if not self.fits(layers, micro):
                break
            self.micro = micro

    def turn(self, way, seconds):
        """One turn of one way: milliseconds of its counted steps, and all that it said."""
        if way.startswith("espalier"):
            said = sides.espalier(self.o.espalier, self.deck, [*self.overrides(), *WAYS[way]], self.o.steps, seconds)
        else:
            path = os.path.join(self.o.folder, "effective.toml")
            with open(path, "w") as file:
                file.write(sides.check(self.o.espalier, self.deck, self.overrides()))
            said = sides.pytorch(self.o.python, path, self.o.device, self.o.steps, seconds, WAYS[way])
        return said["ms"][self.o.warmup:], said


class Results:
    """What the turns of a shape measured."""

    def __init__(self, ways):
        self.ms, self.said, self.failed, self.products = {way: [] for way in ways}, {}, {}, []

    def measure(self, shape, end):
        """One round."""
        self.products.append(sides.products(shape.o.build, shape.o.device, shape.values["model"], shape.micro * shape.values["model"]["seq_len"]))
        for way in self.ms:
            if way in self.failed:
                continue
            try:
                ms, self.said[way] = shape.turn(way, end - time.monotonic())
                self.ms[way] += ms
                print(f"  {way}: {statistics.median(ms):.1f} ms a step ({min(ms):.1f} to {max(ms):.1f})", flush=True)
            except Failed as reason:
                self.failed[way] = str(reason)
                print(f"  {way}: failed: {reason}", flush=True)


def rounds(shape, options, ways):
    """Rounds in turn, as many as were asked for or as there is time for."""
    results, begin = Results(ways), time.monotonic()
    end = begin + options.seconds
    for n in range(options.rounds):
        last = time.monotonic()
        if n and last + (last - begin) / n > end:
            print(f"  {n} of {options.rounds} rounds: no time for more within {options.seconds} s")
            break
        results.measure(shape, end)
    return results


def table(shape, options, results):
    """The rows of the table, one a way that ran."""
    tokens, flops = shape.plan["tokens_per_step"], shape.plan["flops_per_token"]
    bare = statistics.median(results.products)
    rates = {way: 1e3 * tokens / statistics.median(ms) for way, ms in results.ms.items() if ms}
    rows = []
    for way, rate in rates.items():
        causal, full = (1e-12 * flops[kind] * rate for kind in ("causal", "full"))
        rows.append({"way": way, "tokens_per_s": rate, "over_compile": rate / rates["compile"] if "compile" in rates else None,
                     "mfu_causal": causal / options.peak if options.peak else None, "mfu_full": full / options.peak if options.peak else None,
                     "of_products": causal / bare, "ms": results.ms[way], "micro": results.said[way].get("micro", shape.micro)})
    return bare, rows


def text(value, form):
    return format(value, form) if value is not None else "-"


def print_table(shape, options, results):
    bare, rows = table(shape, options, results)
    print(f"{'':<22} {'tokens/s':>10} {'ms a step':>10} {'/ compile':>9} {'MFU causal':>10} {'MFU full':>8} {'/ products':>10} {'micro':>6}")
    for r in rows:
        print(f"{r['way']:<22} {r['tokens_per_s']:>10.0f} {statistics.median(r['ms']):>10.1f} {text(r['over_compile'], '.2f'):>9} "
              f"{text(r['mfu_causal'], '.1%'):>10} {text(r['mfu_full'], '.1%'):>8} {text(r['of_products'], '.2f'):>10} {r['micro']:>6}")
    for way, reason in results.failed.items():
        print(f"{way:<22} failed: {reason}")
    print(f"bare products: {bare:.1f} TFLOP/s" + (f", {bare / options.peak:.1%} of the datasheet's {options.peak}" if options.peak else ""))
    print_parts(results, rows, bare, shape)
    return {"shape": shape.name, "layers": shape.layers, "micro": shape.micro, "tokens_per_step": shape.plan["tokens_per_step"],
            "planned_peak_bytes": shape.plan["peak_bytes"], "products_tflops": results.products, "rows": rows, "failed": results.failed}


def print_parts(results, rows, bare, shape):
    """Where Espalier's step went, as far as metrics.jsonl tells, and how long its products alone would take."""
    for way in (r["way"] for r in rows if r["way"].startswith("espalier")):
        steps = results.said[way]["steps"]
        parts = {key: statistics.median(s[key] for s in steps) for key in ("compute_ms", "exposed_comm_ms", "idle_ms", "data_ms")}
        print(f"{way}, ms of a step: " + ", ".join(f"{key[:-3].replace('_', ' ')} {ms:.1f}" for key, ms in parts.items())
              + f"; its products alone at the bare rate: {products_ms(shape, bare):.1f}")


def products_ms(shape, bare):
    m = shape.values["model"]
    kv_dim = m["dim"] // m["heads"] * m["kv_heads"]
    weights = m["layers"] * (2 * m["dim"] * (m["dim"] + kv_dim) + 3 * m["dim"] * m["ffn_dim"]) + m["vocab"] * m["dim"]
    return 6 * weights * shape.plan["tokens_per_step"] / bare / 1e9


def main():
    parser = argparse.ArgumentParser(prog="bench/gpu/run.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help="124m, 1.5b, 8b-4k, 8b-8k, tiny (all but tiny)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="steps of a turn")
    parser.add_argument("--warmup", type=int, help="of them, how many do not count (a third)")
    parser.add_argument("--seconds", type=float, default=540, help="for the rounds of one shape")
    parser.add_argument("--ways", default=",".join(WAYS), help="which of " + ", ".join(WAYS))
    parser.add_argument("--least-tokens", type=int, help="of a microbatch (16384; on a CPU one sequence)")
    parser.add_argument("--memory", type=int, help="bytes to fill (the GPU's; on a CPU enough for the tiny shape)")
    parser.add_argument("--peak", type=float, help="TFLOP/s in dense bf16 (by the GPU's name)")
    parser.add_argument("--threads", type=int, default=0, help="of every side on the CPU; 0: all cores")
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch")
    parser.add_argument("--json", help="write all that was measured to this file")
    parser.add_argument("--build", required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    complete(options)
    ways = [way for way in options.ways.split(",") if way in WAYS]
    if not sides.has_torch(options.python):
        print(f"{options.python} has no PyTorch: Espalier and the bare products alone")
        ways = [way for way in ways if way.startswith("espalier")]
    with tempfile.TemporaryDirectory() as options.folder:
        measured = [bench(Shape(name, options), options, ways) for name in options.shapes]
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": options.name, "peak_tflops": options.peak, "shapes": measured}, file, indent=1)
    sys.exit(1 if any(m["failed"] for m in measured) else 0)


def complete(o):
    """What follows from the device."""
    o.espalier = os.path.join(o.build, "espalier")
    o.name, bytes_here = gpu() if o.device == "cuda" else ("CPU", OUTSIDE_BYTES + (8 << 20))
    o.memory = o.memory or bytes_here
    o.peak = o.peak or next((peak for name, peak in DATASHEET.items() if o.name.startswith(name)), None)
    o.least_tokens = o.least_tokens or (16384 if o.device == "cuda" else 1)
    o.warmup = o.steps // 3 if o.warmup is None else o.warmup
    if o.threads:
        os.environ["OMP_NUM_THREADS"] = str(o.threads)
    o.shapes = o.shapes or ["124m", "1.5b", "8b-4k", "8b-8k"]


def bench(shape, options, ways):
    m = shape.values["model"]
    print(f"\n{shape.name} on {options.name}: {m['layers']} layers x {m['dim']}, vocabulary {m['vocab']}, {shape.plan['parameters']} parameters; a step is "
          f"{shape.micro} sequences of {m['seq_len']} tokens; planned peak {shape.plan['peak_bytes'] / GIB:.2f} GiB", flush=True)
    return print_table(shape, options, rounds(shape, options, ways))


main()
