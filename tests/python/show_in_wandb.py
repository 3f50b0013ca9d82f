"""espalier-wandb with a module in place of Weights & Biases that notes the calls: which steps are sent to which run,
what follows a restart and a rollback, alerts, errors. tests/python/wandb_offline.py has the real one."""
import json
import os
import shutil
import subprocess
import sys
import time

from support.python_package import begin_installed, noting_calls, wandb_calls
from support.runs import Checks, ROOT, layout, scratch, train
from support.waiting import await_that

TEXT = os.path.join(ROOT, "tests", "oracle", "data", "text.txt")
VALIDATED = ["checkpoint.every_steps=2", "checkpoint.keep=9", f"data.validation=['{TEXT}']",
             "data.validate_every_steps=3", "data.validate_sequences=16"]


def bridge(checks, log, status, *arguments):
    done = subprocess.run(["espalier-wandb", *arguments], env=noting_calls(log), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    checks.that(done.returncode == status and "Traceback" not in done.stdout,
                f"espalier-wandb {' '.join(arguments)}: {done.returncode}\n{done.stdout}")
    return done.stdout


def sent(checks):
    degrees, ranks = layout("121")
    train("runs/tiny", ranks, [*degrees, *VALIDATED, "run.steps=6"])
    shutil.copytree("runs/tiny", "runs/first")
    train("runs/tiny", 1, [*VALIDATED, "run.steps=7"], flags=["-r", "runs/tiny/checkpoints/step-00000004"])
    log, mine = "wandb.log", espalier.read_metrics("runs/tiny")
    bridge(checks, log, 0, "runs/tiny", "--project", "p")
    (_, run, settings), = wandb_calls(log, "init")
    expected = {"project": "p", "name": "tiny", "group": "tiny", "resume": "allow", "mode": None}
    checks.that(run.endswith("-1") and expected.items() <= settings.items(), f"one run: {run}")
    rows = {call[3]: call[2] for call in wandb_calls(log, "log")}
    checks.that(list(rows) == list(mine.steps), f"steps that count: {list(rows)}")
    for key in ("loss", "grad_norm", "lr", "tokens", "exposed_ms.dp"):
        checks.that([rows[k].get(key.replace(".", "/")) for k in rows] == list(mine[key]), f"{key} of each step")
    validated = {k: row["val_loss"] for k, row in rows.items() if "val_loss" in row}
    checks.that(list(validated) == [3, 6, 7] and validated[6] == mine["val_loss"][5], "val_loss in the row of its step")
    known = [k for k in rows if np.isfinite(mine["mfu"][k - 1])]
    checks.that([k for k in rows if "mfu" in rows[k]] == known, "what is not known is left out")
    config = settings["config"]
    deck = espalier.open_checkpoint("runs/tiny").deck
    checks.that(config["model"] == deck["model"] and config["start"]["ranks"] == 1, "the deck and the start")
    summary = {name: value for call in wandb_calls(log, "summary") for name, value in call[2].items()}
    saved = sum(event["event"] == "checkpoint" for event in mine.events)
    checks.that((summary["events/checkpoint"], summary["events/start"], summary["exit_status"]) == (saved, 2, 0) and
                summary["checkpoint"].endswith("step-00000007"), f"summary: {summary}")
    checks.that(not wandb_calls(log, "alert"), "no alerts of what is long over")
    bridge(checks, log, 0, "runs/tiny")
    begun = [call[1] for call in wandb_calls(log, "init")]
    checks.that(begun == [run, run] and len(wandb_calls(log, "log")) == len(rows),
                "another call goes on with the same W&B run, and sends nothing twice")
    bridge(checks, log, 0, "runs/first", "--offline", "--name", "first")
    _, other, settings = wandb_calls(log, "init")[-1]
    checks.that(other == run.removesuffix("-1") and settings["mode"] == "offline" and settings["name"] == "first",
                "a copy from before the restart is the same run, without its steps that were given up")


def followed(checks):
    """A run that restarts, and that is rolled back, while the bridge looks."""
    log = "followed.log"
    os.makedirs("followed")
    follower = subprocess.Popen(["espalier-wandb", "followed", "--follow", "--poll", "0.05"], env=noting_calls(log),
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def happens(*lines, torn=""):
        with open("followed/metrics.jsonl", "a") as file:
            for line in lines:
                file.write(json.dumps({**line, "time": time.time() + 1}) + "\n")
            file.write(torn)

    def sent(*steps):
        await_that(lambda: [call[3] for call in wandb_calls(log, "log")][-len(steps):] == list(steps),
                   f"sent: {steps}", 60)

    start = {"event": "start", "first_step": 1, "steps": 9, "deck": "d"}
    happens(start, {"step": 1, "loss": 5.5}, {"step": 2, "loss": 5.0, "grad_norm": None, "note": "grad_norm is inf"},
            torn='{"step":3,"lo')
    sent(1, 2)
    os.truncate("followed/metrics.jsonl", os.path.getsize("followed/metrics.jsonl") - len('{"step":3,"lo'))
    happens({"event": "end", "status": 75}, {**start, "first_step": 3, "ranks": 4}, {"step": 3, "loss": 4.5})
    sent(1, 2, 3)
    first = wandb_calls(log, "init")[0][1]
    checks.that(len(wandb_calls(log, "init")) == 1 and {call[1] for call in wandb_calls(log, "log")} == {first},
                "a restart without lost steps goes on in the same W&B run")
    checks.that(wandb_calls(log, "config")[-1][2]["start"]["ranks"] == 4, "with what its start says")
    checks.that(np.isnan(wandb_calls(log, "log")[1][2]["grad_norm"]), "not finite: NaN")
    happens({"event": "rollback", "step": 4, "to": 1, "reason": "loss is nan"}, {"step": 2, "loss": 4.9})
    sent(1, 2)
    rolled = [call for call in wandb_calls(log, "finish") if "superseded" in call[3]]
    second = wandb_calls(log, "init")[-1][1]
    checks.that(second == first + "-1" and [call[1] for call in rolled] == [first],
                "after a rollback a second W&B run has the steps that count; the first one is tagged")
    alert = wandb_calls(log, "alert")
    checks.that(len(alert) == 1 and alert[0][1] == second and "step 4: loss is nan" in alert[0][3], f"alert: {alert}")
    happens({"step": 3, "loss": 4.4}, {"event": "end", "status": 0})
    said = follower.communicate(timeout=60)[0]
    checks.that(follower.returncode == 0 and wandb_calls(log, "finish")[-1][1:] == [second, 0, []],
                f"it ends when every step is done: {follower.returncode} {said}")


def errors(checks):
    os.makedirs("damaged")
    with open("damaged/metrics.jsonl", "w") as file:
        file.write('{"event":"start","first_step":1}\n{\n')
    checks.that("no such file" in bridge(checks, "none.log", 3, "nowhere"), "no run")
    checks.that("metrics.jsonl:" in bridge(checks, "none.log", 3, "damaged"), "a damaged line")
    bridge(checks, "none.log", 2)
    os.makedirs("no_wandb")
    with open("no_wandb/wandb.py", "w") as file:
        file.write("raise ImportError\n")
    done = subprocess.run(["espalier-wandb", "runs/tiny"], env={**os.environ, "PYTHONPATH": os.pathsep.join(
        ["no_wandb", os.environ.get("PYTHONPATH", "")])}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    checks.that(done.returncode == 1 and "pip install wandb" in done.stdout, f"without wandb: {done.stdout}")


def main():
    begin_installed(__file__)
    checks = Checks()
    with scratch() as where:
        os.chdir(where)
        checks.each([sent, followed, errors])
    checks.finish()


if sys.argv[1:] == ["installed"]:  # only that Python has these
    import espalier
    import numpy as np

main()
