"""The line that a terminal shows between printed steps: where there is one, and where there must be none. Runs are
watched through a pseudo-terminal of a given width."""
import fcntl, os, pty, re, struct, subprocess, sys, termios

from support.runs import Checks, DECK, ENVIRONMENT, executable, launcher, scratch

PATIENCE = 120
COLUMNS = 61  # narrower than a row of the table
STEPS = ["run.steps=37", "report.every_steps=18", "batch.global=6", "data.validation=[\"../oracle/data/text.txt\"]",
         "data.validate_every_steps=18", "data.validate_sequences=6"]
ROW = re.compile(r"^ *\d+/37  +\d")
WAITS = re.compile(r"\r +37  (saving|validating) \.\.\.\r")
STARTS = re.compile(r"\r(opening the data|compiling the programs|making the initial weights) \.\.\. *\r")


def command(folder, *flags, ranks=1):
    validation = os.path.join(os.path.dirname(DECK), "../oracle/data/text.txt")
    steps = [f"data.validation=['{validation}']" if word.startswith("data.validation=") else word for word in STEPS]
    return [*launcher(ranks), executable(), "run", DECK, "-d", folder, "parallel.dp_shard=-1", *flags, *steps]


def environment(**variables):
    """TERM as terminals set it, and no wish about colours, but for `variables`; None removes one."""
    wished = {**ENVIRONMENT, "TERM": "xterm", "NO_COLOR": None, "CLICOLOR_FORCE": None, **variables}
    return {name: value for name, value in wished.items() if value is not None}


def in_terminal(words, variables=()):
    """The output of a command to a terminal of COLUMNS columns, as the terminal gets it but for the line ends."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    run = subprocess.Popen(words, env=environment(**dict(variables)), stdin=subprocess.DEVNULL, stdout=side,
                           stderr=side, start_new_session=True)
    os.close(side)
    said = b""
    while part := read(main):
        said += part
    os.close(main)
    if run.wait(PATIENCE) != 0:
        sys.exit(f"{words}: exit status {run.returncode}\n{said.decode()}")
    return said.decode().replace("\r\n", "\n")


def read(terminal):
    """The next part; empty at the end, which a terminal reports as an error."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def screen(text):
    """The lines that are left on the screen: what follows a carriage return overwrites."""
    lines = []
    for line in text.split("\n"):
        shown = []
        for part in line.split("\r"):
            shown[:len(part)] = part
        lines.append("".join(shown).rstrip())
    return lines


def a_terminal_shows_it(checks, home):
    said = in_terminal(command(home("shown"), "-v"))
    transient = [part for line in said.split("\n") for part in line.split("\r")[:-1] if part.strip()]
    checks.that(any(ROW.match(part) for part in transient), f"steps between printed ones: {len(transient)} updates")
    checks.that(all(len(part) < COLUMNS for part in transient), f"no update is wider than {COLUMNS - 1} columns")
    checks.that(len(set(WAITS.findall(said))) == 2, f"it says that the run saves, and validates: {WAITS.findall(said)}")
    checks.that(len(STARTS.findall(said)) == 3, f"it says what the start does: {STARTS.findall(said)}")
    left = [line for line in screen(said) if ROW.match(line)]
    checks.that([line.split("/")[0].strip() for line in left] == ["1", "18", "36", "37"],
                f"what stays are the printed steps, whole: {left}")
    checks.that(all(len(line.split()) == 7 for line in left), "with all their columns")
    checks.that(not any("..." in line for line in screen(said)), "nothing is left of the rest")
    checks.that("\x1b[1mmodel" in said, "labels have colours")


def what_wishes_change(checks, home):
    plain = in_terminal(command(home("plain")), {"NO_COLOR": "1"}.items())
    checks.that("\x1b" not in plain and WAITS.search(plain), "NO_COLOR: no colours, but the line")
    for name, variables in (("dumb", {"TERM": "dumb"}), ("unset", {"TERM": None})):
        said = in_terminal(command(home(name)), variables.items())
        checks.that("\r" not in said and "37/37" in said, f"TERM {name}: no line is written again")
    quiet = in_terminal(command(home("quiet"), "--quiet"))
    labels = [line.split()[0] for line in screen(re.sub(r"\x1b\[[0-9;]*m", "", quiet)) if line]
    checks.that("\r" not in quiet and labels == ["done", "loss", "validation", "results", "continue"],
                f"--quiet: the result alone: {labels}")


def files_and_pipes_get_none(checks, home):
    for ranks in (1, 3):
        words = command(home(f"pipe-{ranks}"), ranks=ranks)
        done = subprocess.run(words, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=PATIENCE)
        checks.that(done.returncode == 0 and b"37/37" in done.stdout and not set(b"\r\x1b") & set(done.stdout),
                    f"a pipe, {ranks} ranks: no carriage returns and no escape codes")
        path = home(f"log-{ranks}")
        words = command(home(f"file-{ranks}"), ranks=ranks)
        with open(path, "wb") as file:
            status = subprocess.call(words, env=environment(), stdin=subprocess.DEVNULL, stdout=file,
                                     stderr=subprocess.STDOUT, timeout=PATIENCE)
        text = open(path, "rb").read()
        checks.that(status == 0 and b"37/37" in text and not set(b"\r\x1b") & set(text), f"a file, {ranks} ranks: too")


def a_launcher_is_looked_through(checks, home):
    """Open MPI gives each rank a terminal, so that a rank alone cannot tell where its text goes."""
    said = in_terminal(command(home("mpirun"), ranks=2))
    checks.that(WAITS.search(said) and "\x1b" not in said, "mpirun on a terminal: the line, without colours")
    left = [line.split("/")[0].strip() for line in screen(said) if ROW.match(line)]
    checks.that(left == ["1", "18", "36", "37"], f"what stays are the printed steps: {left}")
    words = command(home("tagged"), ranks=2)
    tagged = in_terminal([words[0], "--tag-output", *words[1:]])
    checks.that("37/37" in tagged and not WAITS.search(tagged), "mpirun --tag-output: no line, which tags would tear")
    said = in_terminal(["sh", "-c", "\"$@\" | cat", "sh", *command(home("piped"), ranks=2)])
    checks.that("37/37" in said and "\r" not in said, "mpirun piped through another command: no line")


def main():
    checks = Checks()
    with scratch() as folder:
        checks.each((a_terminal_shows_it, what_wishes_change, files_and_pipes_get_none, a_launcher_is_looked_through),
                    lambda name: os.path.join(folder, name))
    checks.finish()


if __name__ == "__main__":
    main()
