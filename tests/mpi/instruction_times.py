"""ESPALIER_INSTRUCTION_TIMES: the table of a step names every instruction of the program once, its times fit into the
step, and the run bitwise equals one without the table. On the CPU, and on emulated GPUs if ESPALIER_CUDA_MODULE names
the emulated module."""
import collections, json, os, re

from support.checkpoints import same_bits, tensors
from support.runs import Checks, DECK, ENVIRONMENT, launch, scratch, train

BASE = ["model.layers=2", "batch.global=4", "run.steps=4"]
LAYOUTS = {"one rank": (1, []), "pp 2 x dp_shard 2": (4, ["parallel.pp=2", "parallel.dp_shard=2"])}
DEVICES = {
    "cpu": ["run.device=cpu"], "cuda over mpi": ["run.device=cuda", "run.transport=mpi"],
    "cuda over nccl": ["run.device=cuda", "run.transport=nccl"]
}
INSTRUCTION = re.compile(r" *\d+ (\S+) +([A-Z])\d* (\w+) \(")
ROUNDING = 1e-6  # seconds per instruction: events are fp32 milliseconds


def planned(ranks, rank, overrides):
    """(lane, role, kind) -> number in a step, from `plan`."""
    listed = launch(1, ["plan", DECK, "--ranks", str(ranks), "--program", str(rank), *overrides]).stdout
    return collections.Counter(match.groups() for match in map(INSTRUCTION.match, listed.splitlines()) if match)


def check_table(checks, name, table, program):
    rows = table["instructions"]
    counts = {(row["lane"], row["role"], row["kind"]): row["count"] for row in rows}
    checks.that(program and counts == program,
                f"{name}: {sum(counts.values())} instructions of {len(counts)} kinds, as planned")
    lanes = collections.defaultdict(float)
    for row in rows:
        lanes[row["lane"]] += row["seconds"] - ROUNDING * row["count"]
    checks.that(all(row["seconds"] >= 0 for row in rows) and max(lanes.values()) <= table["wall_s"],
                f"{name}: no lane took longer than the step: {max(lanes.values()):.4f} of {table['wall_s']:.4f} s")
    checks.that(
        all(row["flops"] > 0 for row in rows if row["kind"] == "matmul") and table["step"] == 4,
        f"{name}: products have their cost")


def check_bytes(checks, name, tables):
    """AdamW reads gradient, parameter and two moments and writes three of them, and every rank reads four numbers; all
    in fp32. Each parameter belongs to one rank."""
    parameters = int(re.search(r"model .* (\d+) \([^)]*\) parameters", launch(1, ["plan", DECK, *BASE]).stdout)[1])
    updates = [row for table in tables for row in table["instructions"] if row["kind"] == "adamw"]
    found, wanted = (sum(row["bytes"] for row in updates), 28 * parameters + sum(16 * row["count"] for row in updates))
    checks.that(found == wanted, f"{name}: AdamW of {parameters} parameters moves {found} bytes, wanted {wanted}")


def check(checks, home, device, layout):
    ranks, degrees = LAYOUTS[layout]
    name, overrides = f"{layout}, {device}", [*BASE, *degrees, *DEVICES[device]]
    plain = train(home(f"{name} plain"), ranks, overrides)
    ENVIRONMENT["ESPALIER_INSTRUCTION_TIMES"] = home(f"{name}.json")
    timed = train(home(f"{name} timed"), ranks, overrides)
    del ENVIRONMENT["ESPALIER_INSTRUCTION_TIMES"]
    same = all(plain.curve(key) == timed.curve(key) for key in ("loss", "grad_norm"))
    checks.that(same and same_bits(tensors(plain.checkpoint(4)), tensors(timed.checkpoint(4))),
                f"{name}: bitwise the run without")
    tables = []
    for rank in range(ranks):
        with open(f"{home(f'{name}.json')}.{rank}") as file:
            tables.append(json.load(file))
        check_table(checks, f"{name}, rank {rank}", tables[-1], planned(ranks, rank, overrides))
    check_bytes(checks, name, tables)


def main():
    checks = Checks()
    emulated = os.path.exists(os.environ.get("ESPALIER_CUDA_MODULE", ""))
    ENVIRONMENT["ESPALIER_EMULATED_GPUS"] = "4"
    with scratch() as folder:
        home = lambda name: os.path.join(folder, name.replace(" ", "-"))
        for device in DEVICES if emulated else ["cpu"]:
            for layout in LAYOUTS:
                check(checks, home, device, layout)
        ENVIRONMENT["ESPALIER_INSTRUCTION_TIMES"] = home("nowhere/times.json")
        done = launch(1, ["run", DECK, "-d", home("refused"), *BASE, *DEVICES["cpu"]])
        checks.that(done.returncode == 1 and "name a file in a folder that is there" in done.stdout,
                    "a folder that is not there: exit 1")
    checks.finish()


main()
