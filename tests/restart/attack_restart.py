"""What a restart does follows from deck and command line alone: the checkpoint's deck is compared, never taken over. Runs are tiny; every
function is named after the findings of a review that it shows to be mended."""
import hashlib, json, os, shutil, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from checkpoints import reseal
from disturbed import events, visible
from runs import Checks, DECK, Metrics, ROOT, launch, train

PATIENCE = 240
SMALL = ["model.layers=2", "batch.global=4", "checkpoint.restart=auto"]


def run(home, *overrides, ranks=1, flags=(), deck=DECK):
    """Exit status and text."""
    done = launch(ranks, ["run", deck, "-d", home, *flags, *SMALL, *overrides], PATIENCE)
    return done.returncode, done.stdout


def contents(folder):
    """Every entry under a folder with its time and bytes: equal if nothing was touched."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files, "."]:
            path = os.path.join(place, name)
            digest = hashlib.md5(open(path, "rb").read()).hexdigest() if os.path.isfile(path) else os.path.islink(path) and os.readlink(path)
            found[path] = os.lstat(path).st_mtime_ns, digest
    return found


def changed(home):
    """Key -> old value, new value, origin; of the last start."""
    lines = [json.loads(line) for line in open(os.path.join(home, "metrics.jsonl"))]
    last = max(i for i, line in enumerate(lines) if line.get("event") == "start")
    return {line["key"]: (line["old"], line["new"], line["origin"]) for line in lines[last:] if line.get("event") == "changed"}


def h1_a1_fewer_steps_than_the_checkpoint(checks, home):
    where = home("beyond")
    train(where, 1, [*SMALL, "run.steps=8", "checkpoint.every_steps=4"])
    before = contents(where)
    for ranks, steps in ((1, 4), (2, 7)):
        status, text = run(where, f"run.steps={steps}", "parallel.dp_shard=-1", ranks=ranks)
        checks.that(status == 0 and f"the checkpoint is at step 8, the deck asks for {steps} steps" in text, f"{ranks} ranks, {steps} of 8 steps: {status}\n{text}")
        checks.that(contents(where) == before, f"{ranks} ranks: nothing is touched")
    elsewhere = home("beyond-elsewhere")
    status, _ = run(elsewhere, "run.steps=3", flags=["-r", where])
    checks.that(status == 0 and not os.path.exists(elsewhere), f"-r of it: {status}, no folder is made")


def h1_a_manifest_whose_step_cannot_be(checks, home):
    source = train(home("steps"), 1, [*SMALL, "run.steps=4"])
    for step, why in ((2 ** 53, "allowed"), (2147483648, "allowed"), (3, "step-00000003")):
        copy = home(f"steps-{step}/checkpoints/step-00000004")
        shutil.copytree(source.checkpoint(4), copy)
        reseal(copy, lambda manifest: manifest.replace("\nstep 4\n", f"\nstep {step}\n"))
        status, text = run(home("steps-new"), "run.steps=6", flags=["-r", copy])
        checks.that(status == 3 and str(step) in text, f"step {step} in step-00000004: {status}\n{text}")
    renamed = shutil.copytree(source.checkpoint(4), home("best"))
    checks.that(run(home("steps-best"), "run.steps=5", flags=["-r", renamed + "/"])[0] == 0, "under any other name it may be of any step")


def h4_the_folder_is_never_the_checkpoints(checks, home):
    source, victim = train(home("source"), 1, [*SMALL, "run.steps=4"]), home("victim")
    strange = shutil.copytree(source.checkpoint(4), home("strange/ckpt"))
    reseal(strange, deck=lambda text: text.replace(json.dumps(source.dir), json.dumps(victim)))
    os.makedirs(victim + "/checkpoints/tmp-mine")
    open(victim + "/deck.toml", "w").write("# mine\n")
    before, mine = contents(victim), home("mine")
    status, text = run(mine, "run.steps=6", flags=["-r", strange])
    checks.that(status == 0 and contents(victim) == before, f"-r strange/ckpt: {status}, the folder in its deck is not touched\n{text}")
    checks.that(sorted(Metrics(mine).steps) == [5, 6] and visible(mine)[-1].endswith("step-00000006"), "-r strange/ckpt: it works in its own")
    before = contents(source.dir)
    shutil.copy(DECK, home("b.toml"))
    done = launch(1, ["run", home("b.toml"), "-r", source.checkpoint(4), *SMALL, "run.steps=5", f"data.paths=['{ROOT}/tests/oracle/text.txt']",
                      f"run.dir={home('runs-b')}"], PATIENCE)
    checks.that(done.returncode == 0 and contents(source.dir) == before, "-r of another run leaves that run as it was")


def h5_a_deck_and_links_of_the_users_stay(checks, home):
    where = home("exp")
    os.makedirs(where)
    own, text = os.path.join(where, "deck.toml"), "# my own\n" + open(DECK).read().replace("../oracle/", f"{ROOT}/tests/oracle/")
    open(own, "w").write(text)
    done = launch(1, ["run", own, "-d", where, *SMALL, "run.steps=2"], PATIENCE)
    checks.that(done.returncode == 0 and open(own).read() == text and "deck.toml stays as it is" in done.stdout, "a deck kept in its run's folder stays, and it is said")
    done = run(where, "run.steps=3")
    checks.that(done[0] == 0 and open(own).read() == text and "deck.toml stays as it is" in done[1], "... under another deck too")
    where, target = home("linked"), home("target.toml")
    os.makedirs(where)
    open(target, "w").write("# ours\n")
    os.symlink(target, os.path.join(where, "deck.toml"))
    checks.that(run(where, "run.steps=2")[0] == 0 and open(target).read() == "# ours\n", "a link at deck.toml is not followed")
    where = home("ours")
    for seed in (5, 6):
        run(where, f"run.seed={seed}", f"run.steps={seed}")
    deck = open(os.path.join(where, "deck.toml")).read()
    checks.that("seed          = 6" in deck and not [n for n in os.listdir(where) if n.endswith(".espalier")], "what a run wrote is renewed, and nothing is left beside it")
    checks.that(launch(1, ["check", os.path.join(where, "deck.toml")]).returncode == 0, "... and is a deck")
    where, target = home("metrics"), home("elsewhere.jsonl")
    os.makedirs(where)
    open(target, "w").write("no line end")
    os.symlink(target, os.path.join(where, "metrics.jsonl"))
    status, said = run(where, "run.steps=2")
    checks.that(status == 1 and "is a link" in said and open(target).read() == "no line end", f"a link at metrics.jsonl is refused: {status}\n{said}")
    where, target = home("done"), home("important")
    os.makedirs(where)
    open(target, "w").write("important\n")
    os.symlink(target, os.path.join(where, "done"))
    checks.that(run(where, "run.steps=2")[0] == 0 and open(target).read() == "important\n", "a link at done is not followed")


def m1_a3_every_difference_is_said(checks, home):
    where = home("differences")
    train(where, 1, [*SMALL, "run.steps=4", "optimizer.lr=5e-3", "precision.compute=bf16"])
    status, text = run(where, "run.steps=6", "run.seed=11", "data.shuffle=false", "batch.global=2", "model.rope_theta=10000.0")
    expected = {"run.steps": ("4", "6", "command line"), "run.seed": ("7", "11", "command line"), "lr.decay_steps": ("1", "2", "from run.steps - lr.warmup_steps"),
                "optimizer.lr": ("0.005", "0.003", f"{DECK}:29"), "precision.compute": ('"bf16"', '"fp32"', f"{DECK}:26"), "data.shuffle": ("true", "false", "command line"),
                "batch.global": ("4", "2", "command line"), "model.rope_theta": ("500000.0", "10000.0", "command line"),
                "data.validate_sequences": ("4", "2", "from batch.global")}
    checks.that(status == 0 and changed(where) == expected, f"every value that differs, in metrics.jsonl: {status}, {changed(where)}")
    said = [f"{key} = {new} ({origin}), {old} in the checkpoint" for key, (old, new, origin) in expected.items()]
    checks.that(all(text.count(line) == 1 for line in said), f"... and in one line each\n{text}")
    run(where, "run.steps=6", "run.seed=11", "data.shuffle=false", "batch.global=2", "model.rope_theta=10000.0")
    checks.that(changed(where) == {}, "equal decks differ in nothing")


def a2_m2_a_trial_and_then_the_run(checks, home):
    where, long = home("trial"), ["run.steps=12"]
    straight = train(home("whole"), 1, [*SMALL, *long])
    trial = train(where, 1, [*SMALL, "run.steps=4"], flags=["-t", "01:00:00"])  # its warm-up: the same rates
    checks.that(trial.curve("loss") == straight.curve("loss")[:4], "a trial of 4 steps is the first 4 of 12")
    whole = train(where, 1, [*SMALL, *long])
    for key in ("lr", "loss", "grad_norm"):
        checks.that(whole.curve(key) == straight.curve(key), f"the trial and then the run: {key} bitwise as the run alone")
    checks.that(len(set(whole.curve("lr"))) == 12, "the rate goes on falling")
    checks.that(changed(where)["run.time_limit"] == ('"01:00:00"', '""', "default") and "time_limit    = \"\"" in open(os.path.join(where, "deck.toml")).read(),
                "a time limit is not taken over")
    heads = home("kv-heads")
    train(heads, 1, [*SMALL, "run.steps=2"])
    status, text = run(heads, "run.steps=3", "model.heads=2")
    checks.that(status == 3 and "model.heads = 2 (command line), 4 in the checkpoint" in text, f"a key that nobody set is not in the way of one that is set: {status}\n{text}")


def m2_any_layout_needs_only_its_own_keys(checks, home):
    where = home("layouts")
    train(where, 2, [*SMALL, "run.steps=2", "parallel.pp=2", "batch.micro=1"])
    for ranks, steps, keys in ((2, 4, ["parallel.tp=2"]), (1, 5, []), (2, 6, ["parallel.dp_shard=-1"])):
        status, text = run(where, f"run.steps={steps}", *keys, ranks=ranks)
        checks.that(status == 0 and max(Metrics(where).steps) == steps, f"{ranks} ranks, {' '.join(keys) or 'no key at all'}: {status}" + ("" if status == 0 else "\n" + text))
    deep = home("chunks")
    base = ["model.layers=4", "parallel.pp=2"]
    train(deep, 2, [*SMALL, "run.steps=2", *base])
    status, text = run(deep, "run.steps=3", *base, "pipeline.schedule=interleaved", ranks=2)
    checks.that(status == 0, f"1f1b -> interleaved, without its chunks: {status}\n{text}")
    status, text = run(deep, "run.steps=4", *base, ranks=2)
    checks.that(status == 0, f"interleaved -> 1f1b, without its chunks: {status}\n{text}")


def b4_another_model_is_refused_by_its_keys(checks, home):
    where = home("model")
    train(where, 1, [*SMALL, "run.steps=2"])
    before = contents(where)
    status, text = run(where, "run.steps=4", "model.layers=3", "model.tie_embeddings=true")
    named = all(part in text for part in ("model.layers = 3 (command line), 2 in the checkpoint", "model.tie_embeddings = true (command line), false in the checkpoint",
                                          "checkpoint.restart=never or another run.dir"))
    checks.that(status == 3 and named and "self_attn" not in text, f"another model: {status}, keys and remedy, no tensors\n{text}")
    checks.that(contents(where) == before, "... before anything is touched")
    status, text = run(where, "run.steps=4", "model.ffn_dim=40000000")
    checks.that(status == 3 and "model.ffn_dim = 40000000" in text, f"... and before any memory is taken: {status}\n{text}")
    folders = set()
    for name in ("llama/124m", "gpt2/124m"):
        text = launch(1, ["check", os.path.join(ROOT, "inputs", name + ".toml")]).stdout
        folders.add(next(line.split("=")[1].split("#")[0].strip() for line in text.splitlines() if line.startswith("dir ")))
    checks.that(len(folders) == 2, f"the decks of 124m train in folders of their own: {folders}")


def b6_the_end_says_how_to_go_on(checks, home):
    where = home("end")
    for time in ("first", "second"):
        status, text = run(where, "run.steps=4", "checkpoint.every_steps=4")
        checks.that(status == 0 and "all 4 steps are done; for more: run.steps=N; for a text: espalier sample " + where in text, f"{time} time: what is done\n{text}")
    status, text = run(where, "run.steps=9", "optimizer.lr=1e38", "optimizer.clip_norm=0")
    checks.that(status == 1 and f"the last good checkpoint is {where}/checkpoints/step-00000004" in text and "lower optimizer.lr" in text,
                f"after NaN: the last checkpoint and what to try: {status}\n{text}")
    status, text = run(home("stopped"), "run.steps=1000000", "report.every_steps=100000", flags=["-t", "00:00:02"])
    checks.that(status == 75 and "start it again to go on" in text, f"after a stop: {status}\n{text}")


def c10_never_says_what_is_there(checks, home):
    where = home("never")
    train(where, 1, [*SMALL, "run.steps=4", "checkpoint.every_steps=2"])
    status, text = run(where, "checkpoint.restart=never", "run.steps=3")
    checks.that(status == 0 and "checkpoints of an earlier run are there, the latest is step-00000004" in text, f"never beside older checkpoints: {status}\n{text}")
    status, text = run(home("never-fresh"), "checkpoint.restart=never", "run.steps=1")
    checks.that(status == 0 and "earlier run" not in text, "... and nothing where there are none")


def the_place_in_a_checkpoints_deck(checks, home):
    source = train(home("place"), 1, [*SMALL, "run.steps=2"])
    copy = shutil.copytree(source.checkpoint(2), home("place-copy"))
    reseal(copy, deck=lambda text: text.replace('"llama"', '"lama"'))
    for command in (["run", DECK, "-d", home("place-new"), "-r", copy], ["sample", copy]):
        done = launch(1, command, PATIENCE)
        checks.that(done.returncode == 3 and f"{copy}/deck.toml:" in done.stdout and 'did you mean llama?' in done.stdout, f"{command[0]}: {done.returncode}\n{done.stdout}")


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        home = lambda name: os.path.join(folder, name)
        checks.each([h1_a1_fewer_steps_than_the_checkpoint, h1_a_manifest_whose_step_cannot_be, h4_the_folder_is_never_the_checkpoints,
                     h5_a_deck_and_links_of_the_users_stay, m1_a3_every_difference_is_said, a2_m2_a_trial_and_then_the_run,
                     m2_any_layout_needs_only_its_own_keys, b4_another_model_is_refused_by_its_keys, b6_the_end_says_how_to_go_on,
                     c10_never_says_what_is_there, the_place_in_a_checkpoints_deck], home)
    checks.finish()


main()
