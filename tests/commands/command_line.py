"""The executable's command line: exit status, what is printed, and where. Nothing here trains."""

import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import unittest

from support.recorded import recorded

EXECUTABLE = os.environ["ESPALIER"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = str(ROOT / "inputs/llama/tiny-8.toml")
SIX = str(ROOT / "tests/commands/six_errors.toml")


def run(*arguments, **environment):
    """One process with a launcher's variables only where a test sets them."""
    launchers = ("OMPI_", "PMIX_", "PMI_", "SLURM_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(launchers)}
    return recorded(subprocess.run([EXECUTABLE, *arguments], capture_output=True, text=True, timeout=60, check=False,
                                   env=clean | environment))


class Errors(unittest.TestCase):
    def refused(self, *arguments, **environment):
        """Lines of standard error of a command that exits with status 2 and prints nothing else."""
        result = run(*arguments, **environment)
        self.assertEqual(result.returncode, 2, result)
        self.assertEqual(result.stdout, "")
        return result.stderr.splitlines()

    def test_six_errors_print_six(self):
        for command in ([], ["run"], ["check"], ["plan"]):
            lines = self.refused(*command, SIX)
            self.assertEqual(lines[0], "espalier: 6 errors")
            self.assertEqual(len(lines), 7)
            self.assertIn(f"{SIX}:10: model.heads = 7: must divide model.dim = 128 (allowed: 1, 2, 4, 8, 16, 32, "
                          "64; or set model.head_dim)",
                          lines)

    def test_other_ranks_leave_the_report_to_the_first(self):
        for variable in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"):
            self.assertEqual(self.refused(SIX, **{variable: "1"}), [])
            self.assertEqual(len(self.refused(SIX, **{variable: "0"})), 7)

    def test_wrong_arguments(self):
        cases = {
            ("check", ): "command line: DECK is required, such as llama/tiny.toml",
            ("check", TINY, "--bad"):
            "command line: --bad: unknown option of check (allowed: --help, --ranks, --nodes, --cluster, --least)",
            ("check", TINY, "run.stepz=3"): "command line: run.stepz=3: unknown key (did you mean run.steps?)",
            ("nosuch.toml", ): f"nosuch.toml: no such file, here or in {ROOT}/inputs",
            ("check", str(ROOT)): f"{ROOT}: is a folder, not a deck",
            ("plan", TINY, "--ranks", "0"): "command line: --ranks: Value 0 not in range 1 to 1048576",
            ("--help", "modle"): None,
            ("calibrate", ):
            "command line: FILE is missing: a cluster file to write, --gemm-plans FILE, or --attention",
            ("calibrate", "--attention"): "command line: --attention needs --deck DECK",
            ("calibrate", "c.toml", "--attention", "--deck", TINY):
            "command line: --attention is a command of its own: leave FILE out, then calibrate FILE with "
            "run.attention_backward",
            ("calibrate", "--gemm-plans", "plans.json"): "command line: --gemm-plans needs --deck DECK",
            ("calibrate", "c.toml", "run.steps=5"): "command line: run.steps=5 is a key of a deck, and there is none: "
            "--deck DECK",
            ("calibrate", "c.toml", "--steady", "60"): "command line: --steady needs --deck DECK",
            ("calibrate", "--attention", "--deck", TINY, "--steady", "60"):
            "command line: --steady is for a cluster file: give FILE",
            ("calibrate", "c.toml", "--ranks", "2"):
            "command line: --ranks is for --gemm-plans and --attention: a cluster file is measured on the ranks "
            "that mpirun starts",
            ("calibrate", "c.toml", "--deck", "nosuch.toml"): f"nosuch.toml: no such file, here or in {ROOT}/inputs",
            ("run", TINY, "-t", "1 hour"):
            'command line: run.time_limit = "1 hour": must be a time above zero (allowed: minutes, minutes:seconds, '
            "hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds, as for "
            "Slurm, or 90s, 30m, 1h, 2d; empty for no limit)",
            ("run", TINY, "-w", "-1"): None,
            ("run", TINY, "-q", "-v"): "command line: --quiet excludes --verbose",
        }
        for arguments, message in cases.items():
            lines = self.refused(*arguments)
            self.assertEqual(lines[0], "espalier: error")
            if message:
                self.assertEqual(lines[1:], [message])

    def test_b3_options_that_do_not_exist_are_unknown(self):
        for option in ("--trace", "--svg"):
            self.assertEqual(self.refused("plan", TINY, option), [
                "espalier: error",
                f"command line: {option}: unknown option of plan (allowed: --help, --ranks, --json, --program, "
                "--passes, --schedule, --cluster, --failures, --node-mtbf, --search, --fix, --top, --reserve, "
                "--fewest, --routing, --output)"
            ])
        for command in ("check", "plan", "simulate", "sample"):
            self.assertIn(f"command line: -q: unknown option of {command} ", self.refused(command, TINY, "-q")[1])
        self.assertIn("--jsn: unknown option of plan (did you mean --json?)", self.refused("plan", TINY, "--jsn")[1])
        for command in ("compare", "convert"):
            self.assertIn(f"command line: {command}: neither a command nor a deck that exists",
                          self.refused(command, "a", "b")[1])

    def test_options_and_keys_are_judged_together(self):
        arguments = ("check", TINY, "--lr", "3", "model.hidden_size=64", "--steps=5", "--nproc", "4")
        self.assertEqual(self.refused(*arguments), [
            "espalier: 4 errors",
            "command line: --lr 3: unknown option of check (did you mean optimizer.lr=3?)",
            "command line: --steps=5: unknown option of check (did you mean run.steps=5?)",
            "command line: --nproc 4: unknown option of check (did you mean --ranks 4?)",
            "command line: model.hidden_size=64: unknown key (did you mean model.dim?)",
        ])
        for arguments, meant in {
            ("run", TINY, "--nproc", "4"): "mpirun -n 4 espalier ...",
            ("plan", TINY, "--ranks", "4", "--seq-len", "64"): "model.seq_len=64",
            ("sample", "x", "--temp", "1"): "--temperature 1",
        }.items():
            self.assertIn(f"(did you mean {meant}?)", self.refused(*arguments)[1])

    def test_b3_json_is_refused_before_the_work(self):
        with tempfile.TemporaryDirectory() as folder:
            for path, why in {
                    f"{folder}/none/plan.json": f"the folder {folder}/none does not exist", folder: "is a folder"
            }.items():
                self.assertEqual(self.refused("plan", TINY, "--json", path)[1], f"command line: --json {path}: {why}")

    def test_c4_a_first_word_that_is_neither_command_nor_deck(self):
        commands = ("(commands: run, train, supervise, check, plan, simulate, tune, inspect, tokenize, import, export, "
                    "sample, evaluate, report, calibrate, selftest, info)")
        self.assertEqual(self.refused("plna", TINY), [
            "espalier: error",
            f"command line: plna: neither a command nor a deck that exists (did you mean plan?) {commands}"
        ])
        self.assertIn("(did you mean train?)", self.refused("tran")[1])
        self.assertIn("(did you mean llama/tiny.toml?)", self.refused("tiny")[1])
        self.assertEqual(self.refused("train")[1], "command line: DECK is required, such as llama/tiny.toml")

    def test_short_and_foreign_names_of_keys(self):
        for argument in ("lr=3e-4", "learning_rate=3e-4"):
            self.assertIn("(did you mean optimizer.lr?)", self.refused("check", TINY, argument)[1])
        for ask in ("help", "--help"):
            self.assertIn("(did you mean optimizer.lr?)", self.refused(ask, "learning_rate")[1])

    def test_a_text_is_no_deck(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder, "my.txt")
            for words in ("It was = a [dark] night.\n" * 30, "= x\n" * 1000000):
                text.write_text(words, encoding="ascii")
                remedy = f"espalier llama/tiny.toml data.paths={text}"
                self.assertEqual(self.refused(str(text)), [
                    "espalier: error",
                    f"{text}: this is a text, not a deck: train on it with data.paths={text}, such as {remedy}"
                ])
            self.assertEqual(run(*remedy.replace("espalier", "check").split()).returncode, 0)

    def test_degrees_that_do_not_fit_name_keys_that_do(self):
        for ranks in (1, 2, 3, 6):
            said = self.refused("check", TINY, "--ranks", str(ranks))[1]
            keys = re.search(r"or set (.*)\)", said)[1].split()
            self.assertEqual(run("plan", TINY, "--ranks", str(ranks), *keys).returncode, 0, said)

    def test_a_batch_that_ranks_do_not_divide_names_one_that_they_do(self):
        deck = str(ROOT / "inputs/llama/tiny.toml")
        for ranks in (3, 5, 6, 7, 12):
            said = self.refused("check", deck, "--ranks", str(ranks))[1]
            key = re.search(r"; set (batch\.global=\d+)\)", said)[1]
            self.assertEqual(run("plan", deck, "--ranks", str(ranks), key).returncode, 0, said)

    def test_decks_are_looked_up_below_the_root_of_the_environment(self):
        with tempfile.TemporaryDirectory() as folder:
            mine = pathlib.Path(folder, "inputs", "site", "mine.toml")
            mine.parent.mkdir(parents=True)
            mine.write_text(f'include = ["{TINY}"]\n', encoding="ascii")
            for name in ("site/mine.toml", "inputs/site/mine.toml"):
                result = run("check", name, ESPALIER_ROOT=folder)
                self.assertEqual(result.returncode, 0, result)
            self.assertEqual(self.refused("check", "site/other.toml", ESPALIER_ROOT=folder)[1],
                             f"site/other.toml: no such file, here or in {ROOT}/inputs or {folder}/inputs")
            self.assertIn("(did you mean site/mine.toml?)", self.refused("mine", ESPALIER_ROOT=folder)[1])

    def test_hints_are_no_errors(self):
        with tempfile.TemporaryDirectory() as folder:
            missing = f"{folder}/no.txt"
            result = run(TINY, "parallel.pp=1", "parallel.tp=1", "parallel.dp_shard=1", f"run.dir={folder}/run",
                         f"data.paths=['{missing}']")
        self.assertEqual(result.stderr.splitlines(), [
            "espalier: error", f"command line: data.paths: {missing}: cannot read: No such file or directory",
            "  doc/data.md says what data files are and how to make them"
        ])


class WithoutAFolder(unittest.TestCase):
    def test_c7_the_run_directory_is_named_once(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "file").write_text("")
            result = run(TINY, "parallel.pp=1", "parallel.tp=1", "parallel.dp_shard=1", "batch.global=2",
                         f"run.dir={folder}/file/run")
        self.assertEqual((result.returncode, result.stderr),
                         (1, f"espalier: error\nrun.dir = {folder}/file/run: cannot be created: Not a directory\n"))


@unittest.skipUnless(platform.machine() == "x86_64", "another processor has other levels")
class InstructionLevels(unittest.TestCase):
    def test_a_level_that_the_processor_lacks_is_refused_with_what_it_has(self):
        result = run("info", ESPALIER_ISA="neon")
        self.assertEqual(result.returncode, 2, result)
        self.assertIn('environment: ESPALIER_ISA = "neon": this processor and its system have sse2', result.stderr)

    def test_info_names_the_level(self):
        said = run("info", ESPALIER_ISA="sse2").stdout
        level = r"instruction level sse2( by ESPALIER_ISA instead of \w+)?"
        self.assertRegex(said, rf"\ncpu        {level}, bf16 matmuls in fp32")

    def test_fp32_is_recommended_once_without_bf16_instructions(self):
        deck = ("check", TINY, "run.device=cpu")
        bf16, fp32, cuda = (run(*keys, ESPALIER_ISA="sse2").stdout for keys in
                            ([*deck, "precision.compute=bf16"], [*deck, "precision.compute=fp32"],
                             ["check", TINY, "precision.compute=bf16", "run.device=cuda"]))
        self.assertEqual([text.count("fp32 is as fast") for text in (bf16, fp32, cuda)], [1, 0, 0])


class Calibrate(unittest.TestCase):
    def test_needs_the_module_for_gpus(self):
        result = run("calibrate",
                     "--gemm-plans",
                     "plans.json",
                     "--deck",
                     TINY,
                     ESPALIER_CUDA_MODULE="/no/such/module.so")
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
        self.assertIn("espalier llama/tiny.toml data.paths=my.txt", "\n".join(self.answer("help").splitlines()[:4]))
        self.assertTrue(self.answer("--help", "batch").startswith("[batch] "))
        self.assertEqual(self.answer("--help=batch"), self.answer("--help", "batch"))
        self.assertIn("--restart", self.answer("run", "--help"))
        self.assertEqual(self.answer("help", "plan"), self.answer("plan", "--help"))

    def test_c4_help_is_a_command(self):
        self.assertEqual(self.answer("help"), self.answer("--help"))
        self.assertEqual(self.answer("help", "batch"), self.answer("--help", "batch"))

    def test_c4_one_text_says_what_a_command_does(self):
        general = " ".join(self.answer("help").split())
        for command in ("run", "supervise", "check", "plan", "simulate", "inspect", "sample", "evaluate", "report",
                        "calibrate", "selftest", "info"):
            summary = self.answer(command, "--help").splitlines()[0]
            self.assertIn(summary, general)

    def test_c4_help_on_a_name_of_a_command_and_a_section_is_on_both(self):
        for name, key in (("run", "run.steps"), ("report", "report.trace")):
            text = self.answer("help", name)
            self.assertTrue(text.startswith(self.answer(name, "--help")))
            self.assertIn(key.split(".")[1], text[len(self.answer(name, "--help")):])

    def test_c14_help_is_at_most_100_columns_wide(self):
        for topic in ("run", "supervise", "plan", "simulate", "sample", "evaluate", "report", "calibrate", "selftest",
                      "all", ""):
            lines = self.answer("help", *[topic] * bool(topic)).splitlines()
            self.assertEqual([line for line in lines if len(line) > 100], [])

    def test_c3_version(self):
        self.assertRegex(self.answer("--version"), r"^espalier \d+\.\d+\.\d+ \(\S+\)\n$")
        self.assertEqual(self.answer("-V"), self.answer("--version"))

    def test_reference_page(self):
        self.assertEqual(self.answer("doc-deck"), (ROOT / "doc/deck.md").read_text(encoding="ascii"))

    def test_check_prints_origins(self):
        text = self.answer("check", TINY, "run.steps=7")
        self.assertIn("803968 parameters, 2048 tokens a step, 7 steps, on 8 ranks", text.splitlines()[0])
        self.assertRegex(text, r"steps +=  *7 +# command line\n")
        self.assertRegex(text, r"heads +=  *4 +# .*inputs/llama/tiny\.toml:\d+\n")
        self.assertRegex(text, r"threads +=  *0 +# default\n")

    def test_check_says_what_auto_comes_to(self):
        said = lambda *keys, **environment: re.findall(r'^# run.device = "auto" (.*)',
                                                       self.answer("check", TINY, *keys, **environment), re.M)
        gone = said(ESPALIER_CUDA_MODULE="/no/such/module.so")
        self.assertEqual(
            gone,
            ["comes to cpu on this host: cuda: ESPALIER_CUDA_MODULE names /no/such/module.so, which is not there"])
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

    def test_strings_are_lists_of_one_and_home_is_expanded(self):
        with tempfile.TemporaryDirectory() as folder:
            deck = pathlib.Path(folder, "mine.toml")
            deck.write_text(f'include = ["{TINY}"]\n[data]\npaths = "a.txt"\nvalidation = ["~/b.txt"]\n',
                            encoding="ascii")
            text = self.answer("check", str(deck), "run.dir=~/runs", "data.tokenizer=~/t.json", HOME="/home/me")
            self.assertRegex(text, rf'paths += \["{folder}/a.txt"\]')
            self.assertRegex(text, r'validation += \["/home/me/b.txt"\]')
            self.assertRegex(text, r'dir += "/home/me/runs"')
            self.assertRegex(text, r'tokenizer += "/home/me/t.json"')
            text = self.answer("check", str(deck), "data.paths=~/c.txt", HOME="/home/me")
            self.assertRegex(text, r'paths += \["/home/me/c.txt"\]')

    def test_later_decks_win(self):
        with tempfile.TemporaryDirectory() as folder:
            best = pathlib.Path(folder, "best.toml")
            best.write_text("[run]\nsteps = 9\n[parallel]\ntp = 1\n", encoding="ascii")
            text = self.answer("check", TINY, str(best), "run.steps=11", "--ranks", "4")
        self.assertIn("11 steps, on 4 ranks", text)
        self.assertRegex(text, rf"tp += 1 +# {best}:4")

    def test_decks_are_found_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            here = os.getcwd()
            try:
                os.chdir(folder)
                for name in ("llama/tiny.toml", "inputs/llama/tiny.toml"):
                    text = self.answer("check", name)
                    self.assertIn("on any number of ranks", text)
                    self.assertIn(f"{ROOT}/inputs/llama/tiny.toml:", text)
            finally:
                os.chdir(here)

    def test_every_input_passes_check(self):
        decks = sorted(p for p in (ROOT / "inputs").rglob("*.toml") if p.parent.name != "clusters")
        self.assertGreaterEqual(len(decks), 4)
        for deck in decks:
            self.answer("check", str(deck))

    def test_plan_counts_flops(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "plan.json")
            text = self.answer("plan", str(ROOT / "inputs/gpt2/124m.toml"), "--ranks", "8", "batch.global=8", "--json",
                               str(path))
            plan = json.loads(path.read_text(encoding="ascii"))
        self.assertIn(
            "flops       798 MFLOP per token, causal; 854 MFLOP with full attention; 817 GFLOP per step and rank",
            text)
        self.assertEqual((plan["parameters"], plan["flops_per_token"]),
                         (124439808, {"causal": 797815296, "full": 854438400}))

    def test_b2_plan_says_its_device(self):
        said = lambda *keys, **environment: re.findall(r"^planned for (.*)",
                                                       self.answer("plan", TINY, *keys, **environment), re.M)
        self.assertEqual(said(ESPALIER_CUDA_MODULE="/no/such/module.so"), [
            'cpu (run.device = "auto" on this host; cuda: ESPALIER_CUDA_MODULE names /no/such/module.so, which is not '
            "there)"
        ])
        self.assertEqual(said("run.device=cpu"), ['cpu (run.device = "cpu")'])
        self.assertEqual(said("run.device=cuda"), ['cuda (run.device = "cuda")'])

    def test_b2_plan_is_for_people(self):
        text = self.answer("plan", str(ROOT / "inputs/llama/8b.toml"), "--ranks", "64", "run.device=cuda")
        self.assertEqual([line for line in text.splitlines() if len(line) > 160], [])
        self.assertIn("llama, 8030261248 (8.03 B) parameters, bf16 compute\n", text)
        self.assertRegex(text, r"largest     \d+\.\d GiB \(\d+\.\d GB, \d+ bytes\)\n")
        self.assertRegex(text, r"fits        GPUs of 80 GB and more: \d+\.\d GB free on 80 GB, .* short on 40 GB; .*\n")
        self.assertRegex(self.answer("plan", TINY),
                         r"fits        this host has .*B available: enough for \d+ such ranks\n")

    def test_b2_a_long_timeline_shows_the_steady_state(self):
        text = self.answer("plan", TINY, "batch.global=256", "run.device=cpu")
        rows = re.findall(r"^stage \d \| .*", text, re.M)
        self.assertEqual(len(rows), 2)
        for row in rows:
            self.assertRegex(row, r" \.\.\. .*BW\d+=* .*F\d+.* \.\.\.$")
            self.assertLessEqual(len(row), 160)

    def test_b3_json_beside_a_program(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "plan.json")
            text = self.answer("plan", TINY, "--program", "1", "--json", str(path), "run.device=cpu")
            plan = json.loads(path.read_text(encoding="ascii"))
        self.assertEqual((plan["ranks"], plan["device"]), (8, "cpu"))
        self.assertTrue(text.startswith("# index lane role"), text[:200])

    def test_c11_lines_of_a_program_are_bounded(self):
        lines = self.answer("plan", TINY, "--program", "1").splitlines()
        # A name that is longer than a line stays whole.
        self.assertEqual([line for line in lines if len(line) > 120 and " " in line.strip()], [])
        self.assertGreater(len(lines), 100)

    def test_info(self):
        text = self.answer("info")
        for line in (r"espalier +\d+\.\d+\.\d+ \(", r"cuda +(module loaded|not available)",
                     r"cpu +instruction level \w+, bf16 matmuls in ", r"mpi +built in \("):
            self.assertRegex(text, line)
        self.assertNotIn("cannot be loaded", text)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
