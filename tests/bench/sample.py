"""Time of a token of `espalier sample`: with caches of keys and values, and as one more forward over the whole window,
which is what each token takes beyond model.seq_len. GPT-2 124M with random weights, alternating.

    python3 tests/bench/sample.py BUILD [ROUNDS]
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
MODEL = os.path.join(ROOT, "inputs", "gpt2", "124m.toml")
WINDOW = 256  # a whole window is computed per token, so that a short one is soon measured


def seconds(espalier, run, prompt, tokens):
    began = time.monotonic()
    ids = " ".join(str(k * k % 50257) for k in range(prompt))
    subprocess.run([espalier, "sample", run, "--ids", ids, "--tokens", str(tokens)], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - began


def main():
    build, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    espalier = os.path.join(os.path.realpath(build), "espalier")
    with tempfile.TemporaryDirectory() as home:
        for compute in ("fp32", "bf16"):
            run = os.path.join(home, compute)
            subprocess.run([espalier, MODEL, "-d", run, "run.steps=1", f"model.seq_len={WINDOW}", "batch.global=1",
                            "data.format=text", f"data.paths=['{ROOT}/doc/*.md']", f"precision.compute={compute}"],
                           check=True, stdout=subprocess.DEVNULL)
            cached, whole = [], []
            for _ in range(rounds):
                cached.append((seconds(espalier, run, 8, 201) - seconds(espalier, run, 8, 1)) / 200)
                whole.append((seconds(espalier, run, WINDOW, 11) - seconds(espalier, run, WINDOW, 1)) / 10)
            a, b = statistics.median(cached), statistics.median(whole)
            print(f"{compute}: {1e3 * a:.1f} ms per token with caches ({1e3 * min(cached):.1f} to "
                  f"{1e3 * max(cached):.1f}), {1e3 * b:.0f} ms over the window of {WINDOW}: {b / a:.1f} times as long")


main()
