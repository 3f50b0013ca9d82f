"""The commands around training, on real runs: sampling of token models, the peak that mfu is relative to, a run
directory that cannot be made."""
import os, re, struct, tempfile

from support.runs import Checks, DECK, launch, train

VOCABULARY, WINDOW, STEPS = 211, 12, 3
BASE = ["parallel.pp=1", "parallel.tp=1", "parallel.dp_shard=-1", "model.layers=2", f"model.seq_len={WINDOW}",
        "batch.global=2", "batch.micro=1", f"run.steps={STEPS}"]


def token_file(path):
    """1,500 ids below the vocabulary, as doc/data.md describes the format."""
    ids = [(7 * i * i + 3 * i) % VOCABULARY for i in range(1500)]
    with open(path, "wb") as file:
        file.write(struct.pack(f"<8sIIQQ{len(ids)}H", b"ESPTOK\0\1", 1, 2, VOCABULARY, len(ids), *ids))


def said(checks, name, arguments, status, *texts):
    done = launch(1, arguments)
    holds = done.returncode == status and all(text in done.stdout for text in texts)
    checks.that(holds, f"{name}: exit {done.returncode}, {done.stdout!r}")
    return done.stdout


def b5_sample_of_a_token_model(checks, run):
    """Text is not used as ids; ids are continued, each below the vocabulary; a prompt longer than the window is
    announced."""
    sample = ["sample", f"{run}/checkpoints/latest"]
    for prompt in (["--prompt", "Hello"], []):
        said(checks, "b5, no tokenizer", [*sample, *prompt], 2, 'data.format = "tokens"', "--ids")
    for ids, why in (("1 211", "211 is not a token id (allowed: 0 to 210)"), ("1 -2", "-2 is not"), ("1 x", "x is not"),
                     (" ", "no token id")):
        said(checks, f"b5, ids {ids!r}", [*sample, f"--ids={ids}"], 2, f"--ids: {why}")
    said(checks, "b5, both", [*sample, "--ids", "1", "--prompt", "a"], 2, "excludes")
    short = said(checks, "b5, ids", [*sample, "--ids", "5,17 210", "--tokens", "4"], 0)
    ids = re.fullmatch(r"5 17 210((?: \d+){4})\n", short)
    checks.that(ids and all(int(id) < VOCABULARY for id in ids[1].split()),
                f"b5: four ids follow the prompt: {short!r}")
    long = " ".join(str(3 * i) for i in range(WINDOW + 5))
    said(checks, "b5, a long prompt", [*sample, "--ids", long, "--tokens", "2"], 0,
         f"the prompt has {WINDOW + 5} tokens; the model sees the last {WINDOW}")


def l_token_beyond_the_vocabulary(checks, run):
    sample = ["sample", f"{run}/checkpoints/latest"]
    said(checks, "l, a byte beyond the vocabulary", [*sample, "--prompt", "\u00ff"], 2, "no tokenizer")
    said(checks, "l, an id beyond the vocabulary", [*sample, "--ids", "255"], 2,
         "255 is not a token id (allowed: 0 to 210)")


def mission_c_mfu(checks, home, data):
    """mfu is the stated FLOPs times the rate over the peak that the deck states; without a stated peak a processor has
    none."""
    metrics = train(os.path.join(home, "none"), 2, [*BASE, *data, "run.peak_tflops=0"])
    start = metrics.starts[-1]
    checks.that(start["peak_flops"] is None and start["peak_source"] == "a processor has no stated peak",
                f"mission c, no peak: {start['peak_flops']}, {start['peak_source']}")
    checks.that(all(line["mfu"] is None for line in metrics.steps.values()), "mission c, no peak: no mfu")
    metrics = train(os.path.join(home, "stated"), 2, [*BASE, *data, "run.peak_tflops=0.25"])
    start = metrics.starts[-1]
    peak = start["peak_flops"]
    checks.that(peak == 2 * 0.25e12 and start["peak_source"].startswith("run.peak_tflops = 0.25"),
                f"mission c, stated: {peak}, {start['peak_source']}")
    for line in metrics.steps.values():
        mfu, wanted = line["mfu"], start["flops_per_token"] * line["tokens_per_s"] / peak
        rounding = 1e-3 + 0.05 / line["tokens_per_s"]  # which has one digit after the point
        checks.that(mfu > 0 and abs(mfu / wanted - 1) < rounding,
                    f"mission c, step {line['step']}: {mfu}, wanted {wanted}")


def c7_a_run_directory_that_cannot_be_made(checks, home, data):
    with open(os.path.join(home, "file"), "w"):
        pass
    done = launch(2, ["run", DECK, "-d", os.path.join(home, "file", "run"), *BASE, *data])
    said_once = done.stdout.count(f"run.dir = {home}/file/run: cannot be created: Not a directory") == 1
    header_once = len(re.findall(r"^espalier: ", done.stdout, re.M)) == 1
    checks.that(done.returncode == 1 and said_once and header_once,
                f"c7: said once, exit {done.returncode}\n{done.stdout}")


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as home:
        token_file(os.path.join(home, "ids.tokens"))
        data = ["data.format=tokens", f"model.vocab={VOCABULARY}", f'data.paths=["{home}/ids.tokens"]']
        train(os.path.join(home, "run"), 1, [*BASE, *data])
        b5_sample_of_a_token_model(checks, os.path.join(home, "run"))
        l_token_beyond_the_vocabulary(checks, os.path.join(home, "run"))
        mission_c_mfu(checks, home, data)
        c7_a_run_directory_that_cannot_be_made(checks, home, data)
    checks.finish()


main()
