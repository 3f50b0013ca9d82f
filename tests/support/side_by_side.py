"""Comparisons of simulations that run side by side. Standard library only."""
import concurrent.futures

from .runs import Checks


def compare_all(entries, compare, at_once):
    """`compare` returns the lines of a table, and what must hold: (text, whether it does). Prints and checks these."""
    checks = Checks()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for lines, held in pool.map(compare, entries):
            print("\n".join(lines), flush=True)
            for text, holds in held:
                checks.that(holds, text)
    checks.finish()
