"""A whole training step against the bare products in it, in one run: python3 tests/bench/step.py BUILD [STEPS].

The deck is inputs/llama/124m.toml with an untied head (12 layers, 768, 12 heads, ffn 2048, vocab 50304, seq 1024; one
sequence a step, clipping on) on one rank and 2 threads. For fp32 and bf16 in turn: the step's matrix products as plain
oneDNN primitives, then STEPS steps, twice. Prints medians: tokens/s, the step's rate by causal model flops, the
products' rate, and the ratio."""
import json, os, shutil, statistics, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAYERS, DIM, FFN, VOCAB, SEQ, THREADS = 12, 768, 2048, 50304, 1024, 2
# Per token: 6 flops for every weight in a product, and causal attention (half of 12 layers dim seq).
FLOPS_PER_TOKEN = 6 * (LAYERS * (4 * DIM * DIM + 3 * DIM * FFN) + DIM * VOCAB) + 6 * LAYERS * DIM * SEQ


def products(build, precision):
    name = {"fp32": "f32", "bf16": "bf16"}[precision]
    numbers = [THREADS, LAYERS, DIM, DIM, FFN, VOCAB, SEQ]
    text = subprocess.run([os.path.join(build, "tests", "gemms_bench"), name, *map(str, numbers)], check=True,
                          capture_output=True, text=True).stdout
    return json.loads(text)["tflops"]


def steps(build, precision, count):
    folder = tempfile.mkdtemp()
    try:
        subprocess.run([
            os.path.join(build, "espalier"),
            os.path.join(ROOT, "inputs", "llama", "124m.toml"), "-d", folder, "model.tie_embeddings=false",
            f"run.steps={count}", f"run.threads={THREADS}", f"precision.compute={precision}"
        ], check=True, capture_output=True)
        with open(os.path.join(folder, "metrics.jsonl")) as file:
            lines = [json.loads(line) for line in file]
        return [line["compute_ms"] for line in lines if "loss" in line][1:]
    finally:
        shutil.rmtree(folder)


def main():
    build, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 6
    rates, times = {"fp32": [], "bf16": []}, {"fp32": [], "bf16": []}
    for _ in range(2):
        for precision in rates:
            rates[precision].append(products(build, precision))
            times[precision] += steps(build, precision, count)
    for precision in rates:
        ms, bare = statistics.median(times[precision]), statistics.median(rates[precision])
        rate = FLOPS_PER_TOKEN * SEQ / ms / 1e9
        print(
            f"{precision}: {1e3 * SEQ / ms:.0f} tokens/s, {ms:.0f} ms a step "
            f"({min(times[precision]):.0f} to {max(times[precision]):.0f}), "
            f"{rate:.3f} TFLOP/s; bare products {bare:.3f} TFLOP/s; ratio {rate / bare:.2f}")


main()
