"""transformers' model with a released checkpoint's weights, ties to the lower index, always with a cache."""

import contextlib

import numpy as np
import torch
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer

import hf_source
import model_config
from checkpoint import Checkpoint


def stable_topk(self, k, dim=-1, largest=True, sorted=True):
    """Tensor.topk with model.md 11.1's rule: equal values (and +0, -0) in index order."""
    values, indices = torch.sort(self, dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


@contextlib.contextmanager
def lower_index_wins(watch=None):
    """watch(values, k): called with every input of a selection, before it."""
    original = torch.Tensor.topk

    def topk(self, k, dim=-1, largest=True, sorted=True):
        if watch is not None:
            watch(self, k)
        return stable_topk(self, k, dim, largest, sorted)

    torch.Tensor.topk = topk
    try:
        yield
    finally:
        torch.Tensor.topk = original


class MapTokenizer:
    """Stands in for the tokenizer the library would derive the Engram token map from."""

    def __init__(self, engram_map):
        self.engram_map = engram_map


def hf_config(source, c):
    known = set(source.Config.__dataclass_fields__)
    fields = {k: v for k, v in c.items() if k in known and k not in ("rope_scaling",)}
    fields["engram_pad_id"] = c.engram_pad_token_id
    fields["compress_ratios"] = list(c.ratios)
    fields["num_nextn_predict_layers"] = 0
    fields.pop("dspark_target_layer_ids", None)
    if c.rope_scaling:
        fields["rope_scaling"] = {"rope_type": "yarn", **c.rope_scaling}
    config = source.Config(**fields)
    config._attn_implementation = "eager"
    return config


class Oracle:
    """logits(tokens) of every position. dtype: torch.float64 (the truth) or torch.float32."""

    def __init__(self, source, directory, dtype=torch.float64):
        self.c = c = model_config.load(directory)
        self.checkpoint = Checkpoint(directory)
        self.dtype = dtype
        self.module = module = source.wide if dtype == torch.float64 else source.plain
        config = hf_config(source, c)
        torch.set_default_dtype(dtype)
        try:
            with torch.no_grad():
                self.model = module.DeepseekV41TextModel(config).eval()
        finally:
            torch.set_default_dtype(torch.float32)
        self._frequencies(c)
        self._weights(c)
        if c.engram_layer_ids:
            self._bind_engram(config, c)
        self.model.requires_grad_(False)

    def _frequencies(self, c):
        tables = {"main": hf_source.inv_freq(c.rope_theta, c.qk_rope_head_dim, {}),
                  "compress": hf_source.inv_freq(c.compress_rope_theta, c.qk_rope_head_dim, c.rope_scaling)}
        for part in self.model.modules():
            if isinstance(part, self.module.DeepseekV41RotaryEmbedding):
                hf_source.check_against_library(part, tables)
                part.senko_inv_freq = tables

    def _tensor(self, array):
        return torch.from_numpy(np.array(array)).to(self.dtype)

    def _weights(self, c):
        """Every parameter must be bound; names differ from the checkpoint's only in front of `head`."""
        for name, parameter in list(self.model.named_parameters()):
            owner, _, leaf = name.rpartition(".")
            module = self.model.get_submodule(owner)
            if name.endswith("engram.embed.scale"):
                continue  # rows are dequantised into the weight
            value = self.checkpoint.linear(name[:-7]) if name.endswith(".weight") else self.checkpoint.value(name)
            if ".ffn.shared_experts." not in name:  # the library ignores n_shared_experts
                assert tuple(value.shape) == tuple(parameter.shape), (name, value.shape, parameter.shape)
            setattr(module, leaf, torch.nn.Parameter(self._tensor(value), requires_grad=False))
        self.head = self._tensor(self.checkpoint.value("head.weight"))

    def _bind_engram(self, config, c):
        token_map = self.checkpoint.engram_map()
        build = self.module.build_compressed_token_map
        self.module.build_compressed_token_map = lambda _: (list(map(int, token_map)), c.engram_compressed_vocab_size)
        try:
            self.model.bind_tokenizer(MapTokenizer(token_map))
        finally:
            self.module.build_compressed_token_map = build
        primes = self.model.engram_hash_state.primes.tolist()
        assert primes == model_config.engram_primes(c), "Engram primes differ from the library's"

    def new_cache(self):
        """Built by hand: releases differ in how a cache learns of this model's source layers."""
        config, cache = self.model.config, DynamicCache()
        cache.layers = [self.module.DeepseekV41CSACache(config) if layer in self.c.kv_source_layer_ids
                        else DynamicSlidingWindowLayer(sliding_window=config.sliding_window)
                        for layer in range(config.num_hidden_layers)]
        return cache

    @torch.no_grad()
    def logits(self, tokens, chunks=None, watch=None):
        """[T, vocab] numpy array of self.dtype. chunks: lengths of the pieces, the last one repeats."""
        if self.model.engram_hash_state is not None:
            self.model.engram_hash_state.history = None
        tokens = torch.tensor([tokens])
        rows, done, cache = [], 0, self.new_cache()
        sizes = list(chunks or [tokens.shape[1]])
        with lower_index_wins(watch):
            while done < tokens.shape[1]:
                size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
                out = self.model(input_ids=tokens[:, done:done + size], past_key_values=cache, use_cache=True)
                done += size
                rows.append(out.last_hidden_state[0] @ self.head.T)
        return torch.cat(rows).numpy()
