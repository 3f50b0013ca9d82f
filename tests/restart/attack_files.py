"""Files that are not regular files, are endless, or belong to others: every reader refuses them at once, with the
reason. Outputs on a full disk. Names of decks that no deck can have."""

import json, os, resource, shutil, struct, subprocess

from support.recorded import recorded
from support.runs import Checks, DECK, ENVIRONMENT, ROOT, executable, launch, scratch

PATIENCE = 120  # seconds, for operations that should take less than one
TOKENIZER = os.path.join(ROOT, "tests", "data", "tokenizer.json")
SMALL = ["run.steps=1", "model.layers=2", "model.vocab=611", "batch.global=2", "parallel.pp=1", "parallel.tp=1",
         "parallel.dp_shard=-1", "report.trace=1:1"]
REASONS = {"pipe": "is not a file but a pipe", "device": "is not a file but a device",
           "folder": "is a folder, not a ", "endless": "has 1099511627776 bytes, and a "}
NO_TOKENIZER = "has neither tokenizer.json nor tokenizer.model"  # message about a folder
SECRET = "a private key of the user"


def ran(*arguments, most_bytes=None):
    """The finished process; with `most_bytes` no file may be larger, which emulates a full disk."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
    return recorded(subprocess.run([executable(), *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, encoding="utf-8", errors="surrogateescape",
                                   timeout=PATIENCE, stdin=subprocess.DEVNULL, preexec_fn=most_bytes and limit))


def bad_files(home):
    folder = os.path.join(home, "bad")
    os.makedirs(os.path.join(folder, "folder"))
    os.mkfifo(os.path.join(folder, "pipe"))
    os.symlink("/dev/zero", os.path.join(folder, "device"))
    with open(os.path.join(folder, "endless"), "wb") as file:
        file.truncate(1 << 40)
    return {kind: os.path.join(folder, kind) for kind in REASONS}


def with_link(model, folder, name, target, without=()):
    """A copy of a folder in which a file is a link."""
    shutil.copytree(model, folder, symlinks=True, ignore=shutil.ignore_patterns(os.path.basename(name), *without))
    os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
    os.symlink(target, os.path.join(folder, name))
    return folder


def text_with(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def holds(folder, secret):
    """Whether a file below the folder has these bytes."""
    for where, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(where, name), "rb") as file:
                if secret.encode() in file.read():
                    return True
    return False


def named_by_the_user(checks, home, run, model):
    """Files named on the command line and in decks."""
    text = text_with(os.path.join(home, "text"), "one two three\n")
    for kind, bad in bad_files(home).items():
        include = text_with(os.path.join(home, f"{kind}.toml"), f"include = ['{bad}']\n")
        out = os.path.join(home, f"{kind}.tokens")
        with_link(os.path.join(home, "bad", "folder"), out + ".parts", "job", bad)
        rows = [("a deck", 2, ["check", bad]), ("an include", 2, ["check", include]),
                ("a cluster file", 2, ["simulate", DECK, "--cluster", bad]),
                ("report.costs", 2, ["run", DECK, *SMALL, "-d", out + "-run", f"report.costs={bad}"]),
                ("data.tokenizer", 3, ["run", DECK, *SMALL, "-d", out + "-run", f"data.tokenizer={bad}"]),
                ("sample --tokenizer", 3, ["sample", f"{run}/checkpoints/latest", "--tokenizer", bad, "--prompt", "a"]),
                ("tokenize TOKENIZER", 3, ["tokenize", bad, text, "--show"]),
                ("what tokenize has begun", 3, ["tokenize", TOKENIZER, text, "-o", out])]
        if kind in ("pipe", "device"):
            rows += [("a text", 3, ["tokenize", TOKENIZER, bad, "-o", out + "2"]),
                     ("a text to show", 3, ["tokenize", TOKENIZER, bad, "--show"]),
                     ("data.paths", 3, ["run", DECK, *SMALL, "-d", out + "-run", f"data.paths=['{bad}']"]),
                     ("data.paths of HDF5", 3, ["run", DECK, *SMALL, "-d", out + "-run", f"data.paths=['{bad}']",
                                                "data.format=hdf5"])]
        for what, status, arguments in rows:
            done, reason = ran(*arguments), REASONS[kind]
            if kind == "folder" and "tokenizer" in what.lower() and what != "what tokenize has begun":
                reason = NO_TOKENIZER
            if (what, kind) == ("a deck", "endless"):
                reason = "this is a text, not a deck"
            checks.that(done.returncode == status and reason in done.stdout,
                        f"{what} that is a {kind}: exit status {done.returncode}, {done.stdout.strip()[-200:]!r}")


def of_a_strangers_folder(checks, home, run, model):
    """Files that a folder of Hugging Face or of a run contains."""
    for kind in REASONS:
        bad, what = os.path.join(home, "bad", kind), os.path.join(home, "from-" + kind)

        def imported(name, without=()):
            folder = with_link(model, f"{what}-{name}", name, bad, without)
            return ran("import", folder, folder + "-run")

        config, weights = imported("config.json"), imported("model.safetensors")
        index = imported("model.safetensors.index.json", without=["model.safetensors"])
        metrics = ran("report", with_link(run, what + "-metrics", "metrics.jsonl", bad))
        for name, done in (("config.json", config), ("index", index), ("metrics.jsonl", metrics), ("weights", weights)):
            reason = "header: " if (name, kind) == ("weights", "endless") else REASONS[kind]
            checks.that(done.returncode == 3 and reason in done.stdout,
                        f"{name} that is a {kind}: exit status {done.returncode}, {done.stdout.strip()[-200:]!r}")
        tokenizer = imported("tokenizer.json")
        checks.that(tokenizer.returncode == 0 and "tokenizer: none: " in tokenizer.stdout and
                    (NO_TOKENIZER if kind == "folder" else REASONS[kind]) in tokenizer.stdout,
                    f"a tokenizer that is a {kind} is left out: {tokenizer.stdout!r}")
        page = ran("report", with_link(run, what + "-trace", "trace/step-00000001.json", bad))
        with open(os.path.join(what + "-trace", "report.html"), encoding="utf-8") as file:
            checks.that(page.returncode == 0 and REASONS[kind] in file.read(), f"a trace that is a {kind} is not shown")


def links_of_a_strangers_folder(checks, home, run, model):
    """A tokenizer's companion file is kept in checkpoints and exports: never a file from elsewhere."""
    private = text_with(os.path.join(home, "private"), SECRET)
    folder = with_link(model, os.path.join(home, "linked"), "chat_template.jinja", private)
    text_with(os.path.join(folder, "other.json"), '{"inside": 7}')
    os.remove(os.path.join(folder, "generation_config.json"))
    os.symlink("other.json", os.path.join(folder, "generation_config.json"))
    os.symlink(os.path.join(home, "bad", "pipe"), os.path.join(folder, "tokenizer_config.json"))
    imported, trained = os.path.join(home, "linked-run"), os.path.join(home, "linked-trained")
    done = ran("import", folder, imported)
    kept = "kept with it: generation_config.json\n"
    checks.that(done.returncode == 0 and kept in done.stdout, f"a link within the folder is kept: {done.stdout!r}")
    checks.that("chat_template.jinja: is a link that leaves its folder" in done.stdout and
                "tokenizer_config.json: is a link that leaves its folder" in done.stdout,
                "others are left out, by name")
    again = ran("run", DECK, *SMALL, "-d", trained, f"data.tokenizer={folder}/tokenizer.json")
    checks.that(again.returncode == 0 and "warning: " in again.stdout and
                "chat_template.jinja: is a link that leaves its folder: not kept" in again.stdout, "a run warns of it")
    ran("export", f"{trained}/checkpoints/latest", os.path.join(home, "linked-export"))
    for where in (imported, trained, os.path.join(home, "linked-export")):
        checks.that(holds(where, '"inside": 7') and not holds(where, SECRET), f"no private file is in {where}")


def links_of_the_hubs_cache(checks, home, run, model):
    cache = os.path.join(home, "models--a--b")
    shutil.copytree(model, os.path.join(cache, "blobs"))
    snapshot = os.path.join(cache, "snapshots", "7f3a")
    os.makedirs(snapshot)
    for name in os.listdir(model):
        os.symlink(os.path.join("..", "..", "blobs", name), os.path.join(snapshot, name))
    os.symlink(os.path.join(home, "private"), os.path.join(snapshot, "chat_template.jinja"))
    done = ran("import", snapshot, os.path.join(home, "cache-run"))
    checks.that("kept with it: generation_config.json\n" in done.stdout and
                "chat_template.jinja: is a link that leaves its folder" in done.stdout,
                f"blobs are kept: {done.stdout!r}")


def many_unknown_tensors(checks, home, run, model):
    """Quadratic time would take minutes."""
    count = 300_007
    folder = os.path.join(home, "many")
    shutil.copytree(model, folder)
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"x{i}": empty for i in range(count)}).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
    done = ran("import", folder, os.path.join(home, "many-run"))
    listed = done.stdout.count("\n") - 1
    checks.that(done.returncode == 3 and listed < 30 and f"{count} more" not in done.stdout and " more" in done.stdout,
                f"{count} unknown tensors are refused, {listed} lines are printed")


def weights_that_are_not_finite(checks, home, run, model):
    folder = os.path.join(home, "nan")
    shutil.copytree(model, folder)
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as file:
        data = bytearray(file.read())
    length, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    for name, values in (("model.layers.1.mlp.up_proj.weight", ["nan"] * 5), ("model.norm.weight", ["inf", "-inf"])):
        begin = 8 + length + header[name]["data_offsets"][0]
        for i, value in enumerate(values):
            struct.pack_into("<f", data, begin + 4 * (2 * i + 1), float(value))
    with open(path, "wb") as file:
        file.write(data)
    done = ran("import", folder, os.path.join(home, "nan-run"))
    checks.that(done.returncode == 0 and "warning: weights that are NaN or infinite, with which no step is finite: "
                "model.layers.1.mlp.up_proj.weight (5), model.norm.weight (2)\n" in done.stdout,
                f"an import names tensors that are not finite: {done.stdout!r}")
    checks.that("NaN" not in ran("import", model, os.path.join(home, "finite-run")).stdout, "... and only such")


def numbers_that_no_run_writes(checks, home, run, model):
    folder = os.path.join(home, "huge")
    os.makedirs(folder)
    lines = [{"step": i + 1, "loss": 7 - i / 10, "grad_norm": 1.5} for i in range(9)]
    for i, value in ((2, 1e308), (4, -1e308), (5, 1.7e308)):
        lines[i]["loss"] = value
    lines[6]["exposed_ms"] = {"tp": 1e300}
    text_with(os.path.join(folder, "metrics.jsonl"), "".join(json.dumps(line) + "\n" for line in lines))
    done = ran("report", folder)
    with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
        page = file.read()
    checks.that(done.returncode == 0 and "4 lines of metrics.jsonl cannot be read" in page and
                "line 3 has a number beyond 1e+100" in page and "6.2" in page,
                f"report shows the others: {done.stdout!r}")


def full_disks(checks, home, run, model):
    page = os.path.join(run, "report.html")
    new = ran("report", run, most_bytes=20_000)
    checks.that(new.returncode == 1 and f"{page}: cannot write: File too large" in new.stdout and
                not os.path.exists(page), f"report leaves no part of a page: {new.returncode}, {new.stdout!r}")
    text_with(page, "the page before")
    ran("report", run, most_bytes=20_000)
    with open(page, encoding="utf-8") as file:
        checks.that(file.read() == "the page before", "... and the page before stays")
    text = text_with(os.path.join(home, "long"), "seven words are in this one line\n" * 3001)
    here, there = os.path.join(home, "here.tokens"), os.path.join(home, "there.tokens")
    done = ran("tokenize", TOKENIZER, text, "-o", here, most_bytes=20_000)
    checks.that(done.returncode == 1 and "cannot write: File too large" in done.stdout and not os.path.exists(here),
                f"tokenize ends with 1: {done.returncode}, {done.stdout!r}")
    again, other = ran("tokenize", TOKENIZER, text, "-o", here), ran("tokenize", TOKENIZER, text, "-o", there)
    with open(here, "rb") as one, open(there, "rb") as two:
        checks.that(again.returncode == other.returncode == 0 and one.read() == two.read(),
                    "... and goes on from there")


def outputs_that_are_links_or_devices(checks, home, run, model):
    page, link = os.path.join(home, "page.html"), os.path.join(home, "link.html")
    os.symlink(page, link)
    text_with(page, "old")
    done = ran("report", run, "-o", link)
    with open(page, encoding="utf-8") as file:
        checks.that(done.returncode == 0 and os.path.islink(link) and "<html" in file.read(),
                    "a link is written through")
    done = ran("plan", DECK, "--json", "/dev/stdout")
    checks.that(done.returncode == 0 and '"rank_peak_bytes"' in done.stdout, "a device is written to, not replaced")


def names_of_decks(checks, home, run, model):
    latin = b"bad\xff".decode(errors="surrogateescape")
    for name, shown in (("tab\tx", "tab?x"), ("new\nline", "new?line"), (latin, "bad?")):
        path = os.path.join(home, name + ".toml")
        shutil.copy(DECK, path)
        done = ran("check", path, f"data.paths=['{ROOT}/tests/oracle/data/text.txt']")
        why = 'must be UTF-8 without control characters (it follows from "runs/<deck name>": set it)'
        checks.that(done.returncode == 2 and done.stdout.startswith("espalier: error\n") and
                    f"{shown}.toml: run.dir = " in done.stdout and why in done.stdout,
                    f"a deck named {shown}: {done.stdout!r}")
        checks.that(ran("check", path, "run.dir=x").returncode == 0, "... with run.dir it is a deck as any")


def main():
    checks = Checks()
    with scratch() as home:
        run, model = os.path.join(home, "run"), os.path.join(home, "model")
        for arguments in (["run", DECK, *SMALL, "-d", run], ["export", f"{run}/checkpoints/latest", model]):
            assert launch(1, arguments).returncode == 0, arguments
        shutil.copy(TOKENIZER, model)
        checks.each((named_by_the_user, of_a_strangers_folder, links_of_a_strangers_folder, links_of_the_hubs_cache,
                     many_unknown_tensors, weights_that_are_not_finite, numbers_that_no_run_writes, full_disks,
                     outputs_that_are_links_or_devices, names_of_decks), home, run, model)
    checks.finish()


main()
