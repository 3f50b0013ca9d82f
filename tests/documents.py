#!/usr/bin/env python3
"""All that the documents name exists, and they stay readable.

    documents.py              check links, paths, columns and sentences of every page, and names in those for developers
    documents.py sentences    print the lengths of sentences of every page

In text in code font (`like/this.cpp`) it checks paths of the tree; in doc/architecture.md, doc/how-to-add.md, the
guides and doc/decisions also names of the source, keys of the deck and names of unit tests. NAME in a path is the name
of something new, so only the folder must exist.
"""
import collections, pathlib, re, statistics, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "doc" / "architecture.md"
GUIDES = [ROOT / "doc" / name for name in ("start.md", "cluster.md", "layouts.md", "coming-from.md")]
CHECKED = [PAGE, ROOT / "doc" / "how-to-add.md", *GUIDES, *sorted((ROOT / "doc" / "decisions").glob("*.md"))]
MOST_LINES = MOST_COLUMNS = 120
MOST_MEDIAN, MOST_P90 = 18, 30  # words of a sentence

FILES = {"run.lock"}  # not keys of the deck
GENERATED = ROOT / "doc" / "deck.md"  # its text is in src/deck
HISTORY = ROOT / "CHANGELOG.md"       # names what is gone

TOP = {p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith(("build", "runs"))}
PLACEHOLDER = re.compile("NAME|PASS")


def pages():
    """Every page of the tree that is ours."""
    folders = [ROOT / name for name in ("doc", "src", "tests", "bench", "packaging")]
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))])


def without_code(text):
    return re.sub(r"```.*?```", "", text, flags=re.S)


def spans(text):
    return sorted(set(re.findall(r"`([^`\n]+)`", without_code(text))))


def is_path(span):
    return re.fullmatch(r"[\w.+-]+(/[\w.+-]+)*/?", span) and ("/" in span and span.split("/")[0] in TOP)


def path_exists(span):
    place = PLACEHOLDER.search(span)
    return (ROOT / (span[:place.start()].rpartition("/")[0] if place else span)).exists()


def source_files():
    return [p for folder in ("src", "include", "tests") for p in sorted((ROOT / folder).rglob("*"))
            if p.suffix in (".cpp", ".hpp", ".cu", ".cuh", ".py", ".sh")]


def sources():
    """The text of all files that may define a name."""
    return "\n".join(p.read_text() for p in source_files() if p.suffix not in (".py", ".sh"))


def name_exists(span, source, words, deck):
    """None if the span is no name that this knows."""
    if re.fullmatch(r"\w+[.](cpp|hpp|cu|cuh|py|sh)", span) and not PLACEHOLDER.search(span):
        return any(p.name == span for p in source_files())
    if test := re.fullmatch(r"([A-Z]\w*)[.]([A-Z]\w*)", span):
        return bool(re.search(rf"\bTEST(_F|_P)?\({test[1]}, {test[2]}\)", source))
    if re.fullmatch(r"[A-Z]\w*::\w+", span):  # a class or enum and its member
        return set(span.split("::")) <= words
    if re.fullmatch(r"[A-Z][a-z]+[A-Z]\w*", span):  # CamelCase
        return span in words
    if re.fullmatch(r"ESPALIER_\w+", span.partition("=")[0]):
        return span.partition("=")[0] in words
    if (key := re.fullmatch(r"([a-z]+)\.([a-z_0-9]+)( = .*)?", span)) and span not in FILES:
        return key[2] in deck[key[1]] if key[1] in deck else None
    return None


def words_of_the_source(source):
    """The variables that the source reads, and the job scripts' own."""
    scripts = (p.read_text() for p in sorted((ROOT / "jobscripts").iterdir()) if p.is_file())
    return set(re.findall(r"\w+", "\n".join([source, *scripts])))


def keys_of_the_deck():
    deck, section = collections.defaultdict(set), ""
    for line in (ROOT / "doc" / "deck.md").read_text().split("\n"):
        if head := re.match(r"## `\[(\w+)\]`", line):
            section = head[1]
        if key := re.match(r"\| `(\w+)` \|", line):
            deck[section].add(key[1])
    return deck


def anchors(page):
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.*)$", without_code(page.read_text()), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.replace("`", "").lower()).replace(" ", "-") for h in heads}


def broken_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists():
            yield f"no {target}"
        elif anchor and other.suffix == ".md" and anchor not in anchors(other):
            yield f"no heading {target}"


def words_of_sentences(page):
    text = re.sub(r"\*\*(Context|Decision|Alternatives rejected)\.\*\*", "", without_code(page.read_text()))
    text = "\n".join("" if line.startswith(("|", "#")) else line for line in text.split("\n"))
    lengths = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. ))", text):
        block = re.sub(r"`[^`]*`", "Code", " ".join(re.sub(r"^\s*([-*] |\d+\. )", "", block.strip()).split()))
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z(\[*])", block):
            words = len(re.findall(r"[\w'’-]+", sentence))
            if words > 1:
                lengths.append(words)
    return sorted(lengths)


def bad_fences(page):
    """Lines that begin a block of code and go on: a block that was filled like a paragraph."""
    yield from (f"text after a fence: {line[:40]}..." for line in page.read_text().split("\n")
                if re.match(r"\s*```\S*[ \t]+\S", line))


def p90(lengths):
    return lengths[int(0.9 * len(lengths))]


def faults_of(page):
    """The rules for any page: its links and paths exist, its lines and sentences are short."""
    text = page.read_text()
    yield from broken_links(page)
    yield from bad_fences(page)
    if page != HISTORY:
        yield from (f"there is no {span}" for span in spans(text) if is_path(span) and not path_exists(span))
    if page == GENERATED:
        return
    for line in without_code(text).split("\n"):
        if len(line) > MOST_COLUMNS and not line.startswith("|"):
            yield f"a line of {len(line)} columns: {line[:40]}..."
    lengths = words_of_sentences(page)
    if lengths and (statistics.median(lengths) > MOST_MEDIAN or p90(lengths) > MOST_P90):
        yield (f"sentences of {statistics.median(lengths)} words (median) and {p90(lengths)} (90th percentile); "
               f"at most {MOST_MEDIAN} and {MOST_P90}")


def check():
    faults = []
    source, deck = sources(), keys_of_the_deck()
    words = words_of_the_source(source)
    for page in CHECKED:
        for span in spans(page.read_text()):
            if not is_path(span) and name_exists(span, source, words, deck) is False:
                faults.append(f"{page.relative_to(ROOT)}: nothing is called {span}")
    for page in pages():
        faults += [f"{page.relative_to(ROOT)}: {fault}" for fault in faults_of(page)]
    lines = PAGE.read_text().splitlines()
    if len(lines) > MOST_LINES or max(map(len, lines)) > MOST_COLUMNS:
        faults.append(f"doc/architecture.md: {len(lines)} lines of up to {max(map(len, lines))} columns")
    if (count := len((ROOT / "README.md").read_text().splitlines())) > 120:
        faults.append(f"README.md: {count} lines, 120 at most")
    print("\n".join(faults) if faults else "what the documents name exists")
    return 1 if faults else 0


def print_sentences():
    for page in pages():
        if lengths := words_of_sentences(page):
            print(f"{str(page.relative_to(ROOT)):40} {len(lengths):4} sentences, "
                  f"median {statistics.median(lengths):4}, p90 {p90(lengths):3}, longest {lengths[-1]}")
    return 0


if __name__ == "__main__":
    sys.exit(print_sentences() if sys.argv[1:] == ["sentences"] else check())
