"""A job with a spare node (jobscripts/slurm_spares.sbatch) on a real Slurm whose three nodes are played by this host: a
rank is killed, then a node goes down. The job goes on within itself, makes every step, and its losses are bitwise those
of the undisturbed run. With srun; takes some minutes."""
import json, os, signal, sys, tempfile

from support.jobs import alive, read
from support.runs import Checks, DECK, Metrics, train
from support.slurm import Cluster, await_that, why_not

STEPS = 1000
KEYS = [f"run.steps={STEPS}", "parallel.pp=2", "parallel.dp_shard=-1", "model.layers=2", "batch.global=4",
        "checkpoint.restart=auto", "checkpoint.every_steps=20", "lr.decay_steps=50", "report.every_steps=1000"]
# All nodes are one host: their ranks may not share memory by its name.
APART = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}


def lines(path):
    return [json.loads(line) for line in read(path).splitlines() if line.endswith("}")]


def events(home, event):
    return [line for line in lines(os.path.join(home, "supervise.jsonl")) if line["event"] == event]


def rank_processes(home):
    """Process ids by rank."""
    found = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        variables = "\0" + read(f"/proc/{pid}/environ")
        if f"\0ESPALIER_SUPERVISED={home}\0" in variables and "\0PMIX_RANK=" in variables and alive(pid) and \
                read(f"/proc/{pid}/comm").strip() == "espalier":
            found[int(variables.split("\0PMIX_RANK=")[1].split("\0")[0])] = pid
    return found


def await_steps(home, start):
    """The start of this number, from 1, has made ten steps."""
    def there():
        begun = events(home, "start")
        return len(begun) >= start and sum(
            "loss" in line and line["time"] > begun[start - 1]["time"]
            for line in lines(os.path.join(home, "metrics.jsonl"))) >= 10
    await_that(there, f"start {start} makes steps")


def run_job(checks, cluster, home):
    output = home + ".out"
    cluster.environment.update(APART, LAUNCH="srun")
    status, job = cluster.ask("sbatch", "--parsable", "--nodes=3", "--ntasks-per-node=1", "--time=20",
                              f"--output={output}", "jobscripts/slurm_spares.sbatch", DECK, f"run.dir={home}", *KEYS)
    if status != 0:
        raise RuntimeError(job)
    try:
        await_steps(home, 1)
        os.kill(rank_processes(home)[1], signal.SIGKILL)
        await_steps(home, 2)
        used = events(home, "start")[1]["hosts"]
        # The node of the script itself must live.
        lost = next(name for name in used if name != cluster.ask("squeue", "-h", "-j", job, "-o", "%B")[1])
        cluster.ask("scontrol", "update", f"nodename={lost}", "state=down", "reason=test")
        await_that(lambda: os.path.exists(os.path.join(home, "done")), "the job ends", 600)
    finally:
        cluster.ask("scancel", job)
        print(read(output))
    failures, starts = events(home, "failure"), events(home, "start")
    checks.that([f["cause"] for f in failures] == ["process", "host"] and failures[1]["hosts"] == [lost],
                f"a rank, then node {lost}: {[(f['cause'], f['text'], f['hosts']) for f in failures]}")
    checks.that(lost not in starts[2]["hosts"] and len(starts[2]["hosts"]) == 2,
                f"the last start is on {starts[2]['hosts']}")


def main():
    if why := why_not():
        print(why)
        sys.exit(77)
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder, Cluster(3) as cluster:
        straight = train(os.path.join(folder, "straight"), 2, KEYS)
        home = os.path.join(folder, "run")
        run_job(checks, cluster, home)
        mine = Metrics(home)
        checks.that(len(mine.steps) == STEPS and all(mine.curve(key) == straight.curve(key)
                                                     for key in ("loss", "grad_norm")),
                    f"{STEPS} steps, bitwise those of the undisturbed run")
    checks.finish()


main()
