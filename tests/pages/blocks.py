"""Code blocks of a page in Markdown, and the commands in them.

The language of a fence says what a block is: none or `sh` commands, `text` output, `plain` neither; other languages are
left to other tests. Output belongs to the block of commands before it, with at most one paragraph between, or to the
lines `$ command` in it.
"""
import dataclasses
import re
import shlex

COMMANDS, OUTPUT, PLAIN = ("", "sh"), "text", "plain"
COMMENT = re.compile(r"""((?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\]|\s+(?![\s#]))*)\s*(?<!\S)#\s(.*)$""", re.S)
FENCE = re.compile(r"( *)```(.*)$")


@dataclasses.dataclass
class Block:
    """A fenced block: its language, and its lines without the indentation of the fence."""
    language: str
    indent: int
    lines: list
    number: int       # of its first line in the page, from 0
    paragraphs: int   # between the block before and this one; many if there is a heading


@dataclasses.dataclass
class Command:
    """A command of bash: its text without comments, and the line of the page where it is, from 1."""
    text: str
    line: int
    expected_status: int = 0

    @property
    def words(self):
        """As one line, with single spaces."""
        return " ".join(self.text.replace("\\\n", " ").split())


@dataclasses.dataclass
class Output:
    """Documented lines of the output of commands, lines[begin:end] of the page."""
    begin: int
    end: int
    indent: int
    lines: list


@dataclasses.dataclass
class Group:
    """Commands whose outputs are shown together, or not shown."""
    commands: list
    output: Output = None


def read_blocks(text):
    """All fenced blocks of a page, in order."""
    blocks, begin, paragraphs, inside_paragraph = [], None, 0, False
    for number, line in enumerate(text.split("\n")):
        fence = FENCE.match(line)
        if begin is not None:
            if fence and not fence[2]:
                blocks.append(begin)
                begin, paragraphs, inside_paragraph = None, 0, False
            else:
                begin.lines.append(line[begin.indent:])
        elif fence:
            begin = Block(fence[2].strip(), len(fence[1]), [], number + 1, paragraphs)
        else:
            paragraphs += bool(line.strip()) and not inside_paragraph
            paragraphs += 100 if line.startswith("#") else 0
            inside_paragraph = bool(line.strip())
    if begin is not None:
        raise ValueError(f"line {begin.number}: the block has no end")
    return blocks


def is_whole(text):
    """No quotation and no here-document is open, and the line does not go on."""
    if text.endswith("\\"):
        return False
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    document = re.search(r"<<-?\s*['\"]?(\w+)['\"]?", text)
    return not document or text.split("\n")[-1].strip() == document[1]


def make_command(text, line):
    """Takes the comment at its end away; `# ... exit status N` says what is expected."""
    text, status = text.strip(), 0
    if (comment := COMMENT.match(text)) and "<<" not in text:
        found = re.search(r"exit status (\d+)", comment[2])
        text, status = comment[1], int(found[1]) if found else 0
    return Command(text, line, status) if text else None


def split_commands(lines, first_line):
    """The commands of some lines, in order; the first of the lines is `first_line` of the page, from 1."""
    commands, text, line = [], None, first_line
    for number, part in enumerate(lines, first_line):
        if text is None:
            text, line = part, number
        else:
            text += "\n" + part
        if is_whole(text):
            if command := make_command(text, line):
                commands.append(command)
            text = None
    if text is not None:
        raise ValueError(f"line {line}: the command has no end: {text}")
    return commands


def split_session(block):
    """`$ command` lines of a block of output, each with the lines that it printed."""
    starts = [k for k, line in enumerate(block.lines) if line.startswith("$ ")]
    groups = []
    for start, end in zip(starts, [*starts[1:], len(block.lines)]):
        begin = start + 1
        while block.lines[begin - 1].endswith("\\"):
            begin += 1
        text = "\n".join([block.lines[start][2:], *block.lines[start + 1:begin]])
        groups.append(Group([make_command(text, block.number + start + 1)],
                            Output(block.number + begin, block.number + end, block.indent, block.lines[begin:end])))
    return groups


def read_groups(text):
    """The groups of commands of a page, in order; ValueError names a block that is of no kind."""
    groups, before = [], None
    for block in read_blocks(text):
        if block.language in COMMANDS:
            groups.append(Group(split_commands(block.lines, block.number + 1)))
        elif block.language == OUTPUT and block.lines and block.lines[0].startswith("$ "):
            groups += split_session(block)
        elif block.language == OUTPUT:
            if before is None or before.language not in COMMANDS or block.paragraphs > 1:
                raise ValueError(f"line {block.number}: output of no command (allowed: ```text directly after a block "
                                 "of commands; ```plain for what no command prints)")
            groups[-1].output = Output(block.number, block.number + len(block.lines), block.indent, block.lines)
        before = block
    return groups
