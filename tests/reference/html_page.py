"""espalier report: html5lib, which knows the rules of HTML5, finds no error in a page about two runs, one of them with
a deck and a folder whose names are markup. Needs tests/oracle/requirements_html.txt; exits 77 without it."""
import importlib.util
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
from support.reference import reference_python  # noqa: E402

if importlib.util.find_spec("html5lib") is None:
    os.execv(python := reference_python("html"), [python, os.path.realpath(__file__), *sys.argv[1:]])

import html5lib  # noqa: E402

from support.runs import DECK, Checks, launch, scratch, train  # noqa: E402

RUN = ["run.steps=6", "checkpoint.every_steps=3", "report.trace=2:2"]


def main():
    checks = Checks()
    with scratch() as folder:
        plain, markup = os.path.join(folder, "plain"), os.path.join(folder, "<b title=\"x\">&amp;")
        deck = os.path.join(os.path.dirname(DECK), "small.toml")
        train(plain, 1, RUN, deck)
        train(markup, 2, [*RUN, "parallel.pp=2", "optimizer.lr=0.002"], deck)
        page = os.path.join(folder, "page.html")
        done = launch(1, ["report", plain, markup, "-o", page])
        checks.that(done.returncode == 0, done.stdout.strip())
        with open(page, "rb") as file:
            parser = html5lib.HTMLParser(strict=False)
            tree = parser.parse(file.read())
        checks.that(not parser.errors, f"html5lib finds no error: {parser.errors[:3]}")
        name = "{http://www.w3.org/1999/xhtml}"
        heads = [head.text for head in tree.iter(name + "h3")]
        checks.that(markup in heads and plain in heads, "names of runs are text")
        checks.that(not list(tree.iter(name + "b")), "and no markup")
        checks.that(len(list(tree.iter("{http://www.w3.org/2000/svg}svg"))) >= 10, "pictures are SVG")
    checks.finish()


main()
