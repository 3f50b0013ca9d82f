"""doc/pictures/make.sh makes the pictures of the documents. The predicted ones are those that are committed, up to the
last digits of their numbers, which depend on the compiler; charts of a run have the committed titles and curves, while
their values are those of this machine. A document shows each picture, and every one has a title."""
import os, re, subprocess, sys, tempfile
import xml.etree.ElementTree as xml

from support.runs import Checks, ENVIRONMENT, ROOT

FOLDER = os.path.join(ROOT, "doc", "pictures")
DETERMINISTIC = ("layout-", "mesh", "schedule-")  # beginnings of names
MOST_BYTES = 150_000
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def pictures(folder):
    return {name for name in os.listdir(folder) if name.endswith(".svg")}


def read(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def differences(one, other):
    """The text between the numbers must be equal, and numbers nearly so. Returns the differences, at most a few."""
    if NUMBER.split(one) != NUMBER.split(other):
        return ["other words or shapes"]
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other))
    return [f"{a} instead of {b}" for a, b in pairs if abs(float(a) - float(b)) > 0.02 + 1e-3 * abs(float(b))][:5]


def title(svg):
    """Its title element, or the text of the class title; None without."""
    for element in xml.fromstring(svg).iter():
        if element.tag.endswith("}title") or element.get("class") == "title":
            return element.text
    return None


def structure(svg):
    """The title without its values, and the names of curves and layers."""
    names = [element.get("data-name") for element in xml.fromstring(svg).iter()]
    return (title(svg) or "").split(":")[0], [name for name in names if name]


def shown():
    """Names of the pictures that README.md and the documents show."""
    texts = [read(ROOT, "README.md")]
    texts += [read(folder, name) for folder, _, names in os.walk(os.path.join(ROOT, "doc")) for name in names
              if name.endswith(".md")]
    return {os.path.basename(path) for text in texts for path in re.findall(r"pictures/([\w-]+\.svg)", text)}


def check_myself(checks):
    checks.that(not differences('<a x="1.00"/>', '<a x="1.01"/>'), "last digits may differ")
    checks.that(differences('<a x="1.0"/>', '<a x="1.5"/>') == ["1.0 instead of 1.5"], "other numbers are found")
    checks.that(bool(differences('<a x="1.0"/>', '<b x="1.0"/>')), "other shapes are found")


def main():
    checks = Checks()
    check_myself(checks)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([os.path.join(FOLDER, "make.sh"), folder], env=ENVIRONMENT, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, encoding="utf-8", stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            sys.exit(f"make.sh: exit status {done.returncode}\n{done.stdout}")
        made, committed = pictures(folder), pictures(FOLDER)
        checks.that(made == committed, f"make.sh makes the committed pictures; different: {sorted(made ^ committed)}")
        checks.that(committed == shown(), f"each is shown; different: {sorted(committed ^ shown())}")
        for name in sorted(made & committed):
            svg = read(FOLDER, name)
            checks.that(len(svg.encode()) < MOST_BYTES and bool(title(svg)), f"{name}: {len(svg)} characters, a title")
            if name.startswith(DETERMINISTIC):
                found = differences(read(folder, name), svg)
                checks.that(not found, f"{name} is what is made now: {found or 'yes'}")
            else:
                made_now = structure(read(folder, name))
                checks.that(made_now == structure(svg), f"{name} has the curves that are made now: {made_now}")
    checks.finish()


main()
