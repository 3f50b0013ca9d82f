"""A restart depends on deck and command line alone: the checkpoint's deck is compared, never taken over. Runs are tiny;
every function is named after the findings of a review that it covers."""
import hashlib, json, os, re, shutil, tempfile

from support.checkpoints import reseal
from support.runs import Checks, DECK, Metrics, ROOT, launch, train

PATIENCE = 240
SMALL = ["model.layers=2", "batch.global=4", "checkpoint.restart=auto"]
TEXT = f"data.paths=['{ROOT}/tests/oracle/data/text.txt']"


def run(home, *overrides, ranks=1, flags=(), deck=DECK):
    """Exit status and text; `home` is None if the deck names the folder."""
    where = ["-d", home] if home else []
    done = launch(ranks, ["run", deck, *where, *flags, *SMALL, *overrides], PATIENCE)
    return done.returncode, done.stdout


def expect(checks, holds, what, answer):
    """A check of a run's answer; prints the text if it fails."""
    status, text = answer
    checks.that(holds, f"{what}: {status}" if holds else f"{what}: {status}\n{text}")


def read(*path):
    with open(os.path.join(*path)) as file:
        return file.read()


def write(text, *path):
    os.makedirs(os.path.dirname(os.path.join(*path)), exist_ok=True)
    with open(os.path.join(*path), "w") as file:
        file.write(text)
    return os.path.join(*path)


def contents(folder):
    """Every entry under a folder with its time and bytes: equal if nothing was touched."""
    found = {}
    for place, folders, files in os.walk(folder):
        for path in [place, *(os.path.join(place, name) for name in files)]:
            digest = hashlib.md5(open(path, "rb").read()).hexdigest() if os.path.isfile(path) else None
            found[path] = os.lstat(path).st_mtime_ns, digest
    return found


def changed(home):
    """Key -> old value, new value, origin, for the last start."""
    lines = [json.loads(line) for line in open(os.path.join(home, "metrics.jsonl"))]
    last = max(i for i, line in enumerate(lines) if line.get("event") == "start")
    events = [line for line in lines[last:] if line.get("event") == "changed"]
    return {line["key"]: (line["old"], line["new"], line["origin"]) for line in events}


def h1_a1_fewer_steps_than_the_checkpoint(checks, home):
    where = home("beyond")
    train(where, 1, [*SMALL, "run.steps=8", "checkpoint.every_steps=4"])
    before = contents(where)
    for ranks, steps in ((1, 4), (2, 7)):
        answer = run(where, f"run.steps={steps}", "parallel.dp_shard=-1", ranks=ranks)
        said = f"the checkpoint is at step 8, the deck asks for {steps} steps" in answer[1]
        expect(checks, answer[0] == 0 and said, f"{ranks} ranks, {steps} of 8 steps", answer)
        checks.that(contents(where) == before, f"{ranks} ranks: nothing is touched")
    answer = run(home("beyond-elsewhere"), "run.steps=3", flags=["-r", where])
    expect(checks, answer[0] == 0 and not os.path.exists(home("beyond-elsewhere")), "-r of it makes no folder", answer)


def h1_a_manifest_whose_step_cannot_be(checks, home):
    source = train(home("steps"), 1, [*SMALL, "run.steps=4"])
    for step in (2 ** 53, 2147483648, 3):
        copy = shutil.copytree(source.checkpoint(4), home(f"steps-{step}/checkpoints/step-00000004"))
        reseal(copy, lambda manifest: manifest.replace("\nstep 4\n", f"\nstep {step}\n"))
        answer = run(home("steps-new"), "run.steps=6", flags=["-r", copy])
        named = "0 to 2147483647" in answer[1] or "step 3, which belongs in a directory step-00000003" in answer[1]
        expect(checks, answer[0] == 3 and named, f"step {step} in step-00000004", answer)
    renamed = shutil.copytree(source.checkpoint(4), home("best"))
    answer = run(home("steps-best"), "run.steps=5", flags=["-r", renamed + "/"])
    expect(checks, answer[0] == 0, "under any other name it may be of any step", answer)


def h4_the_folder_is_never_the_checkpoints(checks, home):
    source, victim = train(home("source"), 1, [*SMALL, "run.steps=4"]), home("victim")
    strange = shutil.copytree(source.checkpoint(4), home("strange/ckpt"))
    reseal(strange, deck=lambda text: text.replace(json.dumps(source.dir), json.dumps(victim)))
    os.makedirs(os.path.join(victim, "checkpoints", "tmp-mine"))
    write("# mine\n", victim, "deck.toml")
    before = contents(victim), contents(source.dir)
    os.makedirs(home("work"))
    os.chdir(home("work"))
    for name, checkpoint in (("b", strange), ("c", source.checkpoint(4))):
        deck = shutil.copy(DECK, home(f"{name}.toml"))
        answer = run(None, TEXT, "run.steps=6", deck=deck, flags=["-r", checkpoint])
        same = (contents(victim), contents(source.dir)) == before
        expect(checks, same, f"-r {checkpoint} touches no other folder", answer)
        own = os.path.exists(f"runs/{name}/checkpoints/step-00000006/MANIFEST") and sorted(
            Metrics(f"runs/{name}").steps)
        expect(checks, answer[0] == 0 and own == [5, 6], "... and works in its own", answer)
    os.chdir(ROOT)


def h5_a_deck_and_links_of_the_users_stay(checks, home):
    own = write("# my own\n" + read(DECK).replace("../oracle/", f"{ROOT}/tests/oracle/"), home("exp/deck.toml"))
    text = read(own)
    for steps, deck in ((2, own), (3, DECK)):
        answer = run(home("exp"), f"run.steps={steps}", deck=deck)
        stays = answer[0] == 0 and read(own) == text and "deck.toml stays as it is" in answer[1]
        expect(checks, stays, "a deck kept in its run's folder stays, and it is said", answer)
    for name, status, words in (("deck.toml", 0, "stays as it is"), ("metrics.jsonl", 1, "is a link"), ("done", 0, "")):
        target, where = write("no line end", home(f"target-{name}")), home(f"linked-{name}")
        os.makedirs(where)
        os.symlink(target, os.path.join(where, name))
        answer = run(where, "run.steps=2")
        held = answer[0] == status and words in answer[1] and read(target) == "no line end"
        expect(checks, held, f"{name}: a link is not followed", answer)
    for seed in (5, 6):
        answer = run(home("ours"), f"run.seed={seed}", f"run.steps={seed}")
    left = [name for name in os.listdir(home("ours")) if name.endswith(".espalier")]
    renewed = re.search(r"^seed +(= 6)$", read(home("ours"), "deck.toml"), re.M)
    expect(checks, renewed and not left, "what a run wrote is renewed", answer)
    checks.that(launch(1, ["check", home("ours/deck.toml")]).returncode == 0, "... and is a deck")


def m1_a3_every_difference_is_said(checks, home):
    where = home("differences")
    train(where, 1, [*SMALL, "run.steps=4", "optimizer.lr=5e-3", "precision.compute=bf16"])
    again = ["run.steps=6", "run.seed=11", "data.shuffle=false", "batch.global=2", "model.rope_theta=10000.0"]
    answer = run(where, *again)
    lines = read(DECK).splitlines()
    line = lambda text: f"{DECK}:{lines.index(text) + 1}"
    expected = {
        "run.seed": ("7", "11", "command line"), "run.steps": ("4", "6", "command line"),
        "model.rope_theta": ("500000.0", "10000.0", "command line"), "batch.global": ("4", "2", "command line"),
        "precision.compute": ('"bf16"', '"fp32"', line('compute = "fp32"')),
        "optimizer.lr": ("0.005", "0.003", line("lr = 3e-3")), "data.shuffle": ("true", "false", "command line"),
        "lr.decay_steps": ("1", "2", "from run.steps - lr.warmup_steps - lr.stable_steps"),
        "data.validate_sequences": ("4", "2", "from batch.global")
    }
    expect(checks, answer[0] == 0 and changed(where) == expected, f"in metrics.jsonl: {changed(where)}", answer)
    said = [f"{key} = {new} ({origin}), {old} in the checkpoint" for key, (old, new, origin) in expected.items()]
    expect(checks, all(answer[1].count(text) == 1 for text in said), "... and in one line each", answer)
    answer = run(where, *again)
    expect(checks, changed(where) == {}, "equal decks differ in nothing", answer)


def a2_m2_a_trial_and_then_the_run(checks, home):
    where = home("trial")
    straight = train(home("whole"), 1, [*SMALL, "run.steps=12"])
    trial = train(where, 1, [*SMALL, "run.steps=4"], flags=["-t", "01:00:00"])  # its warm-up stays the same, so the
                                                                                # rates do too
    checks.that(trial.curve("loss") == straight.curve("loss")[:4], "a trial of 4 steps is the first 4 of 12")
    whole = train(where, 1, [*SMALL, "run.steps=12"])
    for key in ("lr", "loss", "grad_norm"):
        checks.that(
            whole.curve(key) == straight.curve(key), f"the trial and then the run: {key} bitwise as the run alone")
    checks.that(len(set(whole.curve("lr"))) == 12, "the rate goes on falling")
    checks.that(
        changed(where).get("run.time_limit") == ('"01:00:00"', '""', "default"), "a time limit is not taken over")
    answer = run(where, "run.steps=13", "model.heads=2", "model.kv_heads=2")
    expect(checks, answer[0] == 3 and "model.heads = 2 (command line), 4 in the checkpoint" in answer[1], "heads",
           answer)


def a2_m2_any_layout_needs_only_its_own_keys(checks, home):
    where, deep = home("layouts"), home("chunks")
    train(where, 2, [*SMALL, "run.steps=2", "parallel.pp=2"])
    for ranks, steps, keys in ((2, 4, ["parallel.tp=2"]), (1, 5, []), (2, 6, ["parallel.dp_shard=-1"])):
        answer = run(where, f"run.steps={steps}", *keys, ranks=ranks)
        reached = answer[0] == 0 and max(Metrics(where).steps) == steps
        expect(checks, reached, f"{ranks} ranks, {' '.join(keys) or 'no key at all'}", answer)
    stages = ["model.layers=4", "parallel.pp=2"]
    train(deep, 2, [*SMALL, "run.steps=2", *stages])
    for steps, schedule in ((3, "interleaved"), (4, "1f1b")):
        answer = run(deep, f"run.steps={steps}", *stages, f"pipeline.schedule={schedule}", ranks=2)
        expect(checks, answer[0] == 0, f"to {schedule}, without its chunks", answer)


def b4_another_model_is_refused_by_its_keys(checks, home):
    where = home("model")
    train(where, 1, [*SMALL, "run.steps=2"])
    before = contents(where)
    answer = run(where, "run.steps=4", "model.layers=3", "model.tie_embeddings=true")
    words = ("model.layers = 3 (command line), 2 in the checkpoint", "checkpoint.restart=never or another run.dir",
             "model.tie_embeddings = true (command line), false in the checkpoint")
    named = all(text in answer[1] for text in words) and "self_attn" not in answer[1]
    expect(checks, answer[0] == 3 and named, "another model: keys and remedy, no tensors", answer)
    checks.that(contents(where) == before, "... before anything is touched")
    answer = run(where, "run.steps=4", "model.ffn_dim=40000000")
    expect(checks, answer[0] == 3 and "model.ffn_dim = 40000000" in answer[1], "... and before memory is taken", answer)
    folders = set()
    for name in ("llama/124m", "gpt2/124m"):
        lines = launch(1, ["check", os.path.join(ROOT, "inputs", name + ".toml")]).stdout.splitlines()
        folders.add(next(line.split("=")[1].split("#")[0].strip() for line in lines if line.startswith("dir ")))
    checks.that(len(folders) == 2, f"the decks of 124m train in folders of their own: {folders}")


def b6_the_end_says_how_to_go_on(checks, home):
    where = home("end")
    for time in ("first", "second"):
        answer = run(where, "run.steps=4", "checkpoint.every_steps=4")
        more = "continue   all 4 steps are done; for more: the same command and run.steps=N above 4\n"
        said = f"{more}sample     espalier sample {where}\nexport     espalier export {where} HF_DIR\n" in answer[1]
        expect(checks, answer[0] == 0 and said, f"what is done, the {time} time", answer)
    answer = run(where, "run.steps=9", "optimizer.lr=1e38", "optimizer.clip_norm=0")
    good = f"the last good checkpoint is {where}/checkpoints/step-00000004: the same command goes on from it"
    said = good in answer[1] and "lower optimizer.lr" in answer[1]
    expect(checks, answer[0] == 1 and said, "after NaN: the last checkpoint and what to try", answer)
    answer = run(home("stopped"), "run.steps=1000000", "report.every_steps=100000", flags=["-t", "00:00:02"])
    expect(checks, answer[0] == 75 and "the same command goes on\nsample" in answer[1], "after a stop", answer)


def c10_never_says_what_is_there(checks, home):
    where = home("never")
    train(where, 1, [*SMALL, "run.steps=4"])
    answer = run(where, "checkpoint.restart=never", "run.steps=3")
    said = f"{where}/checkpoints: this run does not continue 1 checkpoint there" in answer[
        1] and "step-00000004" in answer[1]
    expect(checks, answer[0] == 0 and said, "never beside older checkpoints", answer)
    answer = run(home("never-fresh"), "checkpoint.restart=never", "run.steps=1")
    expect(checks, answer[0] == 0 and "does not continue" not in answer[1], "... and nothing where there are none",
           answer)


def a2_the_place_in_a_checkpoints_deck(checks, home):
    source = train(home("place"), 1, [*SMALL, "run.steps=2"])
    copy = shutil.copytree(source.checkpoint(2), home("place-copy"))
    reseal(copy, deck=lambda text: text.replace('"llama"', '"lama"'))
    for command in (["run", DECK, "-d", home("place-new"), "-r", copy], ["sample", copy]):
        done = launch(1, command, PATIENCE)
        placed = f"{copy}/deck.toml:" in done.stdout and "did you mean llama?" in done.stdout
        expect(checks, done.returncode == 3 and placed, command[0], (done.returncode, done.stdout))


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        home = lambda name: os.path.join(folder, name)
        checks.each([
            h1_a1_fewer_steps_than_the_checkpoint, h1_a_manifest_whose_step_cannot_be,
            h4_the_folder_is_never_the_checkpoints, h5_a_deck_and_links_of_the_users_stay,
            m1_a3_every_difference_is_said, a2_m2_a_trial_and_then_the_run, a2_m2_any_layout_needs_only_its_own_keys,
            b4_another_model_is_refused_by_its_keys, b6_the_end_says_how_to_go_on, c10_never_says_what_is_there,
            a2_the_place_in_a_checkpoints_deck
        ], home)
    checks.finish()


main()
