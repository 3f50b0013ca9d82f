"""A chain of jobs (jobscripts/slurm.sbatch) on a real Slurm of this host: a person's requeue, a preemption and limits
of one minute, with srun and with mpirun, and as an array without requeue. Every step is made exactly once, with the
losses of the unbroken run, bitwise. And which GPU a rank is given. Takes some fifteen minutes."""
import json, os, sys, tempfile

from support.runs import Checks, DECK, ENVIRONMENT, Metrics, layout, train
from support.slurm import Cluster, ask, await_that, why_not

LONGEST = 1500  # seconds of a chain
MODEL = [
    *layout("121")[0], "checkpoint.restart=auto", "lr.decay_steps=50", "checkpoint.every_steps=0",
    "report.every_steps=1000"
]


def lines(home):
    path = os.path.join(home, "metrics.jsonl")
    return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


def makes_steps(home, starts):
    """The start of this number, from 1, has made ten steps."""
    found = lines(home)
    begun = [at for at, line in enumerate(found) if line.get("event") == "start"]
    return len(begun) >= starts and sum("loss" in line for line in found[begun[starts - 1]:]) >= 10


def chain(cluster, launch, home, steps):
    """Runs the chain to its end; returns its output."""
    cluster.environment["LAUNCH"] = launch
    output = home + ".out"
    status, job = cluster.ask("sbatch", "--parsable", "--ntasks=2", "--time=1", "--signal=B:USR1@5",
                              f"--output={output}", "jobscripts/slurm.sbatch", DECK, f"run.dir={home}",
                              f"run.steps={steps}", *MODEL)
    if status != 0:
        raise RuntimeError(job)
    try:
        await_that(lambda: makes_steps(home, 1), "the first job makes steps")
        cluster.ask("scontrol", "requeue", job)
        await_that(lambda: makes_steps(home, 2), "the requeued job makes steps")
        cluster.ask("sbatch", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap=sleep 3")
        await_that(lambda: makes_steps(home, 3), "the preempted job makes steps")
        await_that(lambda: os.path.exists(os.path.join(home, "done")), "the chain ends", LONGEST)
        await_that(
            lambda: not cluster.ask("squeue", "-h", "-j", job, "-o", "%T")[1].startswith(
                ("RUNNING", "PENDING", "COMPLETING")), "the job is over")
    finally:
        cluster.ask("scancel", job)
        print(open(output).read() if os.path.exists(output) else "no output")
    return open(output).read()


def check_chain(checks, cluster, launch, home, straight):
    steps = max(straight.steps)
    chain(cluster, launch, home, steps)
    made = [line["step"] for line in lines(home) if "loss" in line]
    mine = Metrics(home)
    reasons = [line["reason"] for line in lines(home) if line.get("event") == "stop"]
    checks.that(made == list(range(1, steps + 1)),
                f"{launch}: {steps} steps, each exactly once, in {len(mine.starts)} starts")
    checks.that(all(mine.curve(key) == straight.curve(key) for key in ("loss", "grad_norm")),
                f"{launch}: losses and norms of the unbroken run, bitwise")
    # Near a limit the run's own clock and Slurm's USR1, which comes up to a minute early, race.
    checks.that(len(mine.starts) >= 4, f"{launch}: a requeue, a preemption, a limit: {reasons}")


def check_array(checks, cluster, home, straight):
    """The chain where jobs may not be requeued: the elements of an array, one after another, until one of them is
    done."""
    cluster.environment["LAUNCH"] = "srun"
    steps, output = max(straight.steps), home + ".out"
    status, job = cluster.ask("sbatch", "--parsable", "--ntasks=2", "--time=1", "--no-requeue", "--array=1-20%1",
                              "--signal=B:USR1@5", f"--output={output}", "jobscripts/slurm.sbatch", DECK,
                              f"run.dir={home}", f"run.steps={steps}", *MODEL)
    if status != 0:
        raise RuntimeError(job)
    try:
        await_that(lambda: makes_steps(home, 1), "the first element makes steps")
        cluster.ask("scancel", "--batch", "--signal=USR1", f"{job}_1")
        await_that(lambda: os.path.exists(os.path.join(home, "done")), "the array ends", LONGEST)
        # The elements that are left have nothing to do.
        await_that(lambda: open(output).read().count("ended with 0") >= 3, "the next elements end at once")
    finally:
        cluster.ask("scancel", job)
        print(open(output).read() if os.path.exists(output) else "no output")
    said, mine = open(output).read(), Metrics(home)
    made = [line["step"] for line in lines(home) if "loss" in line]
    working = said.count("the next element of the array goes on")
    checks.that(made == list(range(1, steps + 1)) and working >= 1 and "restart 1" not in said,
                f"array without requeue: {steps} steps, each exactly once, in {working + 1} elements")
    checks.that(all(mine.curve(key) == straight.curve(key) for key in ("loss", "grad_norm")),
                "array: losses and norms of the unbroken run, bitwise")


def check_gpus(checks, cluster, launch, home, script="slurm.sbatch"):
    """Each rank sees one of the job's two GPUs: that of its number on the node. They are none, so what is looked at is
    the environment."""
    os.makedirs(home)
    wrapper = os.path.join(home, "espalier")
    with open(wrapper, "w") as file:
        file.write(f"""#!/bin/bash
rank=${{OMPI_COMM_WORLD_RANK:-$PMIX_RANK}}
[[ $1 != run ]] || echo "$CUDA_VISIBLE_DEVICES" >"{home}/gpu-of-${{rank:-$SLURM_PROCID}}"
exec "{ENVIRONMENT["ESPALIER"]}" "$@"
""")
    os.chmod(wrapper, 0o755)
    environment = {**cluster.environment, "LAUNCH": launch, "ESPALIER": wrapper}
    status, said = ask("sbatch", "--wait", "--nodes=1", "--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=1",
                       "--time=5", f"--output={home}.out", f"jobscripts/{script}", DECK, f"run.dir={home}/run",
                       "run.device=cpu", "run.steps=5", *MODEL, environment=environment)
    seen = [
        open(path).read().strip() if os.path.exists(path) else None
        for path in (f"{home}/gpu-of-{rank}" for rank in range(2))
    ]
    checks.that(status == 0 and seen == ["0", "1"],
                f"{script}, {launch}: ranks 0 and 1 see GPUs {seen} of two ({status}, {said})")
    if status != 0:
        print(open(home + ".out").read() if os.path.exists(home + ".out") else "no output")


def check_guard(checks, cluster, home):
    """A job that is always out of time makes no step: the chain gives up by itself."""
    cluster.environment["LAUNCH"] = "srun"
    output = home + ".out"
    _, job = cluster.ask("sbatch", "--parsable", "--ntasks=2", "--time=1", f"--output={output}",
                         "jobscripts/slurm.sbatch", DECK, f"run.dir={home}", "run.steps=1000000",
                         "run.stop_margin_s=1000", *MODEL)
    says = lambda: os.path.exists(output) and "no step in 2 restarts: the chain ends" in open(output).read()
    try:
        await_that(says, "the chain ends")
    except TimeoutError:
        print(open(output).read())
    finally:
        cluster.ask("scancel", job)
    checks.that(says(), "without a step in two restarts the chain ends")


def main():
    if why := why_not():
        print(why)
        sys.exit(77)
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        # Work for more than a limit, whatever the speed of this machine.
        pace = train(os.path.join(folder, "pace"), 2, ["run.steps=1000000", *MODEL], flags=["-t", "00:00:15"],
                     expect=75)
        steps = 5 * max(pace.steps)
        straight = train(os.path.join(folder, "straight"), 2, [f"run.steps={steps}", *MODEL], timeout=LONGEST)
        check_guard(checks, cluster, os.path.join(folder, "guard"))
        for launch in ("srun", "mpirun"):
            check_gpus(checks, cluster, launch, os.path.join(folder, f"gpus-{launch}"))
            check_gpus(checks, cluster, launch, os.path.join(folder, f"nodes-{launch}"), "gpu_nodes.sbatch")
        check_array(checks, cluster, os.path.join(folder, "array"), straight)
        for launch in ("srun", "mpirun"):
            check_chain(checks, cluster, launch, os.path.join(folder, launch), straight)
    checks.finish()


main()
