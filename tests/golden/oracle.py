#!/usr/bin/env python3
"""Logits of transformers' deepseek_v41 for a checkpoint in the released layout, in float64 or float32.

  oracle.py --transformers-src DIR --model DIR --tokens FILE.json --out FILE.safetensors [--dump DIR]
            [--dtype float64|float32] [--chunks 7,64] [--inject DIR]

FILE.json is {"prompts": [[ids], ...]}. Per prompt k the output holds prompt_k.positions I64 [T], prompt_k.logits F32
[T, vocab] and the distances to the nearest boundary, F32 [T]: prompt_k.gap_select, .gap_route, .gap_quant
(boundaries.py). --dump writes operator material, one file per prompt (README.md, "Dump files"); every layer is then
fed a stream rounded to float32. --inject feeds every layer the streams of another dump instead.
"""

import argparse
import json
import pathlib
import warnings

import numpy as np
import torch

import hf_source
from checkpoint import read_dump, write_safetensors
from hf_model import Oracle
from recorder import Recorder

GAPS = {"gap_select": ("select", "candidate"), "gap_route": ("route",),
        "gap_quant": ("window", "entry", "index_key", "index_query")}


def run(oracle, tokens, keep=False, inject=None):
    """logits [T, vocab] and the Recorder of one prompt in one piece."""
    recorder = Recorder(oracle, len(tokens), keep=keep, round_streams=keep, inject=inject)
    with recorder.attached():
        logits = oracle.logits(tokens, watch=recorder.watch)
    recorder.put_gaps()
    return logits, recorder


def gaps(recorder):
    return {name: recorder.nearest(kinds).astype(np.float32) for name, kinds in GAPS.items()}


def read_prompts(path):
    return json.loads(pathlib.Path(path).read_text())["prompts"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformers-src", required=True, help="a checkout of huggingface/transformers")
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--dump")
    parser.add_argument("--inject")
    parser.add_argument("--dtype", default="float64", choices=("float64", "float32"))
    parser.add_argument("--chunks", type=lambda s: [int(x) for x in s.split(",")])
    args = parser.parse_args()
    if args.chunks and args.dump:
        parser.error("--dump needs prompts in one piece")
    warnings.filterwarnings("ignore", category=FutureWarning)
    oracle = Oracle(hf_source.Source(args.transformers_src), args.model, getattr(torch, args.dtype))
    out = {}
    for k, tokens in enumerate(read_prompts(args.tokens)):
        if args.chunks:
            logits, recorded = oracle.logits(tokens, args.chunks), {}
        else:
            inject = read_dump(pathlib.Path(args.inject) / f"prompt_{k}.safetensors") if args.inject else None
            logits, recorder = run(oracle, tokens, keep=bool(args.dump), inject=inject)
            recorded = gaps(recorder)
        out[f"prompt_{k}.positions"] = np.arange(len(tokens))
        out[f"prompt_{k}.logits"] = logits.astype(np.float32)
        out.update({f"prompt_{k}.{name}": value for name, value in recorded.items()})
        if args.dump:
            pathlib.Path(args.dump).mkdir(parents=True, exist_ok=True)
            write_safetensors(pathlib.Path(args.dump) / f"prompt_{k}.safetensors",
                              {f"prompt_{k}.{name}": value for name, value in recorder.tensors.items()})
    write_safetensors(args.out, out)


if __name__ == "__main__":
    main()
