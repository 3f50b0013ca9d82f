"""Trains tokenizers like those of the families, and writes what they make of difficult texts:

    train_tokenizers.py FOLDER COUNT SEED

FOLDER gets texts.jsonl ({"text"} a line), NAME.json or NAME.model of each tokenizer, and NAME.expected
({"ids", "text"} a line; "text" is what the ids decode to); of unigram models also NAME.scores, one per piece. Needs
tokenizers and sentencepiece. Patterns, normalizers, decoders and added
tokens are those that the families publish in their tokenizer.json; vocabularies are small.
"""
import glob
import io
import json
import os
import random
import sys

import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

from difficult_texts import texts

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
HAN = r"[\p{Han}]+|[^\r\n\s\p{Han}]+|\s+"


def byte_level(regex=True, prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def split(regex, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(regex), behavior, invert)


def special(*names, **options):
    return [AddedToken(name, special=True, normalized=options.get("normalized", False)) for name in names]


def template(name):
    return processors.TemplateProcessing(single=f"{name} $A", pair=f"{name} $A $B", special_tokens=[(name, 0)])


STRIPPING = [AddedToken("<mask>", lstrip=True, special=True), AddedToken("<word>", single_word=True),
             AddedToken("<right>", rstrip=True, normalized=False), AddedToken("<caf\u00e9>", normalized=True),
             AddedToken("  ", normalized=False), AddedToken("   ", normalized=False),
             AddedToken("\n\n", normalized=True)]

# name: (pre_tokenizer, normalizer, special tokens, more added tokens, options of the model, byte symbols)
BYTE_LEVEL = {
    "gpt2": (byte_level(), None, special("<|endoftext|>", normalized=True), [], {}),
    "llama3": (pre_tokenizers.Sequence([split(CL100K), byte_level(False)]), None,
               special("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|reserved_special_token_0|>"), [],
               {"ignore_merges": True}),
    "qwen": (pre_tokenizers.Sequence([split(QWEN), byte_level(False)]), normalizers.NFC(),
             special("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
             [AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)], {}),
    "olmo2": (pre_tokenizers.Sequence([split(CL100K), byte_level(False)]), None, special("<|endoftext|>"),
              [AddedToken("|||IP_ADDRESS|||", normalized=True)], {}),
    "neox": (byte_level(), normalizers.NFC(), special("<|endoftext|>"),
             [AddedToken(" " * n, normalized=True) for n in range(2, 25)], {}),
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level()]), None,
               special("<|endoftext|>", "<|im_start|>"), [], {}),
    "prefix": (pre_tokenizers.Sequence([pre_tokenizers.Digits(False), byte_level(prefix=True)]),
               normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s{3,}"), " ")]),
               special("<s>", "</s>"), [], {}),
    "o200k": (pre_tokenizers.Sequence([split(O200K), byte_level(False)]), None, special("<|endoftext|>"), [], {}),
    "han": (pre_tokenizers.Sequence([split(HAN, "removed", True), byte_level(False)]), normalizers.NFD(),
            special("<|endoftext|>"), STRIPPING, {}),
    "previous": (pre_tokenizers.Sequence([split(r"\s", "merged_with_previous"), split(r"\p{P}", "merged_with_next"),
                                          split(r"\p{Lu}", "contiguous"), byte_level(False)]),
                 None, special("<|endoftext|>"), STRIPPING, {}),
}


def corpus(seed):
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    lines = []
    found = [os.path.join(root, *pattern) for pattern in (("doc", "*.md"), ("src", "deck", "*.cpp"))]
    for path in sorted(path for pattern in found for path in glob.glob(pattern)):
        with open(path, encoding="utf-8") as file:
            lines += file.read().split("\n")
    random.Random(seed).shuffle(lines)
    return lines[:1500] + [text[:60] for text in texts(600, seed + 1)]  # long runs make training slow


def train(parts, lines):
    pre, normalizer, specials, added, options = parts
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer, tokenizer.decoder = pre, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=800, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_tokens(added)
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), template(specials[0].content)])
    return tokenizer


def llama2(lines, metaspace):
    """As the converted tokenizer.json of Llama 2, or the later ones with Metaspace."""
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    else:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=["<unk>", "<s>", "</s>"] + bytes_,
                                  show_progress=False, limit_alphabet=400, max_token_length=16)
    tokenizer.pre_tokenizer, pre = pre_tokenizers.WhitespaceSplit(), tokenizer.pre_tokenizer
    tokenizer.train_from_iterator([line.replace(" ", "\u2581 ") for line in lines], trainer)
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    data = json.loads(tokenizer.to_str())
    data["pre_tokenizer"] = data["pre_tokenizer"] if pre else None
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] in ("<unk>", "<s>", "</s>")]
    return Tokenizer.from_str(json.dumps(data))


def piece(lines, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in lines if line and "\0" not in line]), model_writer=model,
        vocab_size=1000, hard_vocab_limit=False, minloglevel=2, num_threads=1, **options)
    return model.getvalue()


PIECES = {
    "sp_bpe": {"model_type": "bpe"},
    "sp_unigram": {"model_type": "unigram"},
    "sp_llama2": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
                  "split_digits": True, "add_dummy_prefix": True, "remove_extra_whitespaces": False,
                  "allow_whitespace_only_pieces": True, "character_coverage": 0.99995},
    "sp_plain": {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "nfkc",
                 "add_dummy_prefix": False, "remove_extra_whitespaces": False,
                 "user_defined_symbols": ["<mask>", "<pad>"]},
}


def write(folder, name, model, rows):
    with open(os.path.join(folder, name), "wb") as file:
        file.write(model)
    with open(os.path.join(folder, name + ".expected"), "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


def main():
    folder, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    samples, lines = texts(count, seed), corpus(seed)
    with open(os.path.join(folder, "texts.jsonl"), "w", encoding="utf-8") as file:
        for sample in samples:
            file.write(json.dumps({"text": sample}, ensure_ascii=False) + "\n")
    trained = {name: train(parts, lines) for name, parts in BYTE_LEVEL.items()}
    trained |= {"llama2": llama2(lines, False), "metaspace": llama2(lines, True)}
    for name, tokenizer in trained.items():
        ids = [encoding.ids for encoding in tokenizer.encode_batch(samples, add_special_tokens=False)]
        rows = zip(ids, tokenizer.decode_batch(ids))
        write(folder, name + ".json", tokenizer.to_str().encode(), ({"ids": i, "text": text} for i, text in rows))
    for name, options in PIECES.items():
        model = piece(lines, **options)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        ids = processor.encode(samples)
        rows = [{"ids": i, "text": text} for i, text in zip(ids, processor.decode(ids))]
        if options["model_type"] == "unigram":
            scores = [processor.get_score(i) for i in range(processor.get_piece_size())]
            with open(os.path.join(folder, name + ".model.scores"), "w", encoding="utf-8") as file:
                json.dump(scores, file)
        write(folder, name + ".model", model, rows)


main()
