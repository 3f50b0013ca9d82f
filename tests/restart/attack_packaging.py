"""The needs of a newcomer before the first step: licence, packages, build, README, scripts. Every function is named
after the finding that it covers."""
import os, re, shlex, shutil, subprocess, tempfile

from support.recorded import recorded
from support.runs import Checks, DECK, ENVIRONMENT, ROOT, executable

PATIENCE = 600
# Programs that the scripts themselves call, besides the ones that packages.txt lists.
PROGRAMS = ["bash", "sed", "tr", "cat", "mktemp", "rm", "dirname", "env", "as", "ld", "nproc"]
ASKED_FOR = ["c++", "git", "meson", "ninja", "pkg-config", "mpicxx", "mpirun", "python3", "h5dump"]


def call(line, environment=(), **options):
    variables = {**{k: v for k, v in ENVIRONMENT.items() if not k.startswith("SLURM_")}, **dict(environment)}
    done = recorded(subprocess.run(line, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, **options))
    return done.returncode, done.stdout


def script(name, *arguments, **options):
    return call([os.path.join(ROOT, "jobscripts", name), *arguments], **options)


def text_of(name):
    with open(os.path.join(ROOT, name)) as file:
        return file.read()


def a8_licence(checks, _):
    licence = text_of("LICENSE")
    whole = "Apache License" in licence and "END OF TERMS AND CONDITIONS" in licence
    checks.that(whole, "A8: LICENSE holds all of Apache-2.0")
    checks.that("license: 'Apache-2.0'" in text_of("meson.build"), "A8: the build names it")
    checks.that("(LICENSE)" in text_of("README.md"), "A8: the README names it")


def b7_packages_without_dpkg(checks, scratch):
    """A PATH without dpkg and apt-get, as with modules on another distribution."""
    folder = os.path.join(scratch, "bin")
    os.makedirs(folder)
    for name in PROGRAMS + ASKED_FOR:
        os.symlink(shutil.which(name), os.path.join(folder, name))
    status, text = script("install_packages.sh", environment={"PATH": folder})
    checks.that(status == 0 and "shellcheck" in text and "tests alone" in text,
                f"B7: what is there is taken, what only the tests lack is named ({status}: {text.strip()})")
    os.remove(os.path.join(folder, "mpicxx"))
    status, text = script("install_packages.sh", environment={"PATH": folder})
    checks.that(status == 1 and "program mpicxx (Debian: libopenmpi-dev)" in text, "B7: a missing program is named")
    checks.that("fmt" not in text.split("apt-get")[0], "B7: nothing else is")


def path_without(names, scratch):
    """A PATH with everything but some programs."""
    folder = os.path.join(scratch, "path")
    os.makedirs(folder)
    for source in filter(os.path.isdir, os.environ["PATH"].split(":")):
        for name in os.listdir(source):
            if name not in names and not os.path.lexists(os.path.join(folder, name)):
                os.symlink(os.path.join(source, name), os.path.join(folder, name))
    return folder


def b7_hdf5_under_its_own_name(checks, scratch):
    """pkg-config knows HDF5 as hdf5, its upstream name, and not as Debian's hdf5-serial; or knows neither, but h5cc
    exists."""
    if call(["pkg-config", "--exists", "hdf5-serial"])[0] != 0:
        print("skipped: pkg-config knows no hdf5-serial to hide")
        return
    folders = call(["pkg-config", "--variable=pc_path", "pkg-config"])[1].strip().split(":")
    hidden = os.path.join(scratch, "pkgconfig")
    os.makedirs(hidden)
    for folder in reversed([f for f in folders if os.path.isdir(f)]):
        for name in os.listdir(folder):
            if name.endswith(".pc") and not name.startswith("hdf5"):
                shutil.copyfile(os.path.join(folder, name), os.path.join(hidden, name))
    def setup(name, **environment):
        return call(["meson", "setup", "-Dcuda=disabled", "-Dtests=disabled", os.path.join(scratch, name), ROOT],
                    {"PKG_CONFIG_LIBDIR": hidden, **environment})

    if not os.path.exists("/usr/include/hdf5.h"):
        if shutil.which("h5cc"):
            checks.that(setup("wrapper")[0] == 0, "B7: HDF5 is found by its compiler wrapper")
        status, text = setup("without", PATH=path_without(["h5cc", "h5pcc"], scratch))
        told = all(word in text for word in ["HDF5 1.10 or later is missing", "PKG_CONFIG_PATH", "libhdf5-dev"])
        checks.that(status != 0 and told, "B7: without HDF5 the error says what to do")
    shutil.copyfile(next(p for f in folders if os.path.exists(p := os.path.join(f, "hdf5-serial.pc"))),
                    os.path.join(hidden, "hdf5.pc"))
    status, text = setup("with")
    checks.that(status == 0, f"B7: HDF5 is found under its own name{'' if status == 0 else ': ' + text[-300:]}")


def commands_of(text):
    """The lines of a document's code blocks that start the program, as words. Blocks with a language show output."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.S | re.M):
        if language:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "build/espalier" in words:
                yield words[words.index("build/espalier") + 1:]


def b8_readme(checks, scratch):
    text = text_of("README.md")
    more = text + text_of("doc/features.md") + text_of("doc/cheat-sheet.md")
    for word in ["GPT-2", "context", "watchdog", "Slurm", "data.paths=my.txt"]:
        checks.that(word in text, f"B8: the README speaks of {word}")
    for word in ["guard", "proved", "USR1"]:
        checks.that(word in more, f"B8: the first pages speak of {word}")
    for link in re.findall(r"\]\(([^)#:]+)", text):
        checks.that(os.path.exists(os.path.join(ROOT, link)), f"B8: {link} is there")
    with open(os.path.join(scratch, "my.txt"), "w") as file:
        file.write("Once there was an odd number of words. " * 41)
    decks = [words for words in commands_of(more) if words[0].startswith("inputs/")]
    checks.that(len(decks) >= 3, f"B8: the first pages start {len(decks)} runs")
    for words in decks:
        status, said = call([executable(), "check", os.path.join(ROOT, words[0]), *words[1:]], cwd=scratch)
        checks.that(status == 0, f"B8: {' '.join(words)} is right{'' if status == 0 else ': ' + said}")
    own = next(words for words in decks if "data.paths" in " ".join(words))
    status, said = call([executable(), os.path.join(ROOT, own[0]), *own[1:], "run.steps=3"], cwd=scratch)
    made = os.path.isdir(os.path.join(scratch, "runs/mine/checkpoints/step-00000003"))
    checks.that(status == 0 and made, f"B8: a text of one's own is trained on{'' if status == 0 else ': ' + said}")


def b9_the_deck_before_the_build(checks, scratch):
    status, text = script("workstation.sh", "nodeck.toml", cwd=scratch)
    told = text.startswith("nodeck.toml: no such file")
    checks.that(status == 2 and told, f"B9: a deck that is not there ends at once ({status})")
    checks.that("ninja" not in text, "B9: before anything is built")


def b9_names_the_target(checks, _):
    checks.that("ninja -C build espalier" in text_of("doc/start.md"), "B9: start.md builds the executable alone")


def c13_batch_script_outside_slurm(checks, scratch):
    status, text = script("slurm.sbatch", "x.toml", cwd=scratch)
    told = "sbatch jobscripts/slurm.sbatch DECK" in text
    checks.that(status == 2 and told, "C13: the batch script says how it is started")


def slurm_chain_that_would_begin_anew(checks, scratch):
    environment = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": ROOT}
    status, text = script("slurm.sbatch", DECK, "checkpoint.restart=never", environment=environment,
                          cwd=scratch)
    checks.that(status == 2 and 'set it to "auto"' in text, f"a chain with restart = never is refused: {text.strip()}")


def main():
    checks = Checks()
    for finding in [a8_licence, b7_packages_without_dpkg, b7_hdf5_under_its_own_name, b8_readme,
                    b9_the_deck_before_the_build, b9_names_the_target, c13_batch_script_outside_slurm,
                    slurm_chain_that_would_begin_anew]:
        with tempfile.TemporaryDirectory() as scratch:
            checks.each([finding], scratch)
    checks.finish()


if __name__ == "__main__":
    main()
