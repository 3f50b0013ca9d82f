"""Token files for the benchmark (doc/data.md)."""
import array, random, struct


def write_random_tokens(path, count, vocab):
    """Uniform ids, so that every row of the embedding is used as often as another."""
    width = 2 if vocab <= 65536 else 4
    ids = array.array({2: "H", 4: "I"}[width], random.Random(1).choices(range(vocab), k=count))
    with open(path, "wb") as file:
        file.write(struct.pack("<8sIIQQ", b"ESPTOK\0\1", 1, width, vocab, count))
        ids.tofile(file)
