#!/usr/bin/env python3
"""Writes configs/*.json: small configurations that between them reach every branch of model.md 3.

Each is mini10 (model.md 9) with some fields replaced; `window_official` is in the inference spelling.
"""

import copy
import json
import pathlib

import model_config

MINI10 = {
    "model_type": "deepseek_v41_text", "vocab_size": 512, "hidden_size": 256, "num_hidden_layers": 10,
    "moe_intermediate_size": 64, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 64,
    "qk_rope_head_dim": 16, "q_lora_rank": 64, "o_lora_rank": 64, "o_groups": 2, "hidden_act": "silu",
    "swiglu_limit": 10.0, "rms_norm_eps": 1e-20, "attention_bias": False, "attention_dropout": 0.0,
    "initializer_range": 0.02, "use_cache": True, "tie_word_embeddings": False, "max_position_embeddings": 512,
    "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 32},
    "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 3, "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5, "sliding_window": 16,
    "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0], "kv_source_layer_ids": [2, 4, 6],
    "index_source_layer_ids": [2, 4, 6, 8], "index_n_heads": 4, "index_head_dim": 32, "index_topk": 8,
    "candidate_source_layer_id": 6, "candidate_topk_blocks": 4, "candidate_block_size": 4, "hc_mult": 4,
    "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "engram_layer_ids": [1, 4], "engram_max_ngram_size": 4,
    "engram_vocab_size": 97, "engram_n_heads": 2, "engram_head_dim": 32, "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 256, "num_nextn_predict_layers": 2, "dspark_block_size": 5,
    "dspark_noise_token_id": 7, "dspark_target_layer_ids": [7, 8, 9], "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 8, "dspark_num_experts_per_tok": 2, "engram_num_embeddings": [630, 834],
}
VISION = {"model_type": "deepseek_v41_vision", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2,
          "intermediate_size": 96, "patch_size": 4, "rope_theta": 10000, "downsample_ratio": 3,
          "max_image_tokens": 64, "min_pixels": 576, "max_wh_ratio": None}
TOP = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
       "image_token_id": 511, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
       "transformers_version": "5.6.0",
       "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                               "scale_fmt": "ue8m0", "expert_dtype": "fp4"}}
NO_ENGRAM = {"engram_layer_ids": [], "engram_num_embeddings": []}
SMALL = {"num_hidden_layers": 6, "num_nextn_predict_layers": 0, "dspark_target_layer_ids": [3, 4, 5],
         "hidden_size": 128, "num_attention_heads": 4, "engram_layer_ids": [1], "engram_num_embeddings": [630]}

# name -> fields in place of mini10's.
VARIANTS = {
    "mini10": {},
    # The released geometry of a head: window 128, top 512, one Engram layer; candidates cut beyond 576 entries.
    "wide": {"hidden_size": 512, "num_hidden_layers": 5, "num_nextn_predict_layers": 0, "num_attention_heads": 64,
             "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 128, "o_lora_rank": 64, "o_groups": 8,
             "moe_intermediate_size": 128, "n_routed_experts": 8, "num_experts_per_tok": 2, "sliding_window": 128,
             "compress_ratios": [0, 2, 2, 1, 1], "kv_source_layer_ids": [1, 3], "index_source_layer_ids": [1, 3, 4],
             "index_n_heads": 32, "index_head_dim": 128, "index_topk": 512, "candidate_source_layer_id": 3,
             "candidate_topk_blocks": 72, "candidate_block_size": 8, "max_position_embeddings": 2048,
             "engram_layer_ids": [1], "engram_num_embeddings": [630], "dspark_target_layer_ids": [2, 3, 4],
             "rope_scaling": {**MINI10["rope_scaling"], "original_max_position_embeddings": 128}},
    # Ratio 1 only, no candidates, clamps that bite, no Engram, YaRN off.
    "ratio1_clamp": {**SMALL, **NO_ENGRAM, "compress_ratios": [0, 1, 1, 1, 1, 1], "kv_source_layer_ids": [1, 3],
                     "index_source_layer_ids": [1, 3, 5], "candidate_source_layer_id": -1, "swiglu_limit": 0.05,
                     "sliding_window": 8, "rope_scaling": None, "o_groups": 4, "index_topk": 6},
    # Only ratio 2 (the seam of the two passes lies at a ratio-2 source), one group, two shared experts, hc 2.
    "ratio2_shared": {**SMALL, "compress_ratios": [0, 2, 2, 2, 2, 2], "kv_source_layer_ids": [1, 3],
                      "index_source_layer_ids": [1, 2, 3, 5], "candidate_source_layer_id": 3,
                      "candidate_topk_blocks": 3, "candidate_block_size": 5, "index_topk": 11, "o_groups": 1,
                      "n_shared_experts": 2, "num_experts_per_tok": 1, "hc_mult": 2, "sliding_window": 32},
    # The YaRN ramp begins above 0 (low 4, high 7 of 16 frequencies), every layer is an index source, 8 groups.
    "yarn_ramp": {**SMALL, "num_attention_heads": 8, "qk_rope_head_dim": 32, "head_dim": 96, "index_head_dim": 64,
                  "compress_ratios": [0, 0, 2, 2, 1, 1], "kv_source_layer_ids": [2, 4],
                  "index_source_layer_ids": [2, 3, 4, 5], "candidate_source_layer_id": 4, "o_groups": 8,
                  "candidate_topk_blocks": 9, "candidate_block_size": 2, "index_topk": 16, "index_n_heads": 3,
                  "rope_scaling": {"rope_type": "yarn", "factor": 8, "beta_fast": 32, "beta_slow": 4,
                                   "original_max_position_embeddings": 4096}},
    # No window-only layer in front, an Engram layer 0, 2-grams to 3-grams, the pad id not first, no normalisation.
    "engram_first": {**SMALL, "compress_ratios": [2, 2, 1, 1, 1, 1], "kv_source_layer_ids": [0, 2],
                     "index_source_layer_ids": [0, 2, 4], "candidate_source_layer_id": 2, "engram_layer_ids": [0, 3],
                     "engram_max_ngram_size": 3, "engram_n_heads": 3, "engram_head_dim": 64,
                     "engram_num_embeddings": [0, 0], "engram_pad_token_id": 300, "norm_topk_prob": False,
                     "routed_scaling_factor": 0.75, "hc_sinkhorn_iters": 3, "hc_mult": 3, "num_experts_per_tok": 5},
    # The inference spelling, a single KV source, window 32, one expert group of 32.
    "window_official": {**SMALL, "compress_ratios": [0, 0, 0, 1, 1, 1], "kv_source_layer_ids": [3],
                        "index_source_layer_ids": [3, 5], "candidate_source_layer_id": 3, "sliding_window": 32,
                        "n_routed_experts": 32, "num_experts_per_tok": 4, "candidate_topk_blocks": 3,
                        "candidate_block_size": 8, "index_topk": 12, "swiglu_limit": 0.5},
    # Window-only: no KV source at all.
    "window_only": {**SMALL, "num_hidden_layers": 3, "compress_ratios": [0, 0, 0], "kv_source_layer_ids": [],
                    "index_source_layer_ids": [], "candidate_source_layer_id": -1, "rope_scaling": None,
                    "sliding_window": 8, "dspark_target_layer_ids": [0, 1, 2]},
}


def inference_spelling(top, text):
    """The flat form of inference/config.json."""
    back = {v: k for k, v in model_config.INFERENCE_NAMES.items()}
    yarn_back = {v: k for k, v in model_config.YARN_NAMES.items()}
    dropped = {"model_type", "hidden_act", "attention_bias", "attention_dropout", "initializer_range", "use_cache",
               "tie_word_embeddings", "rope_scaling", "num_key_value_heads", "topk_method"}
    out = {back.get(k, k): v for k, v in text.items() if k not in dropped}
    out.update({yarn_back[k]: v for k, v in text["rope_scaling"].items() if k in yarn_back})
    out["image_token_id"] = top["image_token_id"]
    out.update({"expert_dtype": "fp4", "scale_fmt": "ue8m0"})
    return out


def build(name):
    text = {**copy.deepcopy(MINI10), **copy.deepcopy(VARIANTS[name])}
    if text["rope_scaling"] is None:
        del text["rope_scaling"]
    text["engram_num_embeddings"] = [sum(map(sum, layer)) for layer in
                                     model_config.engram_primes(model_config.Config(text))]
    if name == "window_official":
        return inference_spelling(TOP, text)
    vision = {"vision_config": VISION} if name == "mini10" else {}
    return {**TOP, "text_config": text, **vision}


def main():
    folder = pathlib.Path(__file__).parent / "configs"
    folder.mkdir(exist_ok=True)
    for name in VARIANTS:
        raw = build(name)
        model_config.normalise(raw)
        (folder / f"{name}.json").write_text(json.dumps(raw, indent=1) + "\n")


if __name__ == "__main__":
    main()
