"""espalier calibrate --gemm-plans, and runs that go by its file; clocks of --steady from a stand-in for NVML. All on
the emulated module, whose times mean nothing."""

import json
import os
import pathlib
import re
import tempfile
import unittest

from support.runs import DECK, ENVIRONMENT, Metrics, difference, launch, train

ON_GPU = ["run.device=cuda", "run.transport=mpi"]
SHORT = ["run.steps=5"]
BACKWARD = ["precision.compute=bf16", "model.head_dim=8"]
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
        self.set(ESPALIER_EMULATED_VERSIONS="cuDNN=9.25")  # the first with the ordered backward

    def calibrate(self, *arguments):
        done = launch(1, ["calibrate", "--gemm-plans", str(self.plans), "--deck", DECK, *arguments])
        self.assertEqual(done.returncode, 0, done.stdout)
        return json.loads(self.plans.read_text()), done.stdout

    def test_every_product_once(self):
        plans, printed = self.calibrate(*SHORT)
        self.assertEqual(plans["gpu"], "an emulated GPU")
        self.assertRegex(plans["library"], r"^cuBLASLt \d+\.\d+\.\d+$")
        shapes = list(map(shape, plans["gemms"]))
        self.assertEqual(len(shapes), len(set(shapes)))
        self.assertIn(f"{len(shapes)} GEMMs on an emulated GPU with cuBLASLt", printed)
        self.assertEqual({product["epilogue"] for product in plans["gemms"]}, {"none", "accumulate"})

    def test_overrides_and_ranks_change_the_products(self):
        whole, _ = self.calibrate(*SHORT)
        halves, _ = self.calibrate(*SHORT, "parallel.tp=2", "--ranks", "2")
        self.assertNotEqual([p["n"] for p in whole["gemms"]], [p["n"] for p in halves["gemms"]])

    def test_decks_are_measured_together(self):
        one, _ = self.calibrate()
        both, _ = self.calibrate("--deck", str(pathlib.Path(DECK).parents[2] / "inputs/llama/tiny-8.toml"))
        self.assertGreater(len(both["gemms"]), len(one["gemms"]))
        self.assertLess(set(map(shape, one["gemms"])), set(map(shape, both["gemms"])))

    def test_a_run_goes_by_the_file(self):
        plans, _ = self.calibrate(*SHORT)
        with_plans = train(str(self.folder / "with"), 1, [*ON_GPU, *SHORT, f"run.gemm_plans={self.plans}"])
        without = train(str(self.folder / "without"), 1, [*ON_GPU, *SHORT])
        self.assertLess(difference(with_plans.curve("loss"), without.curve("loss")), 1e-5)
        several = {product["algorithm"] for product in plans["gemms"]}
        self.assertGreater(len(several), 1)

    def set(self, **settings):
        """Environment variables of this test."""
        ENVIRONMENT.update(settings)
        self.addCleanup(lambda: [ENVIRONMENT.pop(name, None) for name in settings])

    def measure(self, name, ranks, said, *overrides):
        """A start that measures: (known, measured) in a line that begins with `said`, the output and the run."""
        self.set(XDG_CACHE_HOME=str(self.folder / "cache"), ESPALIER_EMULATED_GPUS="2")
        done = launch(ranks, ["run", DECK, "-v", "-d", str(self.folder / name), *ON_GPU, *TINY, *overrides])
        self.assertEqual(done.returncode, 0, done.stdout)
        counts = re.findall(said + r": (\d+) (?:calls )?known, (\d+) measured in [\d.]+ s, \S*", done.stdout)
        self.assertEqual(len(counts), 1, done.stdout)
        return tuple(map(int, counts[0])), done.stdout, Metrics(str(self.folder / name))

    def start(self, name, ranks=1, *overrides):
        return self.measure(name, ranks, "matmul algorithms", "run.gemm_plans=auto", *overrides)

    def choose(self, name, *overrides, ranks=1):
        """A start that takes the fastest of attention's backwards. Counts, the way, and the run."""
        counts, printed, run = self.measure(name, ranks, "attention backward", *BACKWARD,
                                            "run.attention_backward=auto", *overrides)
        said = re.findall(r"attention backward: (\w+) is the fastest way of a step: (large_parts .*)", printed)
        self.assertEqual(len(said), 1, printed)
        (way, texts), = said
        times = {of: float(ms) for of, ms in re.findall(r"(\w+) ([\d.]+) ms", texts)}
        # Ways that are faster by less than 1 % do not replace the default one; the times are rounded to 1 us.
        self.assertLessEqual(times[way], 1.011 * min(times.values()) + 0.001)
        return counts, way, run

    def known(self):
        """The files of measured times, one for each version of cuDNN."""
        return sorted((self.folder / "cache" / "espalier").iterdir())

    def prefer(self, *ways):
        """Changes the measured times so that `ways` are the fastest, in their order."""
        file, = self.known()
        times = json.loads(file.read_text())
        for call in times["calls"]:
            for way in call["microseconds"]:
                call["microseconds"][way] = 1000.0 * (1 + (ways.index(way) if way in ways else len(ways)))
        file.write_text(json.dumps(times))

    def test_starts_take_the_fastest_backward(self):
        self.assertEqual(self.choose("measured")[0], (0, 1))
        self.prefer("two_streams")
        counts, way, first = self.choose("first")
        self.assertEqual((counts, way), ((1, 0), "two_streams"))
        named = train(str(self.folder / "named"), 1, [*ON_GPU, *TINY, *BACKWARD, "run.attention_backward=two_streams"])
        for key in ("loss", "grad_norm"):
            self.assertEqual(first.curve(key), named.curve(key))
        self.assertEqual(first.steps[1]["peak_bytes"], named.steps[1]["peak_bytes"])
        own = train(str(self.folder / "own"), 1, [*ON_GPU, *TINY, *BACKWARD, "run.attention_backward=own"])
        self.assertLess(difference(own.curve("loss"), first.curve("loss")), 1e-3)
        self.assertLess(difference(own.curve("grad_norm"), first.curve("grad_norm")), 1e-2)
        self.assertLess(own.steps[1]["peak_bytes"], first.steps[1]["peak_bytes"])  # it needs no workspace
        # Other shapes are measured.
        self.assertEqual(self.choose("longer", "model.seq_len=24")[0], (0, 1))
        file, = self.known()
        self.assertRegex(file.name, r"^attention-an-emulated-GPU-cuDNN-[\d.]+\.json$")
        calls = json.loads(file.read_text())["calls"]
        self.assertEqual(len(calls), 2)
        self.assertEqual({way for call in calls for way in call["microseconds"]},
                         {"parts", "large_parts", "two_streams", "ordered", "own"})

    def test_backward_of_another_cudnn_is_measured_anew(self):
        self.assertEqual(self.choose("first")[0], (0, 1))
        self.set(ESPALIER_EMULATED_VERSIONS="cuDNN=9.30")
        self.assertEqual(self.choose("newer")[0], (0, 1))
        old, new = self.known()
        self.assertIn("cuDNN-9.30", new.name)
        new.write_text(old.read_text())  # measured with another version
        counts, printed, _ = self.measure("stale", 1, "attention backward", *BACKWARD, "run.attention_backward=auto")
        self.assertEqual(counts, (0, 1))
        self.assertIn("made with cuDNN 9.25.0, this is cuDNN 9.30.0; remove it", printed)
        new.write_text("{}")
        counts, printed, _ = self.measure("broken", 1, "attention backward", *BACKWARD, "run.attention_backward=auto")
        self.assertEqual(counts, (0, 1))
        self.assertEqual(printed.count("not a file of attention's times"), 1)

    def test_all_ranks_take_one_backward(self):
        self.choose("measured", "parallel.tp=2", ranks=2)
        self.prefer("ordered")
        _, way, two = self.choose("two", "parallel.tp=2", ranks=2)
        self.assertEqual(way, "ordered")
        named = train(str(self.folder / "named"), 2,
                      [*ON_GPU, *TINY, *BACKWARD, "parallel.tp=2", "run.attention_backward=ordered"])
        self.assertEqual(two.curve("grad_norm"), named.curve("grad_norm"))

    def test_a_backward_that_does_not_fit_is_passed_over(self):
        keys = [*BACKWARD, "model.seq_len=96", "run.outside_bytes=0"]
        runs = {way: train(str(self.folder / way), 1, [*ON_GPU, *TINY, *keys, f"run.attention_backward={way}"])
                for way in ("ordered", "own", "two_streams")}
        peaks = {way: run.steps[1]["peak_bytes"] for way, run in runs.items()}
        self.assertEqual(sorted(peaks, key=peaks.get), ["own", "ordered", "two_streams"])
        self.measure("large", 1, "attention backward", *keys, "run.attention_backward=auto")
        self.prefer("two_streams", "ordered")
        self.set(ESPALIER_EMULATED_BYTES=str(peaks["two_streams"] - 1))
        _, printed, run = self.measure("small", 1, "attention backward", *keys, "run.attention_backward=auto")
        self.assertIn("attention backward: two_streams does not fit into memory", printed)
        self.assertEqual(run.steps[1]["peak_bytes"], peaks["ordered"])
        self.assertEqual(run.curve("grad_norm"), runs["ordered"].curve("grad_norm"))

    def test_an_older_cudnn_has_no_ordered_backward(self):
        self.set(ESPALIER_EMULATED_VERSIONS="cuDNN=9.19")
        _, printed, _ = self.measure("older", 1, "attention backward", *BACKWARD, "run.attention_backward=auto")
        self.assertIn("attention backward: ordered is left out: run.attention_backward = \"ordered\" needs cuDNN 9.25, "
                      "this is 9.19", printed)
        done = launch(1, ["run", DECK, "-d", str(self.folder / "ordered"), *ON_GPU, *TINY, *BACKWARD,
                          "run.attention_backward=ordered"])
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("needs cuDNN 9.25, this is 9.19", done.stdout)

    def test_nothing_is_chosen_where_attention_may_add_in_any_order(self):
        for key in ("run.deterministic=false", "run.deterministic_attention=false"):
            done = launch(1, ["run", DECK, "-v", "-d", str(self.folder / key), *ON_GPU, *TINY, *BACKWARD,
                              "run.attention_backward=auto", key])
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertNotIn("attention backward:", done.stdout)
            self.assertIn('run.attention_backward = "auto" has no effect', done.stdout)

    def test_starts_measure_what_no_start_has_measured(self):
        (known, measured), _, first = self.start("first")
        self.assertEqual(known, 0)
        self.assertGreater(measured, 4)
        files = list((self.folder / "cache" / "espalier").iterdir())
        self.assertEqual(len(files), 1)
        self.assertRegex(files[0].name, r"^gemms-an-emulated-GPU-cuBLASLt-[\d.]+\.json$")
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
        products = json.loads(files[0].read_text())["gemms"]
        self.assertEqual(len(products), measured + more)
        for product in json.loads(before)["gemms"]:
            self.assertIn(product, products)

    def test_another_library_has_another_file(self):
        self.start("first")
        self.set(ESPALIER_EMULATED_VERSIONS="cuBLASLt=13.4")
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
        for product in plans["gemms"]:
            product["workspace_bytes"] = 1 << 50
        file.write_text(json.dumps(plans))
        self.assertEqual(self.start("large")[0], (0, measured))
        products = json.loads(file.read_text())["gemms"]
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
        products = plans["gemms"]
        shorter = [product["algorithm"][2:] for product in products]
        for algorithms, message in ((shorter, "has an algorithm of 63 bytes"),
                                    (["00" * 64] * len(products), "wants -1 bytes of workspace")):
            changed = [product | {"algorithm": algorithm} for product, algorithm in zip(products, algorithms)]
            self.plans.write_text(json.dumps(plans | {"gemms": changed}))
            self.refused(message, status=4)

    def test_clocks_of_a_load(self):
        # A kernel must move 32 MiB, so that the rate of the memory is known.
        calibrate = ["calibrate", str(self.folder / "c.toml"), "--deck", DECK, "--steady", "1", *ON_GPU, *TINY,
                     "model.vocab=100003"]
        done = launch(1, calibrate)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("clocks      not known: there is no libnvidia-ml.so.1\n", done.stdout)
        os.symlink(os.environ["NVML_STAND_IN"], self.folder / "libnvidia-ml.so.1")
        before = ENVIRONMENT.get("LD_LIBRARY_PATH", "")
        ENVIRONMENT.update(LD_LIBRARY_PATH=f"{self.folder}:{before}", NVML_HOT="1")
        self.addCleanup(lambda: ENVIRONMENT.update(LD_LIBRARY_PATH=before) or ENVIRONMENT.pop("NVML_HOT"))
        calibrate[1] = str(self.folder / "hot.toml")
        done = launch(1, calibrate)
        self.assertEqual(done.returncode, 0, done.stdout)
        said = re.search(r"^clocks      (\d+) MHz, (\d+) W of 700 W \(burst\), 1155 MHz, (\d+) W of 700 W \(steady\)$",
                         done.stdout, re.M)
        self.assertTrue(said and 1155 < int(said[1]) <= 1410 and 512 <= int(said[2]) < int(said[3]) <= 700,
                        done.stdout)

    def test_the_fastest_attention_backward(self):
        deck = ["--deck", DECK, "precision.compute=bf16", "model.head_dim=8"]
        done = launch(1, ["calibrate", "--attention", *deck])
        self.assertEqual(done.returncode, 0, done.stdout)
        lines = done.stdout.splitlines()
        self.assertRegex(lines[0],
                         r"^\d+ x \d+ queries of \d+ heads, \d+ keys of \d+ heads, head_dim 8, \d+ times a step$")
        ways = [line.split()[0] for line in lines[1:-1]]
        self.assertEqual(ways, ["parts", "large_parts", "two_streams", "ordered", "own",
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
                       str(self.folder / "run"), *ON_GPU, *SHORT, f"run.gemm_plans={self.plans}"])
        self.assertEqual(done.returncode, status, done.stdout)
        self.assertIn(message, done.stdout)


if __name__ == "__main__":
    unittest.main()
