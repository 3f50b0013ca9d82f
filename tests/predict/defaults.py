"""Thirty layouts, simulated with every switch of communication at its default and at "off" (support/switches.py): no
default makes the step longer by more than 0.1 %, but for the rows of KNOWN; and the memory that the plan states is that
of the program, at the default and at "off": the highest byte that an instruction of the rank with most memory names.

    defaults.py                     the layouts of the test
    defaults.py measure [TEXT ...]  all, or those whose name holds a TEXT; prints every difference
"""
import concurrent.futures, json, os, re, sys, tempfile

from support.runs import Checks, ROOT, launch
from support.switches import SWITCHES, Deck

AT_ONCE = 2
SLOWER = 1e-3  # of the step without the switch
GPT3 = ["model.layers=32", "model.dim=4096", "model.heads=32", "model.ffn_dim=16384", "model.vocab=51200",
        "model.seq_len=2048", "model.tie_embeddings=false", "batch.global=64", "batch.micro=1"]
MODELS = {"1b": ("llama/1b", ["batch.micro=1"]), "8b": ("llama/8b", []),
          "70b": ("llama/70b", ["recompute.mode=none"]), "gpt3-6.7b": ("gpt2/1.5b", GPT3)}
H100, H200, A100, A100_4 = "h100-8x400g", "h200-8x400g", "a100-8x200g", "a100-4x100g"
FULL = "recompute.mode=full"
STEP, EACH = "parallel.reduce=step", "parallel.reduce=microbatch"


def schedule(name, chunks=1):
    return [f"pipeline.schedule={name}", f"pipeline.chunks={chunks}"]


class Layout:
    """A model on a cluster: degrees, further keys. `test`: it is one of those that the test simulates."""

    def __init__(self, model, cluster, pp=1, dp=1, tp=1, cp=1, replicate=1, more=(), test=False):
        deck, keys = MODELS[model]
        self.deck, self.test = os.path.join(ROOT, "inputs", f"{deck}.toml"), test
        self.cluster = os.path.join(ROOT, "inputs", "clusters", f"{cluster}.toml")
        self.ranks = pp * dp * tp * cp * replicate
        degrees = {"pp": pp, "dp_shard": dp, "tp": tp, "cp": cp, "dp_replicate": replicate}
        self.keys = [*keys, *(f"parallel.{axis}={degree}" for axis, degree in degrees.items()), *more]
        shape = [f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1]
        self.name = " ".join([model, cluster, *shape, *(key.split(".", 1)[1] for key in more)])


TESTED = True
LAYOUTS = [
    Layout("1b", H100, dp=8),
    Layout("1b", H100, dp=64, test=TESTED),
    Layout("1b", A100_4, dp=16, more=["batch.micro=2"]),
    Layout("1b", A100, dp=8, tp=2, more=["batch.micro=2"]),
    Layout("1b", H200, dp=2, pp=4, more=schedule("zbv", 2), test=TESTED),
    Layout("1b", A100_4, pp=4, replicate=4),
    Layout("8b", H100, dp=64, test=TESTED),
    Layout("8b", H100, dp=64, more=[STEP]),
    Layout("8b", H100, dp=32, more=["batch.micro=2"]),
    Layout("8b", H100, dp=8, tp=8),
    Layout("8b", H100, dp=32, tp=2, more=["parallel.zero=2"], test=TESTED),
    Layout("8b", H100, dp=16, replicate=4, more=[FULL]),
    Layout("8b", H100, dp=16, cp=4, test=TESTED),
    Layout("8b", H100, dp=8, cp=4, tp=2, more=["parallel.context=all_gather"], test=TESTED),
    Layout("8b", H100, dp=16, cp=2, more=["parallel.context=all_to_all"]),
    Layout("8b", H100, dp=16, pp=4),
    Layout("8b", H100, dp=8, pp=4, tp=2, more=schedule("interleaved", 2), test=TESTED),
    Layout("8b", A100, dp=8, tp=4, more=["batch.micro=2"]),
    Layout("8b", A100, dp=16, pp=2, cp=2),
    Layout("8b", A100_4, dp=8, pp=4, tp=2, more=schedule("zb-h1")),
    Layout("8b", H200, dp=16, more=[FULL]),
    Layout("70b", H100, dp=16, pp=8, tp=8, test=TESTED),
    Layout("70b", H100, dp=32, tp=8, more=[FULL]),
    Layout("70b", H100, dp=8, pp=8, tp=8, more=[*schedule("zb-h1"), "batch.micro=2"]),
    Layout("70b", H100, dp=4, pp=4, tp=8, cp=2, more=[*schedule("dualpipev", 2), FULL]),
    Layout("70b", A100, dp=4, pp=8, tp=8),
    Layout("70b", H200, dp=8, pp=4, tp=8, more=[*schedule("interleaved", 5), EACH]),
    Layout("gpt3-6.7b", H100, pp=4, tp=2, test=TESTED),
    Layout("gpt3-6.7b", H100, pp=4, tp=2, more=["batch.micro=2", *schedule("dualpipev", 2)]),
    Layout("gpt3-6.7b", A100, pp=2, tp=4, dp=4, more=["batch.micro=2"]),
]
# Layout and switch: by how much the default makes the step longer at most, in % of the step without it.
# With zero = 3 parallel.reduce = "auto" reduces after each microbatch: the memory that it saves is paid with messages.
KNOWN = {
    ("1b h100-8x400g dp_shard 8", "parallel.reduce"): 3.0,
    ("1b h100-8x400g dp_shard 64", "parallel.reduce"): 1.0,
    ("1b a100-4x100g dp_shard 16 micro=2", "parallel.reduce"): 1.5,
    ("1b a100-8x200g dp_shard 8 tp 2 micro=2", "parallel.reduce"): 1.0,
    ("8b h100-8x400g dp_shard 64", "parallel.reduce"): 1.0,
    ("8b h100-8x400g dp_shard 32 micro=2", "parallel.reduce"): 0.5,
    ("8b h100-8x400g dp_shard 8 tp 8", "parallel.reduce"): 22.0,
    ("8b h100-8x400g dp_shard 16 dp_replicate 4 mode=full", "parallel.reduce"): 1.5,
    ("8b h100-8x400g dp_shard 16 cp 4", "parallel.reduce"): 14.5,
    ("8b h100-8x400g dp_shard 8 tp 2 cp 4 context=all_gather", "parallel.reduce"): 54.0,
    ("8b h100-8x400g dp_shard 16 cp 2 context=all_to_all", "parallel.reduce"): 2.5,
    ("8b a100-8x200g dp_shard 8 tp 4 micro=2", "parallel.reduce"): 1.0,
    ("8b h200-8x400g dp_shard 16 mode=full", "parallel.reduce"): 1.0,
    ("70b h100-8x400g dp_shard 32 tp 8 mode=full", "parallel.reduce"): 28.0,
}


def simulate(layout, overrides):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        done = launch(1, ["simulate", layout.deck, "--ranks", str(layout.ranks), "--cluster", layout.cluster, "--json",
                          out.name, *layout.keys, *overrides])
        assert done.returncode in (0, 4), f"{layout.name} {overrides}: {done.stdout}"  # 4: it would not fit
        return json.load(out)


def highest_byte(layout, overrides, rank):
    """That the program of a rank names; `name@offset+bytes`."""
    done = launch(1, ["plan", layout.deck, "--ranks", str(layout.ranks), "--program", str(rank), "run.device=cuda",
                      *layout.keys, *overrides])
    assert done.returncode in (0, 4), f"{layout.name} {overrides}: {done.stdout}"
    return max(int(offset) + int(size) for offset, size in re.findall(r"@(\d+)\+(\d+)", done.stdout))


class Simulated:
    def __init__(self, layout, overrides):
        figures = simulate(layout, overrides)
        self.step_ms, self.planned = figures["step_ms"], figures["peak_bytes"]
        self.needed = highest_byte(layout, overrides, figures["peak_rank"])


def off(switch, deck):
    """The overrides that turn a switch off, if its default is not "off"."""
    settings = switch.settings_of(deck)
    return switch.overrides(switch.off, deck) if switch.off in settings and settings[0] != switch.off else []


def check(checks, layout, found):
    default = found.pop(None).result()
    checks.that(default.needed == default.planned, f"{layout.name}: the plan states the {default.needed} bytes needed")
    for key, run in found.items():
        without = run.result()
        longer = 100 * (default.step_ms / without.step_ms - 1)
        known = KNOWN.get((layout.name, key), 0.0)
        checks.that(longer <= 100 * SLOWER + known,
                    f"{layout.name}: {key} makes the step {longer:+.2f} % longer: {default.step_ms:.2f} ms instead of "
                    f"{without.step_ms:.2f}; {(default.planned - without.planned) / 2**20:+.0f} MiB"
                    f"{f', known: at most {known} %' if known else ''}")
        checks.that(without.needed == without.planned,
                    f"{layout.name}: without {key} the plan states the {without.needed} bytes needed")


def main():
    everything = sys.argv[1:2] == ["measure"]
    layouts = [layout for layout in LAYOUTS if everything or layout.test]
    layouts = [layout for layout in layouts if any(text in layout.name for text in sys.argv[2:] or [""])]
    checks = Checks()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        runs = []
        for layout in layouts:
            deck = Deck(layout.keys)
            ways = {switch.key: off(switch, deck) for switch in SWITCHES}
            ways = {None: [], **{key: overrides for key, overrides in ways.items() if overrides}}
            runs.append((layout, {key: pool.submit(Simulated, layout, keys) for key, keys in ways.items()}))
        for layout, found in runs:
            check(checks, layout, found)
    checks.finish()


if __name__ == "__main__":
    main()
