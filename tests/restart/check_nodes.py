"""espalier check --nodes on one process, on ranks of this host and on four hosts, of which one sends slowly: the table,
who is named, exit statuses. GPUs come from a stand-in for NVML. Network namespaces are the hosts; that part is skipped
where they cannot be made."""
import os, re, tempfile

from support.hosts import Hosts
from support.runs import Checks, ENVIRONMENT, ROOT, launch

HEALTHY, ILL, WRONG = 0, 1, 2
# All ranks compute on two cores of a busy machine, so figures of one moment may be far apart.
LEAST = ["--least", "0.02"]


def rows(text):
    """Lines of the table of nodes, by name: [ranks, cores, NUMA, free, unit, clock, GFLOP/s, memory, sends, receives,
    latency]."""
    table = text[text.index("node "):].split("\n\n")[0].split("\n")[1:]
    return {line.split()[0]: line.split()[1:] for line in table if len(line.split()) == 12}


def check_alone(checks):
    done = launch(1, ["check", "--nodes", *LEAST])
    found = list(rows(done.stdout).values())
    checks.that(done.returncode == HEALTHY and len(found) == 1 and found[0][0] == "1" and float(found[0][6]) > 0 and
                float(found[0][7]) > 0 and found[0][8:] == ["-", "-", "-"] and "no outliers" in done.stdout,
                f"one process: {done.stdout}")


def check_ranks(checks):
    done = launch(4, ["check", "--nodes", *LEAST])
    found = list(rows(done.stdout).values())
    checks.that(done.returncode == HEALTHY and len(found) == 1 and found[0][0] == "4",
                f"four ranks of a host ({done.returncode}): {done.stdout}")
    done = launch(2, ["check", "--nodes", *LEAST, "--cluster", os.path.join(ROOT, "inputs/clusters/gb200-nvl72.toml")])
    line = r"^outlier: rank (\d) on \S+ sends \S+ MB/s to rank (\d) on \S+, the cluster file says"
    said = re.findall(line, done.stdout, re.M)
    checks.that(done.returncode == ILL and said == [("0", "1"), ("1", "0")],
                f"links slower than the cluster file's ({done.returncode}): {done.stdout}")


def check_arguments(checks):
    for arguments, words in ((["check"], "DECK is required"), (["check", "--cluster", "x"], "--nodes"),
                             (["check", "--nodes", "--least", "2"], "--least"),
                             (["check", "--nodes", "deck.toml"], "DECK"),
                             (["check", "--nodes", "--cluster", "none.toml"], "none.toml")):
        done = launch(1, arguments)
        checks.that(done.returncode == WRONG and words in done.stdout, f"{' '.join(arguments)}: {done.stdout}")


def check_gpus(checks, folder):
    os.symlink(os.environ["NVML_STAND_IN"], os.path.join(folder, "libnvidia-ml.so.1"))
    ENVIRONMENT["LD_LIBRARY_PATH"] = folder + ":" + ENVIRONMENT.get("LD_LIBRARY_PATH", "")
    done = launch(1, ["check", "--nodes", *LEAST])
    row = re.search(r"^\S+ +00000000:17:00\.0 +79 GB +80 GB +1410/1980 +0 +5  a GPU of a test$", done.stdout, re.M)
    checks.that(done.returncode == HEALTHY and row, f"a GPU: {done.stdout}")
    ENVIRONMENT["NVML_ILL"] = "1"
    done = launch(1, ["check", "--nodes", *LEAST])
    said = re.findall(r"^outlier: \S+: GPU 00000000:17:00\.0: (.*)$", done.stdout, re.M)
    checks.that(done.returncode == ILL and said == [
        "2 errors of memory that could not be corrected", "rows of memory wait for a reset to be remapped",
        "slowed down by heat"], f"an ill GPU: {done.stdout}")
    del ENVIRONMENT["NVML_ILL"]
    ENVIRONMENT["NVML_BROKEN"] = "1"
    done = launch(1, ["check", "--nodes", *LEAST])
    checks.that(done.returncode == ILL and "NVML: nvmlInit_v2 fails with status 9" in done.stdout,
                f"a driver that does not answer: {done.stdout}")
    del ENVIRONMENT["NVML_BROKEN"]


def check_hosts(checks, hosts, folder):
    """host4 sends slowly, and all others receive slowly from it alone."""
    def run(name):
        with open(os.path.join(folder, name + ".log"), "w+", errors="replace") as log:
            status = hosts.start(1, ["check", "--nodes", *LEAST], log).wait(300)
            log.seek(0)
            return status, log.read()

    status, text = run("healthy")
    checks.that(status == HEALTHY and rows(text).keys() == set(hosts.names), f"four hosts ({status}): {text}")
    if why := hosts.slow("host4", "10mbit"):
        return print(f"a host that sends slowly: {why}")
    status, text = run("slow")
    said = re.findall(r"^outlier: (.*)$", text, re.M)
    checks.that(status == ILL and len(said) == 1 and said[0].startswith("host4 sends ") and "the median is" in said[0],
                f"a host that sends slowly ({status}): {text}")


def main():
    checks = Checks()
    check_alone(checks)
    check_ranks(checks)
    check_arguments(checks)
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts("n", 4)
        if why := hosts.why_not():
            print(why)
        else:
            with hosts:
                check_hosts(checks, hosts, folder)
        check_gpus(checks, folder)
    checks.finish()


main()
