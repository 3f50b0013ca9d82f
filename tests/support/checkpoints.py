"""Reads the tensors of a checkpoint by its MANIFEST alone, and edits the MANIFEST. Standard library only."""
import array, itertools, math, os, re

TENSOR = re.compile(r"tensor (\S+) (f32|bf16) \[(.*)\]")
PIECE = re.compile(r"piece (\S+) \[(.*)\] (\d+) [0-9a-f]{8}")


def read_piece(path, dtype, offset, count):
    """Returns floats: a bf16 is the upper half of one."""
    with open(path, "rb") as file:
        file.seek(offset)
        values = array.array("f")
        if dtype == "f32":
            values.frombytes(file.read(4 * count))
            return values
        wide = bytearray(4 * count)
        halves = file.read(2 * count)
        wide[2::4], wide[3::4] = halves[0::2], halves[1::2]
        values.frombytes(bytes(wide))
    return values


def place(whole, shape, box, piece):
    """Copies a dense row-major box to its place in a dense row-major tensor, run by run of the last dim."""
    if not shape:
        whole[0] = piece[0]
        return
    *outer, (begin, end) = box
    strides = [math.prod(shape[d + 1:]) for d in range(len(shape))]
    at = 0
    for index in itertools.product(*(range(b, e) for b, e in outer)):
        start = sum(i * s for i, s in zip(index, strides)) + begin
        whole[start:start + end - begin] = piece[at:at + end - begin]
        at += end - begin


def tensors(checkpoint):
    """Every whole tensor by name, as a flat array of floats; arrays with equal bytes have equal bits."""
    found = {}
    with open(os.path.join(checkpoint, "MANIFEST")) as file:
        for line in file:
            if match := TENSOR.match(line):
                name, dtype, shape = match[1], match[2], [int(n) for n in match[3].split(",") if n]
                found[name] = array.array("f", bytes(4 * math.prod(shape)))
            elif match := PIECE.match(line):
                box = [tuple(map(int, r.split(":"))) for r in match[2].split(",") if r]
                count = math.prod(e - b for b, e in box)
                piece = read_piece(os.path.join(checkpoint, match[1]), dtype, int(match[3]), count)
                place(found[name], shape, box, piece)
    return found


def types(checkpoint):
    """Element type of every tensor by name."""
    with open(os.path.join(checkpoint, "MANIFEST")) as file:
        return {match[1]: match[2] for line in file if (match := TENSOR.match(line))}


def same_bits(a, b):
    """True if two dicts of tensors have equal names and equal bits."""
    return bool(a) and a.keys() == b.keys() and all(a[n].tobytes() == b[n].tobytes() for n in a)


def distance(a, b):
    """Euclidean norm of the difference of two flat tensors."""
    return math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(a, b)))


def crc32c_of_byte(byte):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82f63b78 if byte & 1 else 0)
    return byte


CRC32C_TABLE = [crc32c_of_byte(byte) for byte in range(256)]


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc = crc >> 8 ^ CRC32C_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xffffffff


def reseal(checkpoint, manifest=lambda text: text, deck=lambda text: text):
    """Changes the texts of MANIFEST and deck.toml and corrects their checksums, as a third party could."""
    paths = {name: os.path.join(checkpoint, name) for name in ("MANIFEST", "deck.toml")}
    changed = deck(open(paths["deck.toml"]).read()).encode()
    with open(paths["deck.toml"], "wb") as file:
        file.write(changed)
    text = manifest(open(paths["MANIFEST"]).read())
    text = re.sub(r"\nfile deck\.toml .*", f"\nfile deck.toml {len(changed)} {crc32c(changed):08x}", text)
    body = text[:text.rindex("end ")]
    with open(paths["MANIFEST"], "w") as file:
        file.write(f"{body}end {crc32c(body.encode()):08x}\n")
