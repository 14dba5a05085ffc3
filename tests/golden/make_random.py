#!/usr/bin/env python3
"""A random checkpoint in the released layout (model.md 2), made without Senko: make_random.py --config F --seed N --out DIR

For developing the oracle and for checkpoints that Senko's own writer did not make. Weights keep activations near 1;
biases, sinks, mHC parameters and gates are not trivial.
"""

import argparse
import json
import pathlib
import shutil

import numpy as np

import model_config
from checkpoint import E2M1, E4M3, float_to_bf16, write_safetensors

POSITIVE = {"e4m3": E4M3[:127], "e2m1": E2M1[:8]}


def pow2ceil_exponent(t):
    return np.ceil(np.log2(np.maximum(t, 2.0 ** -100))).astype(np.int64)


def nearest(values, grid):
    """Index of the closest grid value; the grid ascends from 0. Ties go up: any rule makes a valid weight."""
    return np.searchsorted((grid[1:] + grid[:-1]) / 2, values, side="right").astype(np.uint8)


def encode(x, scale, kind):
    """Codes of x / scale with the sign in the top bit of the format."""
    code = nearest(np.abs(x) / scale, POSITIVE[kind])
    return code | (np.signbit(x).astype(np.uint8) << (7 if kind == "e4m3" else 3))


def fp8_linear(x):
    rows, cols = x.shape
    padded = np.zeros((-(-rows // 32) * 32, -(-cols // 32) * 32))
    padded[:rows, :cols] = np.abs(x)
    top = padded.reshape(padded.shape[0] // 32, 32, -1, 32).max(axis=(1, 3))
    exponent = pow2ceil_exponent(top / 448)
    scale = np.repeat(np.repeat(np.exp2(exponent), 32, 0), 32, 1)[:rows, :cols]
    return ("F8_E4M3", encode(x, scale, "e4m3")), ("F8_E8M0", (exponent + 127).astype(np.uint8))


def grouped(x, kind, largest):
    """One scale per 32 consecutive values of a row: codes and exponents."""
    top = np.abs(x).reshape(x.shape[0], -1, 32).max(-1)
    exponent = pow2ceil_exponent(top / largest)
    return encode(x, np.repeat(np.exp2(exponent), 32, 1), kind), ("F8_E8M0", (exponent + 127).astype(np.uint8))


class Writer:
    def __init__(self, c, seed):
        self.c, self.rng, self.out = c, np.random.default_rng(seed), {}

    def normal(self, *shape, std=1.0):
        return self.rng.standard_normal(shape) * std

    def bf16(self, name, x):
        self.out[name] = ("BF16", float_to_bf16(x))

    def f32(self, name, x):
        self.out[name] = np.asarray(x, np.float32)

    def norm(self, name, n):
        self.bf16(name + ".weight", 1 + self.normal(n, std=0.1))

    def linear(self, name, out, width):
        self.bf16(name + ".weight", self.normal(out, width, std=width ** -0.5))

    def fp8(self, name, out, width):
        self.out[name + ".weight"], self.out[name + ".scale"] = fp8_linear(self.normal(out, width, std=width ** -0.5))

    def fp4(self, name, out, width):
        codes, scale = grouped(self.normal(out, width, std=width ** -0.5), "e2m1", 6.0)
        self.out[name + ".weight"] = ("I8", (codes[:, ::2] | (codes[:, 1::2] << 4)).view(np.int8))
        self.out[name + ".scale"] = scale

    def block(self, at, experts):
        """What a backbone layer and a draft stage have in common."""
        c, D = self.c, self.c.hidden_size
        mix, heads, d = (2 + c.hc_mult) * c.hc_mult, c.num_attention_heads, c.head_dim
        self.norm(at + "attn_norm", D)
        self.norm(at + "ffn_norm", D)
        for site in ("attn", "ffn"):
            self.f32(f"{at}hc_{site}_fn", self.normal(mix, c.hc_mult * D, std=(c.hc_mult * D) ** -0.5))
            self.f32(f"{at}hc_{site}_base", self.normal(mix, std=0.7))
            self.f32(f"{at}hc_{site}_scale", self.rng.uniform(0.3, 1.2, 3))
        a = at + "attn."
        self.f32(a + "attn_sink", self.normal(heads))
        self.fp8(a + "wq_a", c.q_lora_rank, D)
        self.norm(a + "q_norm", c.q_lora_rank)
        self.fp8(a + "wq_b", heads * d, c.q_lora_rank)
        self.fp8(a + "wkv", d, D)
        self.norm(a + "kv_norm", d)
        self.fp8(a + "wo_a", c.o_groups * c.o_lora_rank, heads * d // c.o_groups)
        self.fp8(a + "wo_b", D, c.o_groups * c.o_lora_rank)
        f, inter = at + "ffn.", c.moe_intermediate_size
        self.linear(f + "gate", experts, D)
        self.f32(f + "gate.bias", self.normal(experts, std=0.2))
        self.f32(f + "gate.bias_vl", self.normal(experts, std=0.2))
        for e in range(experts):
            self.fp4(f"{f}experts.{e}.w1", inter, D)
            self.fp4(f"{f}experts.{e}.w3", inter, D)
            self.fp4(f"{f}experts.{e}.w2", D, inter)
        shared = inter * c.n_shared_experts
        self.fp8(f + "shared_experts.w1", shared, D)
        self.fp8(f + "shared_experts.w3", shared, D)
        self.fp8(f + "shared_experts.w2", D, shared)

    def backbone(self):
        c, D, d = self.c, self.c.hidden_size, self.c.head_dim
        for layer in range(c.num_hidden_layers):
            at = f"layers.{layer}."
            self.block(at, c.n_routed_experts)
            a = at + "attn."
            if layer in c.kv_source_layer_ids:
                self.linear(a + "compressor.wkv", d, D)
                if c.ratios[layer] == 2:
                    self.linear(a + "compressor.wgate", d, D)
                self.norm(a + "compressor.norm", d)
                self.linear(a + "indexer.wk", c.index_head_dim, d)
                self.norm(a + "indexer.k_norm", c.index_head_dim)
            if layer in c.index_source_layer_ids:
                self.fp8(a + "indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank)
                self.linear(a + "indexer.weights_proj", c.index_n_heads, D)
            if layer in c.engram_layer_ids:
                rows = c.engram_num_embeddings[list(c.engram_layer_ids).index(layer)]
                codes, scale = grouped(self.normal(rows, c.engram_head_dim), "e4m3", 448.0)
                self.out[at + "engram.embed.weight"] = ("F8_E4M3", codes)
                self.out[at + "engram.embed.scale"] = scale
                width = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
                self.fp8(at + "engram.wkv", (c.hc_mult + 1) * D, width)
                self.bf16(at + "engram.q_weight", 1 + self.normal(c.hc_mult, D, std=0.2))
                self.bf16(at + "engram.k_weight", 1 + self.normal(c.hc_mult, D, std=0.2))
        self.bf16("embed.weight", self.normal(c.vocab_size, D))
        self.linear("head", c.vocab_size, D)
        self.norm("norm", D)

    def drafts(self):
        c, D = self.c, self.c.hidden_size
        last = c.num_nextn_predict_layers - 1
        for stage in range(last + 1):
            self.block(f"mtp.{stage}.", c.dspark_n_routed_experts)
        if last >= 0:
            self.fp8("mtp.0.main_proj", D, len(c.dspark_target_layer_ids) * D)
            self.norm("mtp.0.main_norm", D)
            self.norm(f"mtp.{last}.norm", D)
            self.bf16(f"mtp.{last}.markov_head.embed.weight", self.normal(c.vocab_size, c.dspark_markov_rank))
            self.linear(f"mtp.{last}.markov_head.head", c.vocab_size, c.dspark_markov_rank)
            self.linear(f"mtp.{last}.confidence_head.proj", 1, D + c.dspark_markov_rank)

    def vision(self):
        v, D = self.c.get("vision_config"), self.c.hidden_size
        if not v:
            return
        n, inter = v["hidden_size"], v["intermediate_size"]

        def biased(name, out, width):
            self.linear(name, out, width)
            self.bf16(name + ".bias", self.normal(out, std=0.1))

        biased("vision.patch_embed.proj", n, 3 * v["patch_size"] ** 2)
        for layer in range(v["num_hidden_layers"]):
            at = f"vision.blocks.{layer}."
            self.norm(at + "norm1", n)
            self.norm(at + "norm2", n)
            biased(at + "attn.wqkv", 3 * n, n)
            biased(at + "attn.wo", n, n)
            self.linear(at + "mlp.w1", 2 * inter, n)
            self.linear(at + "mlp.w2", n, inter)
        self.norm("vision.norm", n)
        biased("aligner.w1", D, n * v["downsample_ratio"] ** 2)
        biased("aligner.w2", D, D)
        for name in ("image_start", "image_end", "image_newline"):
            self.bf16(name, self.normal(D))


def make(config_file, seed, out):
    """Writes DIR/config.json, model.safetensors and engram_map.json (id -> id mod compressed size)."""
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    c = model_config.load(config_file)
    writer = Writer(c, seed)
    writer.backbone()
    writer.drafts()
    writer.vision()
    write_safetensors(out / "model.safetensors", writer.out, {"format": "pt"})
    shutil.copyfile(config_file, out / "config.json")
    if c.engram_layer_ids:
        ids = [i % c.engram_compressed_vocab_size for i in range(c.vocab_size)]
        (out / "engram_map.json").write_text(json.dumps(ids))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    make(args.config, args.seed, args.out)


if __name__ == "__main__":
    main()
