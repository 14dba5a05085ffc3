#!/usr/bin/env python3
"""Compares replay and image masks, which transformers lacks, with reference.py in float mode (needs numpy only).

  compare_replay.py --senko BINARY [--only NAME,...] [--device cuda]

Per configuration, cache hit H, decoder replay and kind of prompt: `senko logits --encoder-replay H --decoder-replay
MODE` on prompts of several lengths P. Lengths put P - H below, at and past the window, and the first kept row before, at
and after H. A row's error is its largest |difference| over the root mean square of the prompt's logits. It fails if:

  1. A row past kAgree = 2e-5 has no step within kTiny = 2e-6 on its way (compare.py justifies both), counting what
     the run that filled the cache wrote.
  2. Fewer than kShare = 45% of a group's rows agree within kAgree. Past a hit every row has a step somewhere before
     it, so rule 1 alone would let faults hide; but float32 rarely crosses one: SEEDS are prompts of which numpy's
     float32 and Senko follow 70% and more. Every fault of compare_test.py, one for each bound of a plan and for each
     rule for images, leaves less than 40% of some group, and under 5% of most: nearly all rows it touches move.
  3. Fed in pieces, another logit comes out: the rows of a prompt may not depend on how it was cut, by any bit.
"""

import argparse
import json
import pathlib
import tempfile

import numpy as np

import senko_runner
from checkpoint import read_safetensors
from reference import Reference

AGREE, TINY, SHARE = 2e-5, 2e-6, 0.45
CHUNKS, BLOCK, MODES = "37,5,20", 64, ("trim", "halo", "full")
SEEDS = {"engram_first": (0, 1, 2, 4, 7, 13), "mini10": (1, 2, 3, 4, 5, 12), "ratio2_shared": (3, 4, 6, 7, 10, 13),
         "yarn_ramp": (2, 3, 8, 10, 11, 22)}


def groups():
    """(hit, decoder replay, with images)."""
    return [(hit, mode, False) for hit in (0, BLOCK, 2 * BLOCK) for mode in MODES if (hit, mode) != (0, "full")] + \
        [(0, "full", True), (BLOCK, "trim", True)]  # compare.py has the one left out


def lengths(window, hit):
    if hit == 0:
        return [window + 1, 3 * window + 5]
    return [hit + 1, hit + window - 1, hit + window + 1, hit + 3 * window + 5] if hit == BLOCK else \
        [hit + 1, hit + 3 * window + 5]


def prompt(c, seed, images, hit):
    """The longest prompt of a group; shorter ones are its beginnings. Image spans: one token alone, one across the
    first replayed row, one across the hit, and some n-grams after each."""
    tokens = np.random.default_rng(seed).choice(np.setdiff1d(np.arange(c.vocab_size), [c.image_token_id]), 512)
    if images:
        for begin, count in ((5, 1), (9, 4), (hit - c.sliding_window - 2, 3), (hit - 1, 3), (hit + 7, 2), (hit + 20, 9)):
            tokens[max(begin, 0):max(begin + count, 0)] = c.image_token_id
    return tokens[:lengths(c.sliding_window, hit)[-1]].tolist()


def rows_from(reference, tokens, hit, mode):
    """(positions, logits, position of the first step nearby) of the rows `senko logits` writes."""
    positions, logits = reference.run(tokens, hit=hit, decoder=mode)
    near = min((p for p, distance in reference.near.items() if distance <= TINY), default=len(tokens))
    return positions[positions >= hit], logits[positions >= hit], near


class Expected:
    """Rows of reference.py, each computed once. Where every row is kept, a shorter prompt is a part of the longest."""

    def __init__(self, reference):
        self.reference, self.known = reference, {}

    def rows(self, tokens, length, hit, mode):
        plan = self.reference.plan(length, hit, mode)
        if plan["keep"] <= plan["start"]:
            mode, plan["keep"] = "full", 0
        else:
            tokens = tokens[:length]
        key = hit, plan["keep"], tuple(tokens)
        if key not in self.known:
            self.known[key] = rows_from(self.reference, tokens, hit, mode)
        positions, logits, near = self.known[key]
        return positions[positions < length], logits[positions < length], near


def judge(name, expected, prompts, hit, mode, computed, chunked):
    """prompts: one per seed. computed, chunked: {prompt_k.positions, prompt_k.logits}, lengths within prompts.
    Returns the reasons for failure and a line of figures."""
    window = expected.reference.c.sliding_window
    reasons, rows, agreeing, strict, worst, k = [], 0, 0, 0, 0.0, 0
    for tokens in prompts:
        for length in lengths(window, hit):
            positions, logits, near = expected.rows(tokens, length, hit, mode)
            at, found = (computed[f"prompt_{k}.{part}"] for part in ("positions", "logits"))
            if not np.array_equal(at, positions):
                return [f"{name} {length} tokens: rows {at.min()} to {at.max()}, expected {positions[0]} on"], ""
            if not np.array_equal(chunked[f"prompt_{k}.logits"], found):
                reasons.append(f"{name} {length} tokens: other logits when fed in pieces of {CHUNKS}")
            error = np.abs(found - logits).max(1) / np.sqrt((logits * logits).mean())
            agree = error <= AGREE  # false for NaN
            for row in np.flatnonzero(~agree & (positions < near))[:2]:
                reasons.append(f"{name} {length} tokens, position {positions[row]}: error {error[row]:.1e} and no step "
                               f"before position {near}")
            rows, agreeing, strict = rows + len(agree), agreeing + agree.sum(), strict + (positions < near).sum()
            worst = max(worst, error[agree].max(initial=0))
            k += 1
    if agreeing < SHARE * rows:
        reasons.append(f"{name}: only {agreeing} of {rows} rows agree within {AGREE:g}")
    return reasons, f"{name:34} {rows:5} {strict:6} {agreeing / rows:7.0%} {worst:8.1e}"


def senko_rows(senko, folder, prompts, window, hit, mode, *more):
    parts = [tokens[:length] for tokens in prompts for length in lengths(window, hit)]
    (folder / "tokens.json").write_text(json.dumps({"prompts": parts}))
    senko_runner.run([senko, "logits", "--model", folder / "model", "--tokens", folder / "tokens.json", "--out",
                      folder / "out.safetensors", "--numerics", "float", "--decoder-replay", mode, "--block-size", BLOCK,
                      "--encoder-replay", hit, *more])
    return read_safetensors(folder / "out.safetensors")


def compare(senko, name, folder, seeds, device):
    config = senko_runner.CONFIGS / f"{name}.json"
    senko_runner.run([senko, "make-model", "--config", config, "--seed", 1, "--out", folder / "model"])
    reference = Reference(folder / "model")
    expected, reasons = Expected(reference), []
    for hit, mode, images in groups():
        prompts = [prompt(reference.c, seed, images, hit) for seed in seeds]
        run = lambda *more: senko_rows(senko, folder, prompts, reference.c.sliding_window, hit, mode, "--device",
                                       device, *more)
        title = f"{name} hit {hit} {mode}" + (" images" if images else "")
        found, line = judge(title, expected, prompts, hit, mode, run(), run("--chunks", *CHUNKS.split(",")))
        print(line or title, flush=True)
        reasons += found
    return reasons


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--senko", required=True)
    parser.add_argument("--only", help="comma-separated configuration names")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()
    print(f"{'group':34} {'rows':>5} {'strict':>6} {'agree':>7} {'error':>8}")
    reasons, judged = [], 0
    for name in args.only.split(",") if args.only else SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                reasons += compare(args.senko, name, pathlib.Path(folder), SEEDS[name], args.device)
            except senko_runner.Refused as fields:
                print(f"{name} refused: {fields}")
                continue
        judged += 1
    reasons += [] if judged else ["nothing was compared"]
    print("\n".join(reasons) if reasons else "all rows agree or are explained")
    raise SystemExit(1 if reasons else 0)


if __name__ == "__main__":
    main()
