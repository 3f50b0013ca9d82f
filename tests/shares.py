"""Shares of tables: every row is in exactly one share, the matrix keeps its variety in each share, and a share that is
none is refused. Standard library only."""
import collections
import os
import unittest

from support import layouts
from support.share import VARIABLE, share

SHARES = 8  # of tests/run.sh
COMMON = 33  # a setting that this many rows have is in every share


def shares_of(rows, number, **more):
    found = []
    for k in range(1, number + 1):
        os.environ[VARIABLE] = f"{k}/{number}"
        found.append(share(rows, **more))
    return found


class Shares(unittest.TestCase):
    def tearDown(self):
        os.environ.pop(VARIABLE, None)

    def test_without_the_variable_all_rows_are_taken(self):
        self.assertEqual(share(iter("abcde")), list("abcde"))

    def test_every_row_is_in_exactly_one_share(self):
        for count in (0, 1, 2, 7, 30):
            for number in (1, 2, 3, 5):
                rows = list(range(count))
                found = shares_of(rows, number)
                self.assertEqual(sorted(sum(found, [])), rows)
                self.assertTrue(all(rows == sorted(rows) for rows in found))
                self.assertLessEqual(max(map(len, found)) - min(map(len, found)), 1)

    def test_some_rows_are_in_every_share(self):
        found = shares_of(list("abcdefg"), 3, always=["b", "g"])
        self.assertEqual(found, [list("abeg"), list("bcfg"), list("bdg")])

    def test_what_is_no_share_is_refused(self):
        for text in ("0/3", "4/3", "3", "a/b", "1/0", "1/3 "):
            os.environ[VARIABLE] = text
            with self.assertRaises(SystemExit):
                share([1])

    def test_every_share_of_the_matrix_has_each_common_setting(self):
        settings = lambda row: {row.deck, row.compute, *row.model, *row.keys}
        rows = layouts.table()
        common = {s for s, n in collections.Counter(s for row in rows for s in settings(row)).items() if n >= COMMON}
        self.assertGreater(len(common), 25)
        for mine in shares_of(rows, SHARES):
            self.assertEqual(common - set().union(*map(settings, mine)), set())


if __name__ == "__main__":
    unittest.main()
