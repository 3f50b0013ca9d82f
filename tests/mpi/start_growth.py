"""The cost of a start as ranks are added: messages grow no faster than ranks x log(ranks).

    start_growth.py                        the test: 4 and 16 ranks
    start_growth.py measure [RANKS ...]    seconds, messages and bytes over MPI, and how often ranks open, remove or
                                           make files below the run directory; 2 4 8 16 32 64 by default; needs strace

A start is all that a run of one step does but the step, its save included: two runs that differ by one step tell how
much the step is. Open MPI counts the messages.
"""
import math, os, re, shutil, subprocess, sys, tempfile, time

from support.runs import Checks, DECK, ENVIRONMENT, executable, launcher

MODEL = ["model.layers=2", "batch.micro=1", "checkpoint.every_steps=0"]
SENT = re.compile(r"^[EI]\t(\d+)\t(\d+)\t(\d+) bytes\t(\d+) msgs", re.M)
ROUNDS = 3


def options(ranks, steps, run_dir):
    return [executable(), "run", DECK, "-d", run_dir, *MODEL, f"parallel.dp_replicate={ranks}", f"batch.global={ranks}",
            f"run.steps={steps}"]


def run(command):
    began = time.monotonic()
    done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}")
    return time.monotonic() - began


def sent(ranks, steps, folder):
    """Messages that all ranks sent, those of the rank with the most, and bytes."""
    monitor = os.path.join(folder, "sent")
    mca = ["--mca", "pml_monitoring_enable", "2", "--mca", "pml_monitoring_enable_output", "3", "--mca",
           "pml_monitoring_filename", monitor, "--mca", "pml", "ob1,monitoring"]
    run([*launcher(ranks), *mca, *options(ranks, steps, os.path.join(folder, f"run-{ranks}-{steps}"))])
    rows = [row for rank in range(ranks) for row in SENT.findall(open(f"{monitor}.{rank}.prof").read())]
    by_rank = [sum(int(row[3]) for row in rows if int(row[0]) == rank) for rank in range(ranks)]
    return sum(by_rank), max(by_rank), sum(int(row[2]) for row in rows)


def opened(ranks, folder):
    """Opens of files below the run directory, by all ranks and by the rank with the most."""
    trace, run_dir = os.path.join(folder, "trace"), os.path.join(folder, "run")
    shutil.rmtree(run_dir, ignore_errors=True)
    run([*launcher(ranks), "strace", "-f", "-ff", "-qq", "-e", "trace=openat,unlink,mkdir", "-o", trace,
         *options(ranks, 1, run_dir)])
    counts = {}
    for name in os.listdir(folder):
        if name.startswith("trace."):
            text = open(os.path.join(folder, name), errors="replace").read()
            counts[name] = text.count(f'"{run_dir}')
    return sum(counts.values()), max(counts.values())


def row(ranks):
    """Seconds; messages, messages of one rank, bytes; opens, opens of one thread."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = sorted(run([*launcher(ranks), *options(ranks, 1, os.path.join(folder, f"{i}"))])
                         for i in range(ROUNDS))[ROUNDS // 2]
        return seconds, *started(ranks, folder), *opened(ranks, folder)


def started(ranks, folder):
    """Sent by ranks in a start: messages, messages of the rank with the most, bytes."""
    return tuple(2 * one - two for one, two in zip(sent(ranks, 1, folder), sent(ranks, 2, folder)))


def measure(all_ranks):
    print("ranks   start, s   messages   of one rank        bytes   opens below run.dir   of one thread")
    for ranks in all_ranks:
        seconds, messages, most, size, files, of_one = row(ranks)
        print(f"{ranks:5} {seconds:10.2f} {messages:10} {most:13} {size:12} {files:21} {of_one:15}", flush=True)


def main():
    if sys.argv[1:2] == ["measure"]:
        return measure([int(text) for text in sys.argv[2:]] or [2, 4, 8, 16, 32, 64])
    if shutil.which("ompi_info") is None:
        print("skipped: only Open MPI counts messages")
        sys.exit(77)
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        few, many = (started(ranks, folder)[0] for ranks in (4, 16))
    bound = few * 16 * math.log(16) / (4 * math.log(4))
    checks.that(0 < few < many <= bound, f"{few} messages of 4 ranks, {many} of 16: at most {bound:.0f}")
    checks.finish()


main()
