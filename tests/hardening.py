"""Release builds are hardened: hardening.py BINARY ... reads executables and shared libraries that were built. Their
tables of functions are bound at the start and read-only after it, functions with arrays have canaries on the stack, and
calls of the C library know the sizes of their arguments. Standard library and readelf alone."""
import re, subprocess, sys


def readelf(option, path):
    return subprocess.run(["readelf", "-W", option, path], stdout=subprocess.PIPE, text=True, check=True).stdout


def faults(path):
    """The protections that a binary lacks."""
    called = set(re.findall(r" UND (\w+)", readelf("--dyn-syms", path)))
    found = {
        "BIND_NOW (-z now)": re.search(r"\bBIND_NOW\b|FLAGS_1\b.*\bNOW\b", readelf("--dynamic", path)),
        "GNU_RELRO (-z relro)": "GNU_RELRO" in readelf("--segments", path),
        "__stack_chk_fail (-fstack-protector-strong)": "__stack_chk_fail" in called,
        "a checked call such as __memcpy_chk (-D_FORTIFY_SOURCE)":
            any(name.endswith("_chk") for name in called),
    }
    return [what for what, there in found.items() if not there]


def main():
    failed = 0
    for path in sys.argv[1:]:
        lacks = faults(path)
        failed += bool(lacks)
        print(f"{path}: " + ("lacks " + ", ".join(lacks) if lacks else "hardened"))
    sys.exit(1 if failed or not sys.argv[1:] else 0)


main()
