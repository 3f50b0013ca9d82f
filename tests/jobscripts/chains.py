"""Chains of jobs by jobscripts/pbs.sh, lsf.sh and slurm.sbatch, with stand-ins for the schedulers and for mpirun: a job
that runs out of time is followed by one that ends the run; a wrong deck, missing data and a run without progress end
the chain; so does the signal by which a person ends a job. The runs are real, on one rank. What a real scheduler does
is not tested here; tests/slurm has a real Slurm."""
import json, os, shutil, signal, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
from support.runs import Checks, DECK, ENVIRONMENT, ROOT, scratch
from support.waiting import wait_until

PATIENCE = 120
SCRIPTS = {"pbs": "pbs.sh", "lsf": "lsf.sh", "slurm": "slurm.sbatch"}
AN_HOUR, NO_TIME = 3000, 0  # seconds that a job has left


class Cluster:
    """A queue of jobs, and the programs that schedulers have. A job is a list of words."""

    def __init__(self, kind, folder):
        self.kind, self.folder = kind, folder
        self.script = os.path.join(ROOT, "jobscripts", SCRIPTS[kind])
        os.makedirs(os.path.join(folder, "jobs"))
        with open(self.path("nodes"), "w") as file:
            file.write("node1\nnode1\nnode2\nnode2\n")
        stand_ins = os.path.join(HERE, "stand_ins")
        self.environment = {**ENVIRONMENT, "STAND_INS": folder, "PATH": stand_ins + ":" + os.environ["PATH"]}
        self.submitted = 0

    def path(self, name):
        return os.path.join(self.folder, name)

    def submit(self, *arguments):
        """As a user does; Slurm copies the arguments. Returns the exit status and the text."""
        if self.kind == "slurm":
            self.slurm_job = list(arguments[arguments.index("--") + 1:])
            return 0, ""
        done = subprocess.run([self.script, *arguments], env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, encoding="utf-8", timeout=PATIENCE, cwd=self.folder)
        return done.returncode, done.stdout

    def queued(self):
        """The jobs that are submitted and have not run, as words; a requeued one counts again."""
        if self.kind == "slurm":
            return []
        count = len(os.listdir(self.path("jobs")))
        return [open(self.path(f"jobs/{n}")).read().split("\0")[:-1] for n in range(self.submitted, count)]

    def of_job(self, number, left, restarts):
        """The environment of a job."""
        if self.kind == "pbs":
            return {"PBS_JOBID": f"{number}.stand-in", "PBS_NODEFILE": self.path("nodes"), "LEFT": str(left),
                    "PBS_O_WORKDIR": self.folder, "CHAIN_RESTARTS": restarts}
        if self.kind == "lsf":
            return {"LSB_JOBID": str(number), "LSB_DJOB_HOSTFILE": self.path("nodes"), "LSB_DJOB_NUMPROC": "4",
                    "LEFT": str(left)}
        return {"SLURM_JOB_ID": str(number), "SLURM_NTASKS": "4", "SLURM_SUBMIT_DIR": ROOT, "LAUNCH": "mpirun",
                "SLURM_JOB_END_TIME": str(int(time.time()) + left), "SLURM_RESTART_COUNT": restarts}

    def start(self, words, number, left, restarts="0"):
        environment = {**self.environment, **self.of_job(number, left, restarts)}
        # Its own session, as of a scheduler; the output in a file, since children may outlive it.
        return subprocess.Popen(words, env=environment, stdout=open(self.path("output"), "a"), stderr=subprocess.STDOUT,
                                stdin=subprocess.DEVNULL, cwd="/", start_new_session=True)

    def words_of(self, job):
        """The part of a submitted job that the scheduler executes."""
        if self.kind == "pbs":
            return job[job.index("--") + 1:]
        return job[job.index(self.script):]

    def run(self, lefts):
        """Runs jobs until none is queued; each has the next of the times. Returns their exit statuses."""
        statuses, number, restarts = [], 0, 0
        jobs = [["", *self.slurm_job]] if self.kind == "slurm" else self.queued()
        while jobs and len(statuses) < len(lefts):
            job = jobs.pop(0)
            self.submitted += self.kind != "slurm"
            words = [self.script, *self.slurm_job] if self.kind == "slurm" else self.words_of(job)
            requeues = self.said("log").count("scontrol requeue")
            count = job[0].partition("=")[2] or "0" if self.kind == "pbs" else str(restarts)
            process = self.start(words, number, lefts[len(statuses)], count)
            statuses.append(process.wait(PATIENCE))
            self.end(process)
            again = self.kind == "lsf" and str(statuses[-1]) == job[job.index("-Q") + 1]
            again = again or self.said("log").count("scontrol requeue") > requeues
            if again:  # the same job, again
                self.submitted -= self.kind == "lsf"
                restarts += 1
                jobs.append(job)
            elif self.kind == "pbs":
                number += 1
                jobs = self.queued()
        return statuses, len(jobs)

    def end(self, process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def said(self, name):
        return open(self.path(name)).read() if os.path.exists(self.path(name)) else ""


def steps(run_dir):
    path = os.path.join(run_dir, "metrics.jsonl")
    lines = [json.loads(line) for line in open(path)] if os.path.exists(path) else []
    return [line["step"] for line in lines if "loss" in line], [line for line in lines if "event" in line]


OPTIONS = {"pbs": ["-l", "select=2:ncpus=4:mpiprocs=2", "-l", "walltime=01:00:00", "--"],
           "lsf": ["-n", "4", "-W", "1:00", "--"], "slurm": ["--"]}
KEYS = ["run.steps=6", "checkpoint.restart=auto", "checkpoint.every_steps=0", "report.every_steps=1000",
        "run.threads=1"]


class Case:
    def __init__(self, checks, kind, folder, name):
        self.checks, self.kind, self.name = checks, kind, name
        self.folder = os.path.join(folder, f"{kind}-{name}")
        os.makedirs(self.folder)
        self.cluster = Cluster(kind, self.folder)
        self.run_dir = os.path.join(self.folder, "run")

    def submit(self, *keys, deck=DECK):
        return self.cluster.submit(*OPTIONS[self.kind], deck, f"run.dir={self.run_dir}", *KEYS, *keys)

    def that(self, condition, what):
        self.checks.that(condition, f"{self.kind}: {what}")
        if not condition:
            print(self.cluster.said("output"), self.cluster.said("log"), sep="\n")


def two_jobs(checks, kind, folder):
    case = Case(checks, kind, folder, "two jobs")
    status, said = case.submit(f"data.index_dir={case.folder}")
    case.that(status == 0, f"submitted: {said.strip()}")
    statuses, waiting = case.cluster.run([NO_TIME, AN_HOUR, AN_HOUR])
    first = {"pbs": 0, "lsf": 75, "slurm": 0}[kind]
    made, events = steps(case.run_dir)
    case.that(statuses == [first, 0] and not waiting, f"out of time, then done: exit statuses {statuses}")
    case.that(made == [1, 2, 3, 4, 5, 6], f"steps {made}")
    reasons = [event["reason"] for event in events if event["event"] == "stop"]
    case.that(reasons == ["the end of the job"], f"the run's own clock: {reasons}")
    started = case.cluster.said("log").splitlines()
    case.that(sum("mpirun -n 4" in line and "run " in line for line in started) == 2, f"four ranks: {started}")
    output = case.cluster.said("output")
    case.that("4 ranks on " in output and ("2 nodes" in output or "2 hosts" in output or kind == "slurm"),
              "ranks and nodes are printed")


def no_progress(checks, kind, folder):
    case = Case(checks, kind, folder, "no progress")
    case.submit()
    statuses, waiting = case.cluster.run([NO_TIME] * 6)
    case.that(len(statuses) == 3 and statuses[-1] == 1 and not waiting and
              "no step in 2 restarts: the chain ends" in case.cluster.said("output"),
              f"without a step the chain ends after two restarts: {statuses}")


def faults(checks, kind, folder):
    case = Case(checks, kind, folder, "wrong deck")
    status, said = case.submit("model.dmi=3")
    if kind != "slurm":
        case.that(status == 2 and "did you mean model.dim" in said and not case.cluster.queued(),
                  f"a wrong deck is not submitted: {status}")
    status, said = case.submit("checkpoint.restart=never")
    if kind != "slurm":
        case.that(status == 2 and "would begin anew" in said and not case.cluster.queued(),
                  f"nor one that would begin anew: {status}")
    # A deck that is changed while the job waits.
    deck = os.path.join(case.folder, "deck.toml")
    shutil.copy(DECK, deck)
    case.submit(deck=deck)
    with open(deck, "a") as file:
        file.write("\n[unknown]\nx = 1\n")
    statuses, waiting = case.cluster.run([AN_HOUR] * 3)
    case.that(statuses == [2] and not waiting and not case.cluster.said("log"),
              f"a wrong deck starts nothing, and is not resubmitted: {statuses}")
    case = Case(checks, kind, folder, "no data")
    case.submit("data.paths=/nowhere/*.txt")
    statuses, waiting = case.cluster.run([AN_HOUR] * 3)
    case.that(statuses == [3] and not waiting and "a fault: the chain ends" in case.cluster.said("output"),
              f"missing data end the chain: {statuses}")


def a_signal(checks, kind, folder, name, sent, expected):
    """A signal to the script of a run that would never end: it saves, and stops."""
    case = Case(checks, kind, folder, name)
    case.submit("run.steps=1000000")
    words = case.cluster.words_of(case.cluster.queued()[0])
    case.cluster.submitted += 1
    process = case.cluster.start(words, 0, AN_HOUR)
    ready = wait_until(lambda: len(steps(case.run_dir)[0]) >= 3, PATIENCE)
    os.kill(process.pid, sent)
    status = process.wait(PATIENCE)
    ended = wait_until(lambda: steps(case.run_dir)[1][-1]["event"] == "end", PATIENCE)
    made, events = steps(case.run_dir)
    saved = [event["step"] for event in events if event["event"] == "checkpoint"]
    case.that(ready and ended and saved == [made[-1]] and status == expected,
              f"{name}: exit status {status}, saved at {saved} of {made[-1]}")
    again = {"pbs": len(case.cluster.queued()) == 1, "lsf": status == 75}[kind]
    case.that(again == (sent == signal.SIGUSR1), f"{name}: {'goes on' if again else 'the chain ends'}")
    case.cluster.end(process)


def main():
    checks = Checks()
    with scratch() as folder:
        for kind in ("pbs", "lsf", "slurm"):
            two_jobs(checks, kind, folder)
            no_progress(checks, kind, folder)
            faults(checks, kind, folder)
        for kind, stopped in (("pbs", 0), ("lsf", 75)):
            a_signal(checks, kind, folder, "USR1", signal.SIGUSR1, stopped)
            a_signal(checks, kind, folder, "TERM", signal.SIGTERM, 143)
            # The script cannot help: its death ends the ranks in order.
            a_signal(checks, kind, folder, "KILL", signal.SIGKILL, -signal.SIGKILL)
    checks.finish()


main()
