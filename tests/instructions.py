"""Instructions beyond the baseline are only in functions of the level that may use them: disassembles the executable.

    tests/instructions.py build/espalier
"""
import re
import subprocess
import sys

# Instructions that a level adds: VEX and EVEX encodings begin with "v", tiles have mnemonics of their own.
AVX2 = re.compile(r"^v")
AVX512 = re.compile(r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|%k[0-7]")
BF16 = re.compile(r"^(vcvtne|vdpbf16ps|tile|tdp|ldtilecfg|sttilecfg)")
NAMES = {0: "baseline", 1: "avx2", 2: "avx512", 3: "avx512_bf16"}
SPACES = {f"3cpu{len(name)}{name}": level for level, name in NAMES.items()}


def needed(instruction):
    """The lowest level that has an instruction."""
    if BF16.search(instruction):
        return 3
    if AVX512.search(instruction):
        return 2
    return 1 if AVX2.search(instruction) else 0


def allowed(function):
    """The highest level whose namespace a mangled name has. The compiler itself chooses between a function's clones."""
    if function.endswith(".avx2"):
        return 1
    return max((level for space, level in SPACES.items() if space in function), default=0)


def functions(executable):
    """(name, highest level that an instruction of it needs, that instruction) of all functions."""
    objdump = subprocess.Popen(["objdump", "-d", "--no-show-raw-insn", executable], stdout=subprocess.PIPE, text=True)
    name, level, example = "", 0, ""
    for line in objdump.stdout:
        start = re.match(r"[0-9a-f]+ <(.*)>:$", line)
        if start:
            yield name, level, example
            name, level, example = start[1], 0, ""
            continue
        _, _, instruction = line.partition("\t")
        need = needed(instruction.strip())
        if need > level:
            level, example = need, instruction.strip()
    yield name, level, example
    if objdump.wait() != 0:
        sys.exit("objdump failed")


def main():
    wrong, used = [], dict.fromkeys(NAMES, 0)
    for name, level, example in functions(sys.argv[1]):
        used[level] += 1
        if level > allowed(name):
            readable = subprocess.run(["c++filt", name], stdout=subprocess.PIPE, text=True).stdout.strip()
            wrong.append(f"{readable}: {example} ({NAMES[level]})")
    print(*wrong, sep="\n")
    print(f"{sum(used.values())} functions; levels they need: " +
          ", ".join(f"{NAMES[level]} {count}" for level, count in used.items()))
    # A level without functions has not been compiled, and the expressions above recognise nothing.
    if wrong or not all(used.values()):
        sys.exit(f"{len(wrong)} functions have instructions that their namespace does not allow" if wrong else
                 "a level has no function: has it been compiled?")


if __name__ == "__main__":
    main()
