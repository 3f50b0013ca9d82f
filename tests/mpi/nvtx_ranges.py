"""Ranges in a profiler of runs on emulated GPUs: properly nested NVTX ranges for each run of a program and for the jobs
that it issues. Also, the peak of a GPU without a known datasheet is measured. Skipped without the emulated module."""
import collections, os, re, sys

from support.runs import Checks, DECK, ENVIRONMENT, launch, scratch, train

BASE = ["model.layers=2", "batch.global=6", "batch.micro=2", "run.steps=3", "run.device=cuda"]
SPLIT = ["parallel.pp=2", "pipeline.schedule=zb-h1", "run.transport=mpi"]
ISSUE = re.compile(r"issue run (\d+) of a program")


def ranges(path):
    """By process and thread: the ranges as (depth, name), in the order in which they begin. Ends the test if a range is
    not closed, or closed twice."""
    open_of, seen = collections.defaultdict(list), collections.defaultdict(list)
    for line in open(path):
        thread, word, *name = line.rstrip("\n").split(" ", 2)
        if word == "push":
            seen[thread].append((len(open_of[thread]), name[0]))
            open_of[thread].append(name[0])
        elif word != "pop":
            continue
        elif not open_of[thread]:
            sys.exit(f"{path}: a range ends that has not begun, of thread {thread}")
        else:
            open_of[thread].pop()
    if any(open_of.values()):
        sys.exit(f"{path}: ranges without end: {dict(open_of)}")
    return seen


def jobs_of_issues(seen):
    """The names within each range "issue run N of a program"."""
    issues = []
    for depth, name in seen:
        if ISSUE.fullmatch(name):
            issues.append([])
        elif depth == 1 and name != "await":
            issues[-1].append(name)
    return issues


def look(folder, name, overrides, ranks=1, graph="0"):
    ENVIRONMENT["NVTX_LOG"] = os.path.join(folder, name + ".ranges")
    ENVIRONMENT["ESPALIER_CUDA_GRAPH"] = graph
    train(os.path.join(folder, name), ranks, [*BASE, *overrides])
    return ranges(ENVIRONMENT["NVTX_LOG"])


def check_ranges(checks, folder):
    for name, overrides, ranks, apart in (("alone", [], 1, set()), ("staged", SPLIT, 2, {"W0", "W1", "W2"})):
        seen = look(folder, name, overrides, ranks)
        checks.that(len(seen) >= ranks, f"{name}: ranges of {len(seen)} threads, all closed in order")
        somewhere = any("W0" in jobs for found in seen.values() for jobs in jobs_of_issues(found))
        checks.that(somewhere == bool(apart), f"{name}: weight gradients apart on some rank: {somewhere}")
        for thread, found in seen.items():
            training = [jobs for jobs in jobs_of_issues(found) if "B0" in jobs]
            checks.that(len(training) == 3, f"{name}: {len(training)} runs of the training program in 3 steps")
            for jobs in training:
                weights = {job for job in jobs if job[0] == "W"}
                passes = sorted(job for job in jobs if job[0] in "FB")
                checks.that(passes == ["B0", "B1", "B2", "F0", "F1", "F2"] and jobs[0] == "P" and jobs[-1] == "U",
                            f"{name}: jobs {jobs}")
                checks.that(weights in (set(), apart), f"{name}: weight gradients apart from their pass: {weights}")
            checks.that(sum(name == "await" for _, name in found) == len(jobs_of_issues(found)),
                        f"{name}: every run is awaited")
    issued = jobs_of_issues(next(iter(look(folder, "graph", [], graph="1").values())))
    checks.that(["B0" in jobs for jobs in issued].count(True) == 2,
                "as a graph: jobs in the first step and in the captured one")


def check_profiled_steps(checks, folder):
    """A profiler that waits for cudaProfilerStart sees the steps of report.trace, issued, and no other."""
    for name, first, last in (("profiled", 2, 3), ("profiled to the end", 4, 9)):
        look(folder, name, ["run.steps=5", f"report.trace={first}:{last}"], graph="1")
        words = [line.split(" ", 1)[1].strip() for line in open(ENVIRONMENT["NVTX_LOG"])]
        signs = [word for word in words if word.startswith("profiler")]
        inside = words[words.index("profiler-start"):words.index("profiler-stop") if len(signs) == 2 else None]
        steps = min(last, 5) - first + 1
        checks.that(signs == ["profiler-start", "profiler-stop"][:2 if last < 5 else 1] and
                    inside.count("push B0") == steps, f"{name}: {signs}, {inside.count('push B0')} steps inside")


def check_peak(checks, folder):
    run = os.path.join(folder, "peak")
    done = launch(1, ["run", DECK, "-d", run, "-v", *BASE, "run.peak_tflops=0"])
    said = re.search(r"^peak +([0-9.e+-]+) TFLOP/s \(measured at the start: (\d+) x \2 GEMMs in f32", done.stdout, re.M)
    checks.that(done.returncode == 0 and said and float(said[1]) > 0, f"the peak is measured: {said and said[0]}")
    checks.that(re.search(r"^done .* mfu [0-9.e+-]+ %$", done.stdout, re.M), "so there is an mfu at the end")


def main():
    if "NVTX_INJECTION64_PATH" not in os.environ or "ESPALIER_CUDA_MODULE" not in os.environ:
        print("skipped: NVTX_INJECTION64_PATH and ESPALIER_CUDA_MODULE must name tests/emulation's modules")
        sys.exit(77)
    checks = Checks()
    with scratch() as folder:
        check_ranges(checks, folder)
        check_profiled_steps(checks, folder)
        check_peak(checks, folder)
    checks.finish()


if __name__ == "__main__":
    main()
