"""What a start costs as ranks are added: seconds, messages and bytes over MPI, and how often ranks open, remove or make
files below the run directory. A start is all that a run of one step does but the step, its save included: two runs that
differ by one step tell how much the step is.

    start.py [RANKS ...]    2 4 8 16 32 64 by default; needs Open MPI, and strace for the files
"""
import os, re, shutil, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
from support.runs import DECK, ENVIRONMENT, executable, launcher

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
    """Messages and bytes that all ranks sent, and the most messages of one."""
    monitor = os.path.join(folder, "sent")
    mca = ["--mca", "pml_monitoring_enable", "2", "--mca", "pml_monitoring_enable_output", "3", "--mca",
           "pml_monitoring_filename", monitor, "--mca", "pml", "ob1,monitoring"]
    run([*launcher(ranks), *mca, *options(ranks, steps, os.path.join(folder, f"run-{steps}"))])
    rows = [row for rank in range(ranks) for row in SENT.findall(open(f"{monitor}.{rank}.prof").read())]
    by_rank = [sum(int(row[3]) for row in rows if int(row[0]) == rank) for rank in range(ranks)]
    return sum(by_rank), sum(int(row[2]) for row in rows), max(by_rank)


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


def main():
    print("ranks   start, s   messages   of one rank        bytes   opens below run.dir   of one thread")
    for ranks in [int(text) for text in sys.argv[1:]] or [2, 4, 8, 16, 32, 64]:
        with tempfile.TemporaryDirectory() as folder:
            seconds = sorted(run([*launcher(ranks), *options(ranks, 1, os.path.join(folder, f"{i}"))])
                             for i in range(ROUNDS))[ROUNDS // 2]
            one, two = sent(ranks, 1, folder), sent(ranks, 2, os.path.join(folder))
            messages, size, most = (2 * a - b for a, b in zip(one, two))
            files, of_one = opened(ranks, folder)
        print(f"{ranks:5} {seconds:10.2f} {messages:10} {most:13} {size:12} {files:21} {of_one:15}", flush=True)


main()
