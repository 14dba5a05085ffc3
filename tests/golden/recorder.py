"""Watches one forward of the oracle: distances to every boundary, and operator inputs and outputs per layer.

Names and shapes of what is kept are those of README.md, "Dump files".
"""

import contextlib

import numpy as np
import torch

import boundaries

KINDS = ("select", "candidate", "route", "window", "entry", "index_key", "index_query")


class Recorder:
    """gaps[kind][layer]: [T] float64, inf where nothing is decided. tensors: filled when `keep` is set.

    round_streams: pass every layer a stream and a pre-mix rounded to float32, so that another implementation can
    be given exactly the same inputs. inject: another run's tensors; every layer gets its stream_in and pre_in.
    """

    def __init__(self, oracle, length, keep=False, round_streams=False, inject=None):
        self.oracle, self.length, self.keep, self.round_streams = oracle, length, keep, round_streams
        self.inject = inject
        c = oracle.c
        self.gaps = {kind: np.full((c.num_hidden_layers, length), np.inf) for kind in KINDS}
        self.tensors = {}
        self.layer, self.site, self.mixes = 0, None, 0
        self.pending = None

    # Boundaries.

    def note(self, kind, gaps):
        """gaps [T], or [E] per entry: an entry belongs to the row that completes it."""
        gaps = np.asarray(gaps)
        if kind in ("entry", "index_key"):
            ratio = self.oracle.c.ratios[self.layer]
            rows = np.arange(len(gaps)) * ratio + ratio - 1
        else:
            rows = np.arange(len(gaps))
        self.gaps[kind][self.layer][rows] = np.minimum(self.gaps[kind][self.layer][rows], gaps)

    def watch(self, values, k):
        self.note(self.site, boundaries.selection_gap(values.detach().numpy().reshape(-1, values.shape[-1]), k))
        if self.keep and self.site == "select":
            top = torch.sort(values, dim=-1, descending=True, stable=True)
            picks = torch.where(top.values > -torch.inf, top.indices, -1)[0, :, :k].numpy().astype(np.int32)
            self.put("select", sorted_rows(picks, self.oracle.c.index_topk))
        if self.keep and self.site == "candidate":
            top = torch.sort(values, dim=-1, descending=True, stable=True)
            picks = torch.where(top.values > -torch.inf, top.indices, -1)[0, :, :k].numpy().astype(np.int32)
            self.put("candidates", sorted_rows(picks, self.oracle.c.candidate_topk_blocks))

    # Material.

    def put(self, name, value):
        if not self.keep:
            return
        value = value.detach().numpy() if isinstance(value, torch.Tensor) else value
        if value.dtype != np.int32:
            value = value.astype(np.float32)
        self.tensors[f"layer_{self.layer}.{name}"] = value

    def _quantisers(self, module):
        fp8, fp4 = module._fake_quant_fp8_block, module._fake_quant_fp4_block

        def watch_fp8(x, block_size=32):
            self.note("window", boundaries.fp8_gap(x[0, 0].numpy()))
            out = fp8(x, block_size)
            self.put("window", out[0, 0])
            return out

        def watch_fp4(x, block_size, e4m3_scales=False):
            out = fp4(x, block_size, e4m3_scales)
            if e4m3_scales:
                kind, gaps = "entry", boundaries.fp4_16_gap(x[0].numpy())
            elif x.ndim == 3:
                kind, gaps = "index_key", boundaries.fp4_32_gap(x[0].numpy())
            else:
                kind, gaps = "index_query", boundaries.fp4_32_gap(x[0].numpy()).min(-1)
            self.note(kind, gaps)
            self.put(kind, out[0])
            return out

        return {"_fake_quant_fp8_block": watch_fp8, "_fake_quant_fp4_block": watch_fp4}

    def _sites(self, module):
        blocks, router = module.select_candidate_blocks, module.DeepseekV41TopKRouter.forward

        def candidate(*args, **kwargs):
            self.site = "candidate"
            try:
                return blocks(*args, **kwargs)
            finally:
                self.site = "select"

        def route(gate, hidden_states, image_mask=None):
            self.site = "route"
            weights, ids = router(gate, hidden_states, image_mask)
            self.put("route_ids", ids.numpy().astype(np.int32))
            self.put("route_weights", weights)
            self.site = "select"
            return weights, ids

        return candidate, route

    @contextlib.contextmanager
    def attached(self):
        oracle, module, handles = self.oracle, self.oracle.module, []
        saved = {name: getattr(module, name) for name in self._quantisers(module)}
        saved["select_candidate_blocks"] = module.select_candidate_blocks
        router = module.DeepseekV41TopKRouter.forward
        candidate, route = self._sites(module)
        for name, function in self._quantisers(module).items():
            setattr(module, name, function)
        module.select_candidate_blocks, module.DeepseekV41TopKRouter.forward = candidate, route
        self.site = "select"
        for index, layer in enumerate(oracle.model.layers):
            handles += self._hooks(index, layer)
        try:
            yield self
        finally:
            for name, function in saved.items():
                setattr(module, name, function)
            module.DeepseekV41TopKRouter.forward = router
            for handle in handles:
                handle.remove()
            for layer in oracle.model.layers:
                layer.__dict__.pop("hc_mixes", None)

    def _hooks(self, index, layer):
        def enter(_, args):
            stream, pre = args[0], args[1]
            if self.round_streams:
                stream, pre = stream.float().to(stream.dtype), pre.float().to(pre.dtype)
            if self.inject is not None:
                stream, pre = (torch.from_numpy(self.inject[f"layer_{index}.{name}"])[None].to(value.dtype)
                               for name, value in (("stream_in", stream), ("pre_in", pre)))
            self.layer, self.mixes = index, 0
            self.put("stream_in", stream[0])
            self.put("pre_in", pre[0])
            return (stream, pre, *args[2:])

        def leave(_, args, output):
            self.put("stream_out", output[0][0])
            self.put("pre_out", output[1][0])

        def keep(name):
            return lambda _, args, output: self.put(name, (output[0] if isinstance(output, tuple) else output)[0])

        original = type(layer).hc_mixes

        def mixes(streams, *args):
            pre, post, comb = original(layer, streams, *args)
            site = ("attn", "ffn")[self.mixes]
            self.mixes += 1
            self.put(f"{site}_stream", streams[0])
            self.put(f"{site}_pre", pre[0])
            self.put(f"{site}_post", post[0])
            self.put(f"{site}_comb", comb[0])
            return pre, post, comb

        layer.hc_mixes = mixes
        return [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave),
                layer.attn_norm.register_forward_hook(keep("attn_in")), layer.attn.register_forward_hook(
                    keep("attn_out")),
                layer.ffn_norm.register_forward_hook(keep("ffn_in")), layer.ffn.register_forward_hook(
                    keep("ffn_out"))]

    def put_gaps(self):
        """The distances themselves, per layer, for judging another run's dump."""
        for kind, layers in self.gaps.items():
            for self.layer, row in enumerate(layers):
                if np.isfinite(row).any():
                    self.put(f"gap_{kind}", row)

    def nearest(self, kinds):
        """[T]: the smallest distance over layers and kinds."""
        return np.min([self.gaps[kind].min(0) for kind in kinds], axis=0)


def sorted_rows(picks, width):
    """Ascending, padded with -1 at the end to `width` columns."""
    out = np.full((len(picks), width), -1, np.int32)
    for r, row in enumerate(picks):
        row = np.sort(row[row >= 0])
        out[r, :len(row)] = row
    return out
