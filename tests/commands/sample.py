"""`espalier sample` and data.tokenizer: checkpoints keep the tokenizer, and texts go through it. Token by token with
caches, a model gives the logits of the whole text at once."""
import array
import json
import os
import pathlib
import shutil
import subprocess

from support.recorded import recorded
from support.runs import Checks, DECK, ROOT, executable, launch, scratch, train

TOKENIZER = os.path.join(ROOT, "tests", "data", "tokenizer.json")
PROMPT, SECOND = "The checkpoint of a run", "Tokens é中"


def call(*arguments, **options):
    return recorded(subprocess.run([executable(), *map(str, arguments)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, timeout=120, **options))


def make_run(folder):
    """A run of two steps on token ids; returns its folder."""
    tokens = folder / "train.tokens"
    made = call("tokenize", TOKENIZER, os.path.join(ROOT, "doc", "numerics.md"), "-o", tokens)
    assert made.returncode == 0, made.stderr
    train(str(folder / "run"), 1, settings(tokens))
    return folder / "run"


def settings(tokens, *more):
    return ["model.vocab=640", "data.format=tokens", f"data.paths=['{tokens}']", f"data.tokenizer={TOKENIZER}",
            "run.steps=2", *more]


def ids_of(folder, text):
    file = folder / "prompt.txt"
    file.write_text(text, encoding="utf-8")
    return json.loads(call("tokenize", TOKENIZER, file, "--show", "--end-token", "none").stdout)["ids"]


def text_is_that_of_the_ids(checks, folder, run):
    ids = ids_of(folder, PROMPT)
    line = ["sample", run, "--tokens", 12, "--temperature", 1]
    drawn = call(*line, "--ids", " ".join(map(str, ids))).stdout.split()
    text = call(*line, "--prompt", PROMPT).stdout.decode(errors="replace")
    checks.that(len(drawn) == len(ids) + 12 and [int(i) for i in drawn[:len(ids)]] == ids, "ids in, ids out")
    checks.that(text.startswith(PROMPT) and text.endswith("\n"), f"a text continues its prompt: {text!r}")
    greedy = [call("sample", run, "--tokens", 6, *more).stdout for more in (
        ["--prompt", PROMPT], ["--prompt", PROMPT, "--temperature", 1, "--top-k", 1],
        ["--prompt", PROMPT, "--tokenizer", TOKENIZER], ["--prompt", PROMPT, "--temperature", 1, "--top-p", 1e-6])]
    checks.that(len(set(greedy)) == 1, "top-k 1, a tiny top-p and no temperature choose the likeliest")


def texts_for_tensorboard(checks, folder, run):
    line = ["sample", run, "--tokens", 5, "--prompt", PROMPT]
    plain, written = call(*line), call(*line, "--tensorboard")
    files = list(pathlib.Path(run, "tensorboard", "samples").iterdir())
    checks.that(written.stdout == plain.stdout and written.returncode == 0 and len(files) == 1,
                "--tensorboard prints the same, and writes a file into the run")
    call(*line, "--tensorboard", folder / "texts")
    checks.that(len(list((folder / "texts").iterdir())) == 1, "or into another folder")
    alone = shutil.copytree(next(pathlib.Path(run, "checkpoints").glob("step-*")), folder / "alone")
    for more, word in [([alone, "--tensorboard"], b"is in no run: name a folder"),
                       ([run, "--tensorboard", folder / "prompt.txt" / "x"], b"Not a directory")]:
        refused = call("sample", *more, "--tokens", 1, "--prompt", "a")
        checks.that(refused.returncode == 2 and word in refused.stderr and refused.stdout == b"",
                    f"refused before the work: {refused.stderr}")


def several_prompts(checks, folder, run):
    line = ["sample", run, "--tokens", 5]
    alone = [call(*line, "--prompt", prompt).stdout for prompt in (PROMPT, SECOND)]
    both = call(*line, "--prompt", PROMPT, "--prompt", SECOND)
    checks.that(both.stdout == alone[0] + alone[1], "several prompts, one after the other")
    piped = call(*line, "--prompt", "-", input=f"{PROMPT}\n{SECOND}\n".encode())
    checks.that(piped.stdout == both.stdout, "or a line each of stdin")


def the_checkpoint_keeps_it(checks, folder, run):
    checkpoint = run / "checkpoints" / "step-00000002"
    kept = checkpoint / "tokenizer.json"
    checks.that(kept.read_bytes() == pathlib.Path(TOKENIZER).read_bytes(), "the file is beside the MANIFEST")
    shown = call("inspect", checkpoint, "--verify", "--tensors").stdout.decode()
    checks.that("tokenizer   tokenizer.json" in shown and shown.count("tokenizer.json") == 2,
                "inspect shows and verifies it")
    kept.write_bytes(kept.read_bytes()[:-2] + b" }")
    verify, sample = call("inspect", checkpoint, "--verify"), call("sample", checkpoint, "--prompt", "a")
    checks.that(verify.returncode == 3 and b"tokenizer.json: checksum" in verify.stderr, "damage is found")
    checks.that(sample.returncode == 3 and b"the MANIFEST says" in sample.stderr, "and a damaged one is not used")


def vocabularies(checks, folder, run):
    tokens = folder / "train.tokens"
    small = launch(1, ["run", DECK, "-d", str(folder / "small"), *settings(tokens, "model.vocab=599")])
    checks.that(small.returncode == 3 and "has 600 tokens, more than model.vocab = 599" in small.stdout,
                f"a model with fewer tokens is refused: {small.stdout}")
    missing = launch(1, ["run", DECK, "-d", str(folder / "small"), *settings(tokens, "data.tokenizer=nosuch.json")])
    checks.that(missing.returncode == 3 and "data.tokenizer" in missing.stdout and "nosuch.json" in missing.stdout,
                f"a missing file too: {missing.stdout}")


def stops(checks, folder, run):
    """Greedy text of a model that has learned nothing else than the end token."""
    tokens = folder / "end.tokens"
    paths = [folder / f"empty{k}.txt" for k in range(400)]
    for path in paths:
        path.write_text("")
    made = call("tokenize", TOKENIZER, *paths, "-o", tokens)
    assert made.returncode == 0, made.stderr
    train(str(folder / "ends"), 1, settings(tokens, "run.steps=30", "optimizer.lr=0.02"))
    with_names = call("sample", folder / "ends", "--prompt", "a", "--tokens", 3).stdout
    stopped = call("sample", folder / "ends", "--prompt", "a", "--tokens", 3, "--stop").stdout
    checks.that(with_names == b"a<|endoftext|><|endoftext|><|endoftext|>\n" and stopped == b"a\n",
                f"--stop ends at the end of a text: {with_names} {stopped}")


# Models with different attention and positions; tests/decks/small.toml has grouped heads and 24 tokens.
MLA = ["model.attention=mla", "model.heads=4", "model.kv_heads=4", "model.head_dim=12", "model.rope_dim=6",
       "model.v_dim=10", "model.kv_rank=14"]
GPT2 = ["model.family=gpt2", "model.kv_heads=4", "model.tie_embeddings=true"]
MODELS = {
    "grouped heads": [],
    "bf16": ["precision.compute=bf16"],
    "a sliding window": ["model.sliding_window=5", "model.full_attention_layers=2"],
    "a window and one kv head in bf16": ["model.sliding_window=7", "model.kv_heads=1", "precision.compute=bf16"],
    "sinks, and windows in every second layer": ["model.sinks=true", "model.sliding_window=5",
                                                 "model.full_attention_every=2"],
    "sinks and experts with biases in bf16": ["model.sinks=true", "experts.count=5", "experts.per_token=2",
                                              "experts.ffn_dim=23", "experts.mlp_bias=true", "experts.router_bias=true",
                                              "experts.swiglu_limit=0.05", "precision.compute=bf16"],
    "norms of heads": ["model.qk_norm=head", "model.head_dim=20", "model.norm_placement=post"],
    "norms of all heads, biases": ["model.qk_norm=full", "model.qkv_bias=true", "model.o_bias=true"],
    "stretched positions": ["model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_seq_len=8"],
    "isolated documents": ["data.isolate_documents=true", "data.end_token=10"],
    "latents": [*MLA, "model.q_rank=18", "model.rope_adjacent=true"],
    "latents, stretched positions and a window in bf16": [
        *MLA, "model.sliding_window=7", "model.full_attention_layers=1", "model.rope_scaling=yarn",
        "model.rope_factor=4", "model.rope_original_seq_len=8", "precision.compute=bf16"],
    "GPT-2": GPT2,
    "GPT-2 in bf16": [*GPT2, "precision.compute=bf16"],
}
WINDOW = 24
TOLERANCE = {"fp32": 1e-5, "bf16": 2.0**-6}  # of the largest logit; bf16 rounds in every layer


def read_logits(path, prompt=0):
    """(ids, rows of logits) of a prompt, from a file of safetensors."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])

    def values(word, code):
        begin, end = header[f"prompt.{prompt}.{word}"]["data_offsets"]
        return array.array(code, data[start + begin:start + end])

    ids, logits = values("ids", "i"), values("logits", "f")
    vocab = header[f"prompt.{prompt}.logits"]["shape"][1]
    return list(ids), [logits[i * vocab:(i + 1) * vocab] for i in range(len(ids))]


def sampled(run, file, ids, tokens):
    done = call("sample", run, "--ids", " ".join(map(str, ids)), "--tokens", tokens, "--logits", file)
    assert done.returncode == 0, done.stderr
    return read_logits(file)


def difference(a, b):
    """The largest difference between rows of logits, relative to the largest."""
    assert len(a) == len(b) and a
    return max(abs(x - y) for p, q in zip(a, b) for x, y in zip(p, q)) / max(abs(x) for p in a for x in p)


def caches_change_nothing(checks, folder):
    """Prompts of 1 to 23 tokens, continued until the window is full and beyond."""
    for number, (name, model) in enumerate(MODELS.items()):
        run, file = folder / f"model{number}", folder / "logits"
        train(str(run), 1, ["run.steps=3", "optimizer.lr=0.02", "data.format=text", *model])
        limit = TOLERANCE["bf16" if "precision.compute=bf16" in model else "fp32"]
        prompt = [(number * 37 + 11 * k * k) % 260 for k in range(1 + number * 5 % 23)]
        ids, one_by_one = sampled(run, file, prompt, WINDOW - len(prompt) + 1)
        again, at_once = sampled(run, file, ids, 1)
        checks.that(len(ids) == WINDOW and ids[:len(prompt)] == prompt and again == ids, f"{name}: the ids")
        checks.that(max(map(max, at_once)) - min(map(min, at_once)) > 0.1, f"{name}: logits differ from each other")
        found = difference(at_once, one_by_one)
        checks.that(found <= limit, f"{name}: from {len(prompt)} tokens on, one by one: within {found:.1e}")
        longer, beyond = sampled(run, file, prompt, WINDOW - len(prompt) + 4)
        _, fresh = sampled(run, file, longer[3:], 1)
        checks.that(len(longer) == WINDOW + 3 and longer[:WINDOW] == ids, f"{name}: beyond the window, the ids")
        found = difference(beyond[-1:], fresh[-1:])
        checks.that(found <= limit, f"{name}: beyond the window, as a prompt of the last {WINDOW}: {found:.1e}")


def several_files_of_logits(checks, folder, run):
    file = folder / "logits"
    line = ["sample", run, "--tokens", 3, "--logits", file]
    both = call(*line, "--prompt", PROMPT, "--prompt", SECOND)
    pairs = [read_logits(file, k) for k in range(2)]
    alone = [sampled(run, file, ids_of(folder, text), 3) for text in (PROMPT, SECOND)]
    checks.that(both.returncode == 0 and [p[0] for p in pairs] == [a[0] for a in alone], "--logits of two prompts: ids")
    checks.that(max(difference(p[1], a[1]) for p, a in zip(pairs, alone)) < 2e-5, "and their logits")
    bad = call("sample", run, "--prompt", "a", "--logits", folder / "nosuch" / "logits")
    checks.that(bad.returncode == 2 and b"--logits" in bad.stderr and b"does not exist" in bad.stderr,
                f"a folder that does not exist: {bad.stderr}")


def import_trains_on_jsonl(checks, folder, run):
    """The deck of an import runs as it is, with JSONL and with token files, and has the warm-up of imported weights."""
    exported, lines = folder / "exported", folder / "mine.jsonl"
    lines.write_text("".join(json.dumps({"text": PROMPT * 20}) + "\n" for _ in range(50)), encoding="utf-8")
    call("export", run / "checkpoints" / "latest", exported)
    for number, data in enumerate([lines, folder / "train.tokens"]):
        imported = folder / f"imported-{number}"
        done = call("import", exported, imported, f"data.paths={data}", "run.steps=20", "batch.global=2")
        said = done.stdout.decode()
        checks.that(done.returncode == 0 and said.endswith(f"to train it: espalier {imported}/deck.toml\n"),
                    f"import ends with a command that works: {said[-200:]} {done.stderr.decode()}")
        deck = (imported / "deck.toml").read_text(encoding="utf-8")
        checks.that('format = "auto"' in deck and "warmup_steps = 2 " in deck, f"its deck: {deck}")
        trained = call("run", imported / "deck.toml", "run.steps=1")
        checks.that(trained.returncode == 0, f"which trains: {trained.stderr.decode()}")


def main():
    checks = Checks()
    with scratch() as home:
        folder = pathlib.Path(home)
        run = make_run(folder)
        findings = [text_is_that_of_the_ids, texts_for_tensorboard, several_prompts, vocabularies, stops,
                    several_files_of_logits, import_trains_on_jsonl, the_checkpoint_keeps_it]
        checks.each(findings, folder, run)
        checks.each([caches_change_nothing], folder)
    checks.finish()


main()
