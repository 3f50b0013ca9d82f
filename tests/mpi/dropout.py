"""Dropout against plain loops in fp64: a small GPT-2 and a small Llama, forward and backward, with the masks that
doc/numerics.md defines. Losses and gradient norms of three steps agree to 1e-5. A tiny learning rate leaves the weights
unchanged, so that the steps differ only in data and masks. Validation drops nothing, a restart continues bitwise with
the same masks, and other rates give other numbers. Standard library only."""
import math
import os

from support.checkpoints import same_bits, tensors
from support.layouts import GPT2
from support.philox import philox, stream_key
from support.runs import Checks, DECK, ROOT, difference, scratch, train

TEXT = os.path.join(ROOT, "tests", "oracle", "data", "text.txt")
SEED, STEPS, BATCH, LAYERS, LENGTH, DIM, HEADS = 77, 3, 2, 2, 8, 16, 4
EPS, THETA = 1e-5, 500000.0
HEAD_DIM = DIM // HEADS
# Rates of embedding, residual and attention, further keys.
CASES = [(GPT2, (0.1, 0.2, 0.3), []), (GPT2, (0.5, 0, 0), ["batch.micro=2"]), (GPT2, (0, 0, 0.6), []),
         (DECK, (0, 0, 0.35), ["model.kv_heads=2"]),
         (DECK, (0, 0, 0.2), ["model.kv_heads=4", "model.sliding_window=5"])]

# --- masks, as in doc/numerics.md

def factors(place, rate, step, sample, columns, head=0):
    """Dropout factors of the tokens of a sample, by rows: 0, or 1 / (1 - rate)."""
    key = stream_key(SEED, "dropout/" + place)
    word = lambda token, column: philox([column // 4, token, step, head], key)[column % 4]
    return [[0.0 if word(sample * LENGTH + p, c) < round(rate * 2**32) else 1 / (1 - rate) for c in range(columns)]
            for p in range(LENGTH)]


# --- matrices and their gradients

class Matrix:
    def __init__(self, rows):
        self.rows = rows
        self.gradient = [[0.0] * len(row) for row in rows]


class Tape:
    """Operations on matrices; their gradients are computed in reverse order."""

    def __init__(self):
        self.steps = []

    def made(self, rows, backward):
        result = Matrix(rows)
        self.steps.append(lambda: backward(result.gradient))
        return result

    def backward(self):
        for step in reversed(self.steps):
            step()

    def product(self, a, b, transposed=False):
        """a b, or a b^T."""
        columns = b.rows if transposed else [list(c) for c in zip(*b.rows)]

        def backward(g):
            for i, row in enumerate(g):
                for j, dy in enumerate(row):
                    for k, x in enumerate(a.rows[i]):
                        a.gradient[i][k] += dy * columns[j][k]
                        b.gradient[j if transposed else k][k if transposed else j] += dy * x

        return self.made([[math.fsum(x * y for x, y in zip(r, c)) for c in columns] for r in a.rows], backward)

    def sum(self, a, b):
        """b may be one row, which is added to each."""
        row_of = (lambda i: 0) if len(b.rows) == 1 else (lambda i: i)

        def backward(g):
            for i, row in enumerate(g):
                for j, dy in enumerate(row):
                    a.gradient[i][j] += dy
                    b.gradient[row_of(i)][j] += dy

        return self.made([[x + y for x, y in zip(r, b.rows[row_of(i)])] for i, r in enumerate(a.rows)], backward)

    def times(self, a, constants):
        def backward(g):
            for i, row in enumerate(g):
                for j, dy in enumerate(row):
                    a.gradient[i][j] += dy * constants[i][j]

        return self.made([[x * f for x, f in zip(r, c)] for r, c in zip(a.rows, constants)], backward)

    def each(self, f, slopes, *inputs):
        """f applied to the elements of all inputs; `slopes` has its derivatives."""
        def backward(g):
            for i, row in enumerate(g):
                for j, dy in enumerate(row):
                    for x, slope in zip(inputs, slopes(*(m.rows[i][j] for m in inputs))):
                        x.gradient[i][j] += dy * slope

        return self.made([[f(*xs) for xs in zip(*rows)] for rows in zip(*(m.rows for m in inputs))], backward)

    def rows_of(self, table, indices):
        def backward(g):
            for row, i in zip(g, indices):
                table.gradient[i] = [x + y for x, y in zip(table.gradient[i], row)]

        return self.made([list(table.rows[i]) for i in indices], backward)

    def columns_of(self, a, begin, end):
        def backward(g):
            for row, to in zip(g, a.gradient):
                for j, dy in enumerate(row):
                    to[begin + j] += dy

        return self.made([row[begin:end] for row in a.rows], backward)

    def beside(self, parts):
        def backward(g):
            first = 0
            for part in parts:
                width = len(part.rows[0])
                for row, to in zip(g, part.gradient):
                    for j in range(width):
                        to[j] += row[first + j]
                first += width

        return self.made([[x for row in rows for x in row] for rows in zip(*(p.rows for p in parts))], backward)

    def norm(self, a, weight, bias=None):
        """LayerNorm, or without a bias RMSNorm."""
        width = len(a.rows[0])
        means = [math.fsum(r) / width if bias else 0.0 for r in a.rows]
        scales = [1 / math.sqrt(math.fsum((x - m) ** 2 for x in r) / width + EPS) for r, m in zip(a.rows, means)]
        normal = [[(x - m) * s for x in r] for r, m, s in zip(a.rows, means, scales)]
        w, b = weight.rows[0], bias.rows[0] if bias else [0.0] * width

        def backward(g):
            for i, row in enumerate(g):
                d = [dy * x for dy, x in zip(row, w)]
                mean = math.fsum(d) / width if bias else 0.0
                along = math.fsum(x * y for x, y in zip(d, normal[i])) / width
                for j, dy in enumerate(row):
                    a.gradient[i][j] += scales[i] * (d[j] - mean - normal[i][j] * along)
                    weight.gradient[0][j] += dy * normal[i][j]
                    if bias:
                        bias.gradient[0][j] += dy

        return self.made([[x * y + z for x, y, z in zip(r, w, b)] for r in normal], backward)

    def softmax(self, scores, window):
        """Softmax over the keys that each query sees."""
        def row_of(i):
            seen = [j for j in range(len(scores.rows[i])) if j <= i and (window == 0 or j > i - window)]
            weights = {j: math.exp(scores.rows[i][j] - max(scores.rows[i][k] for k in seen)) for j in seen}
            return [weights.get(j, 0.0) / math.fsum(weights.values()) for j in range(len(scores.rows[i]))]

        rows = [row_of(i) for i in range(len(scores.rows))]

        def backward(g):
            for i, row in enumerate(g):
                mean = math.fsum(dy * p for dy, p in zip(row, rows[i]))
                for j, dy in enumerate(row):
                    scores.gradient[i][j] += rows[i][j] * (dy - mean)

        return self.made(rows, backward)

    def cross_entropy(self, logits, targets, share):
        """The sum of the losses of all rows times `share`."""
        total = 0.0
        for row, target, gradient in zip(logits.rows, targets, logits.gradient):
            log_sum = max(row) + math.log(math.fsum(math.exp(x - max(row)) for x in row))
            total += share * (log_sum - row[target])
            for j, x in enumerate(row):
                gradient[j] += share * (math.exp(x - log_sum) - (j == target))
        return total


# --- the models

def gelu(x):
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_slope(x):
    t = math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return ((1 + t) / 2 + x / 2 * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x), )


def swiglu(gate, up):
    return gate / (1 + math.exp(-gate)) * up


def swiglu_slopes(gate, up):
    s = 1 / (1 + math.exp(-gate))
    return s * (1 + gate * (1 - s)) * up, gate * s


class Model:
    def __init__(self, checkpoint, rates, window):
        self.rates, self.window, prefix = rates, window, "parameters/"
        self.weights = {name.removeprefix(prefix): list(flat) for name, flat in tensors(checkpoint).items()
                        if name.startswith(prefix)}

    def matrix(self, name, width):
        """A weight with rows of `width`."""
        if isinstance(self.weights[name], list):
            flat = self.weights[name]
            self.weights[name] = Matrix([flat[i:i + width] for i in range(0, len(flat), width)])
        return self.weights[name]

    def drop(self, x, rate, place, head=0):
        if rate == 0:
            return x
        return self.tape.times(x, factors(place, rate, self.step, self.sample, len(x.rows[0]), head))

    def attention(self, q, k, v, kv_heads, place):
        t, parts = self.tape, []
        part = lambda x, h: t.columns_of(x, h * HEAD_DIM, (h + 1) * HEAD_DIM)
        for h in range(HEADS):
            kv = h * kv_heads // HEADS
            scores = t.product(part(q, h), part(k, kv), transposed=True)
            scaled = t.times(scores, [[1 / math.sqrt(HEAD_DIM)] * LENGTH] * LENGTH)
            kept = self.drop(t.softmax(scaled, self.window), self.rates[2], place, h)
            parts.append(t.product(kept, part(v, kv)))
        return t.beside(parts)

    def loss_and_norm(self, step, samples):
        """Loss and norm of one batch: lists of tokens, one more than a sequence has."""
        self.step, loss = step, 0.0
        for self.sample, tokens in enumerate(samples):
            self.tape = Tape()
            logits = self.logits(tokens[:-1])
            loss += self.tape.cross_entropy(logits, tokens[1:], 1 / (len(samples) * LENGTH))
            self.tape.backward()
        matrices = [m for m in self.weights.values() if isinstance(m, Matrix)]
        assert len(matrices) == len(self.weights)
        squares = math.fsum(g * g for m in matrices for row in m.gradient for g in row)
        for m in matrices:
            m.gradient = [[0.0] * len(row) for row in m.rows]
        return loss, math.sqrt(squares)


class Gpt2(Model):
    def linear(self, x, name, width):
        product = self.tape.product(x, self.matrix(name + ".weight", width))
        return self.tape.sum(product, self.matrix(name + ".bias", width))

    def layer_norm(self, x, name):
        return self.tape.norm(x, self.matrix(name + ".weight", DIM), self.matrix(name + ".bias", DIM))

    def logits(self, ids):
        t, (embedding, residual, _) = self.tape, self.rates
        table = self.matrix("transformer.wte.weight", DIM)
        x = t.sum(t.rows_of(table, ids), t.rows_of(self.matrix("transformer.wpe.weight", DIM), range(LENGTH)))
        x = self.drop(x, embedding, "transformer.drop")
        for l in range(LAYERS):
            at = f"transformer.h.{l}."
            qkv = self.linear(self.layer_norm(x, at + "ln_1"), at + "attn.c_attn", 3 * DIM)
            q, k, v = (t.columns_of(qkv, i * DIM, (i + 1) * DIM) for i in range(3))
            o = self.linear(self.attention(q, k, v, HEADS, at + "attn.out"), at + "attn.c_proj", DIM)
            x = t.sum(x, self.drop(o, residual, at + "attn.resid_dropout"))
            h = t.each(gelu, gelu_slope, self.linear(self.layer_norm(x, at + "ln_2"), at + "mlp.c_fc", 20))
            x = t.sum(x, self.drop(self.linear(h, at + "mlp.c_proj", DIM), residual, at + "mlp.dropout"))
        return t.product(self.layer_norm(x, "transformer.ln_f"), table, transposed=True)


class Llama(Model):
    kv_heads = 2

    def linear(self, x, name):
        return self.tape.product(x, self.matrix(name + ".weight", len(x.rows[0])), transposed=True)

    def rms_norm(self, x, name):
        return self.tape.norm(x, self.matrix(name + ".weight", DIM))

    def rotated(self, x):
        """x cos + (its halves exchanged, one negated) sin, for each head."""
        half, heads = HEAD_DIM // 2, len(x.rows[0]) // HEAD_DIM
        angles = [[p * THETA ** (-2 * (i % half) / HEAD_DIM) for _ in range(heads) for i in range(HEAD_DIM)]
                  for p in range(LENGTH)]
        turned = []
        for h in range(heads):
            first, second = ((h * HEAD_DIM + part * half, h * HEAD_DIM + (part + 1) * half) for part in (0, 1))
            turned += [self.tape.times(self.tape.columns_of(x, *second), [[-1.0] * half] * LENGTH),
                       self.tape.columns_of(x, *first)]
        cosines, sines = ([[f(a) for a in row] for row in angles] for f in (math.cos, math.sin))
        return self.tape.sum(self.tape.times(x, cosines), self.tape.times(self.tape.beside(turned), sines))

    def logits(self, ids):
        t = self.tape
        x = t.rows_of(self.matrix("model.embed_tokens.weight", DIM), ids)
        for l in range(LAYERS):
            at = f"model.layers.{l}."
            n = self.rms_norm(x, at + "input_layernorm")
            q, k, v = (self.linear(n, f"{at}self_attn.{p}_proj") for p in "qkv")
            o = self.attention(self.rotated(q), self.rotated(k), v, self.kv_heads, at + "self_attn.out")
            x = t.sum(x, self.linear(o, at + "self_attn.o_proj"))
            n = self.rms_norm(x, at + "post_attention_layernorm")
            gates = (self.linear(n, f"{at}mlp.{p}_proj") for p in ("gate", "up"))
            x = t.sum(x, self.linear(t.each(swiglu, swiglu_slopes, *gates), at + "mlp.down_proj"))
        return self.linear(self.rms_norm(x, "model.norm"), "lm_head")


def keys_of(rates):
    return [f"dropout.{place}={rate}" for place, rate in zip(("embedding", "residual", "attention"), rates) if rate]


def check_case(checks, folder, number, deck, rates, more):
    shape = [f"model.layers={LAYERS}", f"model.dim={DIM}", f"model.heads={HEADS}", f"model.seq_len={LENGTH}",
             "model.ffn_dim=20", "model.vocab=260"]
    run = train(os.path.join(folder, f"case{number}"), 1,
                [*shape, f"run.steps={STEPS}", f"run.seed={SEED}", "data.shuffle=false", f"batch.global={BATCH}",
                 "checkpoint.at_start=true", "optimizer.lr=1e-30", *keys_of(rates), *more], deck=deck)
    window = next((int(key.split("=")[1]) for key in more if "window" in key), 0)
    model = (Gpt2 if deck == GPT2 else Llama)(run.checkpoint(0), rates, window)
    model.kv_heads = next((int(key.split("=")[1]) for key in more if "kv_heads" in key), HEADS)
    with open(TEXT, "rb") as file:
        text = file.read()
    for step in range(1, STEPS + 1):
        first = (step - 1) * BATCH * LENGTH
        samples = [list(text[at:at + LENGTH + 1]) for at in range(first, first + BATCH * LENGTH, LENGTH)]
        for curve, value in zip(("loss", "grad_norm"), model.loss_and_norm(step, samples)):
            apart = abs(run.curve(curve)[step - 1] - value) / value
            checks.that(apart <= 1e-5, f"{type(model).__name__} {rates} {' '.join(more)}: {curve} of step {step} is "
                        f"{run.curve(curve)[step - 1]:.9g}, {apart:.1e} from {value:.9g}")


def check_whole_runs(checks, folder):
    drops = keys_of((0.1, 0.2, 0.3))
    validated = ["run.steps=4", f"data.validation=['{TEXT}']", "data.validate_every_steps=4", "lr.decay_steps=20"]
    whole = train(os.path.join(folder, "whole"), 1, [*validated, *drops], deck=GPT2)
    half = ["run.steps=2", *validated[1:], *drops]
    train(os.path.join(folder, "parts"), 1, half, deck=GPT2)
    parts = train(os.path.join(folder, "parts"), 1, [*validated, *drops, "checkpoint.restart=auto"], deck=GPT2)
    same_weights = same_bits(tensors(parts.checkpoint(4)), tensors(whole.checkpoint(4)))
    checks.that(parts.curve("loss") == whole.curve("loss") and same_weights, "a restart drops the same, bitwise")
    still = train(os.path.join(folder, "still"), 1, ["optimizer.lr=1e-30", *validated], deck=GPT2)
    dropped = train(os.path.join(folder, "dropped"), 1, ["optimizer.lr=1e-30", *validated, *drops], deck=GPT2)
    checks.that(dropped.validation == still.validation, "validation drops nothing, bitwise")
    checks.that(difference(dropped.curve("loss"), still.curve("loss")) > 1e-4, "training does")
    other = train(os.path.join(folder, "other"), 1, ["optimizer.lr=1e-30", *validated, *drops[:2]], deck=GPT2)
    checks.that(other.curve("loss") != dropped.curve("loss"), "another rate is another loss")


def main():
    checks = Checks()
    with scratch() as folder:
        for number, case in enumerate(CASES):
            check_case(checks, folder, number, *case)
        check_whole_runs(checks, folder)
    checks.finish()


main()
