"""Data that are missing, huge, changed or different on some ranks; ranks started with different settings; endless links
between folders."""

import os, re, resource, signal, struct, subprocess, tempfile, time

from support.disturbed import command, events
from support.jobs import Job
from support.recorded import recorded
from support.runs import Checks, DECK, ENVIRONMENT, Metrics, ROOT, executable, launch, train

PATIENCE = 120  # seconds, for operations that should take a few
SMALL = ["run.steps=4", "model.layers=1", "batch.global=4", "checkpoint.restart=auto", "run.watchdog_s=20"]


def contexts(*ranks):
    """The command line of a job whose ranks are started separately, each with its own arguments."""
    line = command(2, [])[0]
    launcher = line[:line.index("-n")] + line[line.index("-n") + 2:line.index(executable())]
    for k, words in enumerate(ranks):
        launcher += [":" if k > 0 else "", "-n", "1", *words][k == 0:]
    return launcher


def arguments(where, *more):
    return ["run", DECK, "-d", where, *SMALL, *more]


def ran(line, environment=ENVIRONMENT):
    try:
        return recorded(subprocess.run(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL))
    except subprocess.TimeoutExpired as endless:
        return subprocess.CompletedProcess(line, None, f"not ended after {PATIENCE} s\n{endless.stdout}")


def text_file(path, seed, size=6000):
    """Distinct samples of readable characters."""
    state, letters = seed, []
    for _ in range(size):
        state = (state * 1103515245 + 12345) % 2**31
        letters.append(chr(97 + state // 65536 % 26))
    with open(path, "w") as file:
        file.write("".join(letters))
    return path


def h6_ranks_with_different_decks(checks, home):
    lr = "run.seed = 2 (command line), but rank 0 has 1", "optimizer.lr = 0.01 (command line), but rank 0 has 0.003"
    steps = "run.steps = 6 (command line), but rank 0 has 12", 'ESPALIER_CUDA_GRAPH = "0", but rank 0 has (not set)'
    for name, mine, theirs, said in (
            ("learning rate", ["optimizer.lr=3e-3", "run.seed=1"], ["optimizer.lr=1e-2", "run.seed=2"], lr),
            ("number of steps", ["run.steps=12"], ["run.steps=6"], steps)):
        where = os.path.join(home, "h6 " + name)
        run = [executable(), *arguments(where, "parallel.dp_shard=2")]
        done = ran(contexts([*run, *mine], ["env", "ESPALIER_CUDA_GRAPH=0", *run, *theirs]))
        checks.that(done.returncode == 2 and all(line in done.stdout for line in said) and "rank 1 on " in done.stdout,
                    f"H6: another {name} on rank 1 is refused by name (exit status {done.returncode})")
        checks.that(not os.path.exists(where), "H6: ... before anything is written")
        if done.returncode != 2:
            print(done.stdout)


def h6_other_data_under_the_same_name(checks, home):
    data, other = text_file(os.path.join(home, "h6.txt"), 5), text_file(os.path.join(home, "h6-other.txt"), 6)
    where = os.path.join(home, "h6-data")
    run = [executable(), *arguments(where, f"data.paths=['{data}']", "parallel.tp=2")]
    private = ["unshare", "-m", "bash", "-c", f"mount --bind '{other}' '{data}' && exec \"$@\"", "bash"]
    if subprocess.run([*private, "true"], capture_output=True).returncode != 0:
        print("skipped: a mount of its own for a rank (needs root)")
        return
    done = ran(contexts(run, [*private, *run]))
    said = re.search(
        r"data\.paths: rank 1 on \S+: \"\S+h6\.txt\" has other contents than on rank 0, in the same 6000 bytes",
        done.stdout)
    checks.that(done.returncode == 3 and said,
                f"H6: other data under the same name on rank 1 are found (exit status {done.returncode})")
    checks.that(not os.path.exists(where), "H6: ... before anything is written")
    if not said:
        print(done.stdout)


def h6_another_file_system_for_the_run(checks, home):
    """On rank 1 the run's folder is on another, empty file system."""
    folder = os.path.join(home, "h6-disk")
    os.makedirs(folder)
    run = [executable(), *arguments(os.path.join(folder, "run"), "parallel.dp_shard=2", "run.watchdog_s=0")]
    private = ["unshare", "-m", "bash", "-c", f"mount -t tmpfs none '{folder}' && exec \"$@\"", "bash"]
    if subprocess.run([*private, "true"], capture_output=True).returncode != 0:
        print("skipped: a mount of its own for a rank (needs root)")
        return
    done = ran(contexts(run, [*private, *run]))
    checks.that(done.returncode == 2 and "run.dir must be on a file system that all ranks share" in done.stdout,
                f"H6: a run directory of its own is found before training (exit status {done.returncode})")


def h6_another_working_directory(checks, home):
    for folder in ("one", "two"):
        os.makedirs(os.path.join(home, folder))
        text_file(os.path.join(home, folder, "d.txt"), 7)
    run = [executable(), *arguments(os.path.join(home, "h6-wdir"), "data.paths=['d.txt']", "parallel.dp_shard=2")]
    done = ran(contexts(["--wdir", os.path.join(home, "one"), *run], ["--wdir", os.path.join(home, "two"), *run]))
    checks.that(done.returncode == 2 and "data.paths = [" in done.stdout,
                f"H6: relative paths from two folders are refused (exit status {done.returncode})")


def m3_data_that_changed_between_runs(checks, home):
    data, where = text_file(os.path.join(home, "m3.txt"), 8), os.path.join(home, "m3")
    run = arguments(where, f"data.paths=['{data}']")
    first = launch(1, [*run, "run.steps=2"])
    same = launch(1, [*run, "run.steps=3"])
    with open(data) as file:
        letters = file.read()
    with open(data, "w") as file:
        file.write(letters[::-1][:5000])
    other = launch(1, run)
    checks.that([first.returncode, same.returncode, other.returncode] == [0, 0, 0], "M3: all three starts train")
    line = re.search(
        r"data = 5000 tokens, fingerprint ([0-9a-f]{16}).* 6000 tokens, fingerprint ([0-9a-f]{16}) in the checkpoint",
        other.stdout)
    checks.that(line and line[1] != line[2], "M3: data that changed are told with both counts and fingerprints")
    checks.that("in the checkpoint" not in re.sub(r".*run\.steps.*", "", same.stdout), "M3: data that did not are not")
    told = [e for e in events(where, "changed") if e["key"] == "data"]
    checks.that(
        len(told) == 1 and "5000" in told[0]["new"] and "6000" in told[0]["old"],
        f"M3: metrics.jsonl says it too: {told}")
    starts = events(where, "start")
    prints = [start["data_fingerprint"] for start in starts]
    checks.that(
        prints[0] == prints[1] != prints[2] and [start["data_tokens"] for start in starts] == [6000, 6000, 5000],
        f"M3: ... and every start names its data: {prints}")
    if not line:
        print(other.stdout)


def m12_links_between_folders(checks, home):
    folders = [os.path.join(home, "gl", name) for name in ("x", "y", "z")]
    for k, folder in enumerate(folders):
        os.makedirs(folder)
        text_file(os.path.join(folder, "t.txt"), 20 + k, 2000)
        for to in folders:
            os.symlink(to, os.path.join(folder, "to-" + os.path.basename(to)))
    one = [*SMALL, "run.steps=1", f"data.paths=['{home}/gl/**/*.txt']"]
    metrics = train(os.path.join(home, "m12"), 1, one, timeout=PATIENCE)
    checks.that(metrics.starts[0]["data_files"] == 3,
                "M12: a walk over links between folders ends, with each folder once")


def held(home, name, fault, *more):
    """A run of one rank that is held at a stage."""
    job = Job(os.path.join(home, name), 1, [*SMALL, *more], fault, patience=PATIENCE)
    job.held()
    return job


def released(job):
    """Releases the run; returns exit status and text."""
    job.release()
    return job.end(), job.text()


def m12_a_stop_while_data_are_opened(checks, home):
    with held(home, "stop", "open-data:hold") as job:
        job.send(0, signal.SIGTERM)
        time.sleep(1.5)  # a shorter opening is finished
        status, text = released(job)
    checks.that(status == 75 and "SIGTERM while the data were opened" in text,
                f"M12: a stop is obeyed while data are opened (exit status {status})")


def b1_missing_data_before_memory(checks, home):
    begin = time.monotonic()
    deck = os.path.join(ROOT, "inputs", "gpt2", "124m.toml")
    done = launch(1, ["run", deck, "-d", os.path.join(home, "b1")], PATIENCE)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    place = re.search(r"124m\.toml:\d+: data\.paths: \S+/runs/data/gpt2/\*\.tokens: no file matches", done.stdout)
    checks.that(done.returncode == 3 and place and "doc/data.md" in done.stdout,
                f"B1: missing data are told with deck line, key and document (exit status {done.returncode})")
    checks.that(peak < 500_000,
                f"B1: ... before the memory is taken: {peak} KB of 4.3 GB, {time.monotonic() - begin:.1f} s")


def token_file(path, vocab, count, ids=b""):
    with open(path, "wb") as file:
        file.write(struct.pack("<8sIIQQ", b"ESPTOK\0\1", 1, 2, vocab, count) + ids)
        file.truncate(32 + 2 * count)
    return path


def flat_file(path, vocab, count):
    with open(path, "wb") as file:
        file.truncate(2 * count)
    return path


def megatron_file(path, vocab, count):
    """Sequences of a million tokens and a .bin whose bytes are not allocated on disk."""
    lengths = [10**6] * (count // 10**6)
    with open(path[:-4] + ".idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1))
        file.write(struct.pack(f"<{len(lengths)}i", *lengths))
        file.write(struct.pack(f"<{len(lengths)}q", *(2 * 10**6 * k for k in range(len(lengths)))))
        file.write(struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1)))
    return flat_file(path, vocab, count)


def mission_d_a_start_reads_little(checks, home):
    """Bytes that a run of one rank has read when its first step begins, and its peak memory: with 2 MB of tokens, 900
    MB and 10 GB."""
    for kind, write in (("tokens", token_file), ("flat16", flat_file), ("megatron", megatron_file)):
        read, memory = {}, {}
        for name, count in (("2 MB", 10**6), ("900 MB", 45 * 10**7), ("10 GB", 5 * 10**9)):
            path = write(os.path.join(home, f"{name}.{kind}.bin"), 260, count)
            where = f"read {kind} {name}"
            with held(home, where, "step:hold", f"data.format={kind}", f"data.paths=['{path}']") as job:
                with open(f"/proc/{job.launcher.pid}/io") as io:
                    read[name] = int(re.match(r"rchar: (\d+)", io.read())[1])
                with open(f"/proc/{job.launcher.pid}/status") as state:
                    memory[name] = 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", state.read())[1])
                status, text = released(job)
            checks.that(status == 0, f"mission D: {name} of {kind} train")
            if status != 0:
                print(text)
        for name in ("900 MB", "10 GB"):
            more = read[name] - read["2 MB"]
            checks.that(more < 9_000_000, f"mission D: {name} of {kind} cost {more} bytes more at the start than 2 MB")
            more = memory[name] - memory["2 MB"]
            checks.that(more < 4_000_000, f"mission D: ... and {more} bytes more memory")


def mission_d_ranks_share_the_bytes_of_a_huge_jsonl(checks, home):
    """Bytes that each of four ranks reads of one file of 60 MB: the bytes that locate its tokens, and the bounded part
    that every rank reads of any data."""
    size, ranks, read = 60 * 10**6, 4, {}
    for name, count in (("small", 10), ("large", size // 1000)):
        path = os.path.join(home, name + ".jsonl")
        with open(path, "w") as file:
            file.writelines('{"text": "%s"}\n' % ("%06d " % k + "x" * 980) for k in range(count))
        more = "parallel.dp_shard=4", "data.format=jsonl", f"data.paths=['{path}']"
        with Job(os.path.join(home, "share " + name), ranks, [*SMALL, *more], "step:hold", patience=PATIENCE) as job:
            job.held()
            read[name] = [int(re.match(r"rchar: (\d+)", open(f"/proc/{job.processes()[rank]}/io").read())[1])
                          for rank in range(ranks)]
            status, text = released(job)
        checks.that(status == 0, f"mission D: four ranks train on the {name} jsonl")
        if status != 0:
            print(text)
    more = [large - small for large, small in zip(read["large"], read["small"])]
    checks.that(all(size / ranks * 0.98 < bytes_ < size / ranks + 9_000_000 for bytes_ in more),
                f"mission D: each of four ranks reads its quarter of {size} bytes of one jsonl: {more}")


def mission_d_a_bad_id_is_told_when_it_is_read(checks, home):
    ids = struct.pack("<900H", *([7] * 333 + [256] + [7] * 566))
    path = token_file(os.path.join(home, "bad.tokens"), 255, 900, ids)
    more = "run.steps=100", "data.format=tokens", f"data.paths=['{path}']"
    done = launch(1, arguments(os.path.join(home, "bad"), *more), PATIENCE)
    checks.that(done.returncode == 3 and "bad.tokens: token 333 (byte 698) is 256; allowed: 0 to 254" in done.stdout,
                f"mission D: an id out of range is told with file, index and byte (exit status {done.returncode})")


def formats_are_refused_with_place(checks, home):
    """Errors in data of other programs are reported before memory is taken, with exit status 3."""
    lines = os.path.join(home, "docs.jsonl")
    with open(lines, "w") as file:
        file.write('{"text": "some text of a document"}\n' * 40 + '{"text": 3}\n')
    megatron = megatron_file(os.path.join(home, "m.bin"), 260, 2 * 10**6)
    with open(megatron, "r+b") as file:
        file.truncate(10**6)
    other = text_file(os.path.join(home, "mixed.text"), 12, 400)
    unnamed = text_file(os.path.join(home, "mixed.unknown"), 13, 400)
    for kind, path, said in (
            ("jsonl", lines, r'docs\.jsonl: line 41: field "text" is a number, not a string'),
            ("megatron", megatron, r"m\.bin: has 500000 tokens; its index says 2000000"),
            ("hdf5", other, r"mixed\.text: cannot be read as HDF5"),
            ("llmc", other, r"mixed\.text: 400 bytes are too few for the header of llm\.c"),
            ("auto", unnamed, r"mixed\.unknown: neither its first bytes nor its name say what it holds")):
        for ranks in (1, 2):
            done = launch(ranks, arguments(os.path.join(home, "refused"), f"data.format={kind}",
                                           f"parallel.dp_shard={ranks}", f"data.paths=['{path}']"), PATIENCE)
            checks.that(done.returncode == 3 and re.search(r"command line: data\.paths: \S+" + said, done.stdout),
                        f"formats: bad {kind} is refused on {ranks} ranks (exit status {done.returncode})")
            if done.returncode != 3:
                print(done.stdout)
    checks.that(not os.path.exists(os.path.join(home, "refused")), "formats: ... before anything is written")
    blocked = os.path.join(home, "blocked")
    with open(lines, "w") as file:
        file.write('{"text": "some text of a document"}\n' * 40)
    open(blocked, "w").close()
    done = launch(1, arguments(os.path.join(home, "refused"), "data.format=jsonl", f"data.index_dir={blocked}",
                               f"data.paths=['{lines}']"), PATIENCE)
    checks.that(done.returncode == 3 and "data.index_dir names a folder for it" in done.stdout,
                "formats: an index that cannot be written is told with the key")


def c9_vocabularies_and_epochs(checks, home):
    path = token_file(os.path.join(home, "wide.tokens"), 50257, 5000)
    more = "data.format=tokens", f"data.paths=['{path}']"
    done = launch(1, arguments(os.path.join(home, "wide"), *more), PATIENCE)
    checks.that(
        done.returncode == 3 and "its vocabulary is 50257 (byte 16), larger than model.vocab = 260" in done.stdout,
        f"C9: a vocabulary larger than the model's is refused at the start (exit status {done.returncode})")
    data = text_file(os.path.join(home, "short.txt"), 30, 100)
    done = launch(1, arguments(os.path.join(home, "epochs"), "batch.global=6", f"data.paths=['{data}']"), PATIENCE)
    start = events(os.path.join(home, "epochs"), "start")[0]
    checks.that("1 file, 100 tokens, 4 samples; 4 steps x 6 = 6 epochs" in done.stdout,
                "C9: epochs are told at the start")
    checks.that([start[key] for key in ("data_files", "data_tokens", "data_samples", "epochs")] == [1, 100, 4, 6],
                "C9: ... and in metrics.jsonl")


def mission_e_run_proves_the_world(checks, home):
    where = os.path.join(home, "world")
    start = train(where, 2, [*SMALL, "run.steps=1", "parallel.pp=2", "model.layers=2"]).starts[0]
    checks.that(start["world_check_ms"] > 0, f"mission E: run checks the world: {start['world_check_ms']} ms")
    done = ran(*command(2, arguments(where + "-bad", "parallel.dp_shard=2"), "world-check:eio"))
    checks.that(done.returncode == 1 and "the programs of the ranks do not fit together" in done.stdout,
                f"mission E: a check that fails ends the job (exit status {done.returncode})")
    with held(home, "world-held", "world-check:hold") as job:
        time.sleep(2)
        checks.that(not events(where + "-held", "start"), "mission E: the first step waits for the check")
        checks.that(released(job)[0] == 0 and len(Metrics(where + "-held").steps) == 4,
                    "mission E: ... and comes after it")


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as home:
        for check in (h6_ranks_with_different_decks, h6_other_data_under_the_same_name,
                      h6_another_file_system_for_the_run, h6_another_working_directory,
                      m3_data_that_changed_between_runs, m12_links_between_folders, m12_a_stop_while_data_are_opened,
                      b1_missing_data_before_memory, mission_d_a_start_reads_little,
                      mission_d_ranks_share_the_bytes_of_a_huge_jsonl, mission_d_a_bad_id_is_told_when_it_is_read,
                      formats_are_refused_with_place, c9_vocabularies_and_epochs, mission_e_run_proves_the_world):
            check(checks, home)
    checks.finish()


main()
