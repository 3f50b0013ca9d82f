"""The executable's command line: exit status, what is printed, and where. Nothing here trains."""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

EXECUTABLE = os.environ["ESPALIER"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = str(ROOT / "inputs/llama/tiny.toml")
SIX = str(ROOT / "tests/deck/six_mistakes.toml")


def run(*arguments, **environment):
    """One process with a launcher's variables only where a test sets them."""
    launchers = ("OMPI_", "PMIX_", "PMI_", "SLURM_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(launchers)}
    return subprocess.run([EXECUTABLE, *arguments], capture_output=True, text=True, timeout=60, check=False,
                          env=clean | environment)


class Mistakes(unittest.TestCase):
    def refused(self, *arguments, **environment):
        """Lines of standard error of a command that exits with status 2 and prints nothing else."""
        result = run(*arguments, **environment)
        self.assertEqual(result.returncode, 2, result)
        self.assertEqual(result.stdout, "")
        return result.stderr.splitlines()

    def test_six_mistakes_print_six(self):
        for command in ([], ["run"], ["check"], ["plan"]):
            lines = self.refused(*command, SIX)
            self.assertEqual(lines[0], "espalier: 6 mistakes")
            self.assertEqual(len(lines), 7)
            self.assertIn(f"{SIX}:10: model.heads = 7: must divide model.dim = 128 (allowed: 1, 2, 4, 8, 16, 32, 64)", lines)

    def test_other_ranks_leave_the_report_to_the_first(self):
        for variable in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"):
            self.assertEqual(self.refused(SIX, **{variable: "1"}), [])
            self.assertEqual(len(self.refused(SIX, **{variable: "0"})), 7)

    def test_wrong_arguments(self):
        cases = {
            ("check",): "command line: DECK is required",
            ("check", TINY, "--bad"): "command line: The following argument was not expected: --bad",
            ("check", TINY, "run.stepz=3"): "command line: run.stepz=3: unknown key (did you mean run.steps?)",
            ("nosuch.toml",): "nosuch.toml: no such file",
            ("check", str(ROOT)): f"{ROOT}: is a folder, not a deck",
            ("plan", TINY, "--ranks", "0"): "command line: --ranks: Value 0 not in range 1 to 1048576",
            ("--help", "modle"): None,
            ("calibrate", "plans.json"): "command line: --deck is required",
            ("calibrate", "plans.json", "--deck", "nosuch.toml"): "nosuch.toml: no such file",
            ("run", TINY, "-t", "1 hour"):
                'command line: run.time_limit = "1 hour": must be a time above zero (allowed: minutes, '
                "minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds, as for "
                "Slurm, or 90s, 30m, 1h, 2d; empty for no limit)",
            ("run", TINY, "-w", "-1"): None,
        }
        for arguments, message in cases.items():
            lines = self.refused(*arguments)
            self.assertEqual(lines[0], "espalier: 1 mistake")
            if message:
                self.assertEqual(lines[1:], [message])

    def test_what_later_versions_have(self):
        for arguments, name in [(("export", "a", "b"), "export"), (("import", "a", "b"), "import"),
                                (("plan", TINY, "--search"), "plan --search"),
                                (("plan", TINY, "--svg", "f"), "plan --svg"),
                                (("plan", TINY, "--cluster", "f"), "plan --cluster")]:
            self.assertEqual(self.refused(*arguments)[1:], [f"command line: {name}: not available in this version"])


class Calibrate(unittest.TestCase):
    def test_needs_the_module_for_gpus(self):
        result = run("calibrate", "plans.json", "--deck", TINY, ESPALIER_CUDA_MODULE="/no/such/module.so")
        self.assertEqual(result.returncode, 1, result)
        self.assertIn("ESPALIER_CUDA_MODULE names /no/such/module.so, which is not there", result.stderr)
        self.assertFalse(os.path.exists("plans.json"))


class Answers(unittest.TestCase):
    def answer(self, *arguments, **environment):
        result = run(*arguments, **environment)
        self.assertEqual((result.returncode, result.stderr), (0, ""), result)
        return result.stdout

    def test_help(self):
        self.assertIn("espalier [run] DECK [key=value ...]", self.answer("--help"))
        self.assertEqual(self.answer(), self.answer("-h"))
        self.assertTrue(self.answer("--help", "batch").startswith("[batch] "))
        self.assertEqual(self.answer("--help=batch"), self.answer("--help", "batch"))
        self.assertIn("--restart", self.answer("run", "--help"))

    def test_reference_page(self):
        self.assertEqual(self.answer("doc-deck"), (ROOT / "doc/deck.md").read_text(encoding="ascii"))

    def test_check_prints_origins(self):
        text = self.answer("check", TINY, "run.steps=7")
        self.assertIn("803968 parameters, 2048 tokens a step, 7 steps, on 8 ranks", text.splitlines()[0])
        self.assertRegex(text, r"steps +=  *7 +# command line\n")
        self.assertRegex(text, r"heads +=  *4 +# .*inputs/llama/tiny\.toml:\d+\n")
        self.assertRegex(text, r"threads +=  *0 +# default\n")

    def test_check_says_what_auto_comes_to(self):
        said = lambda *keys, **environment: re.findall(r'^# run.device = "auto" (.*)', self.answer("check", TINY, *keys, **environment), re.M)
        gone = said(ESPALIER_CUDA_MODULE="/no/such/module.so")
        self.assertEqual(gone, ["comes to cpu on this host: cuda: ESPALIER_CUDA_MODULE names /no/such/module.so, which is not there"])
        refused = said("run.transport=nccl", ESPALIER_CUDA_MODULE="/no/such/module.so")
        self.assertIn('comes to a refusal (run.transport = "nccl" is for GPUs', refused[0])
        self.assertEqual(said("run.device=cpu"), [])

    def test_what_check_prints_is_a_deck(self):
        first = self.answer("check", TINY)
        copy = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"espalier_check_{os.getpid()}.toml"
        try:
            copy.write_text(first, encoding="ascii")
            second = self.answer("check", str(copy))
        finally:
            copy.unlink()
        values = [[line.split("  #")[0].rstrip() for line in text.splitlines()[1:]] for text in (first, second)]
        self.assertEqual(values[0], values[1])

    def test_every_input_passes_check(self):
        decks = sorted(p for p in (ROOT / "inputs").rglob("*.toml") if p.parent.name != "clusters")
        self.assertGreaterEqual(len(decks), 4)
        for deck in decks:
            self.answer("check", str(deck))

    def test_plan_counts_flops(self):
        path = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"espalier_plan_{os.getpid()}.json"
        try:
            text = self.answer("plan", str(ROOT / "inputs/gpt2/124m.toml"), "--ranks", "8", "batch.global=8", "--json", str(path))
            plan = json.loads(path.read_text(encoding="ascii"))
        finally:
            path.unlink(missing_ok=True)
        self.assertIn("7.978153e+08 per token, causal; 8.544384e+08 with full attention", text)
        self.assertEqual((plan["parameters"], plan["flops_per_token"]), (124439808, {"causal": 797815296, "full": 854438400}))

    def test_info(self):
        text = self.answer("info")
        for line in (r"espalier +\d+\.\d+\.\d+ \(", r"cuda +(module loaded|not available)", r"cpu +built in \(oneDNN \d+\.\d+", r"mpi +built in \("):
            self.assertRegex(text, line)
        self.assertNotIn("cannot be loaded", text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
