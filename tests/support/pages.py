"""Reads pages of `espalier report` strictly: elements must be nested and closed. Standard library only."""
import collections, html.parser, re

VOID = {"meta", "br", "hr", "link", "img", "input"}
# Patterns that would make a page depend on something outside. References inside of it begin with #.
EXTERNAL = re.compile(r"https?:|\bsrc\s*=|\bhref\s*=|@import|url\((?!#)", re.I)


class Page(html.parser.HTMLParser):
    """The tables and texts of each section, the pictures, and the errors of the page.

    tables    section -> list of tables, each a list of rows of cell texts
    texts     section -> texts of paragraphs, cards and headings
    pictures  id of a figure -> its curves and layers, name -> {x: y}
    faults    errors of nesting and ids
    """

    def __init__(self, text):
        super().__init__()
        self.text = text
        self.tables, self.texts = collections.defaultdict(list), collections.defaultdict(list)
        self.pictures, self.faults, self.ids = {}, [], []
        self.open, self.section, self.figure = [], "", None
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag in self.open]
        self.faults += [f"two elements have the id {name}" for name in set(self.ids) if self.ids.count(name) > 1]

    def handle_startendtag(self, tag, attributes):
        self.attributes(tag, dict(attributes))

    def handle_starttag(self, tag, attributes):
        self.attributes(tag, dict(attributes))
        if tag not in VOID:
            self.open.append(tag)

    def attributes(self, tag, attributes):
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "section":
            self.section = attributes["id"]
        elif tag == "figure":
            self.figure = self.pictures.setdefault(attributes["id"], {})
        elif tag == "svg" and not attributes.get("aria-label"):
            self.faults.append("a picture without a label")
        elif tag == "table":
            self.tables[self.section].append([])
        elif tag == "tr":
            self.tables[self.section][-1].append([])
        elif tag in ("td", "th"):
            self.tables[self.section][-1][-1].append("")
        if "data-x" in attributes:
            places, values = attributes["data-x"].split(), attributes["data-y"].split()
            if len(places) != len(values):
                self.faults.append(f"{len(places)} places for {len(values)} values")
            self.figure[attributes["data-name"]] = dict(zip(map(float, places), map(float, values)))

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> closes <{self.open[-1] if self.open else ''}>")
            return
        self.open.pop()

    def handle_data(self, text):
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[self.section][-1][-1][-1] += text
        elif self.open and self.open[-1] in ("p", "span", "h3"):
            self.texts[self.section].append(text)

    def says(self, section, words):
        """True if a text or a cell of the section contains these words."""
        cells = [cell for table in self.tables[section] for row in table for cell in row]
        return any(words in text for text in self.texts[section] + cells)

    def row(self, section, first):
        """The cells after the first one that is `first`."""
        rows = [row for table in self.tables[section] for row in table if row and row[0] == first]
        return rows[0][1:] if rows else []

    def external(self):
        """References to anything outside of the page."""
        return EXTERNAL.findall(self.text)
