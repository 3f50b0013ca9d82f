"""How long a start takes, on the clock and of the processor, and how much memory, with 10 MB and with 10 GB of tokens:
median of five runs of one step of the test deck each, in turn. The files are sparse, of format "tokens". Needs ESPALIER
and a file system with sparse files.

    ESPALIER=$PWD/build/espalier python3 tests/bench/start.py
"""
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from support.runs import DECK, ENVIRONMENT, executable, launcher

STARTS, SIZES = 5, {"10 MB": 10**7, "10 GB": 10**10}
# A process counts what its parent had when it was forked: a small one starts the command.
SMALL_PARENT = ("import resource, subprocess, sys\n"
                "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)\n"
                "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
                "print(used.ru_utime + used.ru_stime, used.ru_maxrss)\n")


def token_file(path, size):
    """Tokens of two bytes, all zero, after a header of 32 bytes."""
    count = (size - 32) // 2
    with open(path, "wb") as file:
        file.write(struct.pack("<8sIIQQ", b"ESPTOK\0\1", 1, 2, 260, count))
        file.truncate(32 + 2 * count)
    return path


def start(folder, data, ranks):
    """Seconds, seconds of the processor, and MiB of the largest process, of a run of one step."""
    command = [*launcher(ranks), executable(), "run", DECK, "-d", tempfile.mkdtemp(dir=folder), "run.steps=1",
               f"parallel.dp_shard={ranks}", "data.format=tokens", f"data.paths=['{data}']"]
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", SMALL_PARENT, *command], env=ENVIRONMENT, check=True,
                          capture_output=True, text=True)
    seconds = time.monotonic() - begin
    processor, kib = done.stdout.split()
    return seconds, float(processor), int(kib) / 1024


def main():
    with tempfile.TemporaryDirectory() as folder:
        files = {name: token_file(os.path.join(folder, name), size) for name, size in SIZES.items()}
        for ranks in (1, 2):
            starts = [{name: start(folder, path, ranks) for name, path in files.items()} for _ in range(STARTS)]
            for name in files:
                medians = [statistics.median(of[name][k] for of in starts) for k in range(3)]
                print("{} rank(s), {}: {:.2f} s, {:.2f} s of processor, {:.1f} MiB".format(ranks, name, *medians))


main()
