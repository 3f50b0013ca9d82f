"""espalier-wandb with the real Weights & Biases, without a network: what its file holds is read back, record by record.
Needs the packages of tests/oracle/requirements_wandb.txt; exits 77 without them."""
import glob
import json
import os
import subprocess

from support.python_package import begin_installed
from support.runs import Checks, layout, scratch, train

BLOCK, HEADER = 32768, 7  # of the log that W&B writes: that of LevelDB, after seven bytes


def records(path):
    """The payloads of a file: fragments (checksum, length, kind) in blocks. Kinds: whole, first, middle, last."""
    with open(path, "rb") as file:
        data = file.read()
    at, whole = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4:at + 6], "little"), data[at + 6]
        whole += data[at + HEADER:at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):
            yield whole
            whole = b""


def name_of(item):
    return item.key or "/".join(item.nested_key)


def read_back(folder):
    """The only run in the folder: its settings, rows by step, summary and configuration."""
    from wandb.proto import wandb_internal_pb2
    found = glob.glob(os.path.join(folder, "wandb", "offline-run-*", "*.wandb"))
    run, rows, summary, config = None, {}, {}, {}
    for payload in records(*found):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(payload)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
        config.update({name_of(i): json.loads(i.value_json) for i in record.run.config.update})
        config.update({name_of(i): json.loads(i.value_json) for i in record.config.update})
        if kind == "history":
            rows[record.history.step.num] = {name_of(i): json.loads(i.value_json) for i in record.history.item}
        summary.update({name_of(i): json.loads(i.value_json) for i in record.summary.update})
    return run, rows, summary, config


def shown(checks):
    import espalier
    degrees, ranks = layout("121")
    train("run", ranks, [*degrees, "run.steps=6", "checkpoint.every_steps=2", "checkpoint.keep=9"])
    train("run", ranks, [*degrees, "run.steps=8"], flags=["-r", "run/checkpoints/step-00000004"])
    done = subprocess.run(["espalier-wandb", "run", "--offline", "--dir", "sent", "--project", "test"],
                          env={**os.environ, "WANDB_SILENT": "true"}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    checks.that(done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}")
    metrics = espalier.read_metrics("run")
    run, rows, summary, config = read_back("sent")
    checks.that(run.project == "test" and run.display_name == run.run_group == "run" and run.run_id.endswith("-1"),
                f"project, name, group, and that steps were given up: {run.run_id}")
    checks.that(sorted(rows) == list(metrics.steps) == list(range(1, 9)), f"steps {sorted(rows)}")
    for key in ("loss", "grad_norm", "lr", "tokens", "step_ms", "exposed_ms.dp"):
        mine = [rows[step][key.replace(".", "/")] for step in sorted(rows)]
        checks.that(mine == list(metrics[key]), f"{key} of the steps that count")
    checks.that(summary["exit_status"] == 0 and summary["events/start"] == 2, f"events: {summary['events/start']}")
    checks.that(config["model"] == espalier.open_checkpoint("run").deck["model"] and config["start"]["ranks"] == ranks,
                "the deck, and what the start says, are the configuration")


def main():
    begin_installed(__file__, "wandb")
    checks = Checks()
    with scratch() as where:
        os.chdir(where)
        os.makedirs("sent")
        checks.each([shown])
    checks.finish()


main()
