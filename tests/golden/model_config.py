"""Reads a checkpoint's config.json in either spelling (model.md 1.2) into one set of names."""

import json
import pathlib

# Inference spelling -> released spelling.
INFERENCE_NAMES = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "rope_head_dim": "qk_rope_head_dim", "norm_eps": "rms_norm_eps", "max_seq_len": "max_position_embeddings",
    "n_activated_experts": "num_experts_per_tok", "moe_inter_dim": "moe_intermediate_size",
    "score_func": "scoring_func", "route_scale": "routed_scaling_factor", "window_size": "sliding_window",
    "kv_source_layers": "kv_source_layer_ids", "index_source_layers": "index_source_layer_ids",
    "candidate_source_layer": "candidate_source_layer_id", "engram_pad_id": "engram_pad_token_id",
    "n_mtp_layers": "num_nextn_predict_layers", "dspark_n_activated_experts": "dspark_num_experts_per_tok",
}
# Inference spelling of YaRN -> key of rope_scaling.
YARN_NAMES = {"original_seq_len": "original_max_position_embeddings", "rope_factor": "factor",
              "beta_fast": "beta_fast", "beta_slow": "beta_slow"}
# What the released files leave out.
DEFAULTS = {"gate_temp": 1.0, "norm_topk_prob": True, "n_shared_experts": 1, "swiglu_limit": 0.0,
            "candidate_source_layer_id": -1, "engram_layer_ids": [], "engram_pad_token_id": 2,
            "num_nextn_predict_layers": 0, "hc_eps": 1e-6, "rms_norm_eps": 1e-20, "image_token_id": -1}


class Config(dict):
    """The text configuration under the released names, as attributes, plus `rope_scaling` ({} when YaRN is off)."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(f"config has no {name}") from error

    @property
    def ratios(self):
        return self.compress_ratios[:self.num_hidden_layers]

    def kv_source(self, layer):
        return max((s for s in self.kv_source_layer_ids if s <= layer), default=-1)

    def index_source(self, layer):
        return max((s for s in self.index_source_layer_ids if s <= layer), default=-1)

    @property
    def last_kv_source(self):
        return max(self.kv_source_layer_ids, default=-1)


def normalise(raw):
    """One dict of released names from a parsed config.json."""
    out = Config(DEFAULTS)
    text = dict(raw.get("text_config", raw))
    yarn = {k: v for k, v in (text.pop("rope_scaling", None) or {}).items()}
    for key, value in text.items():
        if key in YARN_NAMES:
            yarn[YARN_NAMES[key]] = value
        else:
            out[INFERENCE_NAMES.get(key, key)] = value
    for key in ("image_token_id", "bos_token_id", "eos_token_id", "pad_token_id", "vision_config"):
        if key in raw:
            out[key] = raw[key]
    out["rope_scaling"] = yarn if yarn.get("original_max_position_embeddings", 0) else {}
    check(out)
    return out


def load(path):
    path = pathlib.Path(path)
    if path.is_dir():
        path = path / "config.json"
    return normalise(json.loads(path.read_text()))


def check(c):
    """The rules of model.md 9 and 11.11: the golden configurations must be ones Senko accepts."""
    ratios, kv, index = c.ratios, c.kv_source_layer_ids, c.index_source_layer_ids
    assert len(ratios) == c.num_hidden_layers and set(ratios) <= {0, 1, 2}, "compress_ratios"
    assert set(kv) <= set(index), "every KV source is an index source"
    for layer, ratio in enumerate(ratios):
        source = c.kv_source(layer)
        assert (ratio == 0) == (source < 0), f"layer {layer}: ratio 0 exactly before the first KV source"
        assert source < 0 or ratios[source] == ratio, f"layer {layer}: ratio changes without a KV source"
    if c.candidate_source_layer_id >= 0:
        assert c.candidate_source_layer_id in index and max(kv) == c.candidate_source_layer_id, "candidate source"
        reach = c.candidate_topk_blocks * c.candidate_block_size - (c.candidate_block_size - 1)
        assert reach >= c.index_topk, "candidate blocks may starve the selection"
    assert len(c.engram_layer_ids) == len(c.get("engram_num_embeddings", [])), "engram_num_embeddings"


def engram_primes(c):
    """Per Engram layer, per n-gram size, `engram_n_heads` primes (model.md 3.7)."""
    def is_prime(n):
        return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))

    used, layers = set(), []
    for _ in c.engram_layer_ids:
        sizes = []
        for _ in range(c.engram_max_ngram_size - 1):
            row, candidate = [], c.engram_vocab_size - 1
            while len(row) < c.engram_n_heads:
                candidate += 1
                if candidate not in used and is_prime(candidate):
                    used.add(candidate)
                    row.append(candidate)
            sizes.append(row)
        layers.append(sizes)
    return layers
