"""The decks keep what their headers say: every `espalier plan` line in a comment of inputs/ compiles for its number of
ranks, and what it plans fits a device of 80 GB. Plans for GPUs say which attention cuDNN does not take."""
import glob, json, os, re, tempfile

from support.runs import Checks, DECK, ROOT, launch

LINE = re.compile(r"^#\s+espalier plan (\S+) --ranks (\d+)", re.M)
DEVICE_BYTES = 80e9


def main():
    checks = Checks()
    for path in sorted(glob.glob(os.path.join(ROOT, "inputs", "*", "*.toml"))):
        with open(path) as file:
            stated = LINE.findall(file.read())
        for deck, ranks in stated:
            checks.that(os.path.join(ROOT, deck) == path, f"{deck}: the line names its own deck")
            with tempfile.NamedTemporaryFile(suffix=".json") as out:
                done = launch(1, ["plan", path, "--ranks", ranks, "--json", out.name])
                plan = json.load(out) if done.returncode == 0 else {"ranks": 0, "peak_bytes": float("inf")}
            checks.that(plan["ranks"] == int(ranks) and plan["peak_bytes"] < DEVICE_BYTES,
                        f"{deck} on {ranks} ranks: {plan['peak_bytes']} bytes")
    for compute, reasons in (("fp32", ["it is fp32"]), ("bf16", None)):
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            done = launch(1, ["plan", DECK, "--json", out.name, "run.device=cuda", f"precision.compute={compute}",
                              "model.head_dim=8"])
            plan = json.load(out)
        checks.that(plan.get("plain_attention") == reasons, f"{compute}: plain attention for {reasons}")
        checks.that(("attention   not by cuDNN (it is fp32)" in done.stdout) == (compute == "fp32"),
                    f"{compute}: the plan says whether cuDNN takes attention")
    checks.finish()


main()
