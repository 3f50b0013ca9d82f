"""A campaign of failures: supervised runs on four hosts and one or two spares are disturbed at random, until the
requested number of failures has happened. Every run must reach its last step with the losses of the undisturbed run,
bitwise, and leave no process and no file.

    failing_hosts.py [FAILURES [SEED]]

Skipped where no hosts can be made."""
import os, random, shutil, signal, statistics, sys, time

from support.disturbed import same_run
from support.hosts import Hosts
from support.jobs import kill
from support.runs import Checks, Metrics, scratch
from support.supervised import Supervised, stop
from support.waiting import wait_until

STEPS, MOST_IN_A_ROW = 60, 8
DECK = [f"run.steps={STEPS}", "checkpoint.every_steps=3", "checkpoint.restart=auto", "model.layers=4", "batch.global=4",
        "lr.decay_steps=60", "report.every_steps=20", "checkpoint.keep=2", "run.watchdog_s=4", "run.watchdog_slow_s=30"]
LAYOUTS = [["parallel.pp=4"], ["parallel.dp_shard=4"], ["parallel.pp=2", "parallel.dp_replicate=2"],
           ["parallel.tp=2", "parallel.dp_shard=2"]]
ALL = [f"host{i}" for i in range(1, 8)]  # host1 has the supervisor and no rank
PATIENT = {"OMPI_MCA_oob_tcp_keepalive_time": "2", "OMPI_MCA_oob_tcp_keepalive_intvl": "1",
           "OMPI_MCA_oob_tcp_keepalive_probes": "2"}


class Campaign:
    def __init__(self, hosts, folder, seed):
        self.hosts, self.folder, self.random = hosts, folder, random.Random(seed)
        self.straight, self.seconds, self.counts, self.failures, self.runs = {}, {}, {}, 0, 0
        self.different, self.left, self.lost_steps, self.plain = [], [], 0, []

    def start(self, home, spares, layout):
        where = ",".join(f"{name}:1" for name in ALL[1:5 + spares])
        flags = ["--spares", str(spares), "--tries", "20", "--host-failures", "1000", "--probe", "6"]
        return Supervised(self.hosts, home, where, [*DECK, *layout], flags, PATIENT)

    def undisturbed(self, layout):
        if str(layout) not in self.straight:
            home = os.path.join(self.folder, f"straight-{len(self.straight)}")
            with self.start(home, 0, layout) as run:
                if run.end() != 0:
                    sys.exit(run.text())
                self.plain.append(run.steps()[0]["time"] - run.ledger("start")[0]["time"])
            self.straight[str(layout)] = Metrics(home)
        return self.straight[str(layout)]

    # The failures; each returns whether it came in time.

    def a_rank_killed(self, run, used):
        kill(self.random.sample(sorted(run.ranks().values()), 1))

    def the_launcher_killed(self, run, used):
        kill([run.launcher()])

    def a_host_killed(self, run, used):
        kill(self.hosts.processes(self.random.choice(used)))

    def two_hosts_killed(self, run, used):
        kill([pid for name in self.random.sample(used, 2) for pid in self.hosts.processes(name)])

    def a_rank_stopped(self, run, used):
        stop(self.random.sample(sorted(run.ranks().values()), 1))

    def a_cable_pulled(self, run, used):
        """For a while: the host answers again later."""
        name = self.random.choice(used)
        self.hosts.pull(name)
        wait_until(lambda: len(run.ledger("failure")) + len(run.ledger("end")) > self.seen, 60)
        time.sleep(1)
        self.hosts.plug(name)

    def the_supervisor_killed(self, run, used):
        kill([run.supervisor()])
        run.process.wait()

    WAYS = [a_rank_killed] * 4 + [the_launcher_killed] * 2 + [a_host_killed] * 3 + [two_hosts_killed, a_rank_stopped,
                                                                                  a_cable_pulled, the_supervisor_killed]

    def disturb(self, run):
        """One disturbance at a random time of a start; returns the run that goes on, None if it has ended before."""
        try:
            run.until(lambda: run.starts() > 0 and (run.steps() or run.ranks()), "ranks")
        except TimeoutError:
            return None
        wait_until(lambda: run.process.poll() is not None, self.random.uniform(0.2, 2.5))
        if run.process.poll() is not None or not run.ranks():
            return run
        self.seen = len(run.ledger("failure"))
        way = self.random.choice(self.WAYS)
        starts, used, struck = run.starts(), run.ledger("start")[-1]["hosts"], time.time()
        way(self, run, used)
        if way is Campaign.the_supervisor_killed:
            run = self.start(run.home, self.spares, self.layout)
        name = way.__name__.replace("_", " ")
        try:
            run.until(lambda: run.starts() > starts and any(s["time"] > run.ledger("start")[-1]["time"]
                                                            for s in run.steps()), "a step of the next start")
        except TimeoutError:
            return run  # it has ended
        first = min(s["time"] for s in run.steps() if s["time"] > run.ledger("start")[-1]["time"])
        self.counts[name] = self.counts.get(name, 0) + 1
        self.seconds.setdefault(name, []).append(first - struck)
        return run

    def one_run(self):
        self.layout, self.spares = self.random.choice(LAYOUTS), self.random.choice([1, 2])
        straight, home = self.undisturbed(self.layout), os.path.join(self.folder, "run")
        run = self.start(home, self.spares, self.layout)
        for _ in range(self.random.randint(1, MOST_IN_A_ROW)):
            if run is None or run.process.poll() is not None:
                break
            run = self.disturb(run) or run
        with run:
            status = run.end()
            left = run.left()
            self.failures += len(run.ledger("failure"))
            self.lost_steps += sum(line["steps_lost"] for line in run.ledger("recovered"))
            if status != 0 or not same_run(home, straight, STEPS):
                self.different.append(f"{self.layout}: {status}")
                print(run.text()[-8000:])
            self.left += left
        self.runs += 1
        shutil.rmtree(home)
        shutil.rmtree(home + ".tmp", ignore_errors=True)
        os.remove(home + ".log")


def main():
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    hosts = Hosts("f", len(ALL))
    if why := hosts.why_not():
        print(why)
        sys.exit(77)
    checks = Checks()
    with scratch() as folder, hosts:
        campaign = Campaign(hosts, folder, seed)
        while campaign.failures < most:
            campaign.one_run()
            print(f"{campaign.failures} failures in {campaign.runs} runs, {campaign.lost_steps} steps made again; "
                  f"{campaign.counts}", flush=True)
        checks.that(not campaign.different, f"{campaign.runs} runs with {campaign.failures} failures: each bitwise the "
                    f"undisturbed one ({campaign.different})")
        checks.that(not campaign.left, f"nothing is left: {campaign.left}")
        for name, seconds in sorted(campaign.seconds.items()):
            print(f"{name}: {len(seconds)}, to the next step median {statistics.median(seconds):.1f} s, "
                  f"slowest {max(seconds):.1f} s")
        print(f"a plain start: median {statistics.median(campaign.plain):.1f} s")
    checks.finish()


main()
