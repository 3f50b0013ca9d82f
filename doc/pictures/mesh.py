#!/usr/bin/env python3
"""Draws a mesh on nodes: mesh.py FILE.svg. One row of cards per node and dp coordinate, one card per rank; a
line of an axis connects ranks that differ in it alone. Standard library only."""
import sys

AXES = ("pp", "dp", "cp", "tp")  # outermost first: neighbouring ranks differ in tp
DEGREES = dict(pp=2, dp=2, cp=2, tp=2)
COLOURS = dict(pp="#4B4B9B", dp="#33AADD", cp="#882255", tp="#EE7733")  # as in the pictures of steps
LEGEND = dict(
    tp="tp: every layer, all activations; fastest links, within a node",
    cp="cp: every layer, keys and values",
    dp="dp: once per step, gradients and weights (zero = 3: weights of every layer)",
    pp="pp: once per microbatch, activations of one layer; slowest links will do",
)
CARD_W, CARD_H, GAP_X, GAP_Y = 92, 56, 34, 74
MARGIN, HEAD, NODE_GAP = 24, 66, 56
NODE_W = 4 * CARD_W + 3 * GAP_X + 2 * MARGIN
NODE_H = 2 * CARD_H + GAP_Y + 2 * MARGIN + 34
WIDTH = 2 * NODE_W + NODE_GAP + 2 * MARGIN
HEIGHT = HEAD + NODE_H + 4 * 20 + 2 * MARGIN


def coordinates(rank):
    place = {}
    for axis in reversed(AXES):
        rank, place[axis] = divmod(rank, DEGREES[axis])
    return place


def rank_of(place):
    rank = 0
    for axis in AXES:
        rank = rank * DEGREES[axis] + place[axis]
    return rank


def corner(rank):
    """Upper left corner of the card of a rank, in pixels."""
    at = coordinates(rank)
    column = at["cp"] * DEGREES["tp"] + at["tp"]
    x = MARGIN + at["pp"] * (NODE_W + NODE_GAP) + MARGIN + column * (CARD_W + GAP_X)
    return x, HEAD + MARGIN + 34 + at["dp"] * (CARD_H + GAP_Y)


def text(x, y, words, style="", anchor="start"):
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" {style}>{words}</text>'


def card(rank):
    x, y = corner(rank)
    at = coordinates(rank)
    return "\n".join([
        f'<rect class="card" x="{x}" y="{y}" width="{CARD_W}" height="{CARD_H}" rx="5"/>',
        text(x + CARD_W / 2, y + 24, f"rank {rank}", 'class="rank"', "middle"),
        text(x + CARD_W / 2, y + 42, " ".join(f"{axis} {at[axis]}" for axis in AXES[1:]), 'class="place"', "middle"),
    ])


def path(axis, data):
    return f'<path d="{data}" fill="none" stroke="{COLOURS[axis]}" stroke-width="3"/>'


def link(axis, rank, other):
    """The line from a rank to the next one of its axis."""
    x, y = corner(rank)
    u, v = corner(other)
    if axis == "tp":
        return path(axis, f"M{x + CARD_W} {y + CARD_H / 2}H{u}")
    if axis == "dp":
        return path(axis, f"M{x + CARD_W / 2} {y + CARD_H}V{v}")
    if axis == "cp":
        top = y - 13 - 9 * coordinates(rank)["tp"]
        return path(axis, f"M{x + CARD_W * 0.7} {y}V{top}H{u + CARD_W * 0.3}V{y}")
    return ""


def links():
    for rank in range(2**len(AXES)):
        at = coordinates(rank)
        for axis in AXES:
            if at[axis] + 1 < DEGREES[axis]:
                yield link(axis, rank, rank_of({**at, axis: at[axis] + 1}))


def node(index):
    x = MARGIN + index * (NODE_W + NODE_GAP)
    return (f'<rect class="node" x="{x}" y="{HEAD}" width="{NODE_W}" height="{NODE_H}" rx="8"/>\n' +
            text(x + 14, HEAD + 22, f"node {index}: stage {index} of the pipeline, 8 GPUs", 'class="head"'))


def pipeline():
    """One arrow for all pairs of ranks in the same place of two stages."""
    x, y = MARGIN + NODE_W, HEAD + NODE_H / 2
    return (path("pp", f"M{x + 4} {y}H{x + NODE_GAP - 14}") +
            f'<path d="M{x + NODE_GAP - 4} {y}l-12 -7v14z" fill="{COLOURS["pp"]}"/>' +
            text(x + NODE_GAP / 2, y - 12, "pp", f'class="head" style="fill:{COLOURS["pp"]}"', "middle"))


def legend():
    for row, (axis, words) in enumerate(LEGEND.items()):
        y = HEAD + NODE_H + MARGIN + 10 + 20 * row
        yield f'<rect x="{MARGIN}" y="{y - 9}" width="22" height="9" fill="{COLOURS[axis]}"/>'
        yield text(MARGIN + 32, y, words)


STYLE = """text{font-family:Helvetica,Arial,"DejaVu Sans",sans-serif;font-size:13px;fill:#333}
.title{font-size:18px;font-weight:bold;fill:#111}.head{font-size:13px;font-weight:bold}
.rank{font-size:15px;font-weight:bold}.place{font-size:11px;fill:#555}
.page{fill:#F6F6F4}.node{fill:#fff;stroke:#BBB}.card{fill:#F0F0EC;stroke:#888}"""


def picture():
    degrees = " x ".join(f"{axis} {DEGREES[axis]}" for axis in AXES)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<title>A mesh of {degrees} on two nodes</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        text(MARGIN, 32, f"{degrees}: 16 ranks on 2 nodes of 8", 'class="title"'),
        text(MARGIN, 52, "Ranks are numbered with tp innermost and pp outermost. A line connects a rank with the next "
             "one of that axis."),
        *(node(index) for index in range(DEGREES["pp"])),
        *filter(None, links()),
        pipeline(),
        *(card(rank) for rank in range(2**len(AXES))),
        *legend(),
        "</svg>",
    ]) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(picture())
