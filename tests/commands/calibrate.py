"""espalier calibrate --product-plans, and runs that go by its file: on the emulated module. Its times mean nothing."""

import json
import pathlib
import re
import tempfile
import unittest

from support.runs import DECK, ENVIRONMENT, Metrics, difference, launch, train

ON_GPU = ["run.device=cuda", "run.transport=mpi"]
SHORT = ["run.steps=5"]
TINY = ["run.steps=2", "model.layers=1", "model.dim=16", "model.heads=2", "model.kv_heads=2", "model.ffn_dim=32",
        "model.seq_len=8", "batch.global=2"]


def shape(product):
    """A product without what was found about it."""
    found = ("microseconds", "first_microseconds", "algorithm", "workspace_bytes")
    return json.dumps({key: value for key, value in product.items() if key not in found})


class Calibrate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.plans = self.folder / "plans.json"

    def calibrate(self, *arguments):
        done = launch(1, ["calibrate", "--product-plans", str(self.plans), "--deck", DECK, *arguments])
        self.assertEqual(done.returncode, 0, done.stdout)
        return json.loads(self.plans.read_text()), done.stdout

    def test_every_product_once(self):
        plans, printed = self.calibrate(*SHORT)
        self.assertEqual(plans["gpu"], "an emulated GPU")
        self.assertRegex(plans["library"], r"^cuBLASLt \d+\.\d+\.\d+$")
        shapes = list(map(shape, plans["products"]))
        self.assertEqual(len(shapes), len(set(shapes)))
        self.assertIn(f"{len(shapes)} GEMMs on an emulated GPU with cuBLASLt", printed)
        self.assertEqual({product["epilogue"] for product in plans["products"]}, {"none", "accumulate"})

    def test_overrides_and_ranks_change_the_products(self):
        whole, _ = self.calibrate(*SHORT)
        halves, _ = self.calibrate(*SHORT, "parallel.tp=2", "--ranks", "2")
        self.assertNotEqual([p["n"] for p in whole["products"]], [p["n"] for p in halves["products"]])

    def test_decks_are_measured_together(self):
        one, _ = self.calibrate()
        both, _ = self.calibrate("--deck", str(pathlib.Path(DECK).parents[2] / "inputs/llama/tiny-8.toml"))
        self.assertGreater(len(both["products"]), len(one["products"]))
        self.assertLess(set(map(shape, one["products"])), set(map(shape, both["products"])))

    def test_a_run_goes_by_the_file(self):
        plans, _ = self.calibrate(*SHORT)
        with_plans = train(str(self.folder / "with"), 1, [*ON_GPU, *SHORT, f"run.product_plans={self.plans}"])
        without = train(str(self.folder / "without"), 1, [*ON_GPU, *SHORT])
        self.assertLess(difference(with_plans.curve("loss"), without.curve("loss")), 1e-5)
        several = {product["algorithm"] for product in plans["products"]}
        self.assertGreater(len(several), 1)

    def start(self, name, ranks=1, *overrides):
        """A start that measures; (matmuls known, measured), the output and the run."""
        cache = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        ENVIRONMENT.update(cache, ESPALIER_EMULATED_GPUS="2")
        self.addCleanup(lambda: [ENVIRONMENT.pop(name, None) for name in (*cache, "ESPALIER_EMULATED_GPUS")])
        keys = [*ON_GPU, *TINY, "run.product_plans=auto", *overrides]
        done = launch(ranks, ["run", DECK, "-v", "-d", str(self.folder / name), *keys])
        self.assertEqual(done.returncode, 0, done.stdout)
        said = re.findall(r"matmul algorithms: (\d+) known, (\d+) measured in [\d.]+ s, (\S*)", done.stdout)
        self.assertEqual(len(said), 1, done.stdout)
        return (int(said[0][0]), int(said[0][1])), done.stdout, Metrics(str(self.folder / name))

    def test_starts_measure_what_no_start_has_measured(self):
        (known, measured), _, first = self.start("first")
        self.assertEqual(known, 0)
        self.assertGreater(measured, 4)
        files = list((self.folder / "cache" / "espalier").iterdir())
        self.assertEqual(len(files), 1)
        self.assertRegex(files[0].name, r"^products-an-emulated-GPU-cuBLASLt-[\d.]+\.json$")
        before = files[0].read_text()
        counts, _, again = self.start("again")
        self.assertEqual(counts, (measured, 0))
        self.assertEqual(files[0].read_text(), before)
        self.assertEqual(first.curve("loss"), again.curve("loss"))
        without = train(str(self.folder / "without"), 1, [*ON_GPU, *TINY])
        self.assertLess(difference(again.curve("loss"), without.curve("loss")), 1e-5)
        # Other shapes are added; those that were known stay as they were.
        (known, more), _, _ = self.start("two", 2, "parallel.tp=2")
        self.assertGreater(more, 0)
        products = json.loads(files[0].read_text())["products"]
        self.assertEqual(len(products), measured + more)
        for product in json.loads(before)["products"]:
            self.assertIn(product, products)

    def test_another_library_has_another_file(self):
        self.start("first")
        ENVIRONMENT["ESPALIER_EMULATED_VERSIONS"] = "cuBLASLt=13.4"
        self.addCleanup(lambda: ENVIRONMENT.pop("ESPALIER_EMULATED_VERSIONS"))
        (known, _), _, _ = self.start("newer")
        self.assertEqual(known, 0)
        names = sorted(path.name for path in (self.folder / "cache" / "espalier").iterdir())
        self.assertEqual(len(names), 2, names)
        self.assertIn("cuBLASLt-13.4", names[-1])

    def test_a_file_that_cannot_be_used_is_a_warning(self):
        (_, measured), _, _ = self.start("first")
        file = next((self.folder / "cache" / "espalier").iterdir())
        file.write_text("{}")
        counts, printed, _ = self.start("broken")
        self.assertEqual(counts, (0, measured))
        self.assertIn("not a file of GEMM plans", printed)
        # Plans that want more workspace than this run has planned are measured anew.
        plans = json.loads(file.read_text())
        for product in plans["products"]:
            product["workspace_bytes"] = 1 << 50
        file.write_text(json.dumps(plans))
        self.assertEqual(self.start("large")[0], (0, measured))
        products = json.loads(file.read_text())["products"]
        self.assertLess(max(product["workspace_bytes"] for product in products), 1 << 40)
        # A folder that cannot be made.
        file.unlink()
        file.parent.rmdir()
        file.parent.write_text("no folder")
        counts, printed, _ = self.start("nowhere")
        self.assertEqual(counts, (0, measured))
        self.assertIn("no start remembers what this one measured", printed)

    def test_algorithms_that_cannot_run_here_are_refused(self):
        plans, _ = self.calibrate(*SHORT)
        products = plans["products"]
        shorter = [product["algorithm"][2:] for product in products]
        for algorithms, message in ((shorter, "has an algorithm of 63 bytes"),
                                    (["00" * 64] * len(products), "wants -1 bytes of workspace")):
            changed = [product | {"algorithm": algorithm} for product, algorithm in zip(products, algorithms)]
            self.plans.write_text(json.dumps(plans | {"products": changed}))
            self.refused(message, status=4)

    def test_the_fastest_attention_backward(self):
        deck = ["--deck", DECK, "precision.compute=bf16", "model.head_dim=8"]
        done = launch(1, ["calibrate", "--attention", *deck])
        self.assertEqual(done.returncode, 0, done.stdout)
        lines = done.stdout.splitlines()
        self.assertRegex(lines[0],
                         r"^\d+ x \d+ queries of \d+ heads, \d+ keys of \d+ heads, head_dim 8, \d+ times a step$")
        ways = [line.split()[0] for line in lines[1:-1]]
        self.assertEqual(ways, ["parts", "large_parts", "two_streams", "ordered",
                                "run.deterministic_attention=false"])
        self.assertRegex(lines[-1], r"^run.attention_backward=[a-z_]+: [\d.]+ ms a step, [\d.]+ of \"parts\"$")

    def test_attention_that_cudnn_does_not_take_has_no_fastest_way(self):
        done = launch(1, ["calibrate", "--attention", "--deck", DECK])
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("left out: attention of", done.stdout)
        self.assertIn("no way computes all of them", done.stdout.splitlines()[-1])

    def test_a_file_of_another_gpu_is_refused(self):
        plans, _ = self.calibrate(*SHORT)
        self.plans.write_text(json.dumps(plans | {"gpu": "NVIDIA H200"}))
        self.refused("made on NVIDIA H200, this is an emulated GPU")

    def test_a_file_that_is_none_is_refused(self):
        self.refused(f"{self.plans}: no such file; make it anew by `espalier calibrate`")
        self.plans.write_text("{}")
        self.refused(f"{self.plans}: not a file of GEMM plans")

    def refused(self, message, status=3):
        done = launch(1,
                      ["run", DECK, "-d",
                       str(self.folder / "run"), *ON_GPU, *SHORT, f"run.product_plans={self.plans}"])
        self.assertEqual(done.returncode, status, done.stdout)
        self.assertIn(message, done.stdout)


if __name__ == "__main__":
    unittest.main()
