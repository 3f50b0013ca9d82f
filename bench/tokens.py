"""Token files for the benchmark (doc/data.md)."""
import array, itertools, random, struct


def write_random_tokens(path, count, vocab):
    """Ids as frequent as words (Zipf's law): some rows of the embedding's gradient have thousands of tokens, others
    none."""
    width = 2 if vocab <= 65536 else 4
    weights = list(itertools.accumulate(1 / rank for rank in range(1, vocab + 1)))
    ids = array.array({2: "H", 4: "I"}[width], random.Random(1).choices(range(vocab), cum_weights=weights, k=count))
    with open(path, "wb") as file:
        file.write(struct.pack("<8sIIQQ", b"ESPTOK\0\1", 1, width, vocab, count))
        ids.tofile(file)
