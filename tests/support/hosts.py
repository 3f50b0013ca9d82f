"""Several hosts on this machine, whose network can fail: network namespaces made by tests/hosts/hosts.sh. Standard
library only."""
import os, subprocess

from .runs import ENVIRONMENT, ROOT, executable

HOSTS = os.path.join(ROOT, "tests", "hosts", "hosts.sh")
# How long Open MPI's launcher and its daemons continue without hearing from each other; jobscripts/common.sh sets more.
KEEPALIVE = {"OMPI_MCA_oob_tcp_keepalive_time": "3", "OMPI_MCA_oob_tcp_keepalive_intvl": "2",
             "OMPI_MCA_oob_tcp_keepalive_probes": "2"}


class Hosts:
    """host1, host2, ..., inside a `with`. `letter` distinguishes the hosts of several tests."""

    def __init__(self, letter, count=2):
        self.environment = dict(ENVIRONMENT, HOSTS=f"{letter}{os.getpid() % 100000}")
        self.names = [f"host{i}" for i in range(1, count + 1)]

    def __enter__(self):
        self._hosts("up", str(len(self.names)))
        return self

    def __exit__(self, *_):
        self._hosts("down")

    def why_not(self):
        """Why hosts cannot be made here; "" if they can."""
        done = self._hosts("check", check=False)
        return done.stdout if done.returncode == 77 else ""

    def start(self, ranks, arguments, log, environment=()):
        """The executable with `ranks` ranks on each host, in the background."""
        return subprocess.Popen([HOSTS, "mpirun", str(ranks), executable(), *arguments],
                                env={**self.environment, **dict(environment)}, stdout=log, stderr=subprocess.STDOUT,
                                stdin=subprocess.DEVNULL, start_new_session=True)

    def start_on(self, host, command, log, environment=()):
        """A command on one host, in the background; a launcher that it starts reaches the other hosts."""
        return subprocess.Popen([HOSTS, "on", host, *command], env={**self.environment, **dict(environment)},
                                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                start_new_session=True)

    def processes(self, host):
        """Ids of the processes that run on a host."""
        return [int(pid) for pid in self._hosts("processes", host).stdout.split()]

    def pull(self, host):
        """Pulls the cable of a host."""
        self._hosts("pull", host)

    def plug(self, host):
        self._hosts("plug", host)

    def slow(self, host, rate):
        """Limits the rate at which a host sends, such as 2mbit. Why it cannot be limited here; "" if it is."""
        done = self._hosts("slow", host, rate, check=False)
        return done.stdout if done.returncode != 0 else ""

    def left(self):
        """The processes that run on the hosts, by host."""
        found = {host: self.processes(host) for host in self.names}
        return {host: processes for host, processes in found.items() if processes}

    def _hosts(self, *words, check=True):
        return subprocess.run([HOSTS, *words], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=check)
