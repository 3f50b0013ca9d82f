"""The gain of the times of run.costs over rough ones, by simulation: the step of a deck on a cluster, ordered by rough
times and by those of the cluster's own file.

    order.py                   the rows of the test: with the file no step is longer by more than LONGER
    order.py table [TEXT ...]  all rows, or those whose name holds a TEXT, as the table of doc/performance.md
"""
import json, os, sys, tempfile

from support.runs import Checks, ROOT, launch

LONGER = 0.005  # of the step
A100, A100_4, H100 = "a100-8x200g", "a100-4x100g", "h100-8x400g"
DECKS = {
    "llama/70b": ["llama/70b.toml"],
    "llama/8b": ["llama/8b.toml"],
    "llama/405b": ["llama/405b.toml"],
    "qwen/qwen3-30b-a3b": ["qwen/qwen3-30b-a3b.toml"],
    "gpt2/124m": ["gpt2/124m.toml"],
    "gpt2/1.5b": ["gpt2/1.5b.toml"],
    "GPT-3 6.7B": ["gpt2/1.5b.toml", "model.layers=32", "model.dim=4096", "model.heads=32", "model.ffn_dim=16384",
                   "model.vocab=51200", "model.seq_len=2048", "model.tie_embeddings=false", "parallel.dp_shard=1",
                   "batch.global=64"],
}
L70, L8, L405, QWEN, GPT124, GPT1500, GPT3 = DECKS
JOINT, STRIPS, AUTOMATIC = "overlap.interleave=true", "overlap.tensor_strips=2", "overlap.tensor_strips=0"
ONE, TWO = "batch.micro=1", "batch.micro=2"
KEEP, FULL, LONG = "recompute.mode=none", "recompute.mode=full", "model.seq_len=65536"
GATHER = "parallel.context=all_gather"
ANY_SIZES = "run.deterministic=false"


def schedule(name, chunks=2):
    return [f"pipeline.schedule={name}", f"pipeline.chunks={chunks}"]


def degrees(**axes):
    return [f"parallel.{axis}={degree}" for axis, degree in axes.items()]


class Row:
    """A deck on a cluster; `place` says where its groups are."""

    def __init__(self, place, cluster, ranks, deck, *keys, test=False):
        self.place, self.cluster, self.ranks, self.deck, self.keys, self.test = place, cluster, ranks, deck, keys, test

    def name(self):
        keys = " ".join(f"`{key.partition('.')[2]}`" for key in self.keys)
        return f"{self.cluster} | {self.deck}, {self.ranks} | {keys} | {self.place}"

    def step(self, folder, *more):
        """Milliseconds."""
        path = os.path.join(folder, "prediction.json")
        done = launch(1, ["simulate", *DECKS[self.deck], "--ranks", str(self.ranks), "--cluster",
                          file_of(self.cluster), "--json", path, *self.keys, *more])
        if done.returncode not in (0, 4):  # 4: it would not fit
            sys.exit(f"{self.name()}\n{done.stdout}")
        with open(path) as file:
            return json.load(file)["step_ms"]

    def steps(self, folder):
        return self.step(folder), self.step(folder, f"run.costs={file_of(self.cluster)}")


def file_of(cluster):
    return os.path.join(ROOT, "inputs", "clusters", f"{cluster}.toml")


ROWS = [
    Row("near", H100, 256, L70, *degrees(tp=8, pp=8), KEEP, JOINT),
    Row("near", H100, 256, L70, *degrees(tp=8, pp=8), KEEP, TWO, STRIPS),
    Row("near", H100, 256, L70, *degrees(tp=8, pp=8), KEEP, ONE, AUTOMATIC, ANY_SIZES),
    Row("tp on 2 nodes", H100, 256, L70, *degrees(tp=16, pp=4), KEEP, TWO, STRIPS),
    Row("near", H100, 8, L8, *degrees(cp=4), GATHER, "batch.global=16", test=True),
    Row("cp on 4 nodes", H100, 32, L8, *degrees(cp=4, tp=8), GATHER, LONG, FULL, "batch.global=8"),
    Row("cp on 2 nodes", H100, 16384, L405, *degrees(tp=2, cp=8)),
    Row("near", H100, 8, QWEN, *degrees(ep=8), "batch.global=32"),
    Row("near", A100, 256, L70, *degrees(tp=8, pp=8), KEEP, JOINT),
    Row("near", A100, 256, L70, *degrees(tp=8, pp=8), KEEP, TWO, STRIPS),
    Row("tp on 2 nodes", A100_4, 8, GPT3, *degrees(tp=8), ONE, STRIPS, test=True),
    Row("tp on 2 nodes", A100_4, 8, GPT3, *degrees(tp=8), ONE, AUTOMATIC, ANY_SIZES, test=True),
    Row("tp on 2 nodes", A100_4, 16, GPT3, *degrees(tp=8, pp=2), ONE, JOINT, test=True),
    Row("cp on 4 nodes", A100, 32, L8, *degrees(cp=4, tp=8), GATHER, LONG, FULL, "batch.global=8"),
    Row("ep on 2 nodes", A100, 16, QWEN, *degrees(ep=16), "batch.global=64"),
    Row("near", H100, 256, L70, *degrees(tp=8, pp=8), *schedule("interleaved"), KEEP, JOINT),
    Row("near", H100, 64, L8, *degrees(tp=2, cp=4, pp=4), GATHER, *schedule("dualpipev")),
    Row("cp on 2 nodes", H100, 64, L8, *degrees(tp=4, cp=4, pp=4), GATHER, *schedule("zb-h1", 1)),
    Row("tp on 2 nodes", H100, 64, L8, *degrees(tp=16, pp=4), *schedule("dualpipev")),
    Row("tp on 2 nodes", A100_4, 32, L8, *degrees(tp=8, pp=4), *schedule("zbv"), TWO, STRIPS),
    Row("cp on 2 nodes", A100_4, 32, L8, *degrees(cp=8, pp=4), GATHER, *schedule("zb-interleaved")),
    Row("near", A100, 256, L70, *degrees(tp=8, pp=8), *schedule("interleaved"), KEEP, JOINT),
    Row("near", A100, 8, GPT124, *degrees(tp=4), "batch.micro=8", STRIPS),
    Row("tp on 2 nodes", A100_4, 6, GPT124, *degrees(tp=6, dp_shard=1), "batch.micro=8", STRIPS),
    Row("cp on 2 nodes", A100_4, 8, GPT1500, *degrees(cp=8, dp_shard=1), GATHER, "batch.global=64", "batch.micro=4"),
]


def table(rows):
    print("| cluster | deck, ranks | keys | groups | rough times | `run.costs` | shorter by |\n" + "|---" * 7 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            rough, true = row.steps(folder)
            print(f"| {row.name()} | {rough:.1f} ms | {true:.1f} ms | {100 * (1 - true / rough):.2f} % |", flush=True)


def main():
    if sys.argv[1:2] == ["table"]:
        return table([row for row in ROWS if any(text in row.name() for text in sys.argv[2:] or [""])])
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        for row in ROWS:
            if row.test:
                rough, true = row.steps(folder)
                checks.that(true <= (1 + LONGER) * rough, f"{row.name()}: {rough:.2f} ms by rough times, {true:.2f} ms")
    checks.finish()


main()
