"""The benchmark for GPUs, rehearsed on the CPU: PyTorch's side trains as Espalier does, and every line but CUDA's runs.

Needs PyTorch; exits 77 without it, after what needs none. ESPALIER names the executable."""
import json, os, runpy, subprocess, sys, tempfile

from support.runs import Checks, DECK, ROOT, difference, launch, train

BENCH = os.path.join(ROOT, "bench")
STEPS = 4
RTOL = 1e-5
MODELS = {
    "grouped heads": [], "tied": ["model.tie_embeddings=true"],
    "equal heads, several samples at once": ["model.kv_heads=4", "batch.micro=4"]
}
# Settings that must be the same in both; the clip and the decay are on.
KEYS = ["run.device=cpu", "data.shuffle=false", "checkpoint.at_start=true", f"run.steps={STEPS}", "lr.warmup_steps=2"]


def has_torch():
    return subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0


def effective(folder, overrides):
    """The deck as `check` prints it, with every value."""
    path = os.path.join(folder, "effective.toml")
    with open(path, "w") as file:
        file.write(launch(1, ["check", DECK, *overrides]).stdout)
    return path


def torch_side(deck, checkpoint, *flags):
    command = [
        sys.executable,
        os.path.join(BENCH, "torch_llama.py"), deck, "--device", "cpu", "--steps",
        str(STEPS), "--weights", checkpoint, *flags
    ]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)


def same_training(folder, checks):
    for name, model in MODELS.items():
        home = os.path.join(folder, name.replace(" ", "-"))
        overrides = [*KEYS, *model]
        run = train(home, 1, overrides)
        theirs = torch_side(effective(folder, overrides), run.checkpoint(0), *(["--deterministic"] if model else []))
        for key, values in (("loss", theirs["losses"]), ("grad_norm", theirs["norms"])):
            far = difference(run.curve(key), values)
            checks.that(far <= RTOL, f"{name}: {key} differs by {far:.1e} from PyTorch's")


def memory_runs_short(checks):
    """Where a forward and backward find no room, the microbatch is halved until they do, and no gradient is left
    behind."""
    import tomllib
    import torch
    Trainer = runpy.run_path(os.path.join(BENCH, "torch_llama.py"))["Trainer"]
    deck = tomllib.loads(launch(1, ["check", DECK, *KEYS, "batch.micro=8"]).stdout)
    trainer = Trainer(deck, "cpu", False)
    honest, tried = trainer.gradients, []

    def gradients(rows):
        tried.append(trainer.micro)
        honest(rows[:1])
        if trainer.micro > 2:
            raise torch.OutOfMemoryError
    trainer.gradients = gradients
    trainer.fit()
    left = [p for p in trainer.model.parameters() if p.grad is not None]
    checks.that(tried == [8, 4, 2] and trainer.micro == 2 and not left,
                f"microbatches tried for want of memory: {tried}")


def rehearsal(checks):
    """The whole command at a tiny size; its table must have a line for every way to train."""
    ways = ["espalier", "espalier-fast", "eager"]  # torch.compile takes minutes on a CPU
    done = subprocess.run([
        os.path.join(BENCH, "gpu", "run.sh"), "-b",
        os.path.dirname(os.environ["ESPALIER"]), "--device", "cpu", "--threads", "1", "--rounds", "2", "--steps", "3",
        "--ways", ",".join(ways), "--python", sys.executable, "tiny", "tiny@64"
    ], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    checks.that("tiny@64 on CPU" in done.stdout and "a step is 1 sequences of 64 tokens" in done.stdout,
                "tiny@64: a step is one microbatch of 64 tokens")
    wanted = [way + " " for way in ways if way != "eager" or has_torch()]
    lines = done.stdout.splitlines()
    missing = [w for w in wanted if not any(line.startswith(w) and "tokens/s" not in line for line in lines)]
    checks.that(done.returncode == 0 and not missing,
                f"bench/gpu/run.sh on the CPU, exit status {done.returncode}, lines missing: {missing}")
    kinds = {line.split()[0]: line.split()[1:] for line in lines if "%" in line and not line.startswith("espalier")}
    timed = [kind for kind in ("matmul", "attention", "adamw", "cross_entropy") if kind not in kinds]
    checks.that(
        not timed and all(
            float(kinds[kind][-2]) > 0 and kinds[kind][-1] == unit
            for kind, unit in (("matmul", "TFLOP/s"), ("adamw", "GB/s"))),
        f"a step's time by kind of instruction, kinds missing: {timed}")
    print(done.stdout)


def main():
    checks = Checks()
    rehearsal(checks)
    if has_torch():
        with tempfile.TemporaryDirectory() as folder:
            same_training(folder, checks)
        memory_runs_short(checks)
    elif not checks.failed:
        print("skipped: PyTorch is missing; without it the rest held")
        sys.exit(77)
    checks.finish()


main()
