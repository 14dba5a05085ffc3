#!/usr/bin/env python3
"""Compares every operator and every layer of `senko logits --device cuda` with the CPU's (needs numpy only).

  compare_gpu.py --senko BINARY [--only mini10,...] [--length 240] [--seed 1]

For each configuration a random model is made, and the CPU dumps what flows between its operators (README.md of
../golden says the points). Then the GPU runs the same tokens

  operators   with every one of those points replaced by the CPU's: each operator works on the CPU's own inputs, so
              that no difference travels. Judged value by value.
  layers      with stream_in, pre_in, the selections and the routing of every layer replaced: each layer works on the
              CPU's own input. Judged row by row.
  cut         as operators, in pieces of 7 rows and of 1: every computed value must be the same bit for bit.
  bare        nothing replaced, looked into or not: the same logits bit for bit.

Operators. Both sides round where model.md says so, and differ in the order of float32 sums (a tensor core's also cuts
where a processor rounds). A float32 value may be off by kFloat = 2^-17 of its row's root mean square: some 512 terms
leave 1e-6 of it, the worst of 100,000 values 4e-6. Coefficients of the streams are of the size of 1 and smooth: 2e-6.
A bf16 value is off by nothing or, where the two sums lie on either side of a rounding boundary, by one step of bf16 (a
value near zero by kFloat of its row's root mean square; in a stream, which adds values larger than itself, by 1e-5).
Boundaries are 2^-9 to 2^-8 apart, so that 1 value in 1,000 or so is one step off: kFlips = 1 % of a point's may be.
An operator with a rounding inside may be off by more, and more often (kDeep):
  o          at head dimension 512: its weights are rounded to bf16 against the maximum of 64 keys, on a CPU against
             that of all, which moves each by 2^-8 at most, and what they make by 2^-8 of the weighted mean of the
             values' magnitudes. The values are normed: where many keys share the weight that mean is near 1, say 2;
             where one has it all, it is that of o. o is rounded before and after it is rotated back: three steps, and
             2^-7. All of a row is off by less: its error's root mean square by 2^-8 of the row's. At other dimensions
             weights round as on a CPU.
  attn_out, ffn_out, latent    a step of u, of h and the slots, or of the pooled pair, and an e4m3 code behind it.
  qr         a step of its e4m3 codes is 16 of bf16's.
  behind Engram attn_in, stream_mid, pre_mid    its projection and the streams are rounded in between.
Selections, candidate blocks and experts are equal.

Layers. A step of an operator's output moves an e4m3 code, by 1/8 of the value at most, in front of the next linear.
Errors are per row, over its root mean square. A value that is 2^-9 off comes to lie beyond a boundary of codes once in
50 times, and is then 0.09 of itself away on the average: a root mean square of 0.013 behind a linear, and three times
that behind the two of an expert. kLayer allows about twice as much, and no value may be off by more than kLayerRow =
0.4. Where attention does not differ everywhere (head dimensions but 512), kLayerShare = 25 % of the rows may be off by
more than 1e-5 at all, as in ../golden/compare_layers.py.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "golden"))

import model_config  # noqa: E402
import senko_runner  # noqa: E402
from checkpoint import read_dump, read_safetensors, write_safetensors  # noqa: E402

FLOAT, COEFFICIENT, FLIPS, STREAM = 2.0 ** -17, 2e-6, 0.01, 1e-5
# point -> (share of values that may differ, largest difference in steps of bf16; or of the row's root mean square)
DEEP = {"attn_out": (0.05, 1, 0.02), "latent": (0.05, 1, 0.02), "ffn_out": (0.05, 1, 0.02),
        "qr": (FLIPS, 16, 1e-4), "stream_in": (FLIPS, 1, STREAM), "stream_mid": (FLIPS, 1, STREAM)}
ENGRAM = {"attn_in": (0.05, 1, 0.02), "stream_mid": (0.05, 1, 0.02), "pre_mid": (1.0, 1, 1e-3)}
LAYER = {"attn_out": 0.03, "stream_mid": 0.015, "pre_mid": 1e-3, "ffn_in": 0.015, "ffn_out": 0.08, "stream_in": 0.06}
LAYER_ROW, LAYER_SHARE = 0.4, 0.25
WEIGHTS, WEIGHTS_ROW = 2.0 ** -7, 2.0 ** -8  # what rounding attention's weights moves: a value, a row
COEFFICIENTS = ("pre_in", "pre_mid", "route_weights")  # float32, of the size of 1
CHOICES = ("select", "candidates", "route_ids")
LAYER_INPUTS = ("stream_in", "pre_in", "route_weights") + CHOICES


def point_of(name):
    return name.split(".")[1]


def layer_of(name):
    return int(name.split(".")[0].removeprefix("layer_"))


def is_bf16(x):
    return not (np.ascontiguousarray(x, np.float32).view(np.uint32) & 0xFFFF).any()


def steps(x):
    """The distance of a bf16 value from the next one of its size."""
    return np.exp2(np.floor(np.log2(np.maximum(np.abs(x), 2.0 ** -126))) - 7)


class Judge:
    """Differences by point; reasons to fail."""

    def __init__(self, title, engram_layers=(), weights_by_block=False):
        """weights_by_block: attention rounds its weights otherwise than the CPU."""
        self.title, self.engram_layers, self.weights_by_block = title, engram_layers, weights_by_block
        self.reasons, self.seen = [], {}

    def note(self, point, values, differ, worst, rms):
        total = self.seen.setdefault(point, [0, 0, 0.0, 0.0])
        total[0] += values
        total[1] += differ
        total[2], total[3] = max(total[2], worst), max(total[3], rms)

    def values(self, name, cpu, gpu):
        """Float values of one point of one layer, row by row."""
        point = point_of(name)
        cpu, gpu = (x.reshape(len(x), -1).astype(np.float64) for x in (cpu, gpu))
        if cpu.shape != gpu.shape:
            self.reasons.append(f"{self.title} {name}: {gpu.shape}, expected {cpu.shape}")
            return
        if not (np.isfinite(cpu).all() and np.isfinite(gpu).all()):
            self.reasons.append(f"{self.title} {name}: NaN or infinite")
            return
        rms = np.maximum(np.sqrt((cpu * cpu).mean(1, keepdims=True)), 1e-30)
        if point in COEFFICIENTS:
            rms = np.maximum(rms, 1.0)
        off = np.abs(cpu - gpu)
        share, most, of_rms = DEEP.get(point, (FLIPS, 1, COEFFICIENT if point in COEFFICIENTS else FLOAT))
        if layer_of(name) in self.engram_layers:
            share, most, of_rms = ENGRAM.get(point, (share, most, of_rms))
        if is_bf16(cpu) and is_bf16(gpu) and point not in COEFFICIENTS:
            step = steps(np.maximum(np.abs(cpu), np.abs(gpu)))
            allowed = np.maximum(most * step, of_rms * rms)
            if point == "o" and self.weights_by_block:
                share, allowed = 1.0, 3 * step + WEIGHTS
                error = float((np.sqrt((off * off).mean(1, keepdims=True)) / rms).max())
                if error > WEIGHTS_ROW:
                    self.reasons.append(f"{self.title} {name}: a row's error is {error:.2e} of it")
            in_steps = float((np.where(off > FLOAT * rms, off, 0) / step).max())
        else:
            share, allowed, in_steps = 1.0, np.broadcast_to(of_rms * rms, off.shape), 0.0
        self.note(point, cpu.size, int((off > 0).sum()), in_steps, float((off / rms).max()))
        for row, column in list(zip(*np.nonzero(off > allowed * (1 + 1e-9))))[:2]:
            self.reasons.append(f"{self.title} {name}[{row}, {column}]: {gpu[row, column]:.8g}, expected "
                                f"{cpu[row, column]:.8g} ({off[row, column] / rms[row, 0]:.1e} of the row)")
        if (off > 0).sum() > max(share * off.size, 3):
            self.reasons.append(f"{self.title} {name}: {(off > 0).mean():.2%} of the values differ, {share:.0%} may")

    def choices(self, name, cpu, gpu):
        differ = (cpu != gpu).any(1) if cpu.shape == gpu.shape else np.ones(len(cpu), bool)
        self.note(point_of(name), len(cpu), int(differ.sum()), 0.0, 0.0)
        for row in np.flatnonzero(differ)[:2]:
            self.reasons.append(f"{self.title} {name} row {row}: chose {sorted(set(gpu[row]) - set(cpu[row]))[:4]} "
                                f"instead of {sorted(set(cpu[row]) - set(gpu[row]))[:4]}")

    def rows(self, name, cpu, gpu, everywhere=False):
        """One layer's output from its input. everywhere: attention differs in every row."""
        cpu, gpu = (x.reshape(len(x), -1).astype(np.float64) for x in (cpu, gpu))
        rms = np.maximum(np.sqrt((cpu * cpu).mean(1)), 1e-30)
        off = np.abs(np.where(np.isfinite(gpu), cpu - gpu, np.inf))
        worst, error = off.max(1) / rms, np.sqrt((off * off).mean(1)) / rms
        self.note(point_of(name), len(error), int((worst > 1e-5).sum()), float(error.max()), float(worst.max()))
        share = 1.0 if everywhere else LAYER_SHARE
        if not (error.max() <= LAYER[point_of(name)] and worst.max() <= LAYER_ROW and (worst > 1e-5).mean() <= share):
            self.reasons.append(f"{self.title} {name}: row error {error.max():.2g}, of a value {worst.max():.2g}, "
                                f"{(worst > 1e-5).mean():.0%} of the rows off")

    def report(self, columns):
        print(f"{self.title}: " + ", ".join(columns))
        for point, (values, differ, worst, rms) in self.seen.items():
            print(f"  {point:14} {values:9} {differ:8} {differ / max(values, 1):8.3%} {worst:10.3g} {rms:10.2e}")


class Runs:
    """One model and one prompt, run in many ways."""

    def __init__(self, senko, folder, config, seed, length):
        self.senko, self.folder = senko, folder
        senko_runner.run([senko, "make-model", "--config", config, "--seed", seed, "--out", folder / "model"])
        self.c = c = model_config.load(config)
        ids = np.random.default_rng(seed).integers(0, c.vocab_size - 1, length).tolist()
        self.tokens = folder / "tokens.json"
        self.tokens.write_text(json.dumps({"prompts": [ids]}))

    def run(self, name, device, inject=None, dump=True, chunks=None):
        """({point name: array} without positions, logits)."""
        out, options = self.folder / f"{name}.safetensors", ["--device", device]
        if dump:
            options += ["--dump", self.folder / name]
            options += ["--no-cuda-graphs"] if device == "cuda" else []  # not used by a run that is looked into
        if inject is not None:
            where = self.folder / f"{name}.inject"
            where.mkdir()
            write_safetensors(where / "prompt_0.safetensors", {f"prompt_0.{key}": inject[key] for key in inject})
            options += ["--inject", where]
        if chunks:
            options += ["--chunks", chunks]
        senko_runner.logits(self.senko, self.folder / "model", self.tokens, out, *options, numerics="model")
        points = read_dump(self.folder / name / "prompt_0.safetensors") if dump else {}
        return ({key: value for key, value in points.items() if not key.endswith("positions")},
                read_safetensors(out)["prompt_0.logits"])


def same_bits(title, a, b):
    reasons = [f"{title} {name}: other bits" for name in a if a[name].tobytes() != b[name].tobytes()]
    return reasons[:5] + ([f"{title}: other points"] if a.keys() != b.keys() else [])


def compare(args, name, folder):
    runs = Runs(args.senko, folder, senko_runner.CONFIGS / f"{name}.json", args.seed, args.length)
    cpu, _ = runs.run("cpu", "cpu")
    reasons = []

    gpu, gpu_logits = runs.run("operators", "cuda", inject=cpu)
    judge = Judge(f"{name} operators", runs.c.engram_layer_ids, runs.c.head_dim == 512)
    missing = sorted(key for key in cpu if f"{key}.computed" not in gpu and point_of(key) not in CHOICES)
    reasons += [f"{name}: the GPU shows no {key}" for key in missing[:5]]
    for key in cpu:
        if key in missing or point_of(key) in CHOICES:
            continue
        judge.values(key, cpu[key], gpu[f"{key}.computed"])
    judge.report(["values", "that differ", "largest in steps of bf16", "largest over the row's rms"])
    reasons += judge.reasons

    # Choices made by operators that work on the CPU's inputs but for the choice itself.
    free, _ = runs.run("choices", "cuda", inject={key: cpu[key] for key in cpu if point_of(key) not in
                                                  CHOICES + ("route_weights",)})
    judge = Judge(f"{name} choices")
    for key in cpu:
        if point_of(key) in CHOICES:
            judge.choices(key, cpu[key], free[key])
    routed = {key: (cpu[key.replace("weights", "ids")] == free[key.replace("weights", "ids")]).all(1)
              for key in cpu if point_of(key) == "route_weights"}
    for key, keep in routed.items():
        judge.values(key, cpu[key][keep], free[key][keep])
    judge.report(["rows", "that differ", "", "largest over 1"])
    reasons += judge.reasons

    layers, _ = runs.run("layers", "cuda", inject={key: cpu[key] for key in cpu if point_of(key) in LAYER_INPUTS})
    judge = Judge(f"{name} layers")
    for key in cpu:
        got = layers.get(f"{key}.computed", layers.get(key))
        if point_of(key) in LAYER and (point_of(key) != "stream_in" or layer_of(key) > 0):
            judge.rows(key, cpu[key], got, everywhere=runs.c.head_dim == 512)
    judge.report(["rows", "off by more than 1e-5", "largest row error", "largest of a value"])
    reasons += judge.reasons

    for chunks in ("7", "1"):
        again, logits = runs.run(f"cut{chunks}", "cuda", inject=cpu, chunks=chunks)
        reasons += same_bits(f"{name} in pieces of {chunks}", gpu, again)
        if logits.tobytes() != gpu_logits.tobytes():
            reasons.append(f"{name} in pieces of {chunks}: other logits")
    _, watched = runs.run("watched", "cuda")
    _, bare = runs.run("bare", "cuda", dump=False)
    if watched.tobytes() != bare.tobytes():
        reasons.append(f"{name}: logits of a run that is looked into are other bits")
    return reasons


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--senko", required=True)
    parser.add_argument("--only", default="mini10,ratio1_clamp,window_only,wide",
                        help="names of configurations, with commas")
    parser.add_argument("--length", type=int, default=240)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    reasons = []
    for name in args.only.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            reasons += compare(args, name, pathlib.Path(scratch))
    print("\n".join(reasons) if reasons else "the GPU computes what the CPU does")
    raise SystemExit(1 if reasons else 0)


if __name__ == "__main__":
    main()
