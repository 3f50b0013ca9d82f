"""Supervised runs on hosts of this machine (network namespaces): ranks, launchers, hosts and the supervisor itself are
killed, stopped and cut off. Every run reaches its last step with the losses of the undisturbed one, bitwise in the same
layout; nothing is left. Skipped where no hosts can be made.

    supervise.py [CASE ...]     the named cases, such as a_rank_dies"""
import os, shutil, signal, statistics, sys, time

from support.disturbed import same_run
from support.hosts import Hosts
from support.jobs import kill
from support.runs import Checks, Metrics, difference, executable, scratch
from support.supervised import Supervised, go_on, stop
from support.waiting import wait_until

STEPS = 40
DECK = [f"run.steps={STEPS}", "checkpoint.every_steps=4", "checkpoint.restart=auto", "model.layers=2", "batch.global=4",
        "lr.decay_steps=40", "report.every_steps=10", "checkpoint.keep=2"]
PIPELINE, COPIES = ["parallel.pp=2", "parallel.dp_shard=-1"], ["parallel.dp_shard=-1"]
THREE = ["parallel.dp_shard=3", "batch.global=6"]


class Cases:
    def __init__(self, hosts, folder, checks):
        self.hosts, self.folder, self.checks, self.straight = hosts, folder, checks, {}

    def start(self, name, where, keys, flags=(), environment=()):
        return Supervised(self.hosts, os.path.join(self.folder, name), where, [*DECK, *keys], flags, environment)

    def undisturbed(self, keys):
        if str(keys) not in self.straight:
            name = f"straight-{len(self.straight)}"
            with self.start(name, "host2:1,host3:1,host4:1" if keys == THREE else "host2:1,host3:1", keys) as run:
                if run.end() != 0:
                    sys.exit(run.text())
                self.plain = run.steps()[0]["time"] - run.ledger("start")[0]["time"]
            self.straight[str(keys)] = Metrics(os.path.join(self.folder, name))
        return self.straight[str(keys)]

    def finished(self, run, keys, what, failures=1, bitwise=True, status=0):
        """The run ends well, with the numbers of the undisturbed one, and leaves nothing."""
        found = run.end()
        left, seen = run.left(), len(run.ledger("failure"))
        ok = self.checks.that(found == status and not left and seen == failures,
                              f"{what}: ends with {found}, {seen} failures, left: {left}")
        if ok and status == 0:
            straight, mine = self.undisturbed(keys), Metrics(run.home)
            if bitwise:
                ok = self.checks.that(same_run(run.home, straight, STEPS), f"{what}: bitwise the undisturbed run")
            else:
                worst = max(difference(mine.curve(key), straight.curve(key)) for key in ("loss", "grad_norm"))
                ok = self.checks.that(len(mine.steps) == STEPS and worst < 1e-4,
                                      f"{what}: the undisturbed run up to rounding ({worst:.1e})")
        if not ok:
            print(run.text()[-6000:])

    def blamed(self, run, hosts, kind, what):
        failure = run.ledger("failure")[0]
        self.checks.that(failure["hosts"] == hosts and failure["cause"] == kind,
                         f"{what}: blames {failure['hosts']} ({failure['cause']}: {failure['text']})")

    def a_rank_dies(self):
        what = "kill -9 of a rank, with a spare"
        with self.start("rank", "host2:1,host3:1,host4:1", PIPELINE, ["--spares", "1"]) as run:
            run.until_step(6)
            kill([run.ranks()[1]])
            self.finished(run, PIPELINE, what)
            self.blamed(run, ["host3"], "process", what)
            second = run.ledger("start")[1]["hosts"]
            self.checks.that(second == ["host2", "host4"], f"{what}: the spare takes its place")

    def a_host_is_lost(self):
        """Without a spare: the deck's dp_shard is scaled down. The host's cable is pulled too, so that it does not
        answer."""
        what = "a host is lost, without a spare"
        with self.start("host", "host1:1,host3:1", COPIES, ["--probe", "5"]) as run:
            run.until_step(6)
            self.hosts.pull("host3")
            kill(self.hosts.processes("host3"))
            self.finished(run, COPIES, what, bitwise=False)
            self.hosts.plug("host3")
            second = run.ledger("start")[1]
            self.checks.that(second["hosts"] == ["host1"] and second["ranks"] == 1 and "up to rounding" in run.text(),
                             f"{what}: goes on on {second['hosts']}, and says what is promised")

    def a_daemon_dies(self):
        what = "kill -9 of a host's daemon and ranks, with a spare"
        with self.start("daemon", "host2:1,host3:1,host4:1", PIPELINE, ["--spares", "1"]) as run:
            run.until_step(6)
            kill(self.hosts.processes("host3"))
            self.finished(run, PIPELINE, what)
            self.blamed(run, ["host3"], "host", what)

    def the_launcher_dies(self):
        with self.start("launcher", "host2:1,host3:1", PIPELINE) as run:
            run.until_step(6)
            kill([run.launcher()])
            self.finished(run, PIPELINE, "kill -9 of mpirun")

    def the_supervisor_dies(self):
        """The run saves and stops by itself; the next supervisor goes on, and never are two runs at work."""
        what = "kill -9 of the supervisor"
        with self.start("supervisor", "host2:1,host3:1", PIPELINE) as first:
            first.until_step(6)
            kill([first.supervisor()])
            first.process.wait()
            # Leaving `first` kills its processes, so the second run comes inside.
            with self.start("supervisor", "host2:1,host3:1", PIPELINE) as second:
                self.finished(second, PIPELINE, what)
                made = [line["step"] for line in second.steps()]
                self.checks.that(made == sorted(made) and len(set(made)) == len(made) == STEPS,
                                 f"{what}: the run was asked to save, and no step was made twice ({len(made)})")

    def two_supervisors(self):
        with self.start("two", "host2:1,host3:1", PIPELINE) as run:
            run.until_step(2)
            second = Supervised(self.hosts, run.home, "host2:1,host3:1", [*DECK, *PIPELINE])
            self.checks.that(second.end() == 1 and "another supervisor is in this directory" in second.text(),
                             "a second supervisor is refused")
            second.log.close()
            self.finished(run, PIPELINE, "beside it the first", failures=0)

    def a_rank_is_stopped(self):
        what = "a rank is stopped: a hang"
        keys = [*PIPELINE, "run.watchdog_s=3"]
        with self.start("stopped", "host2:1,host3:1,host4:1", keys, ["--spares", "1"]) as run:
            run.until_step(6)
            stop([run.ranks()[1]])
            self.finished(run, PIPELINE, what)
            self.blamed(run, ["host3"], "hang", what)

    def a_rank_is_stopped_at_the_start(self):
        """While MPI comes up or the run is set up, before it has its own watchdogs."""
        what = "a rank is stopped at the start"
        keys = [*PIPELINE, "run.watchdog_s=3", "run.watchdog_slow_s=15"]
        with self.start("early", "host2:1,host3:1,host4:1", keys, ["--spares", "1"]) as run:
            run.until(lambda: run.ranks(), "a rank")
            stop(list(run.ranks().values())[:1])
            self.finished(run, PIPELINE, what)
            self.checks.that(run.ledger("failure")[0]["cause"] == "hang",
                             f"{what}: {run.ledger('failure')[0]['text']}")

    def a_rank_computes_wrongly(self):
        """On host3, in the comparison after step 8, for which the 10th visit of an instruction stands."""
        what = "a rank computes wrongly, with a spare"
        keys = [*THREE, "guard.recompute_steps=4", "guard.on_corruption=stop"]
        program = os.path.join(self.folder, "wrong.sh")
        with open(program, "w") as file:
            file.write('#!/bin/bash\n[[ $(hostname) == host3 ]] && export ESPALIER_FAULT=instruction-40:nan:10\n'
                       f'exec "{executable()}" "$@"\n')
        os.chmod(program, 0o755)
        with self.start("wrong", "host2:1,host3:1,host4:1,host1:1", keys,
                        ["--spares", "1", "--program", program]) as run:
            self.finished(run, THREE, what)
            self.blamed(run, ["host3"], "corrupt", what)
            failure, second = run.ledger("failure")[0], run.ledger("start")[1]["hosts"]
            self.checks.that((failure["step"], failure["saved"], failure["excluded"]) == (8, 4, ["host3"]) and
                             sorted(second) == ["host1", "host2", "host4"],
                             f"{what}: no save after it, and its host is not used again ({failure}, {second})")

    def a_zombie_comes_back(self):
        """The host of rank 0 is stopped and cut off, and comes back while the run goes on elsewhere: it must not
        write."""
        what = "a stopped host that comes back"
        keys = [*PIPELINE, "run.steps=1000000"]
        with self.start("zombie", "host2:1,host3:1,host4:1", keys, ["--spares", "1", "--probe", "5"],
                        {"OMPI_MCA_oob_tcp_keepalive_time": "2", "OMPI_MCA_oob_tcp_keepalive_intvl": "1",
                         "OMPI_MCA_oob_tcp_keepalive_probes": "2"}) as run:
            run.until_step(6)
            zombies = self.hosts.processes("host2")
            stop(zombies)
            self.hosts.pull("host2")
            run.until(lambda: run.starts() == 2, "a second start")
            run.until_step(1, start=2)
            self.hosts.plug("host2")
            go_on(zombies)
            before = len(run.steps())
            ended = wait_until(lambda: not set(zombies) & set(self.hosts.processes("host2")), 60)
            kill([run.supervisor()], signal.SIGUSR1)
            self.finished(run, keys, what, status=75)
            hosts = [start["hosts"] for start in run.ledger("start")]
            made = [line["step"] for line in run.steps()[before:]]
            self.checks.that(ended and made == sorted(set(made)) and "host2" not in hosts[1],
                             f"{what}: its processes end, and no step is written twice ({hosts}, {len(made)} steps)")

    def no_progress(self):
        what = "a run that always fails at the same step"
        fault = {"ESPALIER_FAULT": "step:kill:3"}
        with self.start("idle", "host2:1,host3:1", PIPELINE, ["--tries", "2"], fault) as run:
            self.finished(run, PIPELINE, what, failures=3, status=1)
            self.checks.that("made no further step" in run.text(), f"{what}: it gives up, and says why")

    def a_stop(self):
        what = "USR1 to the supervisor"
        with self.start("stop", "host2:1,host3:1", PIPELINE) as run:
            run.until_step(6)
            kill([run.supervisor()], signal.SIGUSR1)
            self.finished(run, PIPELINE, what, failures=0, status=75)
        with self.start("stop", "host2:1,host3:1", PIPELINE) as run:
            self.finished(run, PIPELINE, what + ", and started again", failures=0)

    def a_stop_while_a_rank_dies(self):
        """The signal comes before the failure is noticed, between two starts, or while the next one comes up."""
        for wait in (0, 0.1, 0.3, 0.6):
            what = f"USR1 {wait} s after a rank has died"
            with self.start(f"stop-{wait}", "host2:1,host3:1,host4:1", [*PIPELINE, "run.steps=1000000"],
                            ["--spares", "1"]) as run:
                run.until_step(6)
                kill([run.ranks()[1]])
                time.sleep(wait)
                kill([run.supervisor()], signal.SIGUSR1)
                found = run.end()
                self.checks.that(found == 75 and not run.left(), f"{what}: ends with {found}, left: {run.left()}")

    def recovery(self):
        """Not a check: the time to recover beside that of a plain start."""
        keys, times = [*PIPELINE, "run.steps=100000"], []
        self.undisturbed(PIPELINE)
        with self.start("times", "host2:1,host3:1,host4:1", keys,
                        ["--spares", "1", "--host-failures", "100"]) as run:
            plain = None
            for start in range(1, 7):
                run.until_step(1, start=start)
                begun = run.ledger("start")[-1]["time"]
                first = next(line["time"] for line in run.steps() if line["time"] >= begun)
                plain = plain or first - begun
                if start > 1:
                    times.append(first - struck)
                run.until_step(max(line["step"] for line in run.steps()) + 3, start=start)
                struck = time.time()
                kill([run.ranks()[1]])
            kill([run.supervisor()], signal.SIGUSR1)
            run.end()
        print(f"plain start {self.plain:.2f} and {plain:.2f} s; from kill -9 of a rank to the next step: median "
              f"{statistics.median(times):.2f} s of {', '.join(f'{t:.2f}' for t in times)}")


ALL = ["a_rank_dies", "a_host_is_lost", "a_daemon_dies", "the_launcher_dies", "the_supervisor_dies", "two_supervisors",
       "a_rank_is_stopped", "a_rank_is_stopped_at_the_start", "a_rank_computes_wrongly",
       "a_zombie_comes_back", "no_progress", "a_stop", "a_stop_while_a_rank_dies"]


def main():
    hosts = Hosts("v", 4)
    if why := hosts.why_not():
        print(why)
        sys.exit(77)
    checks = Checks()
    with scratch() as folder, hosts:
        cases = Cases(hosts, folder, checks)
        for name in sys.argv[1:] or ALL:
            getattr(cases, name)()
    checks.finish()


main()
