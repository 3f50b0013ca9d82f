#!/usr/bin/env python3
"""Only src/util/input_file.cpp opens files to read them: readers.py [ROOT].

A file that a user or a stranger names may be a pipe, a device or endless. `InputFile` and `ReadFile`
(include/espalier/util/input_file.hpp) refuse what is no file, never wait, and have limits. Any other call that can read
(a stream, fopen, open, H5Fopen) is an offence, unless it only writes, opens a folder, or has a row in ALLOWED. A row
that nothing needs is an offence too. Before the tree is checked, the rules are tried on small texts.
"""
import os
import re
import sys

# Other calls that open files, and why they may.
ALLOWED = {
    "src/util/input_file.cpp": ("open", "the one place"),
    "src/checkpoint/directory/files.cpp": ("openat", "files in an open folder: no link, no pipe, texts have a limit"),
    "src/checkpoint/directory/run_lock.cpp": ("open", "a lock: reads at most 400 bytes, for a message"),
    "src/commands/cli/console.cpp": ("open", "/dev/null in place of a closed stream"),
    "src/data/formats/hdf5.cpp": ("H5Fopen", "HDF5 opens by name; OpenHdf5 refuses what is no file before"),
    "src/report/metrics_file.cpp": ("open", "appends; refuses links and pipes; reads blocks backwards to a line's end"),
    "src/report/terminal.cpp": ("open", "a terminal, of which nothing is read"),
    "src/tokenize/part_files.cpp": ("open", "a lock, of which nothing is read"),
    "src/watch/heartbeat.cpp": ("open", "a new file of its own"),
}
SOURCES = (".cpp", ".hpp", ".cu", ".cuh", ".in")
# Methods (file.open), functions without an argument and #include <fstream> are none of these.
CALL = re.compile(r"\b(?:if|f)stream\b(?!>)|\bfilebuf\b|\bf(?:d|re)?open\(|(?<![.>\w])open(?:at)?\((?!\))|\bH5Fopen\(")
WRITES = re.compile(r'O_WRONLY|O_DIRECTORY|"[wa][b+]*"')


def without_comments(text):
    return re.sub(r"//.*", "", text)


def readers(text):
    """(line, call) of everything in a source that can open a file to read it."""
    text = without_comments(text)
    for call in CALL.finditer(text):
        statement = text[call.start():text.find(";", call.start())]
        if not WRITES.search(statement):
            yield text[:call.start()].count("\n") + 1, call[0].rstrip("(")


def offences(root):
    used = set()
    for base in ("src", os.path.join("include", "espalier")):
        for folder, _, names in sorted(os.walk(os.path.join(root, base))):
            for name in sorted(names):
                path = os.path.relpath(os.path.join(folder, name), root)
                if not name.endswith(SOURCES):
                    continue
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    found = list(readers(file.read()))
                allowed = ALLOWED.get(path, [None])[0]
                used |= {path} if any(call == allowed for _, call in found) else set()
                yield from (f"{path}:{line}: {call}: read through espalier/util/input_file.hpp"
                            for line, call in found if call != allowed)
    yield from (f"tests/readers.py: {path} is allowed and needs it not" for path in sorted(ALLOWED.keys() - used))


def check_self():
    reads = ['std::ifstream file(path);', 'std::fstream file(path);', 'std::fopen(path, "rb");', 'fopen(path, mode);',
             'int f = open(path,\n  O_RDONLY);', '::openat(dir, name, O_RDWR | O_CREAT);', 'H5Fopen(path, 0, 0);']
    others = ['#include <fstream>', 'std::ofstream file(path);', 'std::fopen(path, "wb");', 'file.open(path);',
              'found->open(path);', '::open(path,\n  O_WRONLY | O_CREAT);', '// open(path) reads', 'is_open(a);',
              'open();', 'open(path, O_RDONLY | O_DIRECTORY);', 'H5Fopen_count = 1;', 'reopen(path);']
    for text in reads:
        if len(list(readers("\n" + text))) != 1 or next(readers("\n" + text))[0] != 2:
            sys.exit(f"readers.py does not work: {text} reads")
    for text in others:
        if list(readers(text)):
            sys.exit(f"readers.py does not work: {text} does not read")


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    check_self()
    found = list(offences(root))
    print("\n".join(found) or f"one source opens files to read them, and {len(ALLOWED) - 1} have reasons of their own")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
