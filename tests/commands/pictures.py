"""doc/pictures/make.sh makes every picture of the documents again. Predicted steps are the committed files, byte for
byte; charts of a run have the same titles and curves, while their values are those of this machine."""
import glob, os, subprocess, xml.etree.ElementTree

from support.runs import ENVIRONMENT, ROOT, Checks, scratch

PICTURES = os.path.join(ROOT, "doc", "pictures")
MEASURED = "report-"  # begin of the names of charts
MOST_BYTES = 150_000


def structure(path):
    """Title without its values, and the names of curves and layers."""
    root = xml.etree.ElementTree.parse(path).getroot()
    title = root.find("{http://www.w3.org/2000/svg}title").text
    return title.split(":")[0], [element.get("data-name") for element in root.iter() if element.get("data-name")]


def check(checks, made, committed):
    name = os.path.basename(committed)
    checks.that(os.path.getsize(committed) < MOST_BYTES, f"{name} is small")
    title, curves = structure(made)
    checks.that(bool(title) and (title, curves) == structure(committed), f"{name}: {title}, {len(curves)} curves")
    if name.startswith(MEASURED):
        return
    with open(made, "rb") as one, open(committed, "rb") as other:
        checks.that(one.read() == other.read(), f"{name} is the committed picture")


def main():
    checks = Checks()
    with scratch() as folder:
        subprocess.run([os.path.join(PICTURES, "make.sh"), folder], env=ENVIRONMENT, check=True, timeout=500)
        names = {os.path.basename(path) for path in glob.glob(os.path.join(PICTURES, "*.svg"))}
        checks.that(names == set(os.listdir(folder)), f"pictures: {sorted(names)}")
        for name in sorted(names & set(os.listdir(folder))):
            check(checks, os.path.join(folder, name), os.path.join(PICTURES, name))
    checks.finish()


main()
