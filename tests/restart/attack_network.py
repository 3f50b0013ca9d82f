"""The network between two hosts fails while a run trains: the report says who sent and who waits, or that nothing
passes, and blames no rank; the job ends on both hosts, and nothing of it is left. Open MPI's launcher notices it before
the watchdog if it is told to ask. With the argument "full" also where it does not: then the ranks end by the
watchdog, and what stays behind of the launcher is ended half a minute later. Two network namespaces are the hosts;
skipped where they cannot be made."""
import os, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from runs import Checks, DECK, ROOT, executable

HOSTS = os.path.join(ROOT, "tests", "hosts", "hosts.sh")
PATIENCE = 120
# How long Open MPI's launcher and its daemons go on without hearing from each other; jobscripts/common.sh sets more.
KEEPALIVE = {"OMPI_MCA_oob_tcp_keepalive_time": "3", "OMPI_MCA_oob_tcp_keepalive_intvl": "2",
             "OMPI_MCA_oob_tcp_keepalive_probes": "2"}
ENVIRONMENT = dict(os.environ, HOSTS=f"e{os.getpid() % 100000}")
KEYS = ["model.layers=2", "batch.global=4", "checkpoint.every_steps=0", "run.steps=1000000", "report.every_steps=1000"]


def hosts(*arguments, check=True):
    return subprocess.run([HOSTS, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=check)


def until(condition, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def steps(home):
    path = os.path.join(home, "metrics.jsonl")
    return sum('"loss"' in line for line in open(path)) if os.path.exists(path) else 0


def left():
    return {host: found for host in ("host1", "host2") if (found := hosts("processes", host).stdout.split())}


def h2_network_a_pulled_cable(checks, home, ranks, layout, environment, watchdog_s, expected):
    what = f"h2: a cable is pulled, {' '.join(layout)} on {2 * ranks} ranks, watchdog {watchdog_s} s"
    with open(home + ".log", "w+", errors="replace") as log:
        line = [HOSTS, "mpirun", str(ranks), executable(), "run", DECK, "-d", home, *KEYS, *layout,
                f"run.watchdog_s={watchdog_s}"]
        run = subprocess.Popen(line, env={**ENVIRONMENT, **environment}, stdout=log, stderr=subprocess.STDOUT,
                               stdin=subprocess.DEVNULL, start_new_session=True)
        if not until(lambda: steps(home) >= 3 or run.poll() is not None) or run.poll() is not None:
            log.seek(0)
            return checks.that(False, f"{what}: it never came to step 3\n{log.read()}")
        hosts("pull", "host2")
        try:
            status = run.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            status = None
        gone = until(lambda: not left())
        log.seek(0)
        text = log.read()
    checks.that(status in expected and gone, f"{what}: the job ends, and nothing is left ({status}, {left()})")
    network = "the network between hosts host1, host2 does not deliver messages"
    said = "watchdog of rank" in text and network in text and "waits" in text and "has not arrived there" not in text
    checks.that(said, f"{what}: the network is named, and who waits")
    if not said or status not in expected:
        print(text[-2500:])


def main():
    if hosts("check", check=False).returncode == 77:
        print(hosts("check", check=False).stdout)
        sys.exit(77)
    checks, pp, both = Checks(), ["parallel.pp=2"], ["parallel.pp=2", "parallel.tp=2"]
    noticed, ended = (1, 205), (-9,)  # exit status of mpirun: 205 is its own for a host that it has lost
    cases = [(1, pp, KEEPALIVE, 60, noticed)]
    if sys.argv[1:] == ["full"]:
        cases += [(2, both, KEEPALIVE, 60, noticed), (1, ["parallel.dp_shard=2"], {}, 4, ended), (2, both, {}, 4, ended)]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            try:
                hosts("up", "2")
                h2_network_a_pulled_cable(checks, os.path.join(folder, f"cable-{cases.index(case)}"), *case)
            finally:
                hosts("down")
    checks.finish()


main()
