"""Training steps of Espalier and of PyTorch on one device, in turns within one run: bench/gpu/run.sh or
bench/cpu/run.sh, with [option ...] [SHAPE ...].

SHAPE: 124m, 1.5b, 8b-4k, 8b-8k, or tiny to rehearse. Model, samples, batch and optimizer are the same on both sides;
the decks are in this folder. The batch fills the memory: as many of the deck's layers as fit with a microbatch of
--least-tokens, then the largest microbatch whose planned peak fits, with at most 2^31 logits. SHAPE@TOKENS is a step of
one microbatch with TOKENS tokens. On a GPU, kernels of such steps are short and launches take a large share; therefore
one more way issues Espalier's kernels one by one instead of as a CUDA graph.

If PyTorch's memory holds only a smaller microbatch, one more way runs Espalier with that microbatch.

Each round runs every way to train for --steps steps, of which the first --warmup do not count, and the bare GEMMs of
the model. Prints medians: tokens/s, the ratios to torch.compile, model flops utilisation against the datasheet, causal
and full, and the step's rate divided by the rate of the bare GEMMs. One more short run of Espalier shows how a step's
time is divided among kinds of instructions."""
import argparse, json, os, statistics, subprocess, sys, tempfile, time

import sides, table
from shape import OUTSIDE_BYTES, Shape
from sides import Failed

# Dense bf16, in TFLOP/s, from NVIDIA's datasheets; a name stands for all names that begin with it.
DATASHEET = {
    "NVIDIA H200": 989.4, "NVIDIA H100 80GB HBM3": 989.4, "NVIDIA H100 NVL": 835.5, "NVIDIA H100 PCIe": 756.5,
    "NVIDIA A100": 312.0
}
TIMED_STEPS = 5  # steps of the run whose last step is timed instruction by instruction
LEAST_SECONDS = 60  # the minimum for that run, however long the rounds take
PRODUCTS = "bare products"
SHAPES = ["124m", "1.5b", "8b-4k", "8b-8k"]
ISSUED, SAME_MICRO = "espalier-issued", "espalier-same-micro"
WAYS = {  # name -> deck keys of Espalier, or flags of torch_llama.py
    "espalier": ["run.deterministic=true"],
    "espalier-calibrated": ["run.deterministic=true", "run.gemm_plans={plans}"],
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


def turn(shape, way, seconds, micro=None):
    """One turn of one way: milliseconds of its counted steps, its whole output, and the GPU's clocks. `micro`: Espalier
    uses this microbatch instead of the shape's, for the same batch."""
    o = shape.o
    with sides.Watch() as watch:
        if way.startswith("espalier"):
            keys = [key.format(plans=shape.plans_file) for key in WAYS.get(way, WAYS["espalier"])]
            smaller = [f"batch.micro={micro}"] if micro else []
            said = sides.espalier(o.espalier, shape.deck, [*shape.overrides(), *smaller, *keys], o.steps, seconds,
                                  {"ESPALIER_CUDA_GRAPH": "0"} if way == ISSUED else {})
            said["micro"] = micro or shape.micro
        else:
            said = sides.pytorch(o.python, shape.effective_deck(), o.device, o.steps, seconds, WAYS[way])
    return said["ms"][o.warmup:], dict(said, gpu=watch.seen)


class Results:
    """Results of a shape's turns: milliseconds by way, the last output of each way, why it failed, TFLOP/s of the bare
    GEMMs and the type of their operands, and the instruction times of one step of Espalier."""

    def __init__(self, ways):
        self.ms, self.said, self.failed = {way: [] for way in ways}, {}, {}
        self.products, self.products_type, self.times = [], None, None

    def attempt(self, way, f):
        """Calls f() unless the way has failed before. A failure of one way leaves the others' results."""
        if way in self.failed or way not in [*self.ms, PRODUCTS]:
            return
        try:
            f()
        except Failed as reason:
            self.failed[way] = str(reason)
            print(f"  {way}: failed: {reason}", flush=True)

    def measure(self, shape, end):
        """One round."""
        self.attempt(PRODUCTS, lambda: self.measure_products(shape))
        for way in [way for way in self.ms if way != SAME_MICRO]:
            self.attempt(way, lambda: self.measure_way(shape, way, end))
        micro = self.said.get("compile", {}).get("micro", shape.micro)
        if micro < shape.micro and "espalier" in self.ms:
            self.ms.setdefault(SAME_MICRO, [])
            self.attempt(SAME_MICRO, lambda: self.measure_way(shape, SAME_MICRO, end, micro))

    def measure_products(self, shape):
        rate, self.products_type = sides.products(shape)
        self.products.append(rate)

    def measure_way(self, shape, way, end, micro=None):
        ms, self.said[way] = turn(shape, way, end - time.monotonic(), micro)
        self.ms[way] += ms
        gpu = "".join(f", {value:.0f} {name}" for name, value in self.said[way]["gpu"].items())
        print(f"  {way}: {statistics.median(ms):.1f} ms a step ({min(ms):.1f} to {max(ms):.1f}){gpu}", flush=True)

    def time_instructions(self, shape, seconds):
        """Times the last of a few steps; libraries make themselves ready in the steps before."""
        self.times = sides.espalier_times(shape.o.espalier, shape.deck, [*shape.overrides(), *WAYS["espalier"]],
                                          TIMED_STEPS, seconds)


def rounds(shape, o, ways, end):
    """Rounds in turn, as many as requested or as there is time for before `end`, and one step timed instruction by
    instruction."""
    issued = [ISSUED] if shape.small and o.device == "cuda" and "espalier" in ways else []
    results, begin = Results([*ways, *issued]), time.monotonic()
    end -= LEAST_SECONDS
    results.attempt("espalier-calibrated", shape.calibrate)
    for n in range(o.rounds):
        now = time.monotonic()
        if n and now + (now - begin) / n > end:
            print(f"  {n} of {o.rounds} rounds: no time for more within {o.seconds} s")
            break
        results.measure(shape, end)
    results.attempt("espalier",
                    lambda: results.time_instructions(shape, LEAST_SECONDS + max(0, end - time.monotonic())))
    return results


def bench(name, o, ways, begin):
    """Runs a shape, its planning included, within --seconds."""
    shape = Shape(name, o)
    m = shape.values["model"]
    print(
        f"\n{shape.name} on {o.name}: {m['layers']} layers x {m['dim']}, vocabulary {m['vocab']}, "
        f"{shape.plan['parameters']} parameters; a step is {shape.micro} sequences of {m['seq_len']} tokens; "
        f"planned peak {shape.plan['peak_bytes'] / 2**30:.2f} GiB; {o.compute}",
        flush=True)
    return table.show(shape, rounds(shape, o, ways, begin + o.seconds), o.peak)


def read_options():
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE",
                        help="124m, 1.5b, 8b-4k, 8b-8k, tiny (all but tiny), or one of them with @TOKENS")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--compute", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="steps of a turn")
    parser.add_argument("--warmup", type=int, help="of them, how many do not count (a third)")
    parser.add_argument("--seconds", type=float, default=540,
                        help="for one shape, of the first what --spent says is gone")
    parser.add_argument("--spent", type=float, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--ways", default=",".join(WAYS), help="which of " + ", ".join(WAYS))
    parser.add_argument("--least-tokens", type=int, help="of a microbatch (16384; on a CPU one sequence)")
    parser.add_argument("--memory", type=int, help="bytes to fill (the GPU's; on a CPU enough for the tiny shape)")
    parser.add_argument("--peak", type=float, help="TFLOP/s in dense bf16 (by the GPU's name)")
    parser.add_argument("--threads", type=int, default=0, help="of every side on the CPU; 0: all cores")
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch")
    parser.add_argument("--json", help="write all that was measured to this file")
    parser.add_argument("--build", required=True, help=argparse.SUPPRESS)
    return complete(parser.parse_args())


def complete(o):
    """Fills in the options that depend on the device."""
    o.espalier = os.path.join(o.build, "espalier")
    o.name, here = gpu() if o.device == "cuda" else ("CPU", OUTSIDE_BYTES + (8 << 20))
    o.memory = o.memory or here
    o.peak = o.peak or next((peak for name, peak in DATASHEET.items() if o.name.startswith(name)), None)
    o.least_tokens = o.least_tokens or (16384 if o.device == "cuda" else 1)
    o.warmup = o.steps // 3 if o.warmup is None else o.warmup
    if o.threads:
        os.environ["OMP_NUM_THREADS"] = str(o.threads)
    return o


def chosen_ways(o):
    unknown = [way for way in o.ways.split(",") if way not in WAYS]
    if unknown:
        sys.exit(f"--ways: {unknown[0]} is none of {', '.join(WAYS)}")
    ways = o.ways.split(",")
    if sides.has_torch(o.python):
        return ways
    print(f"{o.python} has no PyTorch: Espalier and the bare products alone")
    return [way for way in ways if way.startswith("espalier")]


def main():
    o = read_options()
    ways = chosen_ways(o)
    try:
        with tempfile.TemporaryDirectory() as o.folder:
            measured = [
                bench(name, o, ways,
                      time.monotonic() - (0 if i else o.spent)) for i, name in enumerate(o.shapes or SHAPES)
            ]
    except Failed as reason:
        sys.exit(str(reason))
    if o.json:
        with open(o.json, "w") as file:
            json.dump({"device": o.name, "peak_tflops": o.peak, "shapes": measured}, file, indent=1)
    sys.exit(1 if any(m["failed"] for m in measured) else 0)


main()
