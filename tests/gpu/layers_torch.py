#!/usr/bin/env python3
"""Compares the GPU's operators at the released dimensions with float32 PyTorch on the same GPU (numpy, torch).

  layers_torch.py --senko BINARY --model DIR [--rows 8192]
  layers_torch.py --make DIR --senko BINARY        # makes such a model: four layers, every kind, eight experts

`senko logits --device cuda --dump` shows what flows between operators: a prompt in pieces of 700, 64, 6 and 1 rows, one
of --rows rows at once, and the last rows of one of --long tokens, in pieces of 8,192, with as many candidate blocks as
released. Every operator is then computed from its dumped inputs as model.md writes it, weights dequantised, sums in
float32, and compared with its dumped output.

Both round to bf16 where the text says so and sum in different orders. A float32 result may be off by kFloat = 2e-5 of
its row's root mean square (sums of up to 20,480 terms); a bf16 one by one step beside that, and kFlips = 3 % of a
point's values may differ at all. An operator that rounds inside may be off by more: kInside, of the row's root mean
square, where a flip of a code in between is 1/16 of that value; behind an RMSNorm three steps, since a step of the
collapsed streams is up to two of the normed ones. In attention both sides round each weight to bf16, against another
maximum: o may be off by 2^-8 of the weighted mean of the values' magnitudes, and by three steps (it is rounded before
and after it is rotated back). The two sides make keys, and codes of inner activations, from sums of their own: where
one comes to lie on the other side of a boundary, a key is off by 1/16 of itself, or a large inner value of an expert
is, and with them a few values of a row: a channel of a key is one of 512 in every head. In kStrays = 0.2 % of the rows,
or 128, those that have one key in their windows, kStrayValues = 1 % of the values may be off by up to kStray = 0.2 of
the root mean square. A selection must hold scores that are as large as any it leaves out, within kFloat of the row's
largest; kStrays of the rows, or one, within kStrayScore = 2 % of it, which a code of an index key moves. (That scores
and selections equal the reference's bit for bit is ops/select's test.)

With --device cpu PyTorch and Senko both run there: a way to try this program on a small model.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "golden"))

import model_config  # noqa: E402
import senko_runner  # noqa: E402
from checkpoint import E2M1, E4M3, Checkpoint, SafetensorsFile  # noqa: E402
from reference import EngramHash  # noqa: E402
from reference_ops import inv_freq  # noqa: E402

FLOAT, FLIPS, INSIDE = 2e-5, 0.03, 0.05
STRAY, STRAYS, STRAY_VALUES, STRAY_SCORE = 0.2, 2e-3, 0.01, 0.02
PART = 256  # rows at once where a row needs much
LAST = 512  # rows of the long prompt
DEVICE = "cuda"  # PyTorch's


def bf16(x):
    return x.to(torch.bfloat16).float()


def pow2ceil(t):
    """Of positive normal values."""
    bits = t.contiguous().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    return (exponent << 23).view(torch.float32)


def e4m3(y):
    return y.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def e2m1(y):
    grid = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6], device=y.device)
    middle = (grid[1:] + grid[:-1]) / 2
    a = y.abs().clamp(max=6)
    low, high = torch.bucketize(a, middle), torch.bucketize(a, middle, right=True)
    return torch.copysign(grid[torch.where(low % 2 == 0, low, high)], y)


def quantise(x, size, scale_of, rounding):
    blocks = x.reshape(*x.shape[:-1], -1, size)
    scale = scale_of(blocks.abs().amax(-1, keepdim=True))
    return (rounding(blocks / scale) * scale).reshape(x.shape)


def qdq_fp8_32(x):
    inverse = torch.tensor(1 / 448, dtype=torch.float32, device=x.device)
    return quantise(x, 32, lambda a: pow2ceil(a.clamp(min=1e-4) * inverse), e4m3)


def qdq_fp4_32(x):
    inverse = torch.tensor(1 / 6, dtype=torch.float32, device=x.device)
    return quantise(x, 32, lambda a: pow2ceil(a.clamp(min=6 * 2.0 ** -126) * inverse), e2m1)


def qdq_fp4_16(x):
    return quantise(x, 16, lambda a: e4m3(a.clamp(min=6 * 2.0 ** -9) / 6), e2m1)


class Model:
    """Weights and arithmetic of model.md 3."""

    def __init__(self, directory):
        self.c = model_config.load(directory / "config.json")
        self.checkpoint = Checkpoint(directory)
        self.cached = {}
        self.e4m3 = torch.tensor(E4M3, dtype=torch.float32, device=DEVICE)
        self.e2m1 = torch.tensor(E2M1, dtype=torch.float32, device=DEVICE)
        c = self.c
        yarn = c.rope_scaling if c.rope_scaling and c.rope_scaling.get("original_max_position_embeddings") else None
        self.freq = [inv_freq(c.rope_theta, c.qk_rope_head_dim, None),
                     inv_freq(c.compress_rope_theta, c.qk_rope_head_dim, yarn)]

    def bytes(self, name):
        kind, data = self.checkpoint.raw(name)
        return kind, torch.from_numpy(np.array(data)).to(DEVICE)

    def linear(self, name):
        """Dequantised, exact in float32."""
        kind, data = self.checkpoint.raw(name + ".weight")
        if kind in ("BF16", "F32"):
            return self.plain(name + ".weight")
        scale = torch.exp2(self.bytes(name + ".scale")[1].float() - 127)
        data = torch.from_numpy(np.array(data).view(np.uint8)).to(DEVICE)
        if kind == "F8_E4M3":
            rows, columns = data.shape
            tall = 1 if name.endswith("engram.embed") else 32
            scale = scale.repeat_interleave(tall, 0).repeat_interleave(32, 1)[:rows, :columns]
            return self.e4m3[data.int()] * scale
        values = torch.stack([self.e2m1[(data & 15).int()], self.e2m1[(data >> 4).int()]], -1).reshape(len(data), -1)
        return values * scale.repeat_interleave(32, 1)

    def plain(self, name):
        return torch.from_numpy(self.checkpoint.value(name)).to(DEVICE)

    def norm(self, x, weight):
        return bf16(weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.c.rms_norm_eps)))

    def rope(self, x, positions, freq, inverse=False):
        """x [T, ..., width], in part rotated; float64 angles' cosines, rounded once."""
        angle = (positions.astype(np.float32)[:, None] * freq).astype(np.float32).astype(np.float64)
        shape = (len(positions),) + (1,) * (x.dim() - 2) + (len(freq),)
        cos, sin = (torch.from_numpy(f(angle).astype(np.float32)).to(DEVICE).reshape(shape) for f in (np.cos, np.sin))
        sin = -sin if inverse else sin
        split = x.shape[-1] - 2 * len(freq)
        even, odd, out = x[..., split::2], x[..., split + 1::2], x.clone()
        out[..., split::2] = bf16(even * cos - odd * sin)
        out[..., split + 1::2] = bf16(even * sin + odd * cos)
        return out

    def mixes(self, stream, at, site):
        c, hc = self.c, self.c.hc_mult
        fn, scale, base = (self.plain(f"{at}hc_{site}_{part}") for part in ("fn", "scale", "base"))
        flat = stream.reshape(len(stream), -1)
        m = (flat @ fn.T) * torch.rsqrt((flat * flat).mean(-1, keepdim=True) + c.rms_norm_eps)
        pre = torch.sigmoid(m[:, :hc] * scale[0] + base[:hc]) + c.hc_eps
        post = 2 * torch.sigmoid(m[:, hc:2 * hc] * scale[1] + base[hc:2 * hc])
        comb = (m[:, 2 * hc:] * scale[2] + base[2 * hc:]).reshape(-1, hc, hc).softmax(-1) + c.hc_eps
        comb = comb / (comb.sum(1, keepdim=True) + c.hc_eps)
        for _ in range(c.hc_sinkhorn_iters - 1):
            comb = comb / (comb.sum(2, keepdim=True) + c.hc_eps)
            comb = comb / (comb.sum(1, keepdim=True) + c.hc_eps)
        return pre, post, comb

    def engram(self, stream, at, slot, tokens, positions):
        c, table = self.c, self.linear(at + "engram.embed")
        hashes = EngramHash(c, self.checkpoint.engram_map())
        rows = np.stack([hashes.rows(slot, tokens, p) for p in positions])
        wkv = self.linear(at + "engram.wkv")
        weight = self.plain(at + "engram.q_weight") * self.plain(at + "engram.k_weight")
        out = torch.empty_like(stream)
        for part in parts(len(stream)):
            x = table[torch.from_numpy(rows[part].astype(np.int64)).to(DEVICE)].reshape(part.stop - part.start, -1)
            kv = bf16(qdq_fp8_32(x) @ wkv.T)
            key, value = kv[:, :-c.hidden_size].reshape(len(kv), c.hc_mult, -1), kv[:, -c.hidden_size:]
            s = stream[part]
            rs = torch.rsqrt((s * s).mean(-1) + c.rms_norm_eps) * torch.rsqrt((key * key).mean(-1) + c.rms_norm_eps)
            dot = (s * weight * key).sum(-1) * rs * c.hidden_size ** -0.5
            gate = torch.sigmoid(torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot))
            out[part] = bf16(s + gate[:, :, None] * value[:, None])
        return out


def parts(rows, size=PART):
    return [slice(begin, min(begin + size, rows)) for begin in range(0, rows, size)]


def chosen(indices, count):
    """[T, k] with -1 for none -> bool [T, count]."""
    out = torch.zeros(len(indices), count + 1, dtype=torch.bool, device=DEVICE)
    return out.scatter_(1, torch.where(indices < 0, count, indices), True)[:, :-1]


def expand(y, stream, post, comb):
    return bf16(post[:, :, None] * y[:, None] + torch.einsum("tjk,tjd->tkd", comb, stream))


class Judge:
    def __init__(self, title):
        self.title, self.reasons, self.seen = title, [], {}

    def __call__(self, layer, point, expected, got, rounded=True, inside=0.0, most=1, slack=None, stray=0.0):
        expected, got = (x.reshape(len(x), -1) for x in (expected, got))
        worst = differ = steps = strays = 0
        for part in parts(len(got), 1024):
            e, g = expected[part].double(), got[part].double()
            rms = (e * e).mean(1, keepdim=True).sqrt().clamp(min=1e-30)
            off = (e - g).abs()
            step = torch.exp2(torch.floor(torch.log2(torch.maximum(e.abs(), g.abs()).clamp(min=2.0 ** -126))) - 7)
            allowed = torch.maximum(FLOAT * rms, most * step if rounded else off * 0)
            allowed = torch.maximum(allowed, inside * rms) * (1 + 1e-9)
            if slack is not None:
                allowed += slack[part]
            beyond = ~(off <= allowed)  # NaN is
            strayed = beyond.any(1) & (off <= stray * rms).all(1) & (beyond.double().mean(1) <= STRAY_VALUES)
            strays += int(strayed.sum())
            beyond &= ~strayed[:, None]
            if beyond.any():
                row, column = (int(i) for i in beyond.nonzero()[0])
                self.reasons.append(f"{self.title} layer {layer} {point} row {row + part.start}: "
                                    f"{float(g[row, column]):.8g}, expected {float(e[row, column]):.8g}, "
                                    f"{float(off[row, column] / rms[row]):.2e} of the row")
            worst, differ = max(worst, float((off / rms).max())), differ + int((off > 0).sum())
            steps = max(steps, float((torch.where(off > FLOAT * rms, off, off * 0) / step).max()))
        if strays > max(STRAYS * len(got), 128):
            self.reasons.append(f"{self.title} layer {layer} {point}: {strays} rows of {len(got)} strayed")
        share = differ / got.numel()
        if rounded and share > (FLIPS if not inside and slack is None else 1.0) and differ > 3:
            self.reasons.append(f"{self.title} layer {layer} {point}: {share:.1%} of the values differ")
        print(f"{self.title:12} layer {layer} {point:14} {got.numel():11} values {share:8.3%} differ, by at most "
              f"{steps:8.3g} steps, {worst:.2e} of the row; {strays} rows strayed", flush=True)


class Prompt:
    """One dump, judged layer by layer."""

    def __init__(self, model, title, file, tokens, first=0):
        """first: the position of the first row in the file; even."""
        self.m, self.file, self.tokens, self.first = model, SafetensorsFile(file), tokens, first
        self.judge = Judge(title)
        self.positions = np.arange(first, len(tokens))

    def get(self, layer, point):
        return torch.from_numpy(np.array(self.file.raw(f"prompt_0.layer_{layer}.{point}")[1])).to(DEVICE)

    def has(self, layer, point):
        return f"prompt_0.layer_{layer}.{point}" in self.file.keys()

    def run(self):
        for layer in range(self.m.c.num_hidden_layers):
            with torch.no_grad():
                self.streams(layer)
                self.attention(layer)
                self.experts(layer)
        return self.judge.reasons

    def streams(self, l):
        m, c, at = self.m, self.m.c, f"layers.{l}."
        stream = self.get(l, "stream_in").reshape(len(self.positions), c.hc_mult, -1)
        pre = self.get(l, "pre_in")
        injected = l in c.engram_layer_ids
        if injected:
            stream = m.engram(stream, at, list(c.engram_layer_ids).index(l), self.tokens, self.positions)
        inside = INSIDE if injected else 0.0
        x = m.norm(bf16((pre[:, :, None] * stream).sum(1)), m.plain(at + "attn_norm.weight"))
        self.judge(l, "attn_in", x, self.get(l, "attn_in"), inside=inside, most=3)
        pre, post, comb = m.mixes(stream, at, "attn")
        self.judge(l, "pre_mid", pre, self.get(l, "pre_mid"), rounded=False, inside=1e-3 if injected else 0.0)
        middle, pre = self.get(l, "stream_mid").reshape(stream.shape), self.get(l, "pre_mid")
        self.judge(l, "stream_mid", expand(self.get(l, "attn_out"), stream, post, comb), middle, inside=inside)
        x = m.norm(bf16((pre[:, :, None] * middle).sum(1)), m.plain(at + "ffn_norm.weight"))
        self.judge(l, "ffn_in", x, self.get(l, "ffn_in"), most=3)
        if l + 1 == c.num_hidden_layers:
            return
        pre, post, comb = m.mixes(middle, at, "ffn")
        self.judge(l + 1, "pre_in", pre, self.get(l + 1, "pre_in"), rounded=False)
        self.judge(l + 1, "stream_in", expand(self.get(l, "ffn_out"), middle, post, comb), self.get(l + 1, "stream_in"))

    def attention(self, l):
        m, c, at, ratio, t = self.m, self.m.c, f"layers.{l}.attn.", self.m.c.ratios[l], self.positions
        freq = m.freq[1 if ratio else 0]
        x = self.get(l, "attn_in")
        xq = qdq_fp8_32(x)
        self.judge(l, "kv", bf16(xq @ m.linear(at + "wkv").T), self.get(l, "kv"))
        self.judge(l, "qa", bf16(xq @ m.linear(at + "wq_a").T), self.get(l, "qa"))
        qr = self.get(l, "qr")
        want = qdq_fp8_32(m.norm(self.get(l, "qa"), m.plain(at + "q_norm.weight")))
        self.judge(l, "qr", want, qr, inside=1e-4, most=16)  # one step of e4m3
        q = self.get(l, "q")
        self.judge(l, "q", bf16(qr @ m.linear(at + "wq_b").T), q)
        if l in c.kv_source_layer_ids:
            cs = self.get(l, "c")
            want = x @ m.linear(at + "compressor.wkv").T
            self.judge(l, "c", want if ratio == 2 else bf16(want), cs, rounded=ratio == 1)
            if ratio == 2:
                z = self.get(l, "z")
                self.judge(l, "z", x @ m.linear(at + "compressor.wgate").T, z, rounded=False)
                groups = len(t) // 2
                w = torch.stack([z[0:2 * groups:2], z[1:2 * groups:2]]).softmax(0)
                cs = bf16(w[0] * cs[0:2 * groups:2] + w[1] * cs[1:2 * groups:2])
            latent = self.get(l, "latent")
            want = m.norm(cs, m.plain(at + "compressor.norm.weight"))
            self.judge(l, "latent", want, latent[self.first // ratio:], inside=0.02)
            self.judge(l, "key", bf16(latent @ m.linear(at + "indexer.wk").T), self.get(l, "key"))
        if l in c.index_source_layer_ids:
            index_q, index_w = self.get(l, "index_q"), self.get(l, "index_w")
            self.judge(l, "index_q", bf16(qr @ m.linear(at + "indexer.wq_b").T), index_q)
            self.judge(l, "index_w", bf16(x @ m.linear(at + "indexer.weights_proj").T), index_w)
            self.selection(l, index_q, index_w, freq)
        self.attend(l, q, freq)

    def selection(self, l, index_q, index_w, freq):
        m, c, t, ratio = self.m, self.m.c, self.positions, self.m.c.ratios[l]
        source = c.kv_source(l)
        key = self.get(source, "key")
        k_norm = m.plain(f"layers.{source}.attn.indexer.k_norm.weight")
        key = qdq_fp4_32(m.rope(m.norm(key, k_norm), np.arange(len(key)) * ratio, freq))
        q = m.rope(index_q.reshape(len(t), c.index_n_heads, -1), t, freq)
        weight = index_w * float(np.float32(1 / np.sqrt(c.index_head_dim * c.index_n_heads)))
        selected = self.get(l, "select").long()
        size = c.candidate_block_size
        if 0 <= c.candidate_source_layer_id <= l:
            candidates = self.get(c.candidate_source_layer_id, "candidates").long()
        off, lost, strays = 0.0, 0, 0
        for part in parts(len(t)):
            s = torch.einsum("thd,jd->thj", qdq_fp4_32(q[part]), key).relu_()
            s = torch.einsum("th,thj->tj", weight[part], s)
            visible = torch.from_numpy((t[part] + 1) // ratio).to(DEVICE)
            hidden = torch.arange(len(key), device=DEVICE)[None] >= visible[:, None]
            blocks = torch.nn.functional.pad(s.masked_fill(hidden, -torch.inf), (0, -len(key) % size), value=-torch.inf)
            blocks = blocks.reshape(len(s), -1, size).amax(-1)
            if l == c.candidate_source_layer_id:
                self.candidates(blocks, visible, candidates[part])
            elif 0 <= c.candidate_source_layer_id < l:
                hidden |= ~chosen(candidates[part], blocks.shape[1]).repeat_interleave(size, 1)[:, :len(key)]
            taken = chosen(selected[part], len(key))
            if not (taken.sum(1) == (~hidden).sum(1).clamp(max=c.index_topk)).all() or (taken & hidden).any():
                self.judge.reasons.append(f"{self.judge.title} layer {l} select: a row has another number of entries")
            top = s.abs().masked_fill(hidden, 0).amax(1).clamp(min=1e-30)
            least = s.masked_fill(~taken, torch.inf).amin(1)
            best = s.masked_fill(taken | hidden, -torch.inf).amax(1)
            gap = torch.where(torch.isfinite(best), (best - least) / top, torch.zeros_like(top))
            off = max(off, float(gap.max()))
            lost += int((gap > 0).sum())
            strays += int((gap > FLOAT).sum())
        if not (off <= STRAY_SCORE and strays <= max(STRAYS * len(t), 1)):
            self.judge.reasons.append(f"{self.judge.title} layer {l} select: {strays} rows leave out a larger score, by "
                                      f"{off:.1e}")
        print(f"{self.judge.title:12} layer {l} {'select':14} {len(t):8} rows, {lost} choose otherwise, by at most "
              f"{max(off, 0):.2e} of the largest score", flush=True)

    def candidates(self, blocks, visible, got):
        """The newest block and those with the largest scores."""
        count = (visible + self.m.c.candidate_block_size - 1) // self.m.c.candidate_block_size
        taken = chosen(got, blocks.shape[1])
        top = blocks.masked_fill(torch.isinf(blocks), 0).abs().amax(1).clamp(min=1e-30)
        some = count > 0
        blocks[some, count[some] - 1] = torch.inf
        least, best = blocks.masked_fill(~taken, torch.inf).amin(1), blocks.masked_fill(taken, -torch.inf).amax(1)
        full = taken.sum(1) == count.clamp(max=self.m.c.candidate_topk_blocks)
        gap = torch.where(torch.isfinite(best), (best - least) / top, torch.zeros_like(top))
        strays = int((gap > FLOAT).sum())
        if not (full.all() and float(gap.max()) <= STRAY_SCORE and strays <= max(STRAYS * len(gap), 1)):
            self.judge.reasons.append(f"{self.judge.title} candidates: {int((~full).sum())} rows of {len(full)} have "
                                      f"another number, {strays} leave out a better block, by {float(gap.max()):.1e}")

    def attend(self, l, q, freq):
        m, c, t, ratio, at = self.m, self.m.c, self.positions, self.m.c.ratios[l], f"layers.{l}.attn."
        d = c.head_dim
        kv = qdq_fp8_32(m.rope(m.norm(self.get(l, "kv"), m.plain(at + "kv_norm.weight")), t, freq))
        entries = None
        if ratio:
            latent = self.get(c.kv_source(l), "latent")
            entries = qdq_fp4_16(m.rope(latent, np.arange(len(latent)) * ratio, freq))
            selected = self.get(c.index_source(l), "select").long()
        begin = min(self.first, c.sliding_window - 1)  # rows before it have no whole window in the file
        sink, out = m.plain(at + "attn_sink"), torch.empty(len(t) - begin, c.num_attention_heads * d, device=DEVICE)
        slack = torch.empty_like(out)
        for judged in parts(len(out), 128):
            part = slice(judged.start + begin, judged.stop + begin)
            at_rows = torch.from_numpy(t[part]).to(DEVICE)
            behind = at_rows[:, None] - torch.arange(c.sliding_window, device=DEVICE)[None]
            keys, dead = kv[(behind - self.first).clamp(min=0)], behind < 0
            if ratio and len(entries):
                keys = torch.cat([keys, entries[selected[part].clamp(min=0)]], 1)
                dead = torch.cat([dead, selected[part] < 0], 1)
            heads = m.rope(q[part].reshape(len(keys), c.num_attention_heads, d), t[part], freq)
            s = (torch.einsum("thd,tjd->thj", heads, keys) * d ** -0.5).masked_fill(dead[:, None], -torch.inf)
            top = s.amax(-1, keepdim=True)
            p = torch.exp(s - top)
            total = p.sum(-1) + torch.exp(sink - top[..., 0])
            o = bf16(torch.einsum("thj,tjd->thd", bf16(p), keys) / total[..., None])
            out[judged] = m.rope(o, t[part], freq, inverse=True).reshape(len(keys), -1)
            mean = torch.einsum("thj,tjd->thd", p, keys.abs()) / total[..., None]
            tail = mean[..., -2 * len(freq):].unflatten(-1, (-1, 2))  # a rotation may put all of a pair into one value
            tail[:] = tail.square().sum(-1, keepdim=True).sqrt()
            slack[judged] = 2.0 ** -8 * mean.reshape(len(keys), -1)
        del q
        o = self.get(l, "o")
        self.judge(l, "o", out, o[begin:], most=3, slack=slack, stray=STRAY)
        del out, slack
        wo_a, wo_b = m.linear(at + "wo_a").reshape(c.o_groups, c.o_lora_rank, -1), m.linear(at + "wo_b")
        u = bf16(torch.einsum("tgi,goi->tgo", o.reshape(len(t), c.o_groups, -1), wo_a)).reshape(len(t), -1)
        self.judge(l, "attn_out", bf16(qdq_fp8_32(u) @ wo_b.T), self.get(l, "attn_out"), inside=INSIDE, stray=STRAY)

    def experts(self, l):
        m, c, at = self.m, self.m.c, f"layers.{l}.ffn."
        x, ids, weights = self.get(l, "ffn_in"), self.get(l, "route_ids").long(), self.get(l, "route_weights")
        s = torch.nn.functional.softplus(x @ m.plain(at + "gate.weight").T / c.gate_temp).sqrt()
        biased = s + m.plain(at + "gate.bias")
        least = biased.gather(1, ids).amin(1)
        best = biased.scatter(1, ids, -torch.inf).amax(1)
        if not float((best - least).max()) <= 1e-5:
            self.judge.reasons.append(f"{self.judge.title} layer {l}: an expert left out scores more")
        want = s.gather(1, ids)
        want = want / (want.sum(-1, keepdim=True) + 1e-20) if c.norm_topk_prob else want
        self.judge(l, "route_weights", want * c.routed_scaling_factor, weights, rounded=False)
        xq = qdq_fp8_32(x)
        y = torch.zeros_like(x)

        def expert(name, rows, weight=None):
            g, u = (bf16(xq[rows] @ m.linear(f"{at}{name}.{w}").T) for w in ("w1", "w3"))
            if c.swiglu_limit > 0:
                g, u = g.clamp(max=c.swiglu_limit), u.clamp(-c.swiglu_limit, c.swiglu_limit)
            h = torch.nn.functional.silu(g) * u
            return bf16(qdq_fp8_32(bf16(h if weight is None else weight[:, None] * h)) @ m.linear(f"{at}{name}.w2").T)

        for e in range(c.n_routed_experts):
            rows, slots = (ids == e).nonzero(as_tuple=True)
            if len(rows):
                y[rows] += expert(f"experts.{e}", rows, weights[rows, slots])
        y = bf16(y + expert("shared_experts", slice(None)))
        self.judge(l, "ffn_out", y, self.get(l, "ffn_out"), inside=INSIDE, stray=STRAY)


def make(senko, directory):
    """Released dimensions; a ratio-2 source behind Engram, the candidate source, and one restricted to candidates."""
    config = json.loads((HERE.parent.parent / "models/slim/config.json").read_text())
    text = config.get("text_config", config)
    text.update(vocab_size=4096, engram_compressed_vocab_size=3000,  # all rows' logits are written
                num_hidden_layers=4, compress_ratios=[0, 2, 1, 1], kv_source_layer_ids=[1, 2],
                index_source_layer_ids=[1, 2, 3], candidate_source_layer_id=2, candidate_topk_blocks=256)
    with tempfile.TemporaryDirectory() as scratch:
        file = pathlib.Path(scratch) / "config.json"
        file.write_text(json.dumps(config))
        senko_runner.run([senko, "make-model", "--config", file, "--seed", 1, "--out", directory])


def with_released_candidates(directory, scratch):
    """The same weights: as many candidate blocks as released."""
    for file in directory.iterdir():
        (scratch / file.name).symlink_to(file.resolve())
    config = json.loads((directory / "config.json").read_text())
    config.get("text_config", config)["candidate_topk_blocks"] = 2048
    (scratch / "config.json").unlink()
    (scratch / "config.json").write_text(json.dumps(config))
    return scratch


def judge(args, directory, pieces, length, first=0):
    """Reasons to fail of a prompt of `length` tokens, of which the rows from `first` on are looked at."""
    model = Model(directory)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        ids = np.random.default_rng(length).integers(0, model.c.vocab_size - 1, length).tolist()
        (scratch / "tokens.json").write_text(json.dumps({"prompts": [ids]}))
        more = ["--device", args.device, "--dump", scratch / "dump", "--dump-from", first, "--chunks",
                ",".join(map(str, pieces))]
        senko_runner.logits(args.senko, directory, scratch / "tokens.json", scratch / "out", *more, numerics="model")
        title = "/".join(map(str, pieces)) + (f" from {first}" if first else "")
        return Prompt(model, title, scratch / "dump/prompt_0.safetensors", ids, first).run()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--senko", required=True)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--make", type=pathlib.Path, help="folder for a model, made first")
    parser.add_argument("--rows", type=int, default=8192, help="of the long prompt; 0: none")
    parser.add_argument("--long", type=int, default=70000, help="tokens of which the last rows are looked at; 0: none")
    parser.add_argument("--pieces", default="700,64,6,1", help="rows of the steps of the first prompt")
    parser.add_argument("--device", default="cuda", help="of both sides: cpu tries this program on a small model")
    args = parser.parse_args()
    global DEVICE
    DEVICE = args.device
    if args.make:
        make(args.senko, args.make)
    directory = args.make or args.model
    reasons = []
    for pieces in (list(map(int, args.pieces.split(","))), [args.rows]):
        if sum(pieces) > 0:
            reasons += judge(args, directory, pieces, sum(pieces))
    if args.long > 0:
        with tempfile.TemporaryDirectory() as scratch:
            reasons += judge(args, with_released_candidates(directory, pathlib.Path(scratch)), [8192], args.long,
                             (args.long - LAST) // 2 * 2)
    print("\n".join(reasons) if reasons else "every operator agrees")
    raise SystemExit(1 if reasons else 0)


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    main()
