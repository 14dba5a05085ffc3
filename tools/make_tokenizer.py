#!/usr/bin/env python3
"""Writes models/tiny/tokenizer.json: the 512-entry byte-level BPE tokenizer of the bundled small model.

    make_tokenizer.py [--out models/tiny/tokenizer.json]

Ids: 0 bos, 1 eos, 2 pad, then V4.1's other special tokens under their real names, the 256 bytes, merges learnt
from the prose below, and the image placeholder as the last id. The same
pre-tokenizer as the released tokenizer, so every test of splitting runs on this file too. Deterministic: ties between
pairs go to the pair that sorts first.
"""

import argparse
import collections
import json
import pathlib

import regex

ROOT = pathlib.Path(__file__).resolve().parents[1]
VOCAB_SIZE = 512
SPECIAL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
IMAGE = "<｜deepseek_image｜>"  # the last id
CONTROL = ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜System｜>", "｜DSML｜", "<｜latest_reminder｜>",
           "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>"]
GROUNDING = ["<｜ref｜>", "<｜/ref｜>", "<｜box｜>", "<｜/box｜>", "<｜point｜>", "<｜/point｜>", "<｜polygon｜>",
             "<｜/polygon｜>"]
PATTERNS = [
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]
TEXT = """
The lamp in the window stayed lit all night, and in the morning the whole street knew that the ship had come in.
She read the letter twice, put it down, and then read it again as if the words could have changed in the meantime.
There is no harm in asking a question when the answer is not yet known; the harm is in not waiting for the answer.
What would you do if you had a thousand years? I would learn the names of the birds, and then I would learn to sing.
He was not the first to cross the river, but he was the one who told the others where the water was shallow.
When the rain stopped, the children ran out into the road and made small rivers with their hands and sticks.
It has been said that a good tool is one that can be used without being thought about, like a door or a spoon.
You should have seen the market that day: bread, apples, onions, and a man with a cart who sold nothing but bells.
If the machine does not start, check the power, then the cable, then the switch, and only then call for help.
The first rule is to write it down. The second rule is to write it where someone else will look for it.
def total(values): return sum(value for value in values if value is not None)
for (int i = 0; i < size; ++i) { result += table[i] * weight[i]; }
if (error != 0) { return error; } else { print("done"); }
{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}, "strict": true}
The user asked for the weather, so the assistant called a function and waited for the result of the tool.
Please explain this to me step by step, and say at the end which of the steps was the hardest for you.
We think that the answer is forty-two, because the sum of the first numbers in the list is even and the others are odd.
Here are the things that I know about this place: it is cold in winter, it is warm in summer, and there are no bears.
"""


def spelling():
    """byte -> character of the byte-level alphabet"""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, spare = {}, 0x100
    for byte in range(256):
        if byte in printable:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(spare)
            spare += 1
    return table


def isolate(pattern, pieces):
    for piece in pieces:
        at = 0
        for match in regex.finditer(pattern, piece):
            if match.start() > at:
                yield piece[at:match.start()]
            yield match.group()
            at = match.end()
        if at < len(piece):
            yield piece[at:]


def learn(text, alphabet, count):
    pieces = [text]
    for pattern in PATTERNS:
        pieces = list(isolate(pattern, pieces))
    words = collections.Counter(tuple(alphabet[b] for b in piece.encode()) for piece in pieces)
    merges, made = [], set()
    while len(merges) < count:
        pairs = collections.Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += times
        best = min((p for p in pairs if p[0] + p[1] not in made), key=lambda p: (-pairs[p], p))
        merges.append(best)
        made.add(best[0] + best[1])
        merged = collections.Counter()
        for word, times in words.items():
            out, i = [], 0
            while i < len(word):
                if word[i:i + 2] == best:
                    out.append(best[0] + best[1])
                    i += 2
                else:
                    out.append(word[i])
                    i += 1
            merged[tuple(out)] += times
        words = merged
    return merges


def build():
    alphabet = spelling()
    added = [(t, True) for t in SPECIAL] + [(t, False) for t in CONTROL] + [(t, True) for t in GROUNDING]
    names = [t for t, _ in added] + [alphabet[b] for b in range(256)]
    merges = learn(TEXT, alphabet, VOCAB_SIZE - len(names) - 1)
    vocab = {name: i for i, name in enumerate(names + ["".join(m) for m in merges] + [IMAGE])}
    added.append((IMAGE, False))
    assert len(vocab) == VOCAB_SIZE
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in PATTERNS]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocab[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": token in CONTROL, "special": special} for token, special in added],
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": split + [byte_level]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                  "merges": [" ".join(m) for m in merges]},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "models/tiny/tokenizer.json")
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(build(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(f"{out}: {out.stat().st_size} bytes")
