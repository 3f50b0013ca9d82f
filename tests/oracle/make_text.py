#!/usr/bin/env python3
"""Writes data/text.txt: 20 kB of plain English sentences by a small grammar and a fixed random sequence."""
import os
import textwrap

BYTES = 20000
NOUNS = """apple pear quince plum fig trellis wall wire gardener branch leader spur bud blossom fruit root lattice
pruner ladder orchard hedge vine stake frost wasp""".split()
ADJECTIVES = "old young narrow warm patient quiet crooked level slender sturdy early late ripe bare".split()
VERBS = """holds bends feeds shades follows crosses shelters outgrows steadies leaves meets ties crowds
measures""".split()
PLACES = """along the south wall, between two wires, at the end of the row, under the lowest tier, near the gate,
above the second wire, in the cold frame, by the well, on the north side""".split(",")
TIMES = """in March, after the first frost, every summer, before the sap rises, when the leaves have fallen, for
seven years, at midday, once the wood is firm""".split(",")
TURNS = ["but", "and", "so", "while", "because", "until", "although"]
QUESTIONS = ["Why does", "When does", "How often does", "Where does"]


class Choice:
    """A linear congruential sequence (Knuth's MMIX constants)."""

    def __init__(self, state):
        self.state = state

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n

    def of(self, words):
        return " ".join(words[self.below(len(words))].split())


def thing(choice):
    noun = choice.of(NOUNS)
    if choice.below(3) == 0:
        noun = f"{choice.of(ADJECTIVES)} {noun}"
    return f"the {noun}" if choice.below(4) else f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def clause(choice):
    words = f"{thing(choice)} {choice.of(VERBS)} {thing(choice)}"
    if choice.below(2):
        words += f" {choice.of(PLACES)}"
    return words if choice.below(3) else f"{words} {choice.of(TIMES)}"


def sentence(choice):
    kind = choice.below(6)
    if kind == 0:
        text = f"{choice.of(QUESTIONS)} {thing(choice)} need {choice.below(97) + 2} wires {choice.of(PLACES)}?"
    elif kind < 3:
        text = f"{clause(choice)}, {choice.of(TURNS)} {clause(choice)}."
    else:
        text = f"{clause(choice)}."
    return text[0].upper() + text[1:]


def main():
    choice = Choice(2024)
    paragraphs = []
    while sum(len(p) + 2 for p in paragraphs) < BYTES:
        sentences = [sentence(choice) for _ in range(3 + choice.below(5))]
        paragraphs.append(textwrap.fill(" ".join(sentences), 100))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "text.txt")
    with open(path, "w") as file:
        file.write("\n\n".join(paragraphs)[:BYTES - 1] + "\n")


if __name__ == "__main__":
    main()
