#!/usr/bin/env python3
"""Compares our ids with the `tokenizers` package's on seeded lines of mixed text, and every single code point.

    compare_tokenizer.py --tool BUILD/bin/text_tool [--lines 100000] [--seed 1] [--tokenizer FILE ...]

By default the small bundled tokenizer, a copy of it with odd added-token flags, and the released one (skipped by name
if make_v41_tokenizer.py has not been run). Also checked: decoding gives the text back, streamed equals whole, and the
Engram token map equals the one that the package's own normalisers give.
"""

import argparse
import json
import pathlib
import sys
import tempfile

try:
    from tokenizers import Regex, Tokenizer, normalizers
except ImportError:
    print("SKIPPED: the tokenizers package is not installed")
    sys.exit(77)

import corpus
from driver import TINY, V41, ask


def odd_flags(path):
    """The small tokenizer with added tokens of every flag, to test matching rather than merging."""
    document = json.loads(TINY.read_text(encoding="utf-8"))
    size = len(document["model"]["vocab"])
    flags = [("word", dict(single_word=True)), ("left", dict(lstrip=True)), ("right", dict(rstrip=True)),
             ("both", dict(lstrip=True, rstrip=True, normalized=True)), ("both long", dict(lstrip=True)),
             ("éé", dict(single_word=True, normalized=True)), ("<｜User", dict(special=True)), (" lead", dict(rstrip=True))]
    for i, (content, extra) in enumerate(flags):
        token = dict(id=size + i, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False,
                     special=False)
        document["added_tokens"].append({**token, **extra})
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return [content for content, _ in flags]


def engram_map(tokenizer):
    fold = normalizers.Sequence([
        normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex(r"^ $"), "\ue000"),
        normalizers.Strip(), normalizers.Replace("\ue000", " ")])
    ids, result = {}, []
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token], skip_special_tokens=False)
        key = tokenizer.id_to_token(token) if "\ufffd" in text else fold.normalize_str(text) or text
        result.append(ids.setdefault(key, len(ids)))
    return result


def compare(tool, path, texts, extra):
    theirs = Tokenizer.from_file(str(path))
    bad = 0
    want = [e.ids for e in theirs.encode_batch(texts, add_special_tokens=False)]
    got = ask(tool, path, [{"op": "encode", "hex": t.encode().hex(), "added": "all"} for t in texts])
    for text, ids, answer in zip(texts, want, got):
        if ids != answer["ids"]:
            bad += 1
            if bad <= 5:
                print("  differs:", repr(text)[:300], ids[:40], answer["ids"][:40], sep="\n    ")
    some = range(0, len(texts), 7)
    plain = ask(tool, path, [{"op": "encode", "hex": texts[i].encode().hex(), "added": "none"} for i in some])
    back = ask(tool, path, [{"op": "decode", "ids": a["ids"], "skip_special": False} for a in plain])
    for i, answer in zip(some, back):
        if answer["text"] != texts[i] or "".join(answer["streamed"]) != texts[i]:
            bad += 1
            print("  does not come back:", repr(texts[i])[:300])
    if extra:
        if ask(tool, path, [{"op": "engram_map"}])[0]["map"] != engram_map(theirs):
            bad += 1
            print("  the Engram map differs")
    print(f"{path}: {len(texts)} texts, {sum(map(len, want))} ids, {bad} differences")
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--lines", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", action="append", type=pathlib.Path)
    arguments = parser.parse_args()

    code_points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    around = [f"a{chr(c)}b {chr(c)} .{chr(c)}" for c in code_points[:0x3400]]
    blocks = ["".join(chr(c) + "a" for c in code_points[i:i + 512]) for i in range(0, len(code_points), 512)]
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        odd = pathlib.Path(folder) / "odd_flags.json"
        odd_tokens = odd_flags(odd)
        for path in arguments.tokenizer or [TINY, odd, V41]:
            if not path.exists():
                print(f"SKIPPED {path}: not there (tests/text/make_v41_tokenizer.py makes the released one)")
                continue
            special = [t["content"] for t in json.loads(path.read_text(encoding="utf-8"))["added_tokens"]][:60]
            if path == odd:
                special = odd_tokens + [" " + t for t in odd_tokens] + [t + "x" for t in odd_tokens] + special[:4]
            texts = corpus.lines(arguments.lines, arguments.seed, special) + around + blocks
            bad += compare(arguments.tool, path, texts, extra=path != odd)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
