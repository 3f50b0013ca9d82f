"""Runs to be disturbed: starts them with a fault, and reads what they left. Standard library only."""
import json, os

from .runs import ENVIRONMENT, Metrics, executable, launch, launcher

PATIENCE = 300  # seconds, for operations that should take one, on a machine that may stall


def command(ranks, arguments, fault=None, rank=None, before=""):
    """The command line and environment of a run with a fault on one rank, or on all. `before`: shell words that each
    rank runs first."""
    environment = dict(ENVIRONMENT)
    program = [executable(), *arguments]
    if before:
        program = ["bash", "-c", f'{before}; exec "$@"', "bash", *program]
    if fault and rank is None:
        environment["ESPALIER_FAULT"] = fault
    elif fault:
        here = f'[ "${{OMPI_COMM_WORLD_RANK:-0}}" = {rank} ]'
        program = ["bash", "-c", f'{here} && export ESPALIER_FAULT={fault}; exec "$@"', "bash", *program]
    return [*launcher(ranks), *program], environment


def visible(home):
    folder = os.path.join(home, "checkpoints")
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))
            if name.startswith("step-")] if os.path.isdir(folder) else []


def verified(checkpoint):
    return launch(1, ["inspect", checkpoint, "--verify"], PATIENCE).returncode == 0


def events(home, event):
    path = os.path.join(home, "metrics.jsonl")
    lines = [json.loads(line) for line in open(path) if line.endswith("}\n")] if os.path.exists(path) else []
    return [line for line in lines if line.get("event") == event]


def same_run(home, straight, steps):
    """The run reached `steps` with the same numbers, bitwise, as the undisturbed one: losses, norms, validation and all
    shards."""
    mine = Metrics(home)
    if any(mine.validation.get(step) != loss for step, loss in straight.validation.items()):
        return False  # a start of fewer steps validates after its last one too
    return all(mine.curve(key) == straight.curve(key) for key in ("loss", "grad_norm")) and \
        same_files(mine.checkpoint(steps), straight.checkpoint(steps))


def same_files(one, other):
    """Whether all files have equal bytes, except the MANIFEST (its id is drawn) and files that contain the run's own
    folder."""
    names = sorted(name for name in os.listdir(one) if name.startswith("shard-"))
    read = lambda folder, name: open(os.path.join(folder, name), "rb").read()
    return names == sorted(n for n in os.listdir(other) if n.startswith("shard-")) and all(
        read(one, n) == read(other, n) for n in names)
