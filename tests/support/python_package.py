"""The Python package in python/, installed for a test, and a stand-in for Weights & Biases. Standard library only."""
import glob, json, os, subprocess, sys

from .reference import reference_python
from .runs import ROOT, scratch

PACKAGE = os.path.join(ROOT, "python")
FAKE_WANDB = os.path.join(ROOT, "tests", "python", "fake_wandb")


def install(python, where):
    """Installs the package with pip from a clone, without the network; returns the environment that has it."""
    prefix = os.path.join(where, "installed")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps",
                    "--no-build-isolation", "--ignore-installed", "--prefix", prefix, PACKAGE], check=True)
    folders = glob.glob(os.path.join(prefix, "**", "site-packages"), recursive=True)
    commands = os.path.dirname(glob.glob(os.path.join(prefix, "**", "espalier-runs"), recursive=True)[0])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PATH": commands + os.pathsep + os.environ["PATH"]}


def begin_installed(script, packages="plots"):
    """Restarts the script in a Python that has the package, with the argument "installed"; returns there."""
    if sys.argv[1:] == ["installed"]:
        return
    python = reference_python(packages)
    with scratch() as where:
        done = subprocess.run([python, "-u", os.path.abspath(script), "installed"], env=install(python, where))
    sys.exit(done.returncode)


def noting_calls(log):
    """An environment whose module wandb is the stand-in, which appends its calls to this file."""
    return {**os.environ, "FAKE_WANDB": os.path.abspath(log),
            "PYTHONPATH": os.pathsep.join([FAKE_WANDB, os.environ.get("PYTHONPATH", "")])}


def wandb_calls(log, kind=None):
    found = [json.loads(line) for line in open(log)] if os.path.exists(log) else []
    return [call for call in found if kind in (None, call[0])]
