#!/usr/bin/env python3
"""Compares operators and layers on the golden side's own inputs (needs numpy only).

  compare_layers.py --senko BINARY [--data DIR] [--only NAME,...]
  compare_layers.py --golden FILE --dump FILE --config FILE          two dump files of one prompt

The binary runs with --inject: every layer gets the golden stream, pre-mix, selection, candidates and routing. Its dump
holds what it computed itself. Errors are per row: largest |difference| over the root mean square of the golden row.

  kClose = 1e-5   attn_in, attn_out, ffn_in, ffn_out, route_weights, the next layer's stream_in and pre_in. One layer of
                  float32 arithmetic leaves 1e-7 to 3e-6 (sums of at most a few thousand terms).
  kTiny = 2e-6    A quantised row (window, entry, index_key, index_query), a selection or an expert choice may differ
                  only where the golden side's distance to the step is at most this (boundaries.py); a selection also
                  where a query or key it was scored with stepped.

Rows that read a stepped KV row are left out of attn_out and what follows; more than kExcused = 10% of all rows left
out is a failure.
"""

import argparse
import pathlib
import tempfile

import numpy as np

import model_config
import senko_runner
from checkpoint import read_dump

CLOSE, TINY, EXCUSED = 1e-5, 2e-6, 0.10


def rows_error(a, b):
    """[T]; NaN becomes inf."""
    a, b = a.reshape(b.shape[0], -1).astype(np.float64), b.reshape(b.shape[0], -1).astype(np.float64)
    error = np.abs(a - b).max(1) / np.maximum(np.sqrt((b * b).mean(1)), 1e-30)
    return np.where(np.isnan(error), np.inf, error)


class Comparison:
    def __init__(self, c, golden, other):
        self.c, self.golden, self.other = c, golden, other
        self.length = len(golden["layer_0.stream_in"])
        self.worst, self.reasons, self.steps, self.excused, self.judged = {}, [], {}, 0, 0
        self.stepped = {}  # (kind, layer) -> bool per row or entry

    def names(self, layer, name):
        return f"layer_{layer}.{name}"

    def pair(self, layer, name):
        key = self.names(layer, name)
        if key not in self.other:
            self.reasons.append(f"{key}: missing from the dump")
            return None
        golden, other = self.golden[key], self.other[key]
        if golden.size != other.size:
            self.reasons.append(f"{key}: {list(other.shape)}, expected {list(golden.shape)}")
            return None
        return golden, other.reshape(golden.shape)

    def gap(self, layer, kind):
        return self.golden.get(self.names(layer, f"gap_{kind}"), np.full(self.length, np.inf))

    def close(self, layer, name, keep, source=None):
        """Rows `keep` of a float tensor within kClose. source: (layer, name) where golden keeps it under another name."""
        pair = self.pair(*(source or (layer, name)))
        if pair is None:
            return
        error = rows_error(pair[1], pair[0])[keep]
        if len(error):
            self.worst[name] = max(self.worst.get(name, 0), error.max())
            if error.max() > CLOSE:
                row = np.flatnonzero(keep)[error.argmax()]
                self.reasons.append(f"layer {layer} {name} row {row}: relative error {error.max():.1e}")

    def quantised(self, layer, kind, rows_of):
        """Marks rows whose stored values differ; each needs a step nearby. rows_of: row of each stored item."""
        if self.names(layer, kind) not in self.golden:
            return
        pair = self.pair(layer, kind)
        if pair is None:
            return
        golden, other = (x.reshape(len(x), -1) for x in pair)
        stepped = (golden != other).any(1)  # true for NaN
        self.stepped[kind, layer] = stepped
        self.steps[kind] = self.steps.get(kind, 0) + int(stepped.sum())
        far = stepped & (self.gap(layer, kind)[rows_of(np.arange(len(golden)))] > TINY)
        for item in np.flatnonzero(far)[:2]:
            self.reasons.append(f"layer {layer} {kind} {item}: {int((golden[item] != other[item]).sum())} values differ "
                                "and no step is near")

    def chosen(self, layer, name, kind, excuse):
        """Integer rows equal as sets, or a near tie, or `excuse`."""
        pair = self.pair(layer, name)
        if pair is None:
            return np.zeros(self.length, bool)
        golden, other = (np.sort(x, axis=1) for x in pair)
        differs = (golden != other).any(1)
        self.steps[name] = self.steps.get(name, 0) + int(differs.sum())
        for row in np.flatnonzero(differs & ~excuse & (self.gap(layer, kind) > TINY))[:2]:
            self.reasons.append(f"layer {layer} {name} row {row}: another choice and no tie is near "
                                f"({self.gap(layer, kind)[row]:.1e})")
        return differs

    def selection(self, layer):
        c, ratio = self.c, self.c.ratios[layer]
        visible = (np.arange(self.length) + 1) // ratio
        key = self.stepped.get(("index_key", c.kv_source(layer)), np.zeros(0, bool))
        first = np.flatnonzero(key)[0] if key.any() else 1 << 60
        excuse = self.stepped.get(("index_query", layer), np.zeros(self.length, bool)) | (visible > first)
        if layer == c.candidate_source_layer_id:
            self.chosen(layer, "candidates", "candidate", excuse)
        self.chosen(layer, "select", "select", excuse)

    def tainted(self, layer):
        """Rows whose attention reads a KV row that stepped."""
        c, out = self.c, np.zeros(self.length, bool)
        for row in np.flatnonzero(self.stepped.get(("window", layer), [])):
            out[row:row + c.sliding_window] = True
        entries = self.stepped.get(("entry", c.kv_source(layer)))
        if c.ratios[layer] and entries is not None and entries.any():
            select = self.golden[self.names(c.index_source(layer), "select")]
            out |= np.isin(select, np.flatnonzero(entries)).any(1)
        return out

    def layer(self, layer):
        c, everything = self.c, np.ones(self.length, bool)
        ratio = c.ratios[layer]
        self.close(layer, "attn_in", everything)
        self.quantised(layer, "window", lambda items: items)
        if layer in c.kv_source_layer_ids:
            for kind in ("entry", "index_key"):
                self.quantised(layer, kind, lambda items: items * ratio + ratio - 1)
        if layer in c.index_source_layer_ids:
            self.quantised(layer, "index_query", lambda items: items)
            self.selection(layer)
        clean = ~self.tainted(layer)
        self.judged += self.length
        self.excused += int((~clean).sum())
        self.close(layer, "attn_out", clean)
        self.close(layer, "ffn_in", clean)
        routed = clean & ~self.chosen(layer, "route_ids", "route", ~clean)
        self.weights(layer, routed)
        self.close(layer, "ffn_out", clean)
        if layer + 1 < c.num_hidden_layers and self.names(layer, "stream_out") not in self.other:
            self.close(layer, "stream_out", clean, source=(layer + 1, "stream_in"))
            self.close(layer, "pre_out", clean, source=(layer + 1, "pre_in"))
        elif self.names(layer, "stream_out") in self.golden:
            self.close(layer, "stream_out", clean)
            self.close(layer, "pre_out", clean)

    def weights(self, layer, keep):
        """Routing weights, matched by expert."""
        ids, weights = self.pair(layer, "route_ids"), self.pair(layer, "route_weights")
        if ids is None or weights is None:
            return
        golden, other = (np.take_along_axis(w, np.argsort(i, axis=1), 1)[keep] for i, w in zip(ids, weights))
        if len(golden):
            error = rows_error(other, golden).max()
            self.worst["route_weights"] = max(self.worst.get("route_weights", 0), error)
            if error > CLOSE:
                self.reasons.append(f"layer {layer} route_weights: relative error {error:.1e}")

    def run(self, name):
        for layer in range(self.c.num_hidden_layers):
            self.layer(layer)
        if self.excused > EXCUSED * self.judged:
            self.reasons.append(f"{self.excused} of {self.judged} rows read a stepped KV row")
        print(name, "worst:", "  ".join(f"{k} {v:.1e}" for k, v in self.worst.items()))
        print(name, "steps:", "  ".join(f"{k} {v}" for k, v in self.steps.items()),
              f"  rows left out {self.excused} of {self.judged}")
        return [f"{name} {reason}" for reason in self.reasons]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--senko")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(__file__).parent / "data")
    parser.add_argument("--only")
    parser.add_argument("--golden")
    parser.add_argument("--dump")
    parser.add_argument("--config")
    args = parser.parse_args()
    if args.golden:
        c = model_config.load(args.config)
        reasons = Comparison(c, read_dump(args.golden), read_dump(args.dump)).run(pathlib.Path(args.dump).name)
    elif args.senko:
        names = args.only.split(",") if args.only else sorted(p.name[:-7] for p in args.data.glob("*.layers"))
        if not names:
            raise SystemExit(f"{args.data}: no golden dumps")
        reasons = []
        for name in names:
            with tempfile.TemporaryDirectory() as scratch:
                model, dump = pathlib.Path(scratch) / "model", pathlib.Path(scratch) / "dump"
                golden = args.data / f"{name}.layers"
                senko_runner.make_model(args.senko, args.data, name, model)
                senko_runner.logits(args.senko, model, golden / "tokens.json", pathlib.Path(scratch) / "out.safetensors",
                                    "--inject", golden, "--dump", dump)
                c = model_config.load(model)
                reasons += Comparison(c, read_dump(golden / "prompt_0.safetensors"),
                                      read_dump(dump / "prompt_0.safetensors")).run(name)
    else:
        parser.error("give --senko BINARY, or --golden, --dump and --config")
    print("\n".join(reasons) if reasons else "all operators agree")
    raise SystemExit(1 if reasons else 0)


if __name__ == "__main__":
    main()
