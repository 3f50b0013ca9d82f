"""Runs that wait (run.device = "sleep") on the cluster of H100, and the predictions of `espalier simulate`."""
import json, os, sys

from .runs import ROOT, launch

DECK = os.path.join(ROOT, "tests", "decks", "sleep.toml")
CLUSTER = os.path.join(ROOT, "inputs", "clusters", "h100-8x400g.toml")


def here(overrides):
    return [f"run.cluster={CLUSTER}", *overrides]


def predict(folder, ranks, overrides):
    """The output of `simulate --json`."""
    path = os.path.join(folder, "prediction.json")
    done = launch(1, ["simulate", DECK, "--ranks", str(ranks), "--json", path, *here(overrides)])
    if done.returncode not in (0, 4):  # 4: it would not fit on the GPUs
        sys.exit(done.stdout)
    with open(path) as file:
        return json.load(file)


def sleep(folder, ranks, overrides, expect=0, timeout=400):
    """The finished process of a run that waits."""
    done = launch(ranks, ["run", DECK, "-d", folder, *here(overrides)], timeout)
    if expect is not None and done.returncode != expect:
        sys.exit(f"{' '.join(overrides)}: exit status {done.returncode}, expected {expect}\n{done.stdout}")
    return done
