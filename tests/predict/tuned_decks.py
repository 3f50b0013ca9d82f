"""Each deck of inputs for a cluster is what `espalier tune` finds for the cluster that its first lines name: its
simulated step is within SLOWER of the fastest, with the keys that these lines add, if any.

    tuned_decks.py            every deck
    tuned_decks.py TEXT ...   decks whose path holds a TEXT
"""
import json, os, pathlib, re, sys, tempfile

from support.runs import Checks, ROOT, launch

INPUTS = pathlib.Path(ROOT, "inputs")
ON_ONE_MACHINE = {"deepseek/tiny.toml", "deepseek/tiny-fp8.toml", "llama/tiny.toml", "llama/tiny-8.toml",
                  "llama/124m.toml", "gpt2/small.toml"}
# Degrees of their papers, not tuned.
AS_PUBLISHED = {"deepseek/v2.toml", "deepseek/moonlight-16b-a3b.toml"}
SLOWER = 0.02
TUNED = re.compile(r"[Tt]his layout is\s(?:# )?tuned for [\w, ]+?(?: with ([\w.=\" ]+))?:\n#\n"
                   r"#   espalier tune (\S+) --ranks (\d+) --cluster (\S+)\n")
GUESS = ("llama/8b.toml", ["parallel.tp=8"])  # must fail the comparison


def decks():
    """Every deck by its path below inputs, with its text."""
    paths = sorted(path for path in INPUTS.rglob("*.toml") if path.parent.name != "clusters")
    return {str(path.relative_to(INPUTS)): path.read_text(encoding="ascii") for path in paths}


def results(*arguments):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        done = launch(1, [*arguments, "--json", out.name], timeout=3000)
        assert done.returncode == 0, done.stdout
        return json.load(out)


def compare(checks, name, keys, ranks, cluster):
    """The deck with `keys` against the fastest that the search finds for it."""
    deck, where = str(INPUTS / name), ["--ranks", ranks, "--cluster", os.path.join(ROOT, cluster)]
    found = results("tune", deck, *where)
    step = lambda keys: results("simulate", deck, *where, *keys)
    own, best = step(keys), found["ranking"][0]
    share = own["step_ms"] / best["step_ms"] - 1
    checks.that(share <= SLOWER and own["peak_bytes"] <= found["memory_bytes"],
                f"{name} {' '.join(keys)}: {own['step_ms']:.1f} ms and {own['peak_bytes'] / 1e9:.1f} GB on {ranks} "
                f"ranks; the fastest, {best['layout']}, {best['step_ms']:.1f} ms: {100 * share:.2f} %")
    if name == GUESS[0]:
        guess = step(GUESS[1])["step_ms"] / best["step_ms"] - 1
        checks.that(guess > SLOWER, f"{name} {' '.join(GUESS[1])}: {100 * guess:.1f} % slower, which is not tuned")


def main():
    checks, all_decks = Checks(), decks()
    checks.that(ON_ONE_MACHINE <= all_decks.keys(), "decks for one machine are there")
    for name, text in all_decks.items():
        says = TUNED.search(text)
        checks.that((says is None) == (name in ON_ONE_MACHINE | AS_PUBLISHED) and
                    (says is None or says[2] == f"inputs/{name}"),
                    f"{name} names its search, or is for one machine or as published")
        if says and (len(sys.argv) < 2 or any(word in name for word in sys.argv[1:])):
            compare(checks, name, (says[1] or "").split(), says[3], says[4])
    checks.finish()


main()
