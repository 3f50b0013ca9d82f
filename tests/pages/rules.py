"""The rules of run.py themselves: which blocks are commands, which differences are found, what --update writes."""
import unittest

import blocks
import table
from compare import Line, difference
from run import NOT_RUN, RUN, Task, filled, options_of, printed, summary, without_options
from update import rewritten

RUN = """\
espalier   0.3.1 (afece9e0c2d1), tiny
model      llama, 804k parameters
stop       kill -USR1 16348 on vm saves and ends
     step       loss  grad norm         lr  tokens/s         ms  time left
    1/240    5.56851     5.0040  1.500e-04     11.7k      174.9        42s
  120/240    2.42466     0.6510  1.842e-03     13.5k      151.6      1m18s
      120    2.51137  validation
      120  checkpoint runs/tiny/checkpoints/step-00000120 (18.3 MiB, 200 ms)
50 files, 50 documents, 180456 tokens, 357 KiB of text
data       788 files, 2.83M tokens, 22.1k samples; 20 steps x 16 = 0.0145 epochs
all 240 steps are done in 12 s, 33 % hidden; loss 2.03423"""

PLAN = """\
ranks       8: pp 2 x tp 4
step        17.0 s: 4194304 tokens, 247k tokens/s
fits        this host has 22.4 GiB available: enough for 2666 such ranks
simulated   8 classes, in 101 ms after 393 ms of compiling"""


def output(text, measured=True):
    return [Line(line, measured) for line in text.split("\n")]


def differs(documented, printed, measured=True):
    return difference(documented.split("\n"), output(printed, measured)) is not None


class Comparison(unittest.TestCase):
    def changed(self, text, old, new, measured=True):
        """A line of the output is no longer as documented, and nothing else changed."""
        self.assertIn(old, text)
        return differs(text, text.replace(old, new, 1), measured)

    def test_equal_outputs_are_equal(self):
        self.assertFalse(differs(RUN, RUN))
        self.assertFalse(differs(PLAN, PLAN, False))
        self.assertFalse(differs(RUN, RUN + "\n"))

    def test_what_a_machine_measures_may_differ(self):
        for old, new in [("11.7k", "984"), ("174.9", "2.31"), ("1m18s", "3s"), ("200 ms", "1.2 s"),
                         ("12 s", "2 min 1 s"), ("33 %", "4.56 %"), ("afece9e0c2d1", "ecdfd1e92326-dirty"),
                         ("16348 on vm", "9 on node-17"), ("0.6510", "6.51"),
                         ("step       loss", "step    loss")]:
            self.assertFalse(self.changed(RUN, old, new), (old, new))

    def test_what_depends_on_the_text_may_differ_a_little(self):
        for old, near, far in [("5.56851", "5.1", "8.8"), ("788", "801", "1788"),
                               ("2.83M", "3.01M", "2.83k"), ("180456", "190112", "280456"),
                               ("357 KiB", "401 KiB", "357 MiB"), ("loss 2.03423", "loss 1.9", "loss 3.4"),
                               ("2.51137", "2.4", "3.9")]:
            self.assertFalse(self.changed(RUN, old, near), (old, near))
            self.assertTrue(self.changed(RUN, old, far), (old, far))

    def test_words_and_exact_figures_may_not_differ(self):
        for old, new in [("804k", "805k"), ("1.500e-04", "1.600e-04"), ("120/240", "121/240"),
                         ("18.3 MiB", "18.4 MiB"), ("step-00000120", "step-00000121"),
                         ("checkpoint runs", "checkpoints runs"),
                         ("grad norm", "norm"), ("20 steps x 16", "20 steps x 17"), ("all 240", "all 241"),
                         ("11.7k", "")]:
            self.assertTrue(self.changed(RUN, old, new), (old, new))

    def test_figures_that_are_computed_are_exact(self):
        for old, new in [("17.0 s", "17.1 s"), ("247k", "248k"), ("tp 4", "tp 8"), ("8 classes", "9 classes")]:
            self.assertTrue(self.changed(PLAN, old, new, False), (old, new))
        for old, new in [("101 ms", "2.3 s"), ("393 ms", "4 s"), ("22.4 GiB available: enough for 2666", "1.1 GiB, 7")]:
            self.assertFalse(self.changed(PLAN, old, new, False), (old, new))

    def test_a_missing_an_added_and_a_swapped_line_are_found(self):
        lines = RUN.split("\n")
        for k in range(len(lines)):
            self.assertTrue(differs(RUN, "\n".join(lines[:k] + lines[k + 1:])), lines[k])
            self.assertTrue(differs("\n".join(lines[:k] + lines[k + 1:]), RUN), lines[k])
        self.assertTrue(differs(RUN, "\n".join([lines[1], lines[0], *lines[2:]])))

    def test_dots_stand_for_any_lines_and_any_text(self):
        self.assertFalse(differs("...\nb 2\n   ...\nd 4", "a 1\nb 2\nc 3\nd 4"))
        self.assertFalse(differs("a 1\n...", "a 1"))
        self.assertFalse(differs("a ... 4", "a 1 2 3 4"))
        self.assertTrue(differs("...\nd 4\n...\nb 2\n...", "a 1\nb 2\nc 3\nd 4"))
        self.assertTrue(differs("...\nb 3\n...", "a 1\nb 2\nc 3\nd 4"))
        self.assertTrue(differs("b 2\n...", "a 1\nb 2"))
        self.assertTrue(differs("...\nb 2", "a 1\nb 2\nc 3"))

    def test_rows_may_leave_out_their_last_columns(self):
        header = "     step       loss  grad norm ...\n"
        self.assertFalse(differs(header + " 1/20 5.5 5.0 ...", header.replace("...", "  ms") + " 1/20 5.2 4.8 17"))
        self.assertTrue(differs(header + " 1/20 5.5 5.0 ...", header.replace("...", "  ms") + " 2/20 5.2 4.8 17"))


class Update(unittest.TestCase):
    def updated(self, documented, printed, measured=True):
        lines, lost = rewritten(documented.split("\n"), output(printed, measured))
        if not lost:
            self.assertIsNone(difference(lines, output(printed, measured)))
        return "\n".join(lines), lost

    def test_an_output_that_holds_stays(self):
        other = RUN.replace("174.9", "2.31")
        self.assertEqual(self.updated(RUN, other), (RUN, []))

    def test_only_lines_that_differ_are_rewritten(self):
        other = RUN.replace("174.9", "2.31").replace("804k", "805k")
        self.assertEqual(self.updated(RUN, other), (RUN.replace("804k", "805k"), []))

    def test_dots_stay(self):
        documented = "...\nranks 8: pp 2\n...\nmessages of dp 9\nmessages of tp 7\n..."
        printed = ("version 4\nranks 16: pp 4\nstep 1\nmessages of cp 3\nmessages of dp 5\nmessages of pp 2\n"
                   "messages of tp 1\nend")
        self.assertEqual(self.updated(documented, printed), (
            "...\nranks 16: pp 4\n...\nmessages of dp 5\nmessages of pp 2\nmessages of tp 1\n...", []))

    def test_dots_in_a_line_stay(self):
        self.assertEqual(self.updated('{"event":"end","bytes":[3,4],...}', '{"event":"end","bytes":[3,5],"time":7}'),
                         ('{"event":"end","bytes":[3,5],...}', []))

    def test_whole_outputs_are_replaced(self):
        self.assertEqual(self.updated("a 1\nb 2", "quite\nanother\ntext"), ("quite\nanother\ntext", []))

    def test_a_line_that_is_gone_is_named_and_stays(self):
        documented = "...\nhours of the run 7\n...\nranks 8\n..."
        self.assertEqual(self.updated(documented, "version 4\nranks 9"),
                         ("...\nhours of the run 7\n...\nranks 9\n...", ["hours of the run 7"]))


class Blocks(unittest.TestCase):
    def groups(self, text):
        return [([(c.text, c.line, c.expected_status) for c in group.commands], group.output and group.output.lines)
                for group in blocks.read_groups(text)]

    def test_commands_and_their_output(self):
        page = ("```sh\nespalier check a \\\n  b   # exit status 2\n# a remark\nls\n```\n\nThat prints:\n\n"
                "```text\none\n\ntwo\n```\n")
        self.assertEqual(self.groups(page),
                         [([("espalier check a \\\n  b", 2, 2), ("ls", 5, 0)], ["one", "", "two"])])

    def test_a_session(self):
        page = "  ```text\n  $ ls a \\\n    b\n  one\n  $ pwd\n  ```\n"
        self.assertEqual(self.groups(page), [([("ls a \\\n  b", 2, 0)], ["one"]), ([("pwd", 5, 0)], [])])

    def test_quotations_and_documents_go_on(self):
        page = "```\necho 'a # 1\nb' \"# 2\" c#3  # gone\ncat <<END >f\n# kept\nEND\n```\n"
        self.assertEqual([c[0] for c in self.groups(page)[0][0]],
                         ["echo 'a # 1\nb' \"# 2\" c#3", "cat <<END >f\n# kept\nEND"])

    def test_output_of_no_command_is_refused(self):
        for page in ("```text\nloss 2\n```\n", "```\nls\n```\n\n## Next\n\n```text\nloss 2\n```\n",
                     "```\nls\n```\none\n\ntwo\n\n```text\nloss 2\n```\n",
                     "```toml\na = 1\n```\n\n```text\nloss 2\n```\n"):
            with self.assertRaises(ValueError):
                blocks.read_groups(page)

    def test_a_block_without_an_end_is_refused(self):
        with self.assertRaises(ValueError):
            blocks.read_groups("```\nls\n")

    def test_a_command_that_does_not_run_leaves_its_neighbours_compared(self):
        group, other = blocks.Group([], blocks.Output(0, 1, 0, ["a"])), blocks.Group([], blocks.Output(2, 3, 0, ["b"]))
        tasks = [Task(group, 1, "ninja", NOT_RUN, reason="builds"), Task(group, 2, "ls", RUN, printed=["a"]),
                 Task(other, 5, "ninja", NOT_RUN, reason="builds")]
        self.assertEqual([line.text for line in printed(group, tasks)], ["a"])
        self.assertIsNone(printed(other, tasks))
        self.assertIn("2 outputs: 1 of commands that ran, 1 of commands that did not", next(summary(tasks)))
        tasks[1].status = 1
        self.assertIsNone(printed(group, tasks))

    def test_placeholders_and_options(self):
        table.PLACEHOLDERS.append(("page.md", "DECK", "a.toml"))
        used = set()
        text = "espalier run DECK [--deck DECK ...] [key=value ...] D=$DECK DECK=3 data.paths='[\"my.txt\"]' MYDECK"
        self.assertEqual(filled("page.md", without_options(text), used),
                         "espalier run a.toml   D=$DECK DECK=3 data.paths='[\"my.txt\"]' MYDECK")
        self.assertEqual(used, {table.PLACEHOLDERS.pop()})
        self.assertEqual(options_of(text), ["--deck"])


if __name__ == "__main__":
    unittest.main()
