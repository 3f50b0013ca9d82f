"""Random decks of tiny models that train in about a second, with data of their own. Standard library only."""
import array, copy, os, random, struct

from .runs import launch

SCHEDULES = {"1f1b": 1, "gpipe": 1, "interleaved": 2, "zb-h1": 1, "zbv": 2, "dualpipev": 2}  # with their chunks
WORDS = ("hedge gate frost plum orchard vine ladder spur lattice wall pear quince stake tier leader blossom "
         "a the of under beside").split()


def write_text(path, seed, words):
    """Words in random order, so that all samples differ."""
    chooser = random.Random(seed)
    with open(path, "w") as file:
        for _ in range(words):
            file.write(chooser.choice(WORDS) + chooser.choice("  ,.\n"))


def write_tokens(path, seed, count, vocab):
    chooser = random.Random(seed)
    with open(path, "wb") as file:
        file.write(struct.pack("<8sIIQQ", b"ESPTOK\0\1", 1, 2, vocab, count))
        file.write(
            array.array("H", (min(vocab - 1, int(chooser.expovariate(8 / vocab))) for _ in range(count))).tobytes())


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


class RandomDeck:
    """A deck that `plan` accepts, written to a file. Its fields are what the oracle needs to know of it."""

    def __init__(self, chooser, folder, number):
        self.folder, self.number, self.variants = folder, number, 0
        while True:
            self._draw_model(chooser)
            self._draw_data(chooser)
            self._draw_layout(chooser)
            self._write()
            if self._accepted():
                return

    def in_another_layout(self, chooser, folder):
        """The same training on other ranks: only degrees, schedule and what follows from them differ."""
        other = copy.copy(self)
        other.folder = folder
        while True:
            self.variants += 1
            other.variants = self.variants
            other._draw_layout(chooser)
            other._write()
            if other._accepted():
                return other

    def with_own_data(self, folder):
        """The same deck, whose data may be changed: a copy of them."""
        other = copy.copy(self)
        other.folder = folder
        self.variants += 1
        other.variants = self.variants
        other.data = os.path.join(folder, f"own{self.number}-{self.variants}{os.path.splitext(self.data)[1]}")
        with open(self.data, "rb") as source, open(other.data, "wb") as target:
            target.write(source.read())
        other._write()
        return other

    def change_data(self, kind):
        """`kind`: "made", "grown", "cut", "other contents" (of about the same size) or "gone"."""
        if kind == "gone":
            return os.remove(self.data)
        seed, factor = self.seed + (kind == "other contents"), {"grown": 1.3, "cut": 0.8}.get(kind, 1)
        self._write_data(self.data, seed, round(self.words * factor))

    def _draw_model(self, chooser):
        self.family = chooser.choice(["llama", "llama", "gpt2"])
        self.layers = chooser.randint(2, 8)
        self.heads = chooser.choice([2, 3, 4, 6])
        self.kv_heads = self.heads if self.family == "gpt2" else chooser.choice(divisors(self.heads))
        self.dim = self.heads * 2 * chooser.randint(3, 8)
        self.ffn_dim = chooser.randint(17, 90)
        self.seq_len = chooser.choice([8, 12, 16, 20, 24, 36])
        self.tied = chooser.random() < 0.3
        self.compute = chooser.choice(["fp32", "fp32", "bf16"])
        self.samples = chooser.choice([4, 6, 8, 12])  # batch.global
        self.steps = chooser.randint(20, 60)
        self.warmup = chooser.randint(0, 5)
        self.decay = chooser.choice(["cosine", "cosine", "linear", "constant"])
        self.lr = chooser.choice([1e-3, 2.3e-3, 4e-3])
        self.every = chooser.randint(3, 17)
        self.keep = chooser.randint(1, 4)
        self.asynchronous = chooser.random() < 0.7
        self.seed = chooser.randrange(10**6)
        self.validates = chooser.random() < 0.3
        own = random.Random(self.seed)
        self.ramp_start = own.choice([0, 0, *divisors(self.samples)[:-1]])  # 0: the batch does not grow
        self.ramp_steps = own.randint(1, 9)
        self._draw_variants(chooser)

    def _draw_variants(self, chooser):
        """Keys of later models and recipes, by section: each in a part of the decks, where it is allowed."""
        some = lambda share: chooser.random() < share
        self.model, self.optimizer, self.others = [], [], []
        if self.family == "llama":
            self.model += [f"{part}_bias = true" for part in ("qkv", "o", "mlp") if some(0.2)]
            self.model += [f"head_dim = {2 * chooser.randint(2, 8)}"] * some(0.3)
            self.model += [f"qk_norm = '{chooser.choice(['head', 'full'])}'"] * some(0.3)
            self.model += ["norm_placement = 'post'"] * some(0.2)
            if some(0.4):
                scaling = chooser.choice(["linear", "llama3", "yarn"])
                self.model += [f"rope_scaling = '{scaling}'", f"rope_factor = {chooser.choice([1.5, 2.0, 4.0])}"]
                self.model += [f"rope_original_seq_len = {self.seq_len // 2}"] * (scaling != "linear")
        if some(0.4):
            self.model += [f"sliding_window = {chooser.randint(1, self.seq_len)}",
                           f"full_attention_layers = {chooser.randint(0, self.layers - 1)}"]
        self.optimizer += ["name = 'muon'", "muon_lr = 0.004"] * some(0.25)
        embedding, norm = ("embed", "norm") if self.family == "llama" else ("wte", "ln_")
        self.optimizer += [f"groups = ['*{embedding}* lr=0.5', '*{norm}* decay=0.02', "
                           f"'*.{self.layers - 1}.* lr=1.5 decay=0']"] * some(0.25)
        self.others += [f"[loss]\nz_loss = {chooser.choice([1e-4, 1e-2])}"] * some(0.3)
        self.others += [f"[guard]\nspike_z = {chooser.choice([3.0, 6.0])}\nspike_window = {chooser.randint(4, 20)}\n"
                        f"on_spike = '{chooser.choice(['skip', 'warn'])}'"] * some(0.3)

    @property
    def decay_steps(self):
        return max(1, self.steps - self.warmup)

    def _draw_data(self, chooser):
        self.format = chooser.choice(["text", "tokens"])
        self.vocab = chooser.randint(256, 300) if self.format == "text" else chooser.randint(30, 300)
        self.data = os.path.join(self.folder, f"data{self.number}.{'txt' if self.format == 'text' else 'tokens'}")
        self.words = chooser.randint(500, 3000) if self.format == "text" else chooser.randint(3000, 20000)
        self.change_data("made")
        self.documents, self.weights = [], ""
        if chooser.random() < 0.4:
            end = ord(".") if self.format == "text" else chooser.randrange(5)
            self.documents = ["isolate_documents = true", f"end_token = {end}"]
        self.second = os.path.join(self.folder, f"second{os.path.basename(self.data)}")
        if chooser.random() < 0.3:
            self.weights = f"weights = [{chooser.choice([0.7, 3, 1])}, {chooser.choice([0.3, 1])}]"
            self._write_data(self.second, self.seed + 5, self.words // 2)

    def _write_data(self, path, seed, words):
        if self.format == "text":
            write_text(path, seed, words)
        else:
            write_tokens(path, seed, words, self.vocab)

    def _draw_layout(self, chooser):
        self.ranks = chooser.choice([1, 1, 2, 2, 3, 4])
        self.degrees = {"pp": 1, "dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1}
        for prime in {1: [], 2: [2], 3: [3], 4: [2, 2]}[self.ranks]:
            self.degrees[chooser.choice(list(self.degrees))] *= prime
        self.schedule = chooser.choice(list(SCHEDULES))
        self.chunks = SCHEDULES[self.schedule]
        self.micro = chooser.choice([m for m in divisors(self.samples) if m <= 3])
        self.zero = chooser.randint(1, 3)
        self.reduce = chooser.choice(["microbatch", "auto"] if self.zero == 2 else ["microbatch", "auto", "step"])
        self.recompute = chooser.choice(["none", "selective", "full"])
        self.context = chooser.choice(["ring", "all_gather", "all_to_all"])
        self.interleave = chooser.choice([True, False])

    @property
    def layout(self):
        return " x ".join(f"{axis} {degree}" for axis, degree in self.degrees.items()
                          if degree > 1) + f" {self.schedule}, micro {self.micro}"

    @property
    def text(self):
        flag = lambda value: "true" if value else "false"
        lines = lambda of: "".join(f"{line}\n" for line in of)
        paths = [self.data, self.second] if self.weights else [self.data]
        validation = (f"validation = ['{self.data}']\nvalidate_every_steps = 7\n"
                      f"validate_sequences = {self.samples}\n") if self.validates else ""
        return (
            f"[run]\nsteps = {self.steps}\nseed = {self.seed}\nthreads = 1\n"
            f"[model]\nfamily = '{self.family}'\nlayers = {self.layers}\ndim = {self.dim}\n"
            f"heads = {self.heads}\nkv_heads = {self.kv_heads}\nffn_dim = {self.ffn_dim}\n"
            f"vocab = {self.vocab}\nseq_len = {self.seq_len}\ntie_embeddings = {flag(self.tied)}\ninit_std = 0.07\n"
            + lines(self.model) +
            "[parallel]\n" + "".join(f"{axis} = {degree}\n" for axis, degree in self.degrees.items()) +
            f"zero = {self.zero}\nreduce = '{self.reduce}'\ncontext = '{self.context}'\n"
            f"[pipeline]\nschedule = '{self.schedule}'\n[batch]\nglobal = {self.samples}\nmicro = {self.micro}\n"
            f"ramp_start = {self.ramp_start}\nramp_steps = {self.ramp_steps}\n"
            f"[precision]\ncompute = '{self.compute}'\n[recompute]\nmode = '{self.recompute}'\n"
            f"[overlap]\ninterleave = {flag(self.interleave)}\n"
            f"[optimizer]\nlr = {self.lr}\n{lines(self.optimizer)}{lines(self.others)}"
            f"[lr]\nwarmup_steps = {self.warmup}\ndecay = '{self.decay}'\n"
            f"[data]\nformat = '{self.format}'\npaths = {paths}\n{self.weights}\n{lines(self.documents)}{validation}"
            f"[checkpoint]\nevery_steps = {self.every}\nkeep = {self.keep}\nasynchronous = {flag(self.asynchronous)}\n"
            "[report]\nevery_steps = 10\n"
        )

    def _write(self):
        self.path = os.path.join(self.folder, f"deck{self.number}-{self.variants}.toml")
        with open(self.path, "w") as file:
            file.write(self.text)

    def _accepted(self):
        done = launch(1, ["plan", self.path, "--ranks", str(self.ranks)])
        if done.returncode not in (0, 2):
            raise RuntimeError(f"plan ends with {done.returncode}\n{done.stdout}\n{self.text}")
        return done.returncode == 0
