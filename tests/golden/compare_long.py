#!/usr/bin/env python3
"""A long context twice, cut differently and on pages of another size: every logit must be the same, bit for bit.

  compare_long.py --senko BINARY [--tokens N] [--seed N]        numpy only; minutes

The model has the released thresholds (512 entries selected, of 2,048 candidate blocks of 8) on small layers, so that with
32,768 tokens both cut: at ratio 1 from 16,384 entries on, at ratio 2 from 512. Whether the values are right is for
the other comparisons, at lengths that a reference can follow; here both runs share the code, and what is tested is
that nothing depends on where a step begins: partial pages, pending pairs, candidate carry-over, ring wrap.
"""

import argparse
import json
import pathlib
import tempfile

import numpy as np

import model_config
import senko_runner
from checkpoint import read_safetensors

FIELDS = {"max_position_embeddings": 65536, "index_topk": 512, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
          "num_hidden_layers": 4, "compress_ratios": [2, 2, 1, 1], "index_source_layer_ids": [0, 2, 3],
          "num_attention_heads": 2, "index_n_heads": 2, "engram_layer_ids": [0], "engram_num_embeddings": [0],
          "dspark_target_layer_ids": [1, 2, 3]}
RUNS = (("--chunks", "512", "--block-size", "128"), ("--chunks", "301", "1", "640", "77", "--block-size", "64"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--senko", required=True)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--seed", type=int, default=int(np.random.SeedSequence().entropy % 2 ** 32))
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    config = json.loads((senko_runner.CONFIGS / "engram_first.json").read_text())
    text = config["text_config"]
    text.update(FIELDS)
    text["engram_num_embeddings"] = [sum(map(sum, primes)) for primes in
                                     model_config.engram_primes(model_config.Config(text))]
    prompt = np.random.default_rng(args.seed).integers(0, config["image_token_id"], args.tokens).tolist()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokens.json").write_text(json.dumps({"prompts": [prompt]}))
        senko_runner.run([args.senko, "make-model", "--config", folder / "config.json", "--seed", args.seed,
                          "--out", folder / "model"])
        results = []
        for options in RUNS:
            out = folder / "out.safetensors"
            senko_runner.logits(args.senko, folder / "model", folder / "tokens.json", out, *options, numerics="model")
            results.append(read_safetensors(out)["prompt_0.logits"])
            print(" ".join(options), f"{len(results[-1])} rows", flush=True)
    same = (results[0].view(np.uint32) == results[1].view(np.uint32)).all(1)
    if len(same) != args.tokens or not np.isfinite(results[0]).all():
        raise SystemExit("rows are missing or not finite")
    if not same.all():
        raise SystemExit(f"seed {args.seed}: {int((~same).sum())} of {len(same)} rows differ, the first at position "
                         f"{int(np.argmin(same))}")
    print("all logits are the same")


if __name__ == "__main__":
    main()
