"""Every error that a user may see has a row in doc/errors.md.

    errors.py                    the messages in the sources, and the page: no message without a row, no row without one
    errors.py --recorded FILE    the messages that tests provoked, as support/recorded.py wrote them

A row is a pattern: `...` stands for anything, words in capitals (FORMS) for what their names say. Messages of FAMILIES
have one form, so only the form is a row.
"""
import fnmatch
import os
import re
import sys

from support.recorded import errors_of

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "doc", "errors.md")

# Words that stand for a part of a message in a form.
FORMS = {"FILE": r"\S.*?", "LINE": r"\d+", "KEY": r"[\w.\[\]*\"]+", "VALUE": r".*?", "PLACE": r".+?",
         "TOKENIZER": r"\S*(?:tokenizer|\.json|\.model)\S*"}
# Sources whose functions Refuse, Fail, ... give all messages one form: (files, the form that they follow).
FAMILIES = [
    ("src/deck/*", "FILE:LINE: KEY = VALUE: ..."),
    ("src/costs/cluster_*", "FILE:LINE: KEY = VALUE: ..."),
    ("src/data/formats/*", "PLACE: data.paths: FILE: ..."),
    ("src/data/conversations.cpp", "PLACE: data.paths: FILE: ..."),
    ("src/data/token_*", "PLACE: data.paths: FILE: ..."),
    ("src/huggingface/config_reader.hpp", "FILE/config.json: KEY = VALUE: ..."),
    ("src/huggingface/read_model_config.cpp", "FILE/config.json: KEY = VALUE: ..."),
    ("src/checkpoint/format/parse_manifest.cpp", "FILE/MANIFEST:LINE: ..."),
    ("src/timeline/read_trace.cpp", "...: is not a trace of this program: ..."),
    ("src/text/template/*", "PLACE: data.chat_template: FILE:LINE: ..."),
    ("src/text/*", "TOKENIZER: PLACE = VALUE: ..."),
    ("src/commands/cli/*", "command line: ..."),
    ("src/commands/calibrate.cpp", "command line: ..."),
    ("src/commands/sample/text_form.cpp", "command line: ..."),
    ("src/commands/evaluate.cpp", "command line: ..."),
    ("src/commands/simulate/slow_parts.cpp", "command line: ..."),
    ("src/commands/tokenize.cpp", "command line: ..."),
    ("src/tune/groups.cpp", "command line: ..."),
    ("src/util/environment.cpp", "environment: KEY = VALUE (allowed: ...): ..."),
]
# Calls of these names in these files only hand on what others say, or are no errors of a user.
INTERNAL = ["src/schedule/*", "src/graph/*", "src/executor/cuda/cuda_executor.cpp", "src/commands/cli/report_error.cpp"]

CALL = re.compile(r"\b(?:(?:User|Agreed|Print)Error|Refuse(?!d)\w*|Fail|FailAt"
                  r"|(?:errors?|messages?)_?\.(?:push|emplace)_back)\(")
LITERAL = re.compile(r'"((?:\\.|[^"\\])*)"')
LEAST_WORDS = 2  # of a message, to be one; "{}: {}" only joins others


def rows():
    """The messages of the page, forms included."""
    with open(PAGE) as file:
        lines = file.read().split("## Forms")[1].split("\n")
    return [match[1] for line in lines if (match := re.match(r"\| `([^`]+)` \|", line))]


def is_form(row):
    return any(re.search(rf"\b{name}\b", row) for name in FORMS)


def expression(row):
    """The pattern that a printed line of this row matches."""
    escaped = re.escape(row).replace(r"\.\.\.", ".*")
    for name, regex in FORMS.items() if is_form(row) else ():
        escaped = re.sub(rf"\b{name}\b", lambda _, regex=regex: f"(?:{regex})", escaped)
    return re.compile(escaped + ("" if escaped.endswith(".*") else r"(?:\W.*)?"))


def sources():
    for folder, _, names in os.walk(os.path.join(ROOT, "src")):
        for name in names:
            if name.endswith((".cpp", ".hpp", ".cu")):
                path = os.path.join(folder, name)
                with open(path) as file:
                    yield os.path.relpath(path, ROOT), re.sub(r"(?m)^\s*//.*$|\s//\s.*$", "", file.read())


def arguments(text, begin):
    """The text of a call from its opening parenthesis to the closing one, adjacent literals joined."""
    depth, end = 0, begin
    for part in re.finditer(r'"(?:\\.|[^"\\])*"|[()]', text[begin:]):
        depth += {"(": 1, ")": -1}.get(part[0], 0)
        end = begin + part.end()
        if depth == 0:
            break
    return re.sub(r'"\s+"', "", text[begin:end])


def plain(literal):
    """A literal as it is printed, with `...` for its values."""
    return re.sub(r"\{[^{}]*\}", "...", literal).replace('\\"', '"').replace("{{", "{").replace("}}", "}")


def words(text):
    return re.findall(r"[A-Za-z_]{2,}", text)


def messages_of(call):
    """The strings of a call that are messages: those that begin with a place, or else the longest."""
    strings = sorted((plain(part) for part in LITERAL.findall(call)), key=len)
    placed = [text for text in strings if text.startswith("...:")]
    return [text for text in placed or strings[-1:] if len(words(text)) >= LEAST_WORDS and " " in text]


def templates_of(text):
    """(line, function, message with `...`) of every error in a source that has words of its own."""
    for call in CALL.finditer(text):
        for message in messages_of(arguments(text, call.end() - 1)):
            yield text[:call.start()].count("\n") + 1, call[0][:-1], message


def templates():
    """The messages of all sources, with their paths."""
    for path, text in sources():
        if not any(fnmatch.fnmatch(path, pattern) for pattern in INTERNAL):
            yield from ((f"{path}:{line}", *found) for line, *found in templates_of(text))


def pieces(row):
    """The fixed parts of a row, without the punctuation at their ends."""
    return [piece for part in row.removeprefix("cuda: ").split("...")  # a helper puts this word before its messages
            if words(piece := part.strip(" :;,.()\"'"))]


def has(text, row):
    """The fixed parts of the row are in the text, in order."""
    at = 0
    for piece in pieces(row):
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def without_row(page):
    for place, function, message in templates():
        if not function.endswith("Error") and any(fnmatch.fnmatch(place.split(":")[0], files) for files, _ in FAMILIES):
            continue
        if not any(has(message, row) for row in page if not is_form(row) and pieces(row)):
            yield f"{place}: doc/errors.md has no row for: {message}"


def all_literals():
    """Every string of the sources, with `...` for values: rows are looked up in these."""
    return "\n".join(plain(part) for _, text in sources() for part in LITERAL.findall(re.sub(r'"\s+"', "", text)))


def without_message(page):
    text = all_literals()
    for row in page:
        if not is_form(row) and not pieces(row):
            yield f"doc/errors.md: a row that fits anything: {row}"
        for piece in () if is_form(row) else pieces(row):
            if piece not in text:
                yield f"doc/errors.md: no source says \"{piece}\", of the row: {row}"
    for files, form in FAMILIES:
        if form not in page:
            yield f"doc/errors.md: no row for the form of {files}: {form}"


def check_sources():
    page = rows()
    return [*without_row(page), *without_message(page)]


def check_recorded(path):
    """Lines `STATUS<tab>MESSAGE`."""
    expressions = [expression(row) for row in rows()]
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        found = sorted({line.rstrip("\n") for line in file})
    print(f"{len(found)} different errors were recorded")
    for line in found:
        if not any(known.fullmatch(line.partition("\t")[2]) for known in expressions):
            yield f"doc/errors.md has no row for (exit status, message): {line}"


def check_rules():
    """The rules themselves, tried on small texts."""
    source = """Keep("no error of a user");
      throw UserError(kData, fmt::format("{}: has {:.4g} GB (at "
                                         "most {})", path, Size("of a file"), most));"""
    assert list(templates_of(source)) == [(2, "UserError", "...: has ... GB (at most ...)")]
    assert has("...: has ... GB (at most ...)", "...: has ... GB") and not has("...: has ...", "...: has ... GB")
    row = "...: no file matches"
    assert expression(row).fullmatch("a.toml:3: data.paths: b*: no file matches; set it")
    assert not expression(row).fullmatch("no file of b*") and not expression(row).fullmatch("b*: no file matches2")
    form = expression("FILE:LINE: KEY = VALUE: ...")
    assert form.fullmatch('a b.toml:17: model.heads = "6": must divide') and not form.fullmatch("a.toml: heads = 6: no")
    printed = ("step 1\nespalier: 2 errors (rank 3)\na: b\n  hint\n[vm:12] noise\nc: d\nstep 2\n"
               "espalier: error (rank 0): e\nespalier: rank 1: f\n")
    assert errors_of(printed) == ["a: b", "c: d", "e", "espalier: rank 1: f"]


def main():
    check_rules()
    faults = list(check_recorded(sys.argv[2]) if sys.argv[1:2] == ["--recorded"] else check_sources())
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{len(rows())} rows, {sum(1 for _ in templates())} messages in the sources, {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
