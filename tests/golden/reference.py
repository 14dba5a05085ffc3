#!/usr/bin/env python3
"""A small slow second opinion in numpy, written from model.md alone (sections 3, 5 and 11), for what transformers lacks:
bf16 rounding points, activation rounding, image masks with bias_vl, and both kinds of bounded replay.

  reference.py --model DIR --tokens FILE.json --out FILE.safetensors [--numerics float|model|model-noaq]
               [--chunks a,b,c] [--encoder-replay H] [--decoder-replay trim|halo|full] [--dump DIR] [--inject DIR]

Output and dump files are those of `senko logits`. Image tokens (id image_token_id) take the embedding row of their
id: the vision tower is not computed here.
"""

import argparse
import json
import pathlib

import numpy as np

import model_config
from checkpoint import Checkpoint, read_dump, write_safetensors
from reference_layer import Layer
from reference_ops import Numerics, inv_freq


class EngramHash:
    """Rows of the n-gram tables, model.md 3.7. Python integers: no overflow to think of."""

    def __init__(self, c, token_map):
        self.map, self.image, self.pad = token_map, c.image_token_id, int(token_map[c.engram_pad_token_id])
        self.primes = model_config.engram_primes(c)
        self.begin = 0  # no token before it is looked at
        bound = max(1, ((2 ** 63 - 1) // c.engram_compressed_vocab_size) // 2)
        self.multipliers = [[2 * int(v) + 1 for v in np.random.default_rng(10007 * layer).integers(
            0, bound, size=c.engram_max_ngram_size, dtype=np.int64)] for layer in c.engram_layer_ids]

    def rows(self, slot, tokens, position):
        """Table rows of one position, n-gram size major."""
        value, blocked, hashed, base = 0, False, [], 0
        for back, multiplier in enumerate(self.multipliers[slot]):
            at = position - back
            blocked = blocked or at < self.begin or tokens[at] == self.image
            value ^= (self.pad if blocked else int(self.map[tokens[at]])) * multiplier
            if back == 0:
                continue
            for prime in self.primes[slot][back - 1]:
                hashed.append(base + value % prime)
                base += prime
        return hashed


class Reference:
    def __init__(self, directory, numerics="float", products=np.float64):
        """products: the precision matrix products are summed in; float32 shows what rounding alone may change."""
        self.c = c = model_config.load(directory)
        checkpoint = Checkpoint(directory)
        self.n = Numerics(numerics, c.rms_norm_eps, products)
        self.hash = EngramHash(c, checkpoint.engram_map()) if c.engram_layer_ids else None
        self.freq = {0: inv_freq(c.rope_theta, c.qk_rope_head_dim, {})}
        if c.kv_source_layer_ids:
            self.freq[1] = inv_freq(c.compress_rope_theta, c.qk_rope_head_dim, c.rope_scaling)
        self.layers = [Layer(self, checkpoint, index) for index in range(c.num_hidden_layers)]
        self.embed, self.head, self.final = (checkpoint.value(f"{name}.weight").astype(np.float64)
                                             for name in ("embed", "head", "norm"))
        self.tensors = None  # dict: keep what operators read and write, as `--dump`
        self.inject = None   # dict of a dump: its streams, selections and routing replace this run's
        self.fault = None    # function that spoils the plan of a run, for testing the judges
        self.cold = {}       # global KV of prefixes that ran cold
        self.reset()

    def reset(self):
        self.state = {"window": {}, "entry": {}, "key": {}, "pending": {}}
        self.shared = {}
        self.near = {}  # position -> distance of the nearest step (boundaries.py) on the way to its row

    def note(self, positions, distances):
        for p, distance in zip(map(int, positions), distances):
            self.near[p] = min(self.near.get(p, np.inf), float(distance))

    def put(self, layer, name, value):
        if self.tensors is not None:
            value = np.asarray(value)
            value = value.astype(np.int32 if value.dtype.kind == "i" else np.float32)
            self.tensors.setdefault(f"layer_{layer}.{name}", []).append(value)

    def forward(self, tokens, begin, end, plan):
        """Positions begin..end-1 of `tokens`. Returns (positions, logits) of the rows that ran to the end."""
        c, n, positions = self.c, self.n, np.arange(begin, end)
        stream = np.repeat(self.embed[[tokens[p] for p in positions]][:, None], c.hc_mult, axis=1)
        pre = np.zeros((len(positions), c.hc_mult))
        pre[:, 0] = 1
        seam = c.last_kv_source
        self.write_floor, self.tokens = plan["floor"], tokens
        if self.hash:
            self.hash.begin = plan["history"]
        for layer in self.layers:
            first = plan["early" if layer.index < seam else "seam" if layer.index == seam else "late"]
            if layer.index == seam:
                layer.produce(stream, pre, positions)
            if layer.index == seam or (seam < 0 and layer.index == 0):
                kept = positions >= plan["keep"]
                stream, pre, positions = stream[kept], pre[kept], positions[kept]
            if not len(positions):
                return positions, np.zeros((0, c.vocab_size))
            stream, pre = layer.run(stream, pre, positions, first, produced=layer.index == seam)
        x = n.norm(self.layers[-1].collapse(stream, pre, "final"), self.final, "final norm")
        return positions, x @ self.head.T

    def plan(self, length, hit, decoder):
        """What replay decides, in positions. start: first row that runs; early, seam, late: no window of the layers
        before, at and after the last KV source begins before it; keep: first row that runs past that source; floor:
        entries whose tokens all lie below keep their value; history: no n-gram looks before it; windows: those of the
        run that filled the cache remain."""
        c, window = self.c, self.c.sliding_window
        later = c.num_hidden_layers - 1 - c.last_kv_source
        # The halo is just enough for the last row, and for every window a later token reads, to be exact.
        rows = {"trim": window, "halo": window + max(later - 1, 0) * (window - 1), "full": length}[decoder]
        keep = max(0, length - rows) if c.last_kv_source >= 0 else 0
        start = hit - window if hit > window else 0
        plan = {"start": start, "early": start, "seam": start, "late": max(keep, start), "keep": keep,
                "floor": hit if start else 0, "history": 0, "windows": False}
        if self.fault:
            self.fault(plan)
        return plan

    def fill(self, tokens):
        """The cache after `tokens` ran cold and exactly; only what later layers do with them is left out."""
        key = tuple(tokens)
        if key not in self.cold:
            kept_tensors, self.tensors = self.tensors, None
            plan = dict.fromkeys(("early", "seam", "late", "floor", "history"), 0)
            self.forward(tokens, 0, len(tokens), {**plan, "keep": len(tokens)})
            self.tensors = kept_tensors
            self.cold[key] = self.state, self.near
        state, near = self.cold[key]
        self.state = {name: {layer: dict(rows) for layer, rows in kept.items()} for name, kept in state.items()}
        self.near = dict(near)

    def run(self, tokens, chunks=None, hit=0, decoder="full"):
        """(positions, logits) of the rows that ran to the end. hit = H: [0, H) runs cold and exactly first, then its
        global KV is adopted. decoder: which rows run past the last KV source."""
        length = len(tokens)
        self.reset()
        plan = self.plan(length, hit, decoder)
        if hit > self.c.sliding_window:
            self.fill(tokens[:hit])
            self.state["pending"] = {}
            if not plan["windows"]:
                self.state["window"] = {}
        sizes, at, out = list(chunks or [length]), plan["start"], []
        while at < length:
            end = min(length, at + (sizes.pop(0) if len(sizes) > 1 else sizes[0]))
            out.append(self.forward(tokens, at, end, plan))
            at = end
        return np.concatenate([p for p, _ in out]), np.concatenate([x for _, x in out])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--numerics", default="model", choices=("float", "model", "model-noaq"))
    parser.add_argument("--chunks", type=lambda s: [int(x) for x in s.split(",")])
    parser.add_argument("--encoder-replay", type=int, default=0, metavar="H")
    parser.add_argument("--decoder-replay", default="trim", choices=("trim", "halo", "full"))
    parser.add_argument("--dump")
    parser.add_argument("--inject")
    args = parser.parse_args()
    reference, out = Reference(args.model, args.numerics), {}
    for k, tokens in enumerate(json.loads(pathlib.Path(args.tokens).read_text())["prompts"]):
        reference.tensors = {} if args.dump else None
        if args.inject:
            reference.inject = read_dump(pathlib.Path(args.inject) / f"prompt_{k}.safetensors")
        positions, logits = reference.run(tokens, args.chunks, args.encoder_replay, args.decoder_replay)
        out[f"prompt_{k}.positions"], out[f"prompt_{k}.logits"] = positions, logits.astype(np.float32)
        if args.dump:
            pathlib.Path(args.dump).mkdir(parents=True, exist_ok=True)
            write_safetensors(pathlib.Path(args.dump) / f"prompt_{k}.safetensors",
                              {f"prompt_{k}.{name}": np.concatenate(parts)
                               for name, parts in reference.tensors.items()})
    write_safetensors(args.out, out)


if __name__ == "__main__":
    main()
