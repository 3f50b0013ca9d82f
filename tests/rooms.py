#!/usr/bin/env python3
"""Checks the modules' includes: rooms.py [ROOT].

A module is a folder in src/ with its public headers in include/espalier/. The table under "## The modules" in
doc/architecture.md lists them from the lowest to the highest: its first column is the folder in backticks. No file may
include a header of a higher module, nor a private header (src/X/...) of another module. With both rules there is no
cycle between modules. src/main.cpp belongs to the highest module.

Every offence is printed as file:line. Before the tree is checked, each rule is tried on a small tree that breaks it.
"""
import os
import re
import sys
import tempfile

HEADING = "## The modules"
SOURCES = (".cpp", ".hpp", ".cu", ".cuh", ".in")
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')


def modules_of_page(root):
    """The modules in the order of the table, lowest first."""
    page = os.path.join(root, "doc", "architecture.md")
    with open(page, encoding="utf-8") as lines:
        text = lines.read()
    if HEADING not in text:
        sys.exit(f"{page}: there is no heading '{HEADING}'")
    section = text.split(HEADING, 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| *`(?:src/)?([^`/]+)/?` *\|", section, re.MULTILINE)


def folders(root):
    """All modules that have a folder, in src or in include/espalier."""
    found = set()
    for base in ("src", os.path.join("include", "espalier")):
        path = os.path.join(root, base)
        found |= {name for name in os.listdir(path) if os.path.isdir(os.path.join(path, name))}
    return found


def files(root):
    for base in ("src", os.path.join("include", "espalier")):
        for folder, _, names in sorted(os.walk(os.path.join(root, base))):
            for name in sorted(names):
                if name.endswith(SOURCES):
                    yield os.path.relpath(os.path.join(folder, name), root)


def module_of(path, highest):
    """The module of a file under src or include/espalier."""
    parts = path.split(os.sep)
    depth = 1 if parts[0] == "src" else 2
    return parts[depth] if len(parts) > depth + 1 else highest


def target(root, path, name, highest):
    """The module of an included header and whether the header is private; None for one that is generated elsewhere."""
    if name.startswith("espalier/"):
        return module_of(os.path.join("include", name), highest), False
    for folder in (os.path.dirname(path), "src"):
        for suffix in ("", ".in"):
            candidate = os.path.normpath(os.path.join(folder, name))
            if os.path.isfile(os.path.join(root, candidate + suffix)):
                return module_of(candidate, highest), True
    return None


def offences(root):
    """All offences, as text."""
    order = modules_of_page(root)
    rank = {module: i for i, module in enumerate(order)}
    found = [f"doc/architecture.md: module {m} is listed twice" for m in sorted(set(order)) if order.count(m) > 1]
    present = folders(root)
    found += [f"doc/architecture.md: module {m} has no row in the table" for m in sorted(present - set(order))]
    found += [f"doc/architecture.md: there is no folder for module {m}" for m in sorted(set(order) - present)]
    for path in files(root):
        module = module_of(path, order[-1])
        with open(os.path.join(root, path), encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                match = INCLUDE.match(line)
                included = target(root, path, match[1], order[-1]) if match else None
                if included is None or included[0] == module or module not in rank or included[0] not in rank:
                    continue
                place = f'{path}:{number}: {module} includes "{match[1]}"'
                if rank[included[0]] > rank[module]:
                    found.append(f"{place} of {included[0]}, which is a higher module")
                if included[1]:
                    found.append(f"{place}, a private header of {included[0]}")
    return found


def check_self():
    """Every kind of offence, seeded in a small tree, must be found with its file and line."""
    clean = {
        "doc/architecture.md":
            f"{HEADING}\n\n| module | holds |\n|---|---|\n| `low` | a |\n| `high` | b |\n\n## More\n",
        "include/espalier/low/low.hpp": "#pragma once\n",
        "src/low/low.cpp": '#include "espalier/low/low.hpp"\n#include "private.hpp"\n',
        "src/low/private.hpp": "",
        "src/high/high.cpp": '#include "espalier/low/low.hpp"\n#include "version.hpp"\n',
        "src/main.cpp": '#include "high/private.hpp"\n',
        "src/high/private.hpp": "",
    }
    cases = {
        "src/low/low.cpp:1: low includes \"espalier/high/high.hpp\" of high, which is a higher module": {
            "src/low/low.cpp": '#include "espalier/high/high.hpp"\n', "include/espalier/high/high.hpp": ""},
        "src/high/high.cpp:2: high includes \"low/private.hpp\", a private header of low": {
            "src/high/high.cpp": '\n#include "low/private.hpp"\n'},
        "src/high/high.cpp:1: high includes \"../low/private.hpp\", a private header of low": {
            "src/high/high.cpp": '#include "../low/private.hpp"\n'},
        "doc/architecture.md: module new has no row in the table": {"src/new/new.cpp": ""},
        "doc/architecture.md: there is no folder for module old": {
            "doc/architecture.md": f"{HEADING}\n| `low` | a |\n| `old` | a |\n| `high` | b |\n"},
        "doc/architecture.md: module low is listed twice": {
            "doc/architecture.md": f"{HEADING}\n| `low` | a |\n| `low` | a |\n| `high` | b |\n"},
    }
    for expected, changes in [(None, {})] + list(cases.items()):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**clean, **changes}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as out:
                    out.write(text)
            found = offences(root)
        if found != ([expected] if expected else []):
            sys.exit(f"rooms.py does not work: expected {expected}, found {found}")


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    check_self()
    found = offences(root)
    print("\n".join(found) or f"{len(modules_of_page(root))} modules: no upward include, no private header across them")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
