"""A Slurm of this host, started by tests/slurm/start.sh. Standard library only."""
import os, shutil, subprocess, sys, tempfile

from .runs import ENVIRONMENT, ROOT
from .waiting import wait_until

PATIENCE = 120  # seconds for anything that should take some
SCRIPTS = os.path.join(ROOT, "tests", "slurm")


def why_not():
    """Why no Slurm can be started here; "" if it can be tried."""
    missing = [name for name in ("slurmctld", "slurmd", "munged", "srun", "sbatch") if shutil.which(name) is None]
    return f"skipped: {', '.join(missing)} missing" if missing else "" if os.geteuid() == 0 else "skipped: needs root"


def ask(*command, environment=ENVIRONMENT):
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                          timeout=PATIENCE, stdin=subprocess.DEVNULL, cwd=ROOT)
    return done.returncode, done.stdout.strip()


class Cluster:
    """`nodes`: 1 is this host; of more, all are played by it."""

    def __init__(self, nodes=1):
        self.nodes = nodes

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="slurm.")
        self.environment = dict(ENVIRONMENT, SLURM_CONF=os.path.join(self.dir, "slurm.conf"))
        # The daemons keep the pipe of what started them, so their output goes to a file.
        with open(os.path.join(self.dir, "start.log"), "w") as log:
            status = subprocess.run([os.path.join(SCRIPTS, "start.sh"), self.dir, str(self.nodes)], stdout=log,
                                    stderr=log, stdin=subprocess.DEVNULL).returncode
        if status != 0:
            print(open(os.path.join(self.dir, "start.log")).read(), "skipped: no Slurm could be started here", sep="\n")
            self.__exit__()
            sys.exit(77)
        return self

    def __exit__(self, *_):
        subprocess.run([os.path.join(SCRIPTS, "stop.sh"), self.dir], stdin=subprocess.DEVNULL)
        shutil.rmtree(self.dir, ignore_errors=True)

    def ask(self, *command):
        return ask(*command, environment=self.environment)


def await_that(condition, what, patience=PATIENCE):
    if not wait_until(condition, patience, tick=0.2):
        raise TimeoutError(f"waited {patience} s in vain: {what}")
