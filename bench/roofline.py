"""The roofline of a step of the benchmark on one GPU, beside what `espalier simulate` predicts. A step is at least

    matmuls at the rate of the fastest ones (the cluster file's peak, matmul_share and sustained_share)
    + attention as predicted, from the file's measured rates
    + all other kernels at the bandwidth of memory

    roofline.py [--build build] [--cluster FILE] [SHAPE ...]

Layers and batch are those of bench.py on the file's GPU. Standard library only."""
import argparse, collections, json, os, tempfile, tomllib

import sides
from shape import Shape
from sides import HERE

SHAPES = ("124m", "1.5b", "8b-4k", "8b-8k")


def device_of(path):
    """The table [device] of a cluster file and of those that it includes."""
    with open(path, "rb") as file:
        cluster = tomllib.load(file)
    included = {}
    for name in cluster.get("include", []):
        included |= device_of(os.path.join(os.path.dirname(path), name))
    return included | cluster.get("device", {})


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"decks of this folder ({', '.join(SHAPES)})")
    parser.add_argument("--build", default=os.path.join(HERE, "..", "build"))
    parser.add_argument("--cluster", default=os.path.join(HERE, "..", "inputs", "clusters", "h100-8x400g.toml"))
    o = parser.parse_args()
    o.espalier = os.path.join(o.build, "espalier")
    o.device, o.compute, o.threads, o.least_tokens = "cuda", "bf16", 0, 16384  # as bench.py on a GPU
    o.gpu = device_of(o.cluster)
    o.memory = o.gpu["memory_bytes"]
    return o


def simulate(o, shape):
    """The figures of `simulate`, and of each kind of op in its trace: milliseconds, and bytes."""
    figures, trace = (os.path.join(o.folder, name) for name in ("step.json", "trace.json"))
    sides.command(o.espalier, ["simulate", shape.deck, "--ranks", "1", "--cluster", o.cluster, "--json", figures,
                               "--trace", trace, *shape.overrides()])
    with open(figures) as file:
        step = json.load(file)
    with open(trace) as file:
        events = json.load(file)["traceEvents"]
    ms, read = collections.Counter(), collections.Counter()
    for event in events:
        if "op" in event.get("args", {}):
            ms[event["args"]["op"]] += event["dur"] / 1e3
            read[event["args"]["op"]] += event["args"].get("bytes", 0)
    return step, ms, read


def row(o, name):
    shape = Shape(name, o)
    step, ms, read = simulate(o, shape)
    gpu = o.gpu
    rate = gpu["bf16_tflops"] * gpu["matmul_share"] * gpu.get("sustained_share", 1)
    matmuls = shape.product_flops() / rate / 1e9
    attention = ms["attention"] + ms["attention_grad"]
    others = sum(read[op] for op in ms if op != "matmul" and not op.startswith("attention"))
    memory = others / gpu["memory_bytes_per_us"] / 1e3
    bound, predicted, mfu = matmuls + attention + memory, step["step_ms"], 100 * step["mfu"]
    times = [f"{x:.0f}" if x >= 100 else f"{x:.1f}" for x in (matmuls, attention, memory, bound, predicted)]
    return [f"`{name}`: {shape.layers} layers, {shape.micro} sequences", *times, f"{mfu * predicted / bound:.0f} %",
            f"{mfu:.0f} %", f"{predicted / bound:.2f}"]


def main():
    o = read_options()
    print("| shape | matmuls, ms | attention | memory | roofline | simulated | MFU, roofline | simulated | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as o.folder:
        for name in o.shapes or SHAPES:
            print("| " + " | ".join(row(o, name)) + " |", flush=True)


main()
