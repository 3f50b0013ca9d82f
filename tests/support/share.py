"""Shares of wide tables of tests, and of tests. ESPALIER_TEST_SHARE="K/N" takes every N-th row, from the K-th; unset, a
test takes all. tests/run.sh without a word sets it by the commit. Standard library only.

    share.py ROW ...     prints the rows of the share
"""
import os
import re
import sys

VARIABLE = "ESPALIER_TEST_SHARE"


def chosen():
    """(K, N)."""
    text = os.environ.get(VARIABLE) or "1/1"
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if not match or int(match[1]) > int(match[2]):
        raise SystemExit(f"{VARIABLE}={text}: not K/N, with K from 1 to N")
    return int(match[1]), int(match[2])


def dealt(rows):
    """The rows of this share, in their order."""
    number, shares = chosen()
    return list(rows)[number - 1::shares]


def share(rows, always=()):
    """The rows of this share, in their order, with those in `always`. Prints how many it leaves out, if any."""
    rows, (number, shares) = list(rows), chosen()
    others = [i for i, row in enumerate(rows) if row not in always]
    left_out = set(others) - set(dealt(others))
    if left_out:
        taken = f"{len(rows) - len(left_out)} of {len(rows)} rows"
        print(f"share {number} of {shares}: {taken}; tests/run.sh full runs all", flush=True)
    return [row for i, row in enumerate(rows) if i not in left_out]


def main():
    print(*dealt(sys.argv[1:]), sep="\n")


if __name__ == "__main__":
    main()
