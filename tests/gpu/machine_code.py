"""The machine code of every kernel, on every architecture of a build: no register is spilled and nothing is on a
stack, which is memory of the device; registers suffice for the largest launch; static shared memory leaves room for
dynamic. Reads the machine code of LIBRARY (or object files), so it needs no GPU; without cuobjdump: skipped."""
import collections, re, shutil, subprocess, sys

ARCHITECTURE = re.compile(r"^arch = (sm_\w+)", re.M)
USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
SECTION = re.compile(r"^\.nv\.info\.(\S+)$", re.M)
MOST_THREADS = re.compile(r"EIATTR_MAX_THREADS\s+Format:\s+\S+\s+Value:\s+(0x[0-9a-f]+) (0x[0-9a-f]+) (0x[0-9a-f]+)")
REGISTERS, ANY_LAUNCH, SHARED = 65536, 1024, 48 << 10

Kernel = collections.namedtuple("Kernel", "registers stack shared local threads")


def dump(what, path):
    return subprocess.run(["cuobjdump", what, path], capture_output=True, text=True, check=True).stdout


def by_architecture(text):
    """[(architecture, its part of the output)]"""
    parts = ARCHITECTURE.split(text)
    return list(zip(parts[1::2], parts[2::2]))


def bounds(elf):
    """{function: threads of its launch bound} of one architecture."""
    sections = SECTION.split(elf)
    found = ((name, MOST_THREADS.search(text)) for name, text in zip(sections[1::2], sections[2::2]))
    return {name: int(most[1], 16) * int(most[2], 16) * int(most[3], 16) for name, most in found if most}


def kernels(path):
    """{(architecture, function): Kernel}"""
    threads = {(architecture, name): count for architecture, elf in by_architecture(dump("--dump-elf", path))
               for name, count in bounds(elf).items()}
    found = {}
    for architecture, text in by_architecture(dump("--dump-resource-usage", path)):
        for name, registers, stack, shared, local in USAGE.findall(text):
            key = architecture, name
            found[key] = Kernel(int(registers), int(stack), int(shared), int(local), threads.get(key, ANY_LAUNCH))
    return found


def faults(kernel):
    """Registers are given out in eights."""
    needed = (kernel.registers + 7) // 8 * 8 * kernel.threads
    if needed > REGISTERS:
        yield f"{kernel.registers} registers for each of {kernel.threads} threads: give it a launch bound"
    if kernel.stack > 0 or kernel.local > 0:
        yield f"{kernel.stack} bytes of stack, {kernel.local} of local memory: spilled, or an array without registers"
    if kernel.shared > SHARED:
        yield f"{kernel.shared} bytes of static shared memory"


def main():
    if shutil.which("cuobjdump") is None:
        print("skipped: there is no cuobjdump (of the CUDA toolkit)")
        sys.exit(77)
    found = {key: kernel for path in sys.argv[1:] for key, kernel in kernels(path).items()}
    wrong = [(key, fault) for key, kernel in found.items() for fault in faults(kernel)]
    for architecture, of_one in collections.Counter(architecture for architecture, _ in found).items():
        most = max((k.registers, name) for (on, name), k in found.items() if on == architecture)
        print(f"{architecture}: {of_one} kernels, at most {most[0]} registers ({most[1]})")
    if not found:
        print(f"FAIL  there is no kernel in {' '.join(sys.argv[1:])}")
    for (architecture, name), fault in wrong:
        print(f"FAIL  {architecture} {name}: {fault}")
    sys.exit(1 if wrong or not found else 0)


if __name__ == "__main__":
    main()
