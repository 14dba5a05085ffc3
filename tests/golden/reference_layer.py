"""One layer of reference.py: mHC, Engram, compressor, indexer, attention, experts (model.md 3.2 to 3.8)."""

import numpy as np

import boundaries
from reference_ops import qdq_fp4_16, qdq_fp4_32, qdq_fp8_32, sigmoid, softplus, top


class Layer:
    def __init__(self, model, checkpoint, index):
        self.model, self.c, self.n, self.index = model, model.c, model.n, index
        self.at, self.checkpoint, self.cached = f"layers.{index}.", checkpoint, {}
        c = self.c
        self.ratio = c.ratios[index]
        self.source, self.chooser = c.kv_source(index), c.index_source(index)
        self.freq = model.freq[1 if self.ratio else 0]

    def w(self, name, plain=False):
        """A weight as float64, read once. `plain`: the tensor itself; else the dequantised linear."""
        if name not in self.cached:
            read = self.checkpoint.value if plain else self.checkpoint.linear
            self.cached[name] = read(self.at + name).astype(np.float64)
        return self.cached[name]

    # mHC (3.2).

    def mixes(self, stream, site):
        c, hc = self.c, self.c.hc_mult
        fn, scale, base = (self.w(f"hc_{site}_{part}", True) for part in ("fn", "scale", "base"))
        flat = stream.reshape(len(stream), -1)
        m = self.n.linf(flat, fn) / np.sqrt((flat * flat).mean(-1, keepdims=True) + c.rms_norm_eps)
        pre = sigmoid(m[:, :hc] * scale[0] + base[:hc]) + c.hc_eps
        post = 2 * sigmoid(m[:, hc:2 * hc] * scale[1] + base[hc:2 * hc])
        comb = (m[:, 2 * hc:] * scale[2] + base[2 * hc:]).reshape(-1, hc, hc)
        comb = np.exp(comb - comb.max(-1, keepdims=True))
        comb = comb / comb.sum(-1, keepdims=True) + c.hc_eps
        comb = comb / (comb.sum(1, keepdims=True) + c.hc_eps)
        for _ in range(c.hc_sinkhorn_iters - 1):
            comb = comb / (comb.sum(2, keepdims=True) + c.hc_eps)
            comb = comb / (comb.sum(1, keepdims=True) + c.hc_eps)
        return pre, post, comb

    def collapse(self, stream, pre, site):
        return self.n.r((pre[:, :, None] * stream).sum(1), site + " collapse")

    def expand(self, y, stream, post, comb, site):
        return self.n.r(post[:, :, None] * y[:, None] + np.einsum("tjk,tjd->tkd", comb, stream), site + " stream")

    # Engram (3.7).

    def engram(self, stream, positions):
        c, n, tokens, model = self.c, self.n, self.model.tokens, self.model
        slot = list(c.engram_layer_ids).index(self.index)
        table = self.w("engram.embed")
        rows = np.stack([table[model.hash.rows(slot, tokens, p)].reshape(-1) for p in positions])
        kv = n.lin8(rows, self.w("engram.wkv"), "engram.wkv")
        key, value = kv[:, :-c.hidden_size].reshape(len(rows), c.hc_mult, -1), kv[:, -c.hidden_size:]
        weight = self.w("engram.q_weight", True) * self.w("engram.k_weight", True)
        rs = 1 / np.sqrt((stream ** 2).mean(-1) + c.rms_norm_eps) / np.sqrt((key ** 2).mean(-1) + c.rms_norm_eps)
        dot = (stream * weight * key).sum(-1) * rs * c.hidden_size ** -0.5
        gate = sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(dot), 1e-6)), dot))
        gate[[tokens[p] == c.image_token_id for p in positions]] = 0
        return n.r(stream + gate[:, :, None] * value[:, None], "engram stream")

    # Global KV (3.5, 3.6) and the window row.

    def produce(self, stream, pre, positions):
        """KV of every row of the last source, whose own queries run on fewer rows."""
        stream, pre = self.injected("stream_in", positions, stream), self.injected("pre_in", positions, pre)
        if self.index in self.c.engram_layer_ids:
            stream = self.engram(stream, positions)
        x = self.n.norm(self.collapse(stream, pre, "attn"), self.w("attn_norm.weight", True), "attn norm")
        self.write_kv(x, positions)

    def write_kv(self, x, positions):
        n, state = self.n, self.model.state
        kv = n.norm(n.lin8(x, self.w("attn.wkv"), "wkv"), self.w("attn.kv_norm.weight", True), "kv norm")
        kv = n.rope(kv, positions, self.freq, "kv rope")
        self.model.note(positions, boundaries.fp8_gap(kv))
        kv = qdq_fp8_32(kv)
        state["window"].setdefault(self.index, {}).update(zip(map(int, positions), kv))
        self.model.put(self.index, "window", kv)
        if self.source == self.index:
            self.write_entries(x, positions)

    def latents(self, x, positions):
        """(first positions, latents) of the groups that complete in these rows."""
        n, norm = self.n, self.w("attn.compressor.norm.weight", True)
        if self.ratio == 1:
            return positions, n.norm(n.linb(x, self.w("attn.compressor.wkv"), "compressor.wkv"), norm, "latent norm")
        pending = self.model.state["pending"].setdefault(self.index, {})
        c, z = n.linf(x, self.w("attn.compressor.wkv")), n.linf(x, self.w("attn.compressor.wgate"))
        pending.update({int(p): pair for p, pair in zip(positions, zip(c, z))})
        firsts, pooled = [], []
        for p in sorted(pending):
            if p % 2 == 0 and p + 1 in pending:
                (c0, z0), (c1, z1) = pending.pop(p), pending.pop(p + 1)
                w0 = sigmoid(z0 - z1)
                firsts.append(p)
                pooled.append(n.norm(n.r(w0 * c0 + (1 - w0) * c1, "pooled"), norm, "latent norm"))
        return np.array(firsts, np.int64), np.array(pooled).reshape(len(firsts), self.c.head_dim)

    def write_entries(self, x, positions):
        n, state = self.n, self.model.state
        first, latent = self.latents(x, positions)
        if not len(first):
            return
        entry = n.rope(latent, first, self.freq, "entry rope")
        key = n.linb(latent, self.w("attn.indexer.wk"), "indexer.wk")
        key = n.norm(key, self.w("attn.indexer.k_norm.weight", True), "key norm")
        key = n.rope(key, first, self.freq, "key rope")
        new = first + self.ratio > self.model.write_floor
        for gap, values in ((boundaries.fp4_16_gap, entry), (boundaries.fp4_32_gap, key)):
            self.model.note((first + self.ratio - 1)[new], gap(values)[new])
        entry, key = qdq_fp4_16(entry), qdq_fp4_32(key)
        self.model.put(self.index, "entry", entry)
        self.model.put(self.index, "index_key", key)
        for name, values in (("entry", entry), ("key", key)):
            kept = state[name].setdefault(self.index, {})
            kept.update({int(p) // self.ratio: value for p, value in zip(first[new], values[new])})

    def rows_of(self, name, count):
        kept = self.model.state[name].get(self.source, {})
        return np.array([kept[j] for j in range(count)])

    # Indexer (3.6).

    def select(self, x, qr, positions):
        """Publishes the sorted selection of each row, and candidates at their source."""
        c, n, shared = self.c, self.n, self.model.shared
        q = n.lin8(qr, self.w("attn.indexer.wq_b"), "indexer.wq_b").reshape(len(x), c.index_n_heads, c.index_head_dim)
        q = n.rope(q, positions, self.freq, "index query rope")
        self.model.note(positions, boundaries.fp4_32_gap(q).min(-1))
        q = qdq_fp4_32(q)
        self.model.put(self.index, "index_query", q)
        weight = n.linb(x, self.w("attn.indexer.weights_proj"), "weights_proj")
        weight = weight * (c.index_head_dim ** -0.5 * c.index_n_heads ** -0.5)
        is_source = self.index == c.candidate_source_layer_id
        restricted = 0 <= c.candidate_source_layer_id < self.index
        picks, keys = {}, self.rows_of("key", (int(positions[-1]) + 1) // self.ratio)
        if is_source:
            shared["candidates"] = {}
        for r, p in enumerate(map(int, positions)):
            count = (p + 1) // self.ratio
            score = np.zeros(0)
            if count:
                score = weight[r] @ np.maximum(q[r] @ keys[:count].T, 0)
            if is_source:
                shared["candidates"][p] = self.candidate_blocks(score, p)
            elif restricted:
                allowed = np.isin(np.arange(count) // c.candidate_block_size, shared["candidates"][p])
                score = np.where(allowed, score, -np.inf)
            if count:
                self.model.note([p], [boundaries.selection_gap(score, c.index_topk)])
            picks[p] = top(score, c.index_topk)
        self.put_rows("select", picks, positions, c.index_topk)
        shared["select"] = self.injected_rows("select", picks)
        if is_source:
            self.put_rows("candidates", shared["candidates"], positions, c.candidate_topk_blocks)
            shared["candidates"] = self.injected_rows("candidates", shared["candidates"])

    def candidate_blocks(self, score, p):
        size, count = self.c.candidate_block_size, len(score)
        if not count:
            return np.zeros(0, np.int64)
        best = np.array([score[b:b + size].max() for b in range(0, count, size)])
        best[(count - 1) // size] = np.inf
        self.model.note([p], [boundaries.selection_gap(best, self.c.candidate_topk_blocks)])
        return top(best, self.c.candidate_topk_blocks)

    def injected(self, name, positions, own):
        """Another run's rows in place of `own`, where they are given."""
        given = (self.model.inject or {}).get(f"layer_{self.index}.{name}")
        return own if given is None else given[positions].reshape(own.shape).astype(own.dtype)

    def injected_rows(self, name, own):
        given = (self.model.inject or {}).get(f"layer_{self.index}.{name}")
        return own if given is None else {p: given[p][given[p] >= 0] for p in own}

    def put_rows(self, name, picks, positions, width):
        out = np.full((len(positions), width), -1, np.int64)
        for r, p in enumerate(map(int, positions)):
            out[r, :len(picks[p])] = picks[p]
        self.model.put(self.index, name, out)

    # Attention (3.4).

    def attention(self, x, positions, first, produced):
        c, n, d = self.c, self.n, self.c.head_dim
        qr = n.norm(n.lin8(x, self.w("attn.wq_a"), "wq_a"), self.w("attn.q_norm.weight", True), "q norm")
        q = n.lin8(qr, self.w("attn.wq_b"), "wq_b").reshape(len(x), c.num_attention_heads, d)
        q = n.rope(q, positions, self.freq, "q rope")
        if not produced:
            self.write_kv(x, positions)
        if self.chooser == self.index:
            self.select(x, qr, positions)
        window, sink = self.model.state["window"][self.index], self.w("attn.attn_sink", True)
        entries = self.rows_of("entry", (int(positions[-1]) + 1) // self.ratio) if self.ratio else None
        out = np.empty((len(x), c.num_attention_heads, d))
        for r, p in enumerate(map(int, positions)):
            begin = min(max(p - c.sliding_window + 1, first, 0), p)  # a row sees itself
            keys = np.array([window[j] for j in range(begin, p + 1)])
            if self.ratio and len(entries):
                keys = np.concatenate([keys, entries[self.model.shared["select"][p]]])
            s = q[r] @ keys.T * d ** -0.5
            m = s.max(-1, keepdims=True)
            e = np.exp(s - m)
            total = e.sum(-1) + np.exp(sink - m[:, 0])
            out[r] = n.r((n.r(e, "p") @ keys) / total[:, None], "o")
        out = n.rope(out, positions, self.freq, "o rope", inverse=True)
        groups = out.reshape(len(x), c.o_groups, -1)
        wo_a = self.w("attn.wo_a").reshape(c.o_groups, c.o_lora_rank, -1)
        u = n.r(np.einsum("tgi,goi->tgo", groups, wo_a), "wo_a").reshape(len(x), -1)
        return n.lin8(u, self.w("attn.wo_b"), "wo_b")

    # Experts (3.8).

    def expert(self, name, x, weight=None):
        c, n, kind = self.c, self.n, "shared" if weight is None else "expert"
        g, u = (n.lin8(x, self.w(f"{name}.{w}"), f"{kind} {w}") for w in ("w1", "w3"))
        if c.swiglu_limit > 0:
            g, u = np.minimum(g, c.swiglu_limit), np.clip(u, -c.swiglu_limit, c.swiglu_limit)
        y = g * sigmoid(g) * u
        y = n.r(y if weight is None else weight[:, None] * y, f"{kind} product")
        return n.lin8(y, self.w(name + ".w2"), f"{kind} w2")

    def moe(self, x, positions):
        c, tokens, k = self.c, self.model.tokens, self.c.num_experts_per_tok
        s = np.sqrt(softplus(self.n.linf(x, self.w("ffn.gate")) / c.gate_temp))
        image = np.array([tokens[p] == c.image_token_id for p in positions])
        bias = np.where(image[:, None], self.w("ffn.gate.bias_vl", True), self.w("ffn.gate.bias", True))
        ids = np.argsort(-(s + bias), axis=-1, kind="stable")[:, :k]
        self.model.note(positions, boundaries.selection_gap(s + bias, k))
        self.model.put(self.index, "route_ids", ids)
        ids = self.injected("route_ids", positions, ids)
        weights = np.take_along_axis(s, ids, 1)
        if c.norm_topk_prob and k > 1:
            weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        weights = weights * c.routed_scaling_factor
        self.model.put(self.index, "route_weights", weights)
        y = np.zeros_like(x)
        for e in np.unique(ids):
            row, slot = np.nonzero(ids == e)
            y[row] += self.expert(f"ffn.experts.{e}", x[row], weights[row, slot])
        return self.n.r(y + self.expert("ffn.shared_experts", x), "experts sum")

    def run(self, stream, pre, positions, first, produced=False):
        """first: no window starts before it. produced: this forward's KV is written already."""
        n, put = self.n, lambda name, value: self.model.put(self.index, name, value)
        put("stream_in", stream)
        put("pre_in", pre)
        stream, pre = self.injected("stream_in", positions, stream), self.injected("pre_in", positions, pre)
        if self.index in self.c.engram_layer_ids:
            stream = self.engram(stream, positions)
        attn_pre, post, comb = self.mixes(stream, "attn")
        x = n.norm(self.collapse(stream, pre, "attn"), self.w("attn_norm.weight", True), "attn norm")
        a = self.attention(x, positions, first, produced)
        put("attn_in", x)
        put("attn_out", a)
        stream = self.expand(a, stream, post, comb, "attn")
        ffn_pre, post, comb = self.mixes(stream, "ffn")
        x = n.norm(self.collapse(stream, attn_pre, "ffn"), self.w("ffn_norm.weight", True), "ffn norm")
        f = self.moe(x, positions)
        put("ffn_in", x)
        put("ffn_out", f)
        stream = self.expand(f, stream, post, comb, "ffn")
        put("stream_out", stream)
        put("pre_out", ffn_pre)
        return stream, ffn_pre
