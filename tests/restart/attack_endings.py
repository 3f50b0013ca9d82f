"""Every end saves, memory is checked before it is taken, and every effect of the environment is reported. Runs are
tiny; every function is named after the findings of a review that it covers."""
import atexit, contextlib, json, os, pty, re, resource, signal, subprocess, tempfile

from support.disturbed import events, verified, visible
from support.recorded import recorded
from support.runs import Checks, DECK, ENVIRONMENT, Metrics, executable, launch, launcher, planned_peaks
from support.waiting import await_that

PATIENCE = 240
SMALL = ["model.layers=2", "batch.global=4", "checkpoint.restart=auto"]
ENDLESS = [*SMALL, "run.steps=1000000", "checkpoint.every_steps=0"]
started = []
# Few weights and many activations: with batch.micro = 64 a rank's arena has 425 MB.
WIDE = ["model.layers=2", "model.seq_len=1024", "run.steps=1", "checkpoint.restart=auto"]


def command(home, *overrides, ranks=1, inside=()):
    return [
        *launcher(ranks), *inside,
        executable(), "run", DECK, "-d", home, *(["parallel.dp_shard=-1"] if ranks > 1 else []), *overrides
    ]


def start(home, *overrides, ranks=1, inside=(), environment=(), **more):
    """A run in the background that writes to home.log, unless told otherwise."""
    more = {"stdout": open(home + ".log", "w"), "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, **more}
    started.append(
        subprocess.Popen([*command(home, *overrides, ranks=ranks, inside=inside)],
                         env={**ENVIRONMENT, **dict(environment)}, start_new_session=True, **more))
    return started[-1]


def end_all():
    """Ends processes that a failed check has left."""
    for run in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def until(condition, what):
    await_that(condition, what, PATIENCE)


def steps(home):
    path = os.path.join(home, "metrics.jsonl")
    return sum('"loss"' in line for line in open(path)) if os.path.exists(path) else 0


def trains(run, home, more=1):
    """Waits until the run has made `more` further steps."""
    goal = steps(home) + more
    until(lambda: steps(home) >= goal or run.poll() is not None, "steps")


def whole(home):
    return bool(visible(home)) and verified(visible(home)[-1])


def text(home):
    return open(home + ".log", errors="replace").read()


def ran(arguments, environment=(), **more):
    """Exit status and text of a separate command."""
    done = recorded(subprocess.run(arguments, env={**ENVIRONMENT, **dict(environment)}, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, encoding="utf-8",
                                   errors="replace", timeout=PATIENCE, **more))
    return done.returncode, done.stdout


def m6_hangup_and_processor_time_save(checks, home):
    for number in (signal.SIGHUP, signal.SIGXCPU):
        where = home(number.name)
        run = start(where, *ENDLESS)
        trains(run, where)
        run.send_signal(number)
        status = run.wait(PATIENCE)
        reason = (events(where, "stop") or [{"reason": "none"}])[-1]["reason"]
        checks.that(status == 75 and whole(where) and reason == f"{number.name} to rank 0",
                    f"{number.name}: {status}, {reason}")


def m6_a_limit_of_processor_time_saves(checks, home):
    where = home("cpu-seconds")
    run = start(where, *ENDLESS, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (4, 4)))
    status = run.wait(PATIENCE)
    checks.that(status == 75 and whole(where), f"ulimit -t 4, soft and hard: {status}")


def m6_nohup_stays(checks, home):
    where = home("nohup")
    run = start(where, *ENDLESS, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    trains(run, where)
    run.send_signal(signal.SIGHUP)
    trains(run, where, 3)
    alive = run.poll() is None
    run.send_signal(signal.SIGTERM)
    status = run.wait(PATIENCE)
    checks.that(alive and status == 75, f"a hangup that was ignored at the start stays ignored: {alive}, {status}")


def m5_a_file_size_limit_costs_the_save(checks, home):
    for ranks in (1, 2):
        where = home(f"file-size-{ranks}")
        limit = ["bash", "-c", 'ulimit -f 1024; exec "$@"', "bash"]  # not for mpirun, which may not end under this
                                                                     # limit
        run = start(where, *SMALL, "run.steps=6", "checkpoint.every_steps=3", ranks=ranks, inside=limit)
        status = run.wait(PATIENCE)
        failed = events(where, "checkpoint_failed")
        checks.that(status == 1 and steps(where) == 6 and len(failed) == 2 and "File too large" in failed[0]["reason"],
                    f"{ranks} ranks, ulimit -f 1024: {status}, {steps(where)} steps, {failed}")


def m6_a5_a_closed_pipe_does_not_end_the_run(checks, home):
    where = home("head")
    status, _ = ran(
        ["bash", "-c", 'set -o pipefail; "$@" | head -n 2', "bash", *command(where, *SMALL, "run.steps=40")])
    lost = events(where, "console_lost")
    checks.that(status == 0 and steps(where) == 40 and whole(where) and len(lost) == 1 and "pipe" in lost[0]["reason"],
                f"espalier | head -n 2: {status}, {steps(where)} steps, {lost}")
    where = home("tee")
    reading, writing = os.pipe()
    run = start(where, *ENDLESS, stdout=writing, stderr=writing)
    os.close(writing)
    trains(run, where)
    os.close(reading)  # Ctrl-C ends tee first
    run.send_signal(signal.SIGINT)
    status = run.wait(PATIENCE)
    checks.that(status == 75 and whole(where), f"espalier | tee, ended by Ctrl-C: {status}, {visible(where)}")


def a5_a_console_that_nobody_reads_holds_nothing_up(checks, home):
    where = home("unread")
    reading, writing = os.pipe()
    run = start(where, *SMALL, "run.steps=1500", stdout=writing, stderr=subprocess.DEVNULL)
    os.close(writing)
    status = run.wait(PATIENCE)
    lost = events(where, "console_lost")
    os.close(reading)
    checks.that(
        status == 0 and steps(where) == 1500 and whole(where) and
        [event["reason"] for event in lost] == ["nobody reads it"],
        f"1500 lines that nobody reads: {status}, {steps(where)} steps, {lost}")


def a5_ctrl_c_on_mpirun_saves(checks, home):
    # One second, which mpirun leaves by default, is enough for such a small run, but not on every test machine. Before
    # its TERM mpirun reads no output for that time: the run drops lines.
    where = home("mpirun")
    run = start(where, *ENDLESS, ranks=2, environment={"OMPI_MCA_odls_base_sigkill_timeout": "8"}.items())
    trains(run, where, 3)
    run.send_signal(signal.SIGINT)
    run.wait(PATIENCE)
    checks.that(whole(where), f"INT to mpirun: {events(where, 'stop')}, {visible(where)}")


def a5_errors_without_a_reader(checks, home):
    reading, writing = os.pipe()
    os.close(reading)
    run = start(home("nobody"), "run.steps=oops", stdout=writing, stderr=writing)
    os.close(writing)
    status = run.wait(PATIENCE)
    checks.that(status == 2, f"a wrong deck that nobody is told of: {status}")


def l_closed_standard_streams(checks, home):
    where = home("closed")
    status, _ = ran(["bash", "-c", 'exec "$@" >&- 2>&- <&-', "bash", *command(where, *SMALL, "run.steps=5")])
    lines = open(os.path.join(where, "metrics.jsonl")).read().splitlines()
    checks.that(status == 0 and all(json.loads(line) for line in lines) and steps(where) == 5,
                f"stdin, stdout and stderr closed: {status}\n{lines[:3]}")


def a4_memory_is_refused_before_it_is_taken(checks, home):
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))
    wide = [*WIDE, "batch.global=256", "batch.micro=256"]
    status, said = ran(command(home("wide"), *wide), preexec_fn=limit)
    named = re.search(
        r"rank 0 on \S+ needs 1\.7\d* GB for its arena.* ([\d.]+) ([GM])B is available "
        r"\(ulimit -v \(limit 1\.61 GB\)\)", said)
    found = re.search(r"nearest settings that fit: batch\.micro = (\d+)", said)
    checks.that(status == 4 and named and found, f"ulimit -v: {status}\n{said}")
    if named and found:
        needed = planned_peaks(home(""), 1, [*wide, f"batch.micro={found[1]}"])[0]
        checks.that(needed <= float(named[1]) * (1e9 if named[2] == "G" else 1e6) * 1.01,
                    f"... and what it names fits: {needed} bytes")


@contextlib.contextmanager
def memory_group(bytes_):
    """A control group of version 1 or 2 inside our own, with a limit; None if none can be made."""
    own = dict(line.strip().split(":", 2)[1:] for line in open("/proc/self/cgroup"))
    kinds = [(f"/sys/fs/cgroup/memory{own.get('memory', '')}", "memory.limit_in_bytes"),
             (f"/sys/fs/cgroup{own.get('', '')}", "memory.max")]
    for parent, file in kinds:
        group = os.path.join(parent, f"espalier-test-{os.getpid()}")
        try:
            os.mkdir(group)
        except OSError:
            continue
        try:
            with open(os.path.join(group, file), "w") as limit:
                limit.write(str(bytes_))
        except OSError:
            os.rmdir(group)
            continue
        try:
            yield group
        finally:
            until(lambda: not open(os.path.join(group, "cgroup.procs")).read(), "the group is empty")
            os.rmdir(group)
        return
    yield None


def a4_the_ranks_of_a_node_are_added_up(checks, home):
    with memory_group(600 << 20) as group:
        if group is None:
            print("ok    no control group can be made here: left out")
            return
        inside = ["bash", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "bash"]
        wide = [*WIDE, "batch.micro=64"]
        status, said = ran([*inside, *command(home("one-fits"), *wide, "batch.global=64")])
        checks.that(status == 0, f"one rank fits into a control group of 630 MB: {status}\n{said}")
        status, said = ran([*inside, *command(home("two"), *wide, "batch.global=128", ranks=2)])
        checks.that(
            status == 4 and "2 ranks together need" in said and "control group" in said and said.count("needs ") == 1,
            f"two do not, which is said once: {status}\n{said}")


def a6_several_worlds_of_one_rank(checks, home):
    for environment in ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4",
                         "SLURM_PROCID": "0"}, {"SLURM_NTASKS": "4",
                                                "SLURM_PROCID": "2"}, {"PMI_SIZE": "2", "PMI_RANK": "0"}):
        status, said = ran(command(home("alone"), *SMALL, "run.steps=1"), environment.items())
        first = environment.get("SLURM_PROCID", "0") == "0"
        checks.that(status == 2 and (not first or "srun --mpi=pmix" in said) and not os.path.exists(home("alone")),
                    f"{environment}: {status}\n{said}")
    # The script of a batch job has its job's variables.
    status, said = ran(command(home("batch"), *SMALL, "run.steps=1"), {"SLURM_NTASKS": "4",
                                                                       "SLURM_PROCID": "0"}.items())
    checks.that(status == 0, f"one process in a batch script: {status}\n{said}")


def l_a_fault_is_announced(checks, home):
    where = home("fault")
    status, said = ran(command(where, *SMALL, "run.steps=2"), {"ESPALIER_FAULT": "instruction-40:skip:1000000"}.items())
    started = (events(where, "start") or [{}])[-1].get("fault", "")
    checks.that(
        status == 0 and "makes a fault on purpose: instruction-40:skip:1000000 on rank 0" in said and
        "instruction-40" in started, f"ESPALIER_FAULT: {status}, {started}\n{said}")


def l_values_of_the_environment_are_checked(checks, home):
    for name, value, allowed in (("ESPALIER_ISA", "bogus", "avx2"), ("ESPALIER_NCCL_NATIVE", "no",
                                                                     "0, 1"), ("ESPALIER_CUDA_GRAPH", "off", "0, 1"),
                                 ("ESPALIER_FAULT", "steps:kill", "step"), ("ESPALIER_FAULT", "step:explode", "kill")):
        status, said = ran(command(home("bogus"), *SMALL, "run.steps=1"), {name: value}.items())
        checks.that(status == 2 and name in said and allowed in said, f"{name}={value}: {status}\n{said}")
    status, said = ran([executable(), "info"], {"ESPALIER_CUDA_GRAPH": "0"}.items())
    checks.that(status == 0 and "ESPALIER_CUDA_GRAPH = 0" in said, "info names those that are set")


def c2_colours_are_for_terminals(checks, home):
    done = launch(2, ["run", DECK, "-d", home("colours"), "parallel.dp_shard=-1", *SMALL, "run.steps=1"], PATIENCE)
    checks.that(done.returncode == 0 and "\x1b" not in done.stdout,
                "none under mpirun, which gives ranks a terminal of its own making")
    for variables, coloured in (({"NO_COLOR": "1"}, False), ({"CLICOLOR_FORCE": "1"}, True)):
        main, side = pty.openpty()
        run = start(home(f"colours-{coloured}"), *SMALL, "run.steps=1", stdout=side, environment=variables.items())
        os.close(side)
        said = b""
        with contextlib.suppress(OSError):
            while part := os.read(main, 4096):
                said += part
        os.close(main)
        checks.that(run.wait(PATIENCE) == 0 and (b"\x1b" in said) == coloured, f"{variables} on a terminal: {coloured}")


def c12_threads_follow_environment_and_cores(checks, home):
    automatic = [*SMALL, "run.steps=1", "run.threads=0"]
    status, said = ran(command(home("omp"), *automatic), {"OMP_NUM_THREADS": "3"}.items())
    checks.that(status == 0 and Metrics(home("omp")).starts[-1]["threads"] == 3, f"OMP_NUM_THREADS=3: {status}\n{said}")
    if len(os.sched_getaffinity(0)) >= 2:
        core = str(min(os.sched_getaffinity(0)))
        status, said = ran(["taskset", "-c", core, *command(home("bound"), *automatic)])
        checks.that(status == 0 and "its launcher lets it use 1 of the node's" in said,
                    f"bound to one core: {status}\n{said}")


def threads_wait_for_a_moment_or_not_at_all(checks, home):
    where, cores = home("crowded"), len(os.sched_getaffinity(0))
    policies = {b"OMP_WAIT_POLICY", b"GOMP_SPINCOUNT"}
    for threads, environment, policy in ((cores + 1, {}, {b"OMP_WAIT_POLICY=passive"}), (1, {}, set()),
                                         (cores, {}, {b"GOMP_SPINCOUNT=2000"} if cores > 1 else set()),
                                         (cores + 1, {"OMP_WAIT_POLICY": "active"}, {b"OMP_WAIT_POLICY=active"})):
        run = start(where, *ENDLESS, f"run.threads={threads}", environment=environment.items())
        trains(run, where)
        variables = open(f"/proc/{run.pid}/environ", "rb").read().split(b"\0")
        run.send_signal(signal.SIGTERM)
        status = run.wait(PATIENCE)
        found = {variable for variable in variables if variable.split(b"=")[0] in policies}
        checks.that(status == 75 and found == policy, f"{threads} threads on {cores} cores, {environment}: {found}")


def main():
    checks = Checks()
    atexit.register(end_all)
    with tempfile.TemporaryDirectory() as folder:
        home = lambda name: os.path.join(folder, name)
        checks.each([
            m5_a_file_size_limit_costs_the_save, m6_hangup_and_processor_time_save, m6_a_limit_of_processor_time_saves,
            m6_nohup_stays, m6_a5_a_closed_pipe_does_not_end_the_run, a5_a_console_that_nobody_reads_holds_nothing_up,
            a5_ctrl_c_on_mpirun_saves, a5_errors_without_a_reader, l_closed_standard_streams,
            a4_memory_is_refused_before_it_is_taken, a4_the_ranks_of_a_node_are_added_up, a6_several_worlds_of_one_rank,
            l_a_fault_is_announced, l_values_of_the_environment_are_checked, c2_colours_are_for_terminals,
            c12_threads_follow_environment_and_cores, threads_wait_for_a_moment_or_not_at_all
        ], home)
    checks.finish()


main()
