"""One rank on a GPU against what must be equal to it. ESPALIER_DEVICE names the device (cuda). Standard library only.

    compare.py losses   the tiny deck in fp32 on the CPU and on the GPU: every loss and gradient norm to rtol 1e-4
    compare.py graph    steps replayed as a CUDA graph and steps issued one by one: bitwise equal
    compare.py fusions  parts of attention's backward, large ones and two at a time: bitwise equal; joined matmuls and
                        the loss in chunks against neither: to rtol 1e-4 in fp32; matmuls in fp8 against the CPU's
    compare.py nccl     dp 2 x cp 2 x tp 2, every NCCL communicator one rank alone (values are not the program's): graph
                        against no graph bitwise equal

More arguments are keys of every run's deck: on an emulated GPU a smaller model and fewer steps than these 20."""
import os, sys, tempfile

from support import runs
from support.checkpoints import same_bits, tensors
from support.runs import Checks, DECK, ROOT, difference, train

TINY = os.path.join(ROOT, "inputs", "llama", "tiny-8.toml")
RTOL = 1e-4
FP8_RTOL = {"loss": 5e-3, "grad_norm": 5e-2}  # a last bit of bf16 now and then decides how fp8 rounds
ONE_RANK = [f"parallel.{axis}=1" for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp")]
KEYS = [*ONE_RANK, "run.steps=20", "run.threads=1", "checkpoint.restart=never", *sys.argv[2:]]
EAGER = {"ESPALIER_CUDA_GRAPH": "0"}
SELF = {"ESPALIER_NCCL_SELF": "1"}


def run(folder, name, overrides, deck=DECK, environment={}, ranks=1):
    """A run, of one rank unless `overrides` say otherwise, with more in its environment."""
    before = dict(runs.ENVIRONMENT)
    runs.ENVIRONMENT.update(environment)
    try:
        return train(os.path.join(folder, name), ranks, [*KEYS, *overrides], deck=deck)
    finally:
        runs.ENVIRONMENT.clear()
        runs.ENVIRONMENT.update(before)


def losses(folder, checks):
    fp32 = ["precision.compute=fp32"]
    cpu = run(folder, "cpu", [*fp32, "run.device=cpu", "run.transport=mpi"], deck=TINY)
    gpu = run(folder, "gpu", fp32, deck=TINY)
    checks.that(gpu.starts[0]["device"].startswith(os.environ["ESPALIER_DEVICE"]),
                f"the run was on {gpu.starts[0]['device']}")
    print(f"{'step':>4} {'loss, CPU':>12} {'loss, GPU':>12} {'norm, CPU':>12} {'norm, GPU':>12}")
    for step in sorted(cpu.steps):
        a, b = cpu.steps[step], gpu.steps[step]
        print(f"{step:>4} {a['loss']:>12.8g} {b['loss']:>12.8g} {a['grad_norm']:>12.8g} {b['grad_norm']:>12.8g}")
    for curve in ("loss", "grad_norm"):
        far = difference(gpu.curve(curve), cpu.curve(curve))
        checks.that(far <= RTOL, f"{curve}: {far:.1e}")


def equal(checks, what, mine, theirs):
    """Every loss and norm to its last digit, and every bit of weights and moments after the last step."""
    curves = all(mine.curve(key) == theirs.curve(key) for key in ("loss", "grad_norm"))
    bits = same_bits(tensors(mine.checkpoint(max(mine.steps))), tensors(theirs.checkpoint(max(mine.steps))))
    checks.that(curves and bits,
                f"{what}: curves {'equal' if curves else 'differ'}, state {'equal' if bits else 'differs'}")


def graph(folder, checks):
    for compute in ("fp32", "bf16"):
        keys = [f"precision.compute={compute}"]
        replayed = run(folder, f"{compute}-graph", keys)
        issued = run(folder, f"{compute}-eager", keys, environment=EAGER)
        equal(checks, f"{compute}, graph against no graph", replayed, issued)


def near(checks, what, mine, theirs, rtol):
    far = {curve: difference(mine.curve(curve), theirs.curve(curve)) for curve in rtol}
    checks.that(all(far[curve] <= rtol[curve] for curve in rtol),
                what + ": " + ", ".join(f"{curve} {far[curve]:.1e}" for curve in far))


def is_refused(folder, name, keys):
    """Whether the device lacks what precision.fp8_scaling asks for."""
    done = runs.launch(1, ["run", DECK, "-d", os.path.join(folder, f"{name}-asked"), *KEYS, *keys, *runs.ON_DEVICE,
                           "run.steps=1"])
    return done.returncode == 2 and "precision.fp8_scaling" in done.stdout


def fusions(folder, checks):
    # 1 GiB of scores: four parts, or two on each of two streams.
    long = ["precision.compute=bf16", "model.dim=512", "model.heads=8", "model.kv_heads=8", "model.layers=2",
            "model.seq_len=2048", "batch.micro=16", "run.steps=3", *sys.argv[2:]]
    parts, large, two = (run(folder, way, [*long, f"run.attention_backward={way}"])
                         for way in ("parts", "large_parts", "two_streams"))
    equal(checks, "attention's backward, large parts against parts", large, parts)
    equal(checks, "attention's backward, two streams against one", two, parts)
    apart = ["precision.compute=fp32", "model.dim=64", "model.ffn_dim=96", "fusion.join_matmuls=never", "loss.chunks=1",
             *sys.argv[2:]]
    plain = run(folder, "plain", apart)
    for key in ("fusion.join_matmuls=always", "loss.chunks=3"):
        near(checks, key, run(folder, key, [*apart, key]), plain, {"loss": RTOL, "grad_norm": RTOL})
    for scaling in ("tensor", "row", "mx"):
        fp8 = ["precision.compute=bf16", "precision.matmul=fp8", f"precision.fp8_scaling={scaling}", "model.dim=64",
               "model.ffn_dim=96", "model.seq_len=32", "run.steps=5", *sys.argv[2:]]
        if is_refused(folder, scaling, fp8):
            print(f"fp8 by {scaling}: the GPU has none, and is refused")
            continue
        gpu, cpu = (run(folder, f"{scaling}-{device}", [*fp8, f"run.device={device}", "run.transport=mpi"])
                    for device in (os.environ["ESPALIER_DEVICE"], "cpu"))
        near(checks, f"fp8 by {scaling}, GPU against CPU", gpu, cpu, FP8_RTOL)


def nccl(folder, checks):
    keys = ["parallel.dp_shard=2", "parallel.cp=2", "parallel.tp=2",
            "optimizer.lr=1e-6",  # no stages: one without the loss would have none
            "guard.on_nonfinite=skip", "guard.max_skips=1000"]  # memory that no rank filled may hold a NaN
    # On a device without NCCL there is nothing but MPI to ask for.
    keys += ["run.transport=nccl"] if os.environ["ESPALIER_DEVICE"] == "cuda" else []
    graph, eager = (run(folder, name, keys, environment=more, ranks=8)
                    for name, more in (("graph", SELF), ("eager", SELF | EAGER)))
    equal(checks, "NCCL to itself, graph against no graph", graph, eager)


def main():
    part = {"losses": losses, "graph": graph, "fusions": fusions, "nccl": nccl}[sys.argv[1]]
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        part(folder, checks)
    checks.finish()


main()
