#!/usr/bin/env python3
"""Compares `senko logits --numerics float` with the golden logits of transformers' deepseek_v41 (needs numpy only).

  compare.py --senko BINARY [--data DIR] [--only NAME,...] [--device cuda]   makes each checkpoint and runs the binary
  compare.py --logits DIR   [--data DIR] [--only NAME,...]                   judges DIR/NAME.safetensors made before

A row's error is its largest |difference| over the stored columns, divided by the root mean square of the prompt's golden
logits. Exit code 1 if any of these fails:

  1. A row before its prompt's first boundary agrees within kAgree = 2e-5. The golden data is float64; float32
     implementations stay below 5e-6 there (transformers' own float32: 4.7e-6), so this leaves a factor 4.
     The first boundary is the first row where a selection, an expert choice or a quantiser step lies within
     kTiny = 2e-6 (relative, boundaries.py): float32 carries 1e-7 to 1e-6 at those points, and every flip seen
     between float32 and float64 lay within 4e-7.
  2. Hence every row that disagrees has a recorded boundary at or before it. From the boundary on a row may differ
     by any amount, which alone would let faults hide. So also:
  3. The library's own float32 run against its float64 run is the yardstick for what steps may do: the median row
     error of a configuration may be at most kLike = 5 times its own (or kAgree), and, where it gets at least half
     of the rows within kAgree, so must kCoverage = 0.5 of those here. The prompts were chosen so that it gets nearly
     all, except in `wide`, where every row has some 50,000 values to round and steps are everywhere.
  4. The greedy token equals the golden one on every row that agrees, unless the two best logits are within
     2 kAgree of each other.
"""

import argparse
import pathlib
import tempfile

import numpy as np

import senko_runner
from checkpoint import read_safetensors

AGREE, TINY, COVERAGE, LIKE = 2e-5, 2e-6, 0.5, 5


class Prompt:
    """One prompt's golden rows against computed ones."""

    def __init__(self, golden, columns, computed, k):
        get = lambda name: golden[f"prompt_{k}.{name}"]
        positions, logits = computed[f"prompt_{k}.positions"], computed[f"prompt_{k}.logits"]
        if not np.array_equal(positions, get("positions")):
            raise SystemExit(f"prompt_{k}: {len(positions)} rows ran, expected {len(get('positions'))}")
        with np.errstate(invalid="ignore"):
            self.error = np.abs(logits[:, columns].astype(np.float64) - get("logits")).max(1) / get("rms")[0]
        self.agree = self.error <= AGREE  # false for NaN
        gaps = np.min([get("gap_select"), get("gap_route"), get("gap_quant")], axis=0)
        near = np.flatnonzero(gaps <= TINY)
        self.boundary = int(near[0]) if len(near) else len(gaps)
        self.unexplained = np.flatnonzero(~self.agree & (np.arange(len(gaps)) < self.boundary))
        same = logits.argmax(1) == get("argmax")
        self.wrong_token = np.flatnonzero(self.agree & ~same & (get("margin") > 2 * AGREE))
        self.same_token = same
        self.library_error = get("float32_error")
        self.nan = bool(np.isnan(logits).any())


def judge(name, golden, computed):
    """Prints one line; returns the reasons for failure."""
    columns = golden["columns"]
    count = sum(key.endswith(".argmax") for key in golden)
    prompts = [Prompt(golden, columns, computed, k) for k in range(count)]
    rows = sum(len(p.error) for p in prompts)
    agreeing = sum(int(p.agree.sum()) for p in prompts)
    strict = sum(p.boundary for p in prompts)
    before = max((p.error[:p.boundary].max(initial=0) for p in prompts), default=0)
    error = np.nan_to_num(np.concatenate([p.error for p in prompts]), nan=np.inf)
    own = np.concatenate([p.library_error for p in prompts])
    library = int((own <= AGREE).sum())
    tokens = sum(int(p.same_token.sum()) for p in prompts)
    print(f"{name:16} {rows:6} {strict:8} {before:10.1e} {agreeing / rows:8.1%} {library / rows:8.1%} "
          f"{error.max():9.1e} {tokens / rows:8.1%}")
    reasons = []
    for k, p in enumerate(prompts):
        if p.nan:
            reasons.append(f"{name} prompt_{k}: NaN")
        for row in p.unexplained[:3]:
            reasons.append(f"{name} prompt_{k} row {row}: error {p.error[row]:.1e}, no boundary before row {p.boundary}")
        for row in p.wrong_token[:3]:
            reasons.append(f"{name} prompt_{k} row {row}: another greedy token at error {p.error[row]:.1e}")
    if library >= rows / 2 and agreeing < COVERAGE * library:
        reasons.append(f"{name}: only {agreeing} rows agree within {AGREE:g}; the library's float32 gets {library}")
    median, limit = np.median(error), max(AGREE, LIKE * np.median(own))
    if not median <= limit:
        reasons.append(f"{name}: median row error {median:.1e}, limit {limit:.1e}")
    return reasons


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--senko")
    parser.add_argument("--logits", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(__file__).parent / "data")
    parser.add_argument("--only", help="comma-separated configuration names")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()
    if bool(args.senko) == bool(args.logits):
        parser.error("give --senko BINARY or --logits DIR")
    names = args.only.split(",") if args.only else sorted(p.name[:-10] for p in args.data.glob("*.info.json"))
    if not names:
        raise SystemExit(f"{args.data}: no golden data")
    print(f"{'configuration':16} {'rows':>6} {'strict':>8} {'err there':>10} {'agree':>8} {'f32':>8} "
          f"{'max err':>9} {'greedy':>8}")
    reasons, judged = [], 0
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            out = args.logits / f"{name}.safetensors" if args.logits else pathlib.Path(scratch) / "out.safetensors"
            if args.senko:
                model = pathlib.Path(scratch) / "model"
                senko_runner.make_model(args.senko, args.data, name, model)
                try:
                    senko_runner.logits(args.senko, model, args.data / f"{name}.tokens.json", out,
                                        "--device", args.device)
                except senko_runner.Refused as fields:
                    print(f"{name:16} refused: {fields}")
                    continue
            judged += 1
            reasons += judge(name, read_safetensors(args.data / f"{name}.safetensors"), read_safetensors(out))
    reasons += [] if judged else ["nothing was compared"]
    print("\n".join(reasons) if reasons else "all rows agree or are explained")
    raise SystemExit(1 if reasons else 0)


if __name__ == "__main__":
    main()
