#!/usr/bin/env python3
"""Attention with keys of 192 and values of 128 (latent attention) beside PyTorch's: 12 heads, 1024 tokens, causal.

    attention.py BUILD [ROUNDS]

Milliseconds forward and backward, medians of the rounds, which alternate between the two. PyTorch takes the quicker of
values as they are and values padded to 192, which its fused kernel needs. Threads: OMP_NUM_THREADS, or all cores.
"""
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))

from support.reference import reference_python

THEIRS = """
import json, sys, time
import torch
from torch.nn.functional import pad, scaled_dot_product_attention
kind, padded, threads = sys.argv[1], sys.argv[2] == "padded", int(sys.argv[3])
torch.set_num_threads(threads)
dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[kind]
q, k = (torch.rand(1, 12, 1024, 192, dtype=dtype).sub_(0.5).requires_grad_() for _ in range(2))
v = torch.rand(1, 12, 1024, 128, dtype=dtype).sub_(0.5).requires_grad_()

def once():
    begun = time.perf_counter()
    o = scaled_dot_product_attention(q, k, pad(v, (0, 64)) if padded else v, is_causal=True)[..., :128]
    middle = time.perf_counter()
    o.backward(torch.ones_like(o))
    return middle - begun, time.perf_counter() - middle

once(), once()
times = [once() for _ in range(9)]
print(json.dumps([1e3 * sorted(t)[4] for t in zip(*times)]))
"""


def ours(build, kind):
    found = subprocess.run([os.path.join(build, "tests", "kernels_bench"), "--benchmark_format=json",
                            f"--benchmark_filter=192 128/{kind}/cpu"], stdout=subprocess.PIPE, check=True, text=True)
    forward, backward = json.loads(found.stdout)["benchmarks"]
    return forward["real_time"], backward["real_time"]


def main():
    build, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    python, threads = reference_python("torch"), os.environ.get("OMP_NUM_THREADS", str(os.cpu_count()))

    def theirs(kind, how):
        return json.loads(subprocess.run([python, "-c", THEIRS, kind, how, threads], stdout=subprocess.PIPE, check=True,
                                         text=True).stdout)
    for kind in ("f32", "bf16"):
        rows = [(ours(build, kind), theirs(kind, "plain"), theirs(kind, "padded")) for _ in range(rounds)]
        for part, word in enumerate(("forward", "backward")):
            mine, plain, padded = (statistics.median(row[who][part] for row in rows) for who in range(3))
            print(f"{kind:5} {word:9} {mine:7.1f} ms, PyTorch {plain:7.1f} ms, padded {padded:7.1f} ms: "
                  f"{min(plain, padded) / mine:.2f} times as fast")


main()
