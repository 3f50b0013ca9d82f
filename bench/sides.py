"""One turn of each side of the benchmark: a process that trains some steps, and its measurements. Standard library
only."""
import contextlib, json, math, os, shutil, signal, statistics, subprocess, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
MOST_SECONDS = 120  # for a program that trains nothing


class Failed(Exception):
    """A side that could not run; its text is the reason."""


def last_words(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def python_environment():
    """The environment with the original library path, since the packages in .gpu/ are not meant for PyTorch."""
    environment = dict(os.environ)
    if "ESPALIER_HOST_LIBRARY_PATH" in environment:
        environment["LD_LIBRARY_PATH"] = environment["ESPALIER_HOST_LIBRARY_PATH"]
    environment.pop("CPATH", None)
    return environment


def read_steps(path):
    """The complete step lines of metrics.jsonl."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        lines = [json.loads(line) for line in file if line.endswith("\n")]
    return [line for line in lines if "loss" in line]


def read_times(path):
    """The table of ESPALIER_INSTRUCTION_TIMES, or None until it is complete."""
    with contextlib.suppress(OSError, ValueError):
        with open(path) as file:
            return json.load(file)
    return None


def run_until(done, folder, command, seconds, environment=None):
    """Runs Espalier until done() holds, then kills it before it saves gigabytes. If it never holds, Failed has the last
    lines of output."""
    log = os.path.join(folder, "log")
    with open(log, "w") as output:
        run = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + seconds
        while not done() and run.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    if not done():
        with open(log) as file:
            raise Failed(last_words(file.read()))


def espalier(executable, deck, overrides, steps, seconds, variables={}):
    """Milliseconds and the other step fields of metrics.jsonl."""
    with tempfile.TemporaryDirectory() as folder:
        found = lambda: read_steps(os.path.join(folder, "metrics.jsonl"))[:steps]
        run_until(lambda: len(found()) == steps, folder, [executable, "run", deck, "-d", folder, *overrides], seconds,
                  dict(os.environ, **variables))
        return {"ms": [line["step_ms"] for line in found()], "steps": found()}


def espalier_times(executable, deck, overrides, steps, seconds):
    """The time of the last of `steps` steps, instruction by instruction (ESPALIER_INSTRUCTION_TIMES)."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "times.json")
        command = [executable, "run", deck, "-d", folder, *overrides, f"run.steps={steps}"]
        run_until(lambda: read_times(path + ".0"), folder, command, seconds,
                  dict(os.environ, ESPALIER_INSTRUCTION_TIMES=path))
        return read_times(path + ".0")


def pytorch(python, deck, device, steps, seconds, flags):
    command = [python, os.path.join(HERE, "torch_llama.py"), deck, "--device", device, "--steps", str(steps), *flags]
    try:
        done = subprocess.run(command, env=python_environment(), capture_output=True, text=True,
                              timeout=max(1, seconds))
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {seconds:.0f} s") from None
    if done.returncode != 0:
        raise Failed(last_words(done.stderr))
    return json.loads(last_words(done.stdout))


class Watch:
    """Clocks and power of the GPU while a turn runs: medians of nvidia-smi's figures, read twice per second; empty
    without a GPU."""
    QUERY = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu", "--format=csv,noheader,nounits", "-i",
             "0", "-lms", "500"]

    def __enter__(self):
        self.process = None
        if shutil.which("nvidia-smi"):
            self.process = subprocess.Popen(self.QUERY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return self

    def __exit__(self, *_):
        self.seen = {}
        if self.process is None:
            return
        self.process.terminate()
        rows = [line.split(",") for line in self.process.communicate()[0].splitlines()]
        for column, name in enumerate(("sm_mhz", "watts", "celsius")):
            values = [float(row[column]) for row in rows if len(row) == 3 and is_number(row[column])]
            if values:
                self.seen[name] = statistics.median(values)


def is_number(text):
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def has_torch(python):
    return subprocess.run([python, "-c", "import torch"], env=python_environment(), capture_output=True).returncode == 0


def products(shape):
    """TFLOP/s of the bare GEMMs of a step, and the type of their operands."""
    m = shape.values["model"]
    numbers = [m["layers"], m["dim"], shape.kv_dim(), m["ffn_dim"], m["vocab"], shape.tokens()]
    if shape.o.device == "cuda":
        program = [os.path.join(shape.o.build, "bench", "gpu", "gpu_gemms")]
    else:
        program = [
            os.path.join(shape.o.build, "tests", "gemms_bench"), {"bf16": "bf16", "fp32": "f32"}[shape.o.compute],
            str(shape.o.threads or os.cpu_count())
        ]
    measured = json.loads(command(program[0], [*program[1:], *map(str, numbers)]))
    return measured["tflops"], measured.get("type", "bf16")


def command(program, arguments):
    """The output of a program."""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=MOST_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as reason:
        raise Failed(f"{os.path.basename(program)} {arguments[0]}: {reason}") from None
    if done.returncode != 0:
        raise Failed(f"{os.path.basename(program)} {arguments[0]}: {done.stderr or last_words(done.stdout)}".strip())
    return done.stdout


def check(executable, deck, overrides):
    """The effective deck, as text."""
    return command(executable, ["check", deck, *overrides])


def plan(executable, deck, overrides):
    """The plan of one rank."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        command(executable, ["plan", deck, "--ranks", "1", "--json", path, *overrides])
        with open(path) as file:
            return json.load(file)
