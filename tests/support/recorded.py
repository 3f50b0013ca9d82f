"""Records the errors that the executable prints in tests, for errors.py: if ESPALIER_TEST_ERRORS names a file, every
message is appended to it, as a line `STATUS<tab>MESSAGE`. Standard library only."""
import os
import re

VARIABLE = "ESPALIER_TEST_ERRORS"
HEAD = re.compile(r"espalier: (?:error|(\d+) errors)(?: \(rank \d+\))?$")
ALONE = re.compile(r"espalier: (?:internal )?error \(rank \d+\): (.*)|(espalier: (?:watchdog|MPI failed|rank) .*)")
OTHERS = re.compile(r"-{5,}|\[[\w.-]+:\d+\]|\*\*\*")  # lines of a launcher in between


def errors_of(text):
    """The messages that a command printed: the ones after `espalier: N errors`, without the indented hints between
    them, and single-line ones."""
    found, expected = [], 0
    for line in text.split("\n"):
        if head := HEAD.match(line):
            expected = int(head[1] or 1)
        elif alone := ALONE.match(line):
            found.append(alone[1] or alone[2])
        elif expected and not line.startswith("  ") and not OTHERS.match(line):
            found.append(line)
            expected -= 1
    return found


def record(status, text):
    """Appends the errors in what a command printed."""
    path = os.environ.get(VARIABLE)
    errors = errors_of(text or "") if path else []
    if errors:
        with open(path, "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write("".join(f"{status}\t{error}\n" for error in errors))


def recorded(done):
    """The same for a finished process, which is returned."""
    for text in (done.stdout, done.stderr):
        record(done.returncode, text.decode(errors="surrogateescape") if isinstance(text, bytes) else text)
    return done
