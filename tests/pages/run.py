#!/usr/bin/env python3
"""Runs every command of README.md and doc, and compares the outputs that the pages show.

    run.py [--update] [--list] [PAGE ...]     without PAGE all of them, or the share that ESPALIER_TEST_SHARE names
        --update   rewrite documented outputs that differ, and print what changed
        --list     print what would be done with each command, and run nothing

Runs ESPALIER, by default build/espalier. blocks.py says what is a command, compare.py what may differ, table.py what
does not run.
"""
import argparse
import collections
import dataclasses
import os
import re
import signal
import subprocess
import sys
import time

import table
from blocks import Group, read_groups
from compare import EXACT, Line, difference
from session import run_page
from support.runs import ROOT, executable, scratch
from support.share import share
from update import updated

LONGEST = 600  # seconds for the commands of one page
FIRST = ["README.md"]  # in every share of the pages
RUN, INSTEAD, NOT_RUN = "run", "another runs instead", "not run"


@dataclasses.dataclass
class Task:
    """A command of a page, what runs for it, and what came out."""
    group: Group
    line: int
    words: str
    kind: str
    script: str = ""
    reason: str = ""
    expected: int = 0
    status: int = 0
    printed: list = dataclasses.field(default_factory=list)


def all_pages():
    found = ["README.md"]
    for folder, _, names in os.walk(os.path.join(ROOT, "doc")):
        found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names if name.endswith(".md")]
    return sorted(found)


def without_options(text):
    """A synopsis without its [optional] parts."""
    return re.sub(r"(?<=\s)\[[^\s\[\]'\"][^\[\]'\"]*\](?=\s|$)", "", text)


def filled(page, text, used):
    """A command with the values of placeholders."""
    for row in table.PLACEHOLDERS:
        if re.fullmatch(row[0], page):
            text, count = re.subn(rf"(?<![\w$/.-]){row[1]}(?![\w=])", row[2], text)
            used.update([row] if count else [])
    return text


def make_task(page, group, command, used):
    task = Task(group, command.line, command.words, RUN, expected=command.expected_status)
    if row := table.row_of(table.NOT_RUN, page, command.words):
        task.kind, task.reason = NOT_RUN, row[2]
    elif row := table.row_of(table.INSTEAD, page, command.words):
        task.kind, task.reason, task.expected = INSTEAD, row[3], 0
        task.script = filled(page, without_options(re.sub(row[1], row[2], command.words)), used)
    else:
        task.script = filled(page, without_options(command.text), used)
    if row:
        used.add(row)
    return task


def read_page(page, used):
    """(text, groups, tasks) of a page."""
    with open(os.path.join(ROOT, page)) as file:
        text = file.read()
    groups = read_groups(text)
    return text, groups, [make_task(page, group, command, used) for group in groups for command in group.commands]


def given(page, used):
    rows = [row for row in table.GIVEN if re.fullmatch(row[0], page)]
    used.update(rows)
    return [row[1] for row in rows]


def run_tasks(page, tasks, used):
    """Runs what is to be run; the tasks have status and output then."""
    mine = [task for task in tasks if task.kind != NOT_RUN]
    if not mine:
        return []
    first = given(page, used)
    with scratch() as folder:
        results = run_page([*first, *(task.script for task in mine)], folder, LONGEST)
    faults = [f"{page}: what is given fails with {status}: {script}" + shown(lines)
              for script, (status, lines) in zip(first, results) if status != 0]
    for task, (task.status, task.printed) in zip(mine, results[len(first):]):
        if task.status != task.expected:
            what = f"exit status {task.status}, not {task.expected}" if task.status is not None else "did not end"
            faults.append(f"{page}:{task.line}: {what}: {task.script}" + shown(task.printed))
    return faults


def shown(lines):
    return "".join(f"\n    | {line}" for line in lines[-15:])


def printed(group, tasks):
    """The lines of the commands of a group that ran, in order; None if none did, or one not as expected."""
    mine = [task for task in tasks if task.group is group and task.kind != NOT_RUN]
    if not mine or any(task.status != task.expected for task in mine):
        return None
    return [Line(text, not EXACT.search(task.words)) for task in mine for text in task.printed]


def compare_page(page, groups, tasks):
    """The differences from the documented outputs."""
    for group in groups:
        lines = printed(group, tasks)
        if group.output is None or lines is None:
            continue
        if found := difference(group.output.lines, lines):
            index, there = found
            documented = group.output.lines[index] if index < len(group.output.lines) else "the end of the output"
            yield f"{page}:{group.output.begin + index + 1}:\n  - {documented}\n  + {there}"


def options_of(synopsis):
    return re.findall(r"--[a-z][\w-]*", " ".join(re.findall(r"(?<=\s)\[([^\]'\"]*)\]", synopsis)))


def unknown_options(page, tasks):
    """The [--options] of a synopsis are left out when it runs, so they are looked up in the help."""
    for task in tasks:
        options, program = options_of(task.words), re.search(r"\bespalier ([a-z]+)\b", task.words)
        if options and program:
            text = subprocess.run([executable(), program[1], "--help"], stdout=subprocess.PIPE, text=True).stdout
            yield from (f"{page}:{task.line}: espalier {program[1]} --help has no {option}"
                        for option in options if not re.search(rf"{option}\b", text))


def test_page(page, update, used):
    """(faults, what --update changed, tasks) of a page."""
    try:
        text, groups, tasks = read_page(page, used)
    except ValueError as error:
        return [f"{page}: {error}"], [], []
    faults, changes = [*unknown_options(page, tasks), *run_tasks(page, tasks, used)], []
    if update:
        text, changes, lost = updated(page, text, [(g.output, printed(g, tasks)) for g in groups if g.output])
        faults += lost
        with open(os.path.join(ROOT, page), "w") as file:
            file.write(text)
    else:
        faults += compare_page(page, groups, tasks)
    return faults, changes, tasks


def faults_of_reading(page, used):
    """Faults of a page whose commands another share runs."""
    try:
        tasks = read_page(page, used)[2]
    except ValueError as error:
        return [f"{page}: {error}"]
    if any(task.kind != NOT_RUN for task in tasks):
        given(page, used)
    return []


def print_list(pages):
    for page in pages:
        for task in read_page(page, set())[2]:
            print(f"{page}:{task.line}: {task.kind}{': ' + task.reason if task.reason else ''}: {task.words}"
                  + (f"\n    -> {task.script}" if task.kind == INSTEAD else ""))


def summary(tasks):
    """How many commands are of which class."""
    ran = [t for t in tasks if t.kind != NOT_RUN]
    shown = {id(t.group) for t in tasks if t.group.output}
    compared = {id(t.group) for t in ran if t.group.output}
    yield (f"{len(tasks)} commands: {len(ran)} ran, {len(tasks) - len(ran)} did not; {len(shown)} outputs: "
           f"{len(compared)} of commands that ran, {len(shown - compared)} of commands that did not")
    for kind in (INSTEAD, NOT_RUN):
        for reason, count in collections.Counter(t.reason for t in tasks if t.kind == kind).items():
            yield f"  {count:3} {kind}: {reason}"


def useless_rows(used):
    for name in ("NOT_RUN", "INSTEAD", "PLACEHOLDERS", "GIVEN"):
        yield from (f"table.py: {name}: no command needs {row}" for row in getattr(table, name) if row not in used)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("pages", nargs="*", metavar="PAGE")
    options = parser.parse_args()
    os.environ.setdefault("ESPALIER", os.path.join(ROOT, "build", "espalier"))
    if not os.path.exists(executable()):
        sys.exit(f"{executable()}: not there (ninja -C build espalier; or name it in ESPALIER)")
    named = [os.path.relpath(os.path.abspath(page), ROOT) for page in options.pages]
    if strange := set(named) - set(all_pages()):
        sys.exit(f"{', '.join(sorted(strange))}: no page of this tree (README.md, doc/*.md)")
    if options.list:
        return print_list(named or all_pages())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with an end to what runs
    used, faults, tasks = set(), [], []
    pages = named or share(all_pages(), always=FIRST)
    for page in pages:
        begun = time.monotonic()
        found, changes, done = test_page(page, options.update, used)
        if done or found:
            said = f"{page}: {len(done)} commands, {time.monotonic() - begun:.1f} s"
            print(said, *changes, *found, sep="\n", flush=True)
        faults += found
        tasks += done
    if not named:
        more = [fault for page in sorted(set(all_pages()) - set(pages)) for fault in faults_of_reading(page, used)]
        faults += (more := more + list(useless_rows(used)))
        print(*more, sep="\n")
    print(*summary(tasks), sep="\n")
    print(f"{len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
