#!/usr/bin/env python3
"""Makes the golden data: a seed per configuration and what transformers computes for that checkpoint in float64.

  generate.py --senko BINARY --transformers-src DIR --out tests/golden/data [--only NAME,...] [--seed N]
  generate.py --python-weights ...   the checkpoint comes from make_random.py (to try this out without a binary)

Per configuration NAME: NAME.info.json (how the checkpoint is made, its fingerprint), NAME.tokens.json (prompts),
NAME.safetensors (logits and boundaries), and for the configurations in LAYERS a dump of one short prompt.
"""

import argparse
import json
import pathlib
import tempfile
import warnings

import numpy as np
import torch

import hf_source
import make_configs
import make_random
import oracle as oracle_tool
import senko_runner
from checkpoint import write_safetensors
from hf_model import Oracle

CONFIGS = pathlib.Path(__file__).parent / "configs"
COLUMNS = 48   # vocabulary entries kept per row
DRAWS = 6      # prompts tried per length
LAYERS = {"ratio2_shared": 34, "engram_first": 28}  # configuration -> length of its dumped prompt
KEPT = ("stream_in", "pre_in", "attn_in", "attn_out", "ffn_in", "ffn_out", "window", "entry", "index_key",
        "index_query", "select", "candidates", "route_ids", "route_weights")


def make_model(args, name, folder):
    config = CONFIGS / f"{name}.json"
    if args.python_weights:
        make_random.make(config, args.seed, folder)
    else:
        senko_runner.run([args.senko, "make-model", "--config", config, "--seed", args.seed, "--out", folder])
    return senko_runner.fingerprint(folder)


def lengths(c):
    """Prompts below, at and past every threshold: the window, a cut selection, cut candidate blocks."""
    window, ratio = c.sliding_window, max(c.ratios)
    thresholds = [window]
    if ratio:
        thresholds.append(c.index_topk * ratio)
    if c.candidate_source_layer_id >= 0:
        thresholds.append(c.candidate_topk_blocks * c.candidate_block_size * c.ratios[c.candidate_source_layer_id])
    longest = max(thresholds)
    if longest > 256:  # the wide one: a short prompt, and one just past everything
        return [window + 5, longest + 40]
    return sorted({1, 2, window, window + 1, 2 * window + 3, longest + 9, 2 * longest + 11, 160})


def draw_prompt(rng, length, c, repeat):
    """Random text ids, never the image token; `repeat`: a short phrase over and over, as n-grams like it."""
    ids = np.setdiff1d(np.arange(c.vocab_size), [c.image_token_id])
    tokens = rng.choice(ids, length)
    return (np.resize(tokens[:5], length) if repeat else tokens).tolist()


def relative(a, b):
    """[T]: largest difference of a row over the root mean square of all of b."""
    return np.abs(a - b).max(1) / np.sqrt((b * b).mean())


def choose_prompt(rng, length, truth, single, repeat):
    """Of some random prompts the one that float32 follows longest: it leaves the most rows to compare."""
    best = None
    for _ in range(1 if length > 512 else DRAWS):
        tokens = draw_prompt(rng, length, truth.c, repeat)
        logits, recorder = oracle_tool.run(truth, tokens)
        error = relative(single.logits(tokens).astype(np.float64), logits)
        good = int(np.argmax(error > 2e-5)) if (error > 2e-5).any() else length
        if best is None or good > best[0]:
            best = (good, tokens, logits, recorder, error)
        if good == length:
            break
    return best[1:]


def pack(k, columns, logits, recorder, error):
    order = np.sort(logits, axis=1)
    rms = np.sqrt((logits * logits).mean())
    out = {"positions": np.arange(len(logits)), "logits": logits[:, columns].astype(np.float32),
           "argmax": logits.argmax(1).astype(np.int32), "rms": np.array([rms], np.float32),
           "margin": ((order[:, -1] - order[:, -2]) / rms).astype(np.float32),
           "float32_error": error.astype(np.float32), **oracle_tool.gaps(recorder)}
    return {f"prompt_{k}.{name}": value for name, value in out.items()}


def write_layers(truth, rng, out, name):
    tokens = draw_prompt(rng, LAYERS[name], truth.c, False)
    logits, recorder = oracle_tool.run(truth, tokens, keep=True)
    last = f"layer_{truth.c.num_hidden_layers - 1}."
    wanted = {k: v for k, v in recorder.tensors.items()
              if k.split(".")[1] in KEPT or ".gap_" in k or k in (last + "stream_out", last + "pre_out")}
    wanted["logits"] = logits.astype(np.float32)
    folder = out / f"{name}.layers"
    folder.mkdir(exist_ok=True)
    write_safetensors(folder / "prompt_0.safetensors", {f"prompt_0.{k}": v for k, v in wanted.items()})
    (folder / "tokens.json").write_text(json.dumps({"prompts": [tokens]}) + "\n")


def generate(args, source, name, out):
    rng = np.random.default_rng(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        fingerprint = make_model(args, name, folder)
        truth, single = Oracle(source, folder), Oracle(source, folder, torch.float32)
        columns = np.sort(rng.choice(truth.c.vocab_size, COLUMNS, replace=False))
        tensors, prompts, followed = {"columns": columns}, [], []
        for k, length in enumerate(lengths(truth.c)):
            tokens, logits, recorder, error = choose_prompt(rng, length, truth, single, repeat=k == 4)
            prompts.append(tokens)
            followed.append(int((error <= 2e-5).sum()))
            tensors.update(pack(k, columns, logits, recorder, error))
        if name in LAYERS:
            write_layers(truth, rng, out, name)
    write_safetensors(out / f"{name}.safetensors", tensors)
    (out / f"{name}.tokens.json").write_text(json.dumps({"prompts": prompts}) + "\n")
    info = {"config": f"{name}.json", "seed": args.seed, "model_sha256": fingerprint,
            "weights": "make_random.py" if args.python_weights else "senko make-model", **hf_source.versions()}
    (out / f"{name}.info.json").write_text(json.dumps(info, indent=1) + "\n")
    total = sum(map(len, prompts))
    print(f"{name}: {len(prompts)} prompts, {total} rows; float32 follows {sum(followed)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--senko", help="the binary whose make-model writes the checkpoints")
    parser.add_argument("--python-weights", action="store_true")
    parser.add_argument("--transformers-src", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", help="comma-separated configuration names")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if bool(args.senko) == args.python_weights:
        parser.error("give --senko BINARY or --python-weights")
    warnings.filterwarnings("ignore", category=FutureWarning)
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    source = hf_source.Source(args.transformers_src)
    for name in args.only.split(",") if args.only else make_configs.VARIANTS:
        generate(args, source, name, out)


if __name__ == "__main__":
    main()
