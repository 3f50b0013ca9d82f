"""espalier selftest: passes on one rank and on several, in different layouts; leaves no files; and fails, with the
verdict, the exit status and the remedy, for a wrong kernel, a damaged save, and a folder that cannot be used."""
import os, re, subprocess, sys

from support.runs import Checks, ENVIRONMENT, executable, launcher, scratch

NAMES = ["kernels", "messages", "run", "restart", "checkpoint", "gpu"]


# Ranks, the fault, a check that it makes fail and one that passes.
FAULTS = [
    (1, "step:eio", "run", "kernels"),
    (1, "shard-data:eio", "checkpoint", "run"),
    (1, "load:eio", "restart", "run"),
    (2, "load:eio", "restart", "run"),
    (2, "instruction-30:nan", "kernels", "restart"),
]


def selftest(ranks, *arguments, **environment):
    done = subprocess.run([*launcher(ranks), executable(), "selftest", *arguments], env={**ENVIRONMENT, **environment},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", timeout=400,
                          stdin=subprocess.DEVNULL)
    verdicts = dict(re.findall(r"^(\w+) +(passed|FAILED|skipped) +[\d.]+ s  ", done.stdout, re.MULTILINE))
    return done.returncode, verdicts, done.stdout


def passes(checks):
    for ranks, layout in ((1, "batch.micro=4"), (2, "parallel.pp=2"), (3, "parallel.dp_replicate=3"),
                          (4, "parallel.pp=2 parallel.tp=2")):
        status, verdicts, said = selftest(ranks)
        wanted = dict.fromkeys(NAMES, "passed") | {"gpu": "skipped"} | ({"messages": "skipped"} if ranks == 1 else {})
        checks.that(status == 0 and verdicts == wanted and list(verdicts) == NAMES,
                    f"{ranks} ranks: {status}, {verdicts}\n{said}")
        checks.that(layout in said and f"{ranks} rank{'s' if ranks > 1 else ''} on 1 host" in said, f"with {layout}")
        if ranks > 1:
            checks.that(f"all_reduce of {ranks} ranks on 1 node" in said and "message of 2 ranks" in said and
                        "GB/s of 4.00 MiB" in said, "times of messages")
        checks.that(os.listdir(".") == [], f"it removes its folder: {os.listdir('.')}")


def keeps(checks):
    os.makedirs("there")
    status, verdicts, said = selftest(1, "--dir", "there", "--keep")
    kept = os.listdir("there")
    checks.that(status == 0 and len(kept) == 1 and kept[0] in said, f"--dir, --keep: {kept}")
    checks.that({"run", "restart", "output"} <= set(os.listdir(f"there/{kept[0]}")), "with the runs and their output")


def fails(checks):
    status, verdicts, said = selftest(1, ESPALIER_FAULT="instruction-30:nan")
    checks.that(status == 1 and verdicts["kernels"] == "FAILED" and verdicts["run"] == "passed",
                f"a wrong kernel: {status}, {verdicts}\n{said}")
    checks.that("instruction 30 (" in said and "what to do: a processor" in said and "selftest FAILED: kernels" in said,
                "names the instruction, and what to do")
    kept = re.search(r"kept in (\S+)", said)[1]
    checks.that(os.path.isdir(kept), f"the folder is kept: {kept}")
    for ranks, fault, failed, passed in FAULTS:
        status, verdicts, said = selftest(ranks, ESPALIER_FAULT=fault)
        checks.that(status == 1 and verdicts.get(failed) == "FAILED" and verdicts.get(passed) == "passed" and
                    "selftest FAILED: " in said, f"{ranks} ranks, {fault}: {status}, {verdicts}\n{said}")
    status, verdicts, said = selftest(1, "--dir", "nowhere")
    checks.that(status == 2 and "cannot make a folder in nowhere" in said and not verdicts, f"no folder: {said}")
    status, verdicts, said = selftest(1, "--dri", "x")
    checks.that(status == 2, "an unknown option")


def main():
    checks = Checks()
    with scratch() as folder:
        for case in (passes, keeps, fails):
            os.makedirs(os.path.join(folder, case.__name__))
            os.chdir(os.path.join(folder, case.__name__))
            case(checks)
        os.chdir("/")
    checks.finish()


main()
