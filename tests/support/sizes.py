"""Sizes of the test decks, drawn at random, since fixed ones hide errors that depend on them. Standard library only."""
import os, random, time

from .switches import Deck

WIDTHS = {"llama": (2, 4, 6, 8, 10, 14, 16, 24, 32), "gpt2": (3, 4, 5, 7, 8, 11, 16, 24, 31)}  # widths of a head


class Sizes:
    """Draws under a seed that is given, or that is printed: ESPALIER_SEED, or the day (UTC), so that all runs of a day
    agree."""

    def __init__(self, seed=None):
        self.seed = seed
        if seed is not None:
            return
        self.seed = os.environ.get("ESPALIER_SEED") or time.strftime("%Y%m%d", time.gmtime())
        print(f"sizes are random: ESPALIER_SEED={self.seed} draws them again", flush=True)

    def draw(self, keys, micro=(1,)):
        """Overrides of model.dim, heads, kv_heads, ffn_dim, vocab, seq_len and batch.micro, unless `keys` sets them,
        that are compatible with `keys`. The same for the same `keys`."""
        chooser, deck = random.Random(f"{self.seed} {' '.join(keys)}"), Deck(keys)
        family, fp8 = deck.get("model.family", "llama"), "precision.matmul" in deck
        cp, tp = deck["parallel.cp"], deck["parallel.tp"]
        turns = cp if deck.get("parallel.context") == "all_to_all" else 1
        heads = deck.get("model.heads") or turns * tp * chooser.choice([1, 2, 3] if turns * tp < 4 else [1, 2])
        kv_heads = [n for n in range(1, heads + 1) if heads % n == 0 and
                    (n % (turns * tp) == 0 or turns == 1 and tp % n == 0)]
        piece = 32 if deck.get("precision.fp8_scaling") == "mx" else 16  # that fp8 has whole on every rank
        widths = [piece] if fp8 else [n for n in WIDTHS[family] if 16 <= heads * n <= 100]
        shortest = piece * cp if fp8 else 2 * cp if cp > 1 else 1
        sizes = {
            "model.heads": heads,
            "model.kv_heads": heads if family == "gpt2" else chooser.choice(kv_heads),
            "model.dim": heads * chooser.choice(widths),
            "model.ffn_dim": piece * tp * chooser.randint(1, 3) if fp8 else chooser.randint(33, 120),
            "model.vocab": chooser.randint(256, 300),
            "model.seq_len": max(1, chooser.randint(12, 30) // shortest) * shortest,
            "batch.micro": chooser.choice(micro),
        }
        return [f"{key}={value}" for key, value in sizes.items() if key not in deck]
