"""The programs of all rows of the matrix, to compare two versions that should plan the same.

    ESPALIER=build/espalier PYTHONPATH=tests python3 tests/mpi/programs.py FOLDER

writes the output of `plan --program` for the first and the last rank of each row to FOLDER, one file per row, and the
memory that `plan` prints. `diff -r` compares the folders of two versions."""
import concurrent.futures, os, sys

from support.layouts import table
from support.runs import launch


def programs(row):
    keys = [row.deck, *row.model, *row.keys, "--ranks", str(row.ranks)]
    ranks = sorted({0, row.ranks - 1})
    texts = [launch(1, ["plan", *keys])] + [launch(1, ["plan", *keys, "--program", str(rank)]) for rank in ranks]
    for done in texts:
        assert done.returncode == 0, f"{row}: {done.stdout}"
    # How much memory this host has free is no part of a plan.
    return "".join(line for done in texts for line in done.stdout.splitlines(True) if not line.startswith("fits "))


def main():
    folder, rows = sys.argv[1], table()
    os.makedirs(folder)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, (row, text) in enumerate(zip(rows, pool.map(programs, rows))):
            with open(os.path.join(folder, f"{number:03d}.txt"), "w", encoding="utf-8") as file:
                file.write(f"{row}\n{text}")
    print(f"{len(rows)} rows")


main()
