"""The house style, as far as a program can see it: C++ as clang-format 14 leaves it, lines of at most 120 columns, and
limits on the length of functions and files (doc/style.md). Exit status 77 if clang-format 14 is missing and everything
else holds. Standard library only."""
import ast, os, re, subprocess, sys
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COLUMNS = 120
CXX, PYTHON, SHELL, MARKDOWN = (".cpp", ".hpp", ".cu", ".cuh"), (".py",), (".sh", ".sbatch"), (".md",)
# Lines of a file and of a function, at most: in the program, and in tests and benchmarks.
PROGRAM, TESTS = (500, 50), (600, 80)
# Functions and files that may be longer, and why.
LONGER = {
    "src/deck/effects.cpp": "the table of keys that may have no effect",
    "src/deck/schema.cpp": "the table of all keys",
    "src/kernels/arguments.hpp": "the operands of all kernels",
    "tests/support/layouts.py": "the table of all layouts",
    "tests/unit/kernels/row_kernels.hpp": "the table of kernels that work on rows",
}
OTHER_BLOCK = re.compile(r" *(if|for|while|switch|else|do|return|using|namespace|class|struct|enum|union)\b")


def files():
    """All sources, relative to the root; no links, and nothing that is built."""
    found = [name for name in os.listdir(ROOT) if os.path.isfile(os.path.join(ROOT, name))]
    for top in (".ci", "src", "include", "tests", "bench", "doc", "inputs", "jobscripts", "packaging", "python"):
        for folder, inner, names in os.walk(os.path.join(ROOT, top)):
            inner[:] = [name for name in inner if name not in ("__pycache__", "corpus")]
            found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    return sorted(path for path in found if path.endswith(CXX + PYTHON + SHELL + MARKDOWN))


def long_lines(path, lines):
    """In Markdown a table, what a program has printed, and a line that is one URL or one code span may be longer."""
    fence = None
    for number, line in enumerate(lines, 1):
        if path.endswith(MARKDOWN):
            if opens := re.match(r" *```(\w*)", line):
                fence = None if fence is not None else opens[1]
            text = re.sub(r"^\s*(?:[-*>] |\d+\. )?", "", line)
            if fence in ("", "text") or re.match(r"\||\S*https?://\S+$|`[^`]+`\S*$", text):
                continue
        if len(line) > COLUMNS:
            yield f"{path}:{number}: {len(line)} columns, at most {COLUMNS}"


def functions(path, text):
    """(name, first line, lines) of every function. In C++ that is formatted, one begins with a line that is indented by
    at most two columns and ends with the next brace at the same indentation."""
    lines = text.split("\n")
    if path.endswith(PYTHON):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                yield node.name, node.lineno, node.end_lineno - node.lineno + 1
        return
    begin = None
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if begin and line.startswith("}" if begin[1] == 0 else "  }") and indent == begin[1]:
            yield lines[begin[0]].strip(), begin[0] + 1, number - begin[0] + 1
            begin = None
        elif not begin and indent in (0, 2) and re.match(r"[\w:~].*\(", line.strip()) and not OTHER_BLOCK.match(line):
            # The signature may go on for some lines; a declaration ends with a semicolon.
            for after in range(number, min(number + 20, len(lines))):
                if lines[after].endswith((";", "}", "},")):
                    break
                if lines[after].endswith("{"):
                    begin = number, indent
                    break


def too_long(path, text):
    if path in LONGER or not path.endswith(CXX + PYTHON):
        return
    most_in_file, most_in_function = PROGRAM if path.startswith(("src/", "include/", "python/")) else TESTS
    count = text.count("\n")
    if count > most_in_file:
        yield f"{path}: {count} lines, at most {most_in_file}"
    for name, first, length in functions(path, text):
        if length > most_in_function:
            yield f"{path}:{first}: {length} lines in a function, at most {most_in_function}: {name}"


def unformatted(paths):
    """The changes that clang-format would make; None if there is no clang-format 14."""
    try:
        version = subprocess.run(["clang-format", "--version"], stdout=subprocess.PIPE, text=True).stdout
    except FileNotFoundError:
        return None
    if "version 14." not in version:
        return None

    def changes(path):
        """Version 14 also reports the comment at the end of a nested inline namespace, which it leaves as it is."""
        done = subprocess.run(["clang-format", path], cwd=ROOT, stdout=subprocess.PIPE)
        with open(os.path.join(ROOT, path), "rb") as file:
            return done.stdout != file.read()

    def check(batch):
        done = subprocess.run(["clang-format", "--dry-run", "-Werror", *batch], cwd=ROOT, stderr=subprocess.PIPE,
                              text=True)
        return [line for line in done.stderr.split("\n") if "error:" in line and changes(line.split(":")[0])]
    batches = [paths[k:k + 20] for k in range(0, len(paths), 20)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [line for found in pool.map(check, batches) for line in found]


def main():
    paths, found = files(), []
    for path in paths:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text = file.read()
        found += [*long_lines(path, text.split("\n")), *too_long(path, text)]
    badly = unformatted([path for path in paths if path.endswith(CXX)])
    found += badly or []
    print(*found, sep="\n" if found else "")
    print(f"{len(paths)} files, {len(found)} findings")
    if found:
        sys.exit(1)
    if badly is None:
        print("skipped: clang-format 14 is missing")
        sys.exit(77)


main()
