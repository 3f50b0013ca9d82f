"""`meson install` into a folder of its own, and everything that was installed at work from there: install.py BUILD.

Builds nothing: what is installed must be there already. Exit status 77 without Meson: skipped."""
import configparser
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1]).resolve()
MESON = shutil.which("meson")
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "ESPALIER", "OMPI_"))}
ENVIRONMENT |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
ONE_RANK = ["parallel.pp=1", "parallel.dp_shard=1", "parallel.tp=1"]
SHORT = [*ONE_RANK, "run.steps=2", "run.device=cpu", "batch.global=2"]


def call(command, **options):
    environment = ENVIRONMENT | options.pop("env", {})
    words = [str(word) for word in command]
    return subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=300,
                          text=True, errors="replace", check=False, **options)


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.scratch = pathlib.Path(scratch.name)
        cls.destdir = cls.scratch / "root"
        done = call([MESON, "install", "-C", BUILD, "--no-rebuild", "--destdir", cls.destdir])
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        listed = call([MESON, "introspect", BUILD, "--buildoptions"])
        options = {option["name"]: option["value"] for option in json.loads(listed.stdout)}
        cls.prefix = options["prefix"]
        cls.root = cls.destdir / cls.prefix.lstrip("/")
        cls.folders = {name: options[name] for name in ("bindir", "libdir", "datadir", "mandir")}
        cls.espalier = cls.root / cls.folders["bindir"] / "espalier"
        cls.share = cls.root / cls.folders["datadir"] / "espalier"
        cls.tiny = cls.share / "inputs/llama/tiny.toml"

    def answer(self, *command, **options):
        done = call(command, cwd=self.scratch, **options)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return done.stdout

    def test_the_version_is_one_line(self):
        self.assertRegex(self.answer(self.espalier, "--version"), r"^espalier \d+\.\d+\.\d+ \(\S+\)\n$")

    def test_check_and_plan_of_an_installed_deck(self):
        self.assertIn("803968 parameters", self.answer(self.espalier, "check", self.tiny))
        self.assertIn("stage 0", self.answer(self.espalier, "plan", self.tiny, "--ranks", 8, "run.device=cpu"))

    def test_every_installed_deck_passes_check(self):
        decks = sorted(path for path in (self.share / "inputs").rglob("*.toml") if path.parent.name != "clusters")
        self.assertGreaterEqual(len(decks), 4)
        for deck in decks:
            self.answer(self.espalier, "check", deck)

    def test_an_installed_deck_trains_on_the_installed_sources(self):
        home = self.scratch / "run"
        self.answer(self.espalier, "run", self.tiny, "-d", home, *SHORT)
        self.assertTrue((home / "done").exists())

    def test_the_jobscript_for_workstations(self):
        script = self.share / "jobscripts/workstation.sh"
        done = call([script, *SHORT, f"run.dir={self.scratch}/workstation"], cwd=self.scratch, env={"RANKS": "1"})
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("a text from", done.stdout)
        self.assertNotIn("ninja", done.stdout)

    def test_the_jobscript_for_slurm_finds_its_installation(self):
        tools = self.scratch / "slurm"
        tools.mkdir()
        script = self.share / "jobscripts/slurm.sbatch"
        (tools / "scontrol").write_text(f"#!/bin/sh\necho '   Command={script} deck.toml'\n")
        (tools / "scontrol").chmod(0o755)
        job = {"SLURM_JOB_ID": "1", "SLURM_SUBMIT_DIR": str(self.scratch), "PATH": f"{tools}:{ENVIRONMENT['PATH']}"}
        copy = shutil.copy(script, tools / "slurm_script")  # as in the spool folder of Slurm
        for started in (copy, script):
            done = call(["bash", started], env=job)
            self.assertEqual(done.returncode, 2, done)
            self.assertIn("which deck?", done.stdout)
        done = call(["bash", copy], env=job | {"ESPALIER_ROOT": "/nowhere"})
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("/nowhere holds no jobscripts/common.sh", done.stderr)

    def test_jobs_of_pbs_and_lsf_use_the_installation(self):
        queue = self.scratch / "queue"
        (queue / "jobs").mkdir(parents=True)
        path = f"{ROOT / 'tests/jobscripts/stand_ins'}:{ENVIRONMENT['PATH']}"
        for number, name in enumerate(("pbs.sh", "lsf.sh")):
            script = self.share / "jobscripts" / name
            self.answer(script, "-q", "short", "--", self.tiny, f"run.dir={self.scratch / name}",
                        env={"PATH": path, "STAND_INS": str(queue)})
            submitted = (queue / f"jobs/{number}").read_text().split("\0")
            self.assertIn(str(script), submitted)
            self.assertIn("short", submitted)

    def test_the_selftest_passes(self):
        self.assertIn("selftest passed", self.answer(self.espalier, "selftest"))

    def test_the_module_for_gpus_is_found_wherever_the_prefix_is(self):
        folder = pathlib.Path(self.folders["libdir"]) / "espalier"
        moved = self.scratch / "elsewhere"
        shutil.copytree(self.root, moved, symlinks=True)
        for root in (self.root, moved):
            said = self.answer(root / self.folders["bindir"] / "espalier", "info")
            if (self.root / folder / "espalier_cuda.so").exists():
                self.assertNotIn("this build has no espalier_cuda.so", said)
            else:
                self.assertIn(f"nor in {root / folder} ", said)

    def test_documents(self):
        documents = self.root / self.folders["datadir"] / "doc/espalier"
        for name in ("README.md", "LICENSE", "doc/deck.md", "doc/install.md"):
            self.assertTrue((documents / name).resolve().is_relative_to(self.share.resolve()), name)
            self.assertTrue((documents / name).is_file(), name)

    def test_modulefiles(self):
        version = self.answer(self.espalier, "--version").split()[1]
        folder = self.share / "modulefiles"
        bindir = os.path.join(self.prefix, self.folders["bindir"])
        share = os.path.join(self.prefix, self.folders["datadir"], "espalier")
        lua = (folder / f"lmod/espalier/{version}.lua").read_text()
        self.assertIn(f'prepend_path("PATH", "{bindir}")', lua)
        self.assertIn(f'setenv("ESPALIER_ROOT", "{share}")', lua)
        self.assertNotIn("@", lua)
        if not shutil.which("tclsh"):
            self.skipTest("no tclsh")
        commands = "".join(f"proc {name} {{args}} {{ puts [list {name} {{*}}$args] }}\n"
                           for name in ("module-whatis", "conflict", "prepend-path", "setenv"))
        script = self.scratch / "module.tcl"
        script.write_text(f"{commands}source {folder}/tcl/espalier/{version}\n")
        said = self.answer("tclsh", script).splitlines()
        self.assertIn(f"prepend-path PATH {bindir}", said)
        self.assertIn(f"setenv ESPALIER_ROOT {share}", said)

    def test_the_manual_page(self):
        page = self.root / self.folders["mandir"] / "man1/espalier.1"
        text = page.read_text(encoding="ascii")
        for word in (".SH SYNOPSIS", ".SS plan", ".SS [pipeline]", "ESPALIER_CUDA_MODULE", "batch.micro"):
            self.assertIn(word, text)
        if not shutil.which("groff"):
            self.skipTest("no groff")
        self.answer("groff", "-man", "-Tascii", "-ww", "-z", page)
        shown = re.sub(r".\x08", "", self.answer("groff", "-man", "-Tascii", "-P-c", page))
        self.assertIn("--temperature X", shown)
        self.assertIn("NAME\n       espalier - ", shown)

    def completions(self, line):
        script = self.root / self.folders["datadir"] / "bash-completion/completions/espalier"
        program = f'source {script}; COMP_LINE=$1 COMP_POINT=${{#1}}; _espalier; printf "%s\\n" "${{COMPREPLY[@]}}"'
        return self.answer("bash", "-c", program, "bash", line).split()

    def test_completion_in_bash(self):
        deck = self.tiny.relative_to(self.scratch)
        self.assertEqual(self.completions("espalier pl"), ["plan"])
        self.assertIn("calibrate", self.completions("espalier "))
        self.assertIn("selftest", self.completions("espalier "))
        self.assertEqual(self.completions("espalier plan --pro"), ["--program"])
        self.assertEqual(self.completions("espalier sample x --see"), ["--seed"])
        self.assertEqual(self.completions(f"espalier {deck.parent}/tiny."), [str(deck)])
        self.assertEqual(self.completions(f"espalier {deck} batch.mi"), ["batch.micro="])
        self.assertEqual(self.completions(f"espalier plan {deck} --ranks 8 pipeline.sp"), ["pipeline.split="])
        self.assertEqual(self.completions(f"espalier run -r latest {deck} data.sh"), ["data.shuffle="])
        self.assertIn("zb-h1", self.completions(f"espalier {deck} pipeline.schedule="))
        self.assertEqual(self.completions(f"espalier {deck} data.shuffle=t"), ["true"])
        self.assertEqual(self.completions(f"espalier plan {deck} --ranks "), [])
        self.assertEqual(self.completions("espalier run -r lat"), ["latest"])
        self.assertEqual(self.completions("espalier help pipeline.ch"), ["pipeline.chunks"])

    def test_completion_offers_only_what_exists(self):
        for command in self.completions("espalier "):
            if not os.path.exists(self.scratch / command):
                self.answer(self.espalier, "help", *[command] * (command != "help"))
        for command in ("run", "plan", "inspect", "sample", "calibrate", "selftest"):
            listed = self.answer(self.espalier, command, "--help")
            for option in self.completions(f"espalier {command} -"):
                self.assertIn(option, listed)
        for key in self.completions("espalier check x.toml "):
            self.answer(self.espalier, "help", key.rstrip("="))

    def test_completion_in_zsh(self):
        script = self.root / self.folders["datadir"] / "zsh/site-functions/_espalier"
        self.assertTrue(script.read_text().startswith("#compdef espalier\n"))
        if not shutil.which("zsh"):
            self.skipTest("no zsh")
        self.answer("zsh", "-n", script)


class FakeSpec(dict):
    """As much of Spack's spec as the package asks for."""

    variants = {"cuda_arch": types.SimpleNamespace(value=("90",))}

    def __contains__(self, variant):
        return variant in ("+tests", "+cuda")

    def __missing__(self, name):
        return types.SimpleNamespace(libs=types.SimpleNamespace(directories=[f"/{name}/lib"]))


class Recipes(unittest.TestCase):
    def test_the_spack_package_names_options_that_exist(self):
        """With stubs for Spack, which is not needed here."""
        file = ROOT / "packaging/spack/packages/espalier/package.py"
        directives = ("version", "variant", "depends_on", "conflicts", "license", "resource")
        module = {name: lambda *_, **__: None for name in directives} | {"when": lambda _: contextlib.nullcontext()}
        module |= {name: type(name, (), {}) for name in ("MesonPackage", "CudaPackage")} | {"__file__": str(file)}
        text = re.sub(r"from spack.*import .*", "pass", file.read_text())
        exec(compile(text, file, "exec"), module)
        package = module["Espalier"]()
        self.assertTrue(os.path.exists(os.path.join(package.git, "meson.build")))
        package.spec = FakeSpec()
        options = {option["name"] for option in json.loads(call([MESON, "introspect", BUILD, "--buildoptions"]).stdout)}
        given = dict(argument.removeprefix("-D").split("=", 1) for argument in package.meson_args())
        self.assertLessEqual(set(given), options)
        self.assertEqual(given["gpu_libraries"], "/cuda/lib,/cudnn/lib,/nccl/lib")

    def test_wraps_have_hashes_and_their_build_files(self):
        wraps = sorted((ROOT / "subprojects").glob("*.wrap"))
        self.assertEqual(len(wraps), 6)
        for wrap in wraps:
            values = configparser.ConfigParser()
            values.read(wrap)
            source = values["wrap-file"]
            self.assertRegex(source["source_hash"], "^[0-9a-f]{64}$")
            if "patch_directory" in source:
                folder = ROOT / "subprojects/packagefiles" / source["patch_directory"]
                self.assertTrue((folder / "meson.build").exists())


if __name__ == "__main__":
    if MESON is None:
        print("skipped: Meson is missing")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
