"""Pythons with the real tools that tests compare with: Hugging Face's libraries, PyTorch, h5py.

    python = reference_python("torch")          # or "formats" or "plots", which are small
    subprocess.run([python, "script.py"], check=True)

Each set of packages (tests/oracle/requirements_NAME.txt) is installed once from PyPI into a virtual environment under
$XDG_CACHE_HOME (default ~/.cache). $ESPALIER_REFERENCE_PYTHON names a Python that has all of them instead; a missing
package is then an error. If PyPI cannot be reached, the test is skipped: exit status 77, with the reason.
"""
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

_SKIPPED = 77
_ORACLE = pathlib.Path(__file__).resolve().parent.parent / "oracle"
_INSTALL_S = 1200


def _skip(reason):
    print(f"skipped: {reason}")
    sys.exit(_SKIPPED)


def _install(folder, requirements):
    """Makes the environment in a temporary place and moves it to its own, so that an existing environment is
    complete."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", partial], capture_output=True, text=True)
    if made.returncode != 0:
        _skip(f"python3 -m venv fails: {made.stderr.strip() or made.stdout.strip()}")
    pip = [partial / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
    try:
        installed = subprocess.run(pip, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired:
        _skip(f"pip did not install {requirements.name} within {_INSTALL_S} s")
    if installed.returncode != 0:
        _skip(f"pip cannot install {requirements.name}: {installed.stderr.strip().splitlines()[-1:]}")
    partial.rename(folder)


def _packages(requirements):
    """Names of the packages in a requirements file and its includes, which are also the names of their modules;
    packages with a condition are left out."""
    for line in requirements.read_text().splitlines():
        if line.startswith("-r "):
            yield from _packages(requirements.with_name(line[3:].strip()))
        elif (name := re.match(r"[\w.-]+", line)) and ";" not in line:
            yield name[0]


def _require(python, requirements):
    """Ends the test if the given Python lacks one of the packages."""
    code = "import importlib.util, sys; print(*(n for n in sys.argv[1:] if importlib.util.find_spec(n) is None))"
    done = subprocess.run([python, "-c", code, *_packages(requirements)], capture_output=True, text=True)
    if done.returncode != 0 or done.stdout.strip():
        sys.exit(f"ESPALIER_REFERENCE_PYTHON={python} lacks: {done.stdout.strip() or done.stderr.strip()}\n"
                 f"install {requirements} there, or unset the variable")


def reference_python(name):
    """The Python with the packages of requirements_NAME.txt; exits 77 if there is none."""
    requirements = _ORACLE / f"requirements_{name}.txt"
    if given := os.environ.get("ESPALIER_REFERENCE_PYTHON"):
        _require(given, requirements)
        return given
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "espalier"
    cache.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache / f"reference-{name}-{key}"
    with open(cache / f"reference-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several tests may start at the same time
        if not folder.exists():
            _install(folder, requirements)
    # Scripts in a moved environment name its old place; the interpreter itself does not.
    return str(folder / "bin/python")
