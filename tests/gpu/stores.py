"""The machine code of the kernels' stores: packs of elements are written in one instruction, not element by element,
which costs as many times the traffic and shows in no result. Reads the machine code of LIBRARY (or object files), so it
needs no GPU; without cuobjdump: skipped."""
import collections, re, shutil, subprocess, sys

ARCHITECTURE = re.compile(r"code for (sm_\w+)")
FUNCTION = re.compile(r"Function : (\S+)")
STORE = re.compile(r"\bSTG\.E(\.U8|\.U16|\.64|\.128)?\S* (?:desc\[\S+\])?\[(R\d+)\.64(?:\+(-?0x[0-9a-f]+))?\]")
BYTES = {".U8": 1, ".U16": 2, None: 4, ".64": 8, ".128": 16}


def machine_code(path):
    return subprocess.run(["cuobjdump", "--dump-sass", path], capture_output=True, text=True, check=True).stdout


def pieces(code):
    """{(architecture, function): stores of less than 16 bytes right after another one of the same width and
    base}"""
    found, architecture, function, places = collections.Counter(), "", "", set()
    for line in code.splitlines():
        if begin := ARCHITECTURE.search(line):
            architecture = begin[1]
        if begin := FUNCTION.search(line):
            function, places = (architecture, begin[1]), set()
        if store := STORE.search(line):
            width, at = BYTES[store[1]], int(store[3] or "0", 16)
            found[function] += width < 16 and (store[2], width, at - width) in places
            places.add((store[2], width, at))
    return found


def main():
    if shutil.which("cuobjdump") is None:
        print("skipped: there is no cuobjdump (of the CUDA toolkit)")
        sys.exit(77)
    found = {name: count for path in sys.argv[1:] for name, count in pieces(machine_code(path)).items()}
    print(f"{len(found)} functions store")
    taken_apart = {name: count for name, count in found.items() if count > 1}
    for (architecture, name), count in taken_apart.items():
        print(f"FAIL  {architecture} {name}: {count} stores right after another")
    sys.exit(1 if taken_apart or not found else 0)


if __name__ == "__main__":
    main()
