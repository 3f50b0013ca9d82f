"""The network between two hosts fails while a run trains: the report names senders and waiting ranks, or says that
nothing passes, and blames no rank; the job ends on both hosts and leaves nothing. Open MPI's launcher notices the
failure before the watchdog if it is configured to check. The argument "full" also tests a launcher that does not: then
the watchdog ends the ranks, and the rest of the launcher is ended half a minute later. A host that only sends slowly is
named with its axis. Network namespaces are the hosts; skipped where they cannot be made."""
import json, os, subprocess, sys, tempfile

from support.hosts import KEEPALIVE, Hosts
from support.runs import Checks, DECK
from support.waiting import wait_until

PATIENCE = 120
KEYS = ["model.layers=2", "batch.global=4", "checkpoint.every_steps=0", "run.steps=1000000", "report.every_steps=1000"]


def steps(home):
    path = os.path.join(home, "metrics.jsonl")
    return sum('"loss"' in line for line in open(path)) if os.path.exists(path) else 0


def h2_network_a_pulled_cable(checks, hosts, home, ranks, layout, environment, watchdog_s, expected):
    what = f"h2: a cable is pulled, {' '.join(layout)} on {2 * ranks} ranks, watchdog {watchdog_s} s"
    with open(home + ".log", "w+", errors="replace") as log:
        run = hosts.start(ranks, ["run", DECK, "-d", home, *KEYS, *layout, f"run.watchdog_s={watchdog_s}"], log,
                          environment)
        wait_until(lambda: steps(home) >= 3 or run.poll() is not None, PATIENCE)
        if steps(home) < 3 or run.poll() is not None:
            log.seek(0)
            return checks.that(False, f"{what}: it never came to step 3\n{log.read()}")
        hosts.pull("host2")
        try:
            status = run.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            status = None
        gone = wait_until(lambda: not hosts.left(), PATIENCE)
        log.seek(0)
        text = log.read()
    checks.that(status in expected and gone, f"{what}: the job ends, and nothing is left ({status}, {hosts.left()})")
    network = "the network between hosts host1, host2 does not deliver messages"
    said = "watchdog of rank" in text and network in text and "waits" in text and "has not arrived there" not in text
    checks.that(said, f"{what}: the network is named, and who waits")
    if not said or status not in expected:
        print(text[-2500:])


def h2_network_a_slow_cable(checks, hosts, home):
    """Four hosts with one rank each, two tp groups: the messages of the second group are named."""
    what = "h2: a host sends slowly"
    if why := hosts.slow("host4", "10mbit"):
        return print(f"{what}: {why}")
    with open(home + ".log", "w+", errors="replace") as log:
        run = hosts.start(1, ["run", DECK, "-d", home, *KEYS, "parallel.tp=2", "parallel.dp_shard=2", "run.steps=70"],
                          log)
        status = run.wait(PATIENCE)
        log.seek(0)
        text = log.read()
    with open(os.path.join(home, "metrics.jsonl")) as file:
        found = [line for line in map(json.loads, file) if line.get("event") == "slow_link"]
    named = [(line["step"], line["axis"], line["ranks"], line["hosts"]) for line in found]
    ok = checks.that(status == 0 and (60, "tp", [2, 3], "host3, host4") in named and
                     "tp messages between ranks 2, 3 (host3, host4) take" in text,
                     f"{what}: axis, ranks and hosts are named after 60 steps ({status}, {named})")
    checks.that(all(3 in line["ranks"] and line["ms"] > line["peers_ms"] for line in found),
                f"{what}: nobody is named without it")
    if not ok:
        print(text[-2500:])


def main():
    hosts = Hosts("e")
    if why := hosts.why_not():
        print(why)
        sys.exit(77)
    checks, pp, both = Checks(), ["parallel.pp=2"], ["parallel.pp=2", "parallel.tp=2"]
    noticed, ended = (1, 205), (-9,)  # exit status of mpirun; 205: it has lost a host
    cases = [(1, pp, KEEPALIVE, 60, noticed)]
    if sys.argv[1:] == ["full"]:
        cases += [(2, both, KEEPALIVE, 60, noticed), (1, ["parallel.dp_shard=2"], {}, 4, ended),
                  (2, both, {}, 4, ended)]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            with hosts:
                h2_network_a_pulled_cable(checks, hosts, os.path.join(folder, f"cable-{cases.index(case)}"), *case)
        with Hosts("e", 4) as four:
            h2_network_a_slow_cable(checks, four, os.path.join(folder, "slow"))
    checks.finish()


main()
