"""Runs the commands of a page: one bash in a folder that looks like a built clone."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import time

from support.runs import ENVIRONMENT, ROOT, executable

STAND_INS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stand_ins")
TREE = ("bench", "doc", "include", "inputs", "jobscripts", "packaging", "python", "src", "tests")
PATIENCE = 0.5  # seconds for mpirun to end its ranks
TIME_OF_LOG = re.compile(r"(?m)^\[\d{4}-\d\d-\d\d [\d:.]+\] (?=\[)")
# Ranks may be more than cores on the machine of a test, and waiting ranks leave the cores to the others.
MPI = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
       "OMPI_MCA_mpi_yield_when_idle": "1"}


def make_clone(folder):
    """A copy of the sources with a link to the executable as build/espalier."""
    os.makedirs(os.path.join(folder, "build"))
    os.makedirs(os.path.join(folder, "runs"))
    for name in TREE:
        shutil.copytree(os.path.join(ROOT, name), os.path.join(folder, name), symlinks=True,
                        ignore=shutil.ignore_patterns("__pycache__"))
    for name in os.listdir(ROOT):
        if os.path.isfile(os.path.join(ROOT, name)):
            shutil.copy2(os.path.join(ROOT, name), folder)
    os.symlink(os.path.abspath(executable()), os.path.join(folder, "build", "espalier"))


def make_stand_ins(folder):
    """The programs of stand_ins, under the names of those that they stand in for."""
    os.makedirs(folder)
    for name in os.listdir(STAND_INS):
        os.symlink(os.path.join(STAND_INS, name), os.path.join(folder, name.removesuffix(".sh")))


def script(commands, folder):
    """Each command writes its output and its exit status into files; variables and folders last to the end."""
    lines = [f"cd {folder}/clone"]
    for k, command in enumerate(commands):
        lines.append(f"{{\n{command}\n}} >{folder}/{k}.out 2>&1 </dev/null; echo $? >{folder}/{k}.status")
    return "\n".join(lines) + "\n"


def environment(folder):
    """That of a user: a home without settings, and no variables of tests."""
    inherited = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("ESPALIER")}
    path = [os.path.join(folder, "bin"), os.path.join(folder, "clone", "build"), os.environ["PATH"]]
    return {**inherited, **MPI, "PATH": os.pathsep.join(path), "TMPDIR": folder, "HOME": os.path.join(folder, "home")}


def end_all(bash):
    """Ends what the commands have left: mpirun ends its ranks when it is asked to."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(bash.pid, number)
            time.sleep(PATIENCE)
    bash.wait()


def run_page(commands, folder, timeout):
    """[(status, lines)] of the commands; the status is None of one that did not end in time, or was not begun.

    `folder` is empty, and is left with the clone in it."""
    make_clone(os.path.join(folder, "clone"))
    make_stand_ins(os.path.join(folder, "bin"))
    os.mkdir(os.path.join(folder, "home"))
    path = os.path.join(folder, "script")
    with open(path, "w") as file:
        file.write(script(commands, folder))
    bash = subprocess.Popen(["bash", path], env=environment(folder), start_new_session=True,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        try:
            bash.wait(timeout)
        finally:
            end_all(bash)
    return [result(os.path.join(folder, str(k)), folder) for k in range(len(commands))]


def result(path, folder):
    status, lines = None, []
    if os.path.exists(path + ".out"):
        with open(path + ".out", encoding="utf-8", errors="replace") as file:
            text = file.read().replace(os.path.join(folder, "clone") + "/", "")
        lines = TIME_OF_LOG.sub("", text).split("\n")
    if os.path.exists(path + ".status"):
        with open(path + ".status") as file:
            status = int(file.read())
    return status, lines[:-1] if lines and not lines[-1] else lines
