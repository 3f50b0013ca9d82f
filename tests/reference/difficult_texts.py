"""Texts that tokenizers find difficult, made from a seed: texts(count, seed) gives as many."""
import random
import unicodedata

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
SCRIPTS = ["äöüßéèñçøåłžșİıſ", "абвгдежзАБВГЁё", "αβγδΩς", "你好世界数据模型訓練", "こんにちはカタカナｶﾞ", "한국어조선글각", "שלוםעולם",
    "مرحبابالعالم", "नमस्तेदुनियाक्षि", "สวัสดีชาวโลก", "ქართული", "አማርኛ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢𝟘𝟙", "ǅǈᾼ", "ʰªº"]
MARKS = "\u0301\u0308\u0323\u0327\u0338\u0345\u05b0\u064b\u0e31\u20dd\u3099\u309a\u1ab0"
SPACES = [" ", " ", " ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\v", "\f", "\x1c", "\x1f",
    "\u0085", "\u00a0", "\u1680", "\u180e", "\u2000", "\u2003", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f",
    "\u205f", "\u3000", "\u200b", "\ufeff", "\u2060"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'LL", "'\u017f", "'\u212a",
    "’s", "don't", "I'M", "we'd've", "'''s", "' s"]
NUMBERS = ["0", "7", "42", "123", "1234", "12345678", "3.14159", "1,000,000", "1e-5", "0x1F", "²³", "½", "Ⅷ", "٣٤٥",
    "१२३", "①②", "𝟏𝟐𝟑", "ↂ", "〇", "2026-11-23", "+49 170"]
EMOJI = ["😀", "👨‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "🇩🇪🇫🇷", "1️⃣", "☺️", "🧑🏿‍🚀", "❤", "‼️"]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "—", "«»", "¿", "。", "、", "!!!", "://", "->",
    "|||", "؟", "€", "§", "¨", "`´", "\u2044"]
CONTROLS = ["\x00", "\x01", "\x07", "\x08", "\x1b[0m", "\x7f", "\x80", "\x9f", "\u00ad", "\u200d", "\u200c",
    "\u202e", "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "\ue000", "\U000e0041", "\ud7ff", "\U00010000", "\u0378"]
NORMAL = ["e\u0301", "\u00e9", "\u212b", "A\u030a", "\ufb01", "\u1100\u1161\u11a8", "\uac01", "\u0344", "\u2126",
    "\uf900", "\u0958", "q\u0307\u0323", "q\u0323\u0307", "\u1e9b\u0323", "\u03d3", "\U0001d15e", "\u2adc"]
SPECIAL = ["<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>",
    "<think>", "</think>", "<s>", "</s>", "<unk>", "<pad>", "<mask>", " <mask> ", "<word>", "a<word>", "<word>b",
    "é<word>", "<right>  x", "<café>", "<cafe\u0301>", "|||IP_ADDRESS|||", "<|endoftext|", "|endoftext|>",
    "<|endof<|endoftext|>", "<|endoftext|><|endoftext|>", "<0x0A>", "<0x41>", "\u2581", "\u2581a", "Ġ", "Ċ",
    "<|reserved_special_token_0|>"]
CODE = ["def f(x):\n    return x ** 2\n", "for (int i = 0; i < n; ++i) { a[i] += b[i]; }\n",
    "\t\tif err != nil {\n\t\t\treturn err\n", "<div class=\"a\">\n  <p>x</p>\n</div>", "{\"k\": [1, 2.5, null]}",
    "SELECT * FROM t WHERE a='b';", "https://x.org/a?b=c&d=%20#e", "C:\\dir\\file.txt", "a_b_c CamelCase snake_case",
    "x = 'it''s'", "0b1010_1111", "#!/bin/sh\nls -la | wc\n"]


def word(r):
    kind = r.randrange(12)
    if kind < 5:
        return "".join(r.choice(LETTERS) for _ in range(r.randint(1, 9)))
    if kind < 9:
        return "".join(r.choice(r.choice(SCRIPTS)) for _ in range(r.randint(1, 6)))
    return r.choice(["the", "and", "training", "tokens", "naïve", "Straße", "coöperate", "ΣΊΣΥΦΟΣ", "don't"])


def marked(r):
    return word(r) + "".join(r.choice(MARKS) for _ in range(r.randint(1, 4)))


def any_character(r):
    """One that Unicode 3.2 has: libraries know Unicode up to different versions."""
    while True:
        c = chr(r.randrange(0x30000) if r.random() < 0.3 else r.randrange(0x3000))
        if unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Cs"):
            return c


def run(r):
    return r.choice([" ", "\n", "a", "0", "-", "\t", "é", "=", "\u3000", "ab", "\r\n", "Z ", "👍"]) * r.randint(2, 200)


PIECES = [word, word, word, marked, any_character, run] + [
    (lambda r, choices=choices: r.choice(choices))
    for choices in (SPACES, SPACES, CONTRACTIONS, NUMBERS, EMOJI, PUNCTUATION, PUNCTUATION, CONTROLS, NORMAL,
        SPECIAL, CODE)]


def text(r):
    if r.random() < 0.02:
        return ""
    joint = r.choice(["", " ", " ", ""])
    return joint.join(r.choice(PIECES)(r) for _ in range(r.choice([1, 2, 3, 5, 8, 13, 30])))


def texts(count, seed):
    r = random.Random(seed)
    return [text(r) for _ in range(count)]
