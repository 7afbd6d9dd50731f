#!/usr/bin/env python3
"""Makes the tiny models of tests/data/models and their golden logits.

Each folder gets config.json in the style of the real checkpoints of its family, random weights,
and golden.safetensors: `ids` i64 [64] and `logits` f32 [64, vocab] from transformers in f32 with
eager attention. Weights of 16 bits are widened, so the golden numbers are f32 arithmetic over the
rounded weights. Needs torch, transformers (4.57 was used; 5.23 from gemma3 on) and safetensors; run
it from anywhere.
Weights are scaled so that attention is far from uniform: scores have a standard deviation of 2 to 3.
"""

import json
import math
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

POSITIONS = 64
OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "models"

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 101,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
}

MODELS = {
    # Llama 2: every query head has its own KV head, untied, f16.
    "llama2": (torch.float16, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5, "rope_scaling": None, "tie_word_embeddings": False,
        "pretraining_tp": 1, "torch_dtype": "float16"}),
    # Llama 3.1: grouped heads, scaled RoPE; the small original context makes the scaling bite
    # within 64 positions. Two shards.
    "llama31": (torch.float32, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 2,
        "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 32, "rope_type": "llama3"},
        "eos_token_id": [2, 7, 9], "tie_word_embeddings": False, "torch_dtype": "float32"}),
    # The Llama fields that few checkpoints use: biases everywhere, linear RoPE scaling.
    "llama_bias": (torch.float32, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 1,
        "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48, "num_hidden_layers": 1,
        "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-6,
        "rope_scaling": {"type": "linear", "factor": 2.5}, "tie_word_embeddings": True,
        "torch_dtype": "float32"}),
    # Mistral 7B v0.1: a sliding window, here shorter than the text.
    "mistral": (torch.float32, {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "num_key_value_heads": 2,
        "head_dim": 16, "sliding_window": 24, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "float32"}),
    # Qwen2: biases on q, k and v; its upper layer slides.
    "qwen2": (torch.float32, {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2,
        "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True,
        "torch_dtype": "float32"}),
    # Qwen3: norms of q and k, heads wider than hidden / heads, tied.
    "qwen3": (torch.float32, {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_key_value_heads": 2,
        "head_dim": 32, "attention_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "rope_scaling": None, "sliding_window": None, "use_sliding_window": False,
        "max_window_layers": 2, "intermediate_size": 48, "tie_word_embeddings": True,
        "torch_dtype": "float32"}),
    # DeepSeek-R1-Distill-Qwen: a Qwen2 by another name, untied, bf16.
    "deepseek_r1_distill": (torch.bfloat16, {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2,
        "attention_dropout": 0.0, "max_window_layers": 21, "rms_norm_eps": 1e-6,
        "rope_theta": 10000, "sliding_window": 4096, "use_mrope": False,
        "use_sliding_window": False, "use_cache": True, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16"}),
    # Gemma 3: norms before and after, with weights from 1 on, queries and keys normalised, two
    # RoPEs (the global one scaled, as from 4B on), every third layer sees everything, a scale of
    # scores that is not 1 / sqrt(head_dim), GeGLU.
    "gemma3": (torch.float32, {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
        "num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 48,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24,
        "sliding_window": 20, "sliding_window_pattern": 3, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "rms_norm_eps": 1e-6, "attention_bias": False, "final_logit_softcapping": None,
        "attn_logit_softcapping": None, "layer_types": [
            "sliding_attention", "sliding_attention", "full_attention"],
        "tie_word_embeddings": True, "torch_dtype": "float32"}, ["hidden_act"]),
    # Gemma 2: as Gemma 3 without norms of q and k, soft caps of scores and logits that bite here,
    # layers that slide alternate, one RoPE.
    "gemma2": (torch.float32, {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2",
        "num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 48,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24,
        "sliding_window": 20, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "attention_bias": False,
        "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.5,
        "tie_word_embeddings": True, "torch_dtype": "float32"}, ["hidden_act"]),
    # Phi-4-mini: fused matrices, RoPE over three quarters of a head, by long factors, since 64
    # positions pass the original context.
    "phi4_mini": (torch.bfloat16, {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "num_key_value_heads": 2,
        "hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1,
        "partial_rotary_factor": 0.75, "original_max_position_embeddings": 32,
        "rope_scaling": {"type": "longrope",
                         "long_factor": [1, 1.1, 1.3, 1.7, 2.4, 3.3, 4.5, 6, 8, 11, 14, 16],
                         "short_factor": [1, 1, 1, 1.05, 1.1, 1.1, 1.2, 1.3, 1.5, 1.7, 2, 2.2]},
        "rms_norm_eps": 1e-5, "sliding_window": 262144, "attention_bias": False, "rope_theta": 10000.0,
        "pad_token_id": 0, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}),
    # Phi-3-mini 4K: untied, heads of 96 / 3 channels, a sliding window.
    "phi3": (torch.float32, {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "num_key_value_heads": 2,
        "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1,
        "original_max_position_embeddings": 512, "rope_scaling": None, "rms_norm_eps": 1e-5,
        "sliding_window": 23, "attention_bias": False, "rope_theta": 10000.0, "pad_token_id": 0,
        "tie_word_embeddings": False, "torch_dtype": "float32"}),
    # OLMo 2: norms after the blocks alone, queries and keys normalised over all heads.
    "olmo2": (torch.float32, {
        "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6, "rope_theta": 500000.0, "rope_scaling": None, "pad_token_id": 0,
        "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "float32"}),
    # Granite: four multipliers.
    "granite": (torch.bfloat16, {
        "architectures": ["GraniteForCausalLM"], "model_type": "granite", "num_key_value_heads": 2,
        "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-5, "rope_theta": 10000000.0,
        "rope_scaling": None, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "attention_multiplier": 0.125, "logits_scaling": 8.0, "pad_token_id": 0,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16"}),
}


# A layer's norms before and after attention and MLP; what is not here has Llama's.
LLAMA_NORMS = ("input_layernorm", None, "post_attention_layernorm", None)
NORMS = {
    "gemma2": ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
               "post_feedforward_layernorm"),
    "gemma3_text": ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                    "post_feedforward_layernorm"),
    "olmo2": (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
}
# Of q and k, per head or over all heads.
QK_NORMS = {"qwen3": "head", "gemma3_text": "head", "olmo2": "whole"}


def tensors_of(config: dict, dtype: torch.dtype, seed: int) -> dict:
    """Random weights in the order of the checkpoint."""
    random = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim", hidden // heads)
    kind = config["model_type"]
    qkv_bias = kind == "qwen2" or config.get("attention_bias", False)
    before, after, before_mlp, after_mlp = NORMS.get(kind, LLAMA_NORMS)
    offset = 1.0 if kind in ("gemma2", "gemma3_text") else 0.0
    fused = kind == "phi3"

    def normal(shape, std, mean=0.0):
        return (mean + std * torch.randn(shape, generator=random)).to(dtype)

    def norm(name, size, std=0.2, mean=1.0):
        if name:
            out[name + ".weight"] = normal((size,), std, mean - offset)

    def linear(name, rows, columns, gain, bias):
        out[name + ".weight"] = normal((rows, columns), gain / math.sqrt(columns))
        if bias:
            out[name + ".bias"] = normal((rows,), 0.5)

    spread = 1.0 / 8 * config.get("logits_scaling", 1.0)
    out = {"model.embed_tokens.weight": normal((config["vocab_size"], hidden), spread)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        norm(before and prefix + before, hidden)
        if fused:
            linear(attention + "qkv_proj", (heads + 2 * kv_heads) * dim, hidden, 1.6, False)
        else:
            linear(attention + "q_proj", heads * dim, hidden, 1.6, qkv_bias)
            linear(attention + "k_proj", kv_heads * dim, hidden, 1.6, qkv_bias)
            linear(attention + "v_proj", kv_heads * dim, hidden, 1.0, qkv_bias)
        linear(attention + "o_proj", hidden, heads * dim, 1.0, config.get("attention_bias", False))
        if kind in QK_NORMS:
            whole = QK_NORMS[kind] == "whole"
            norm(attention + "q_norm", heads * dim if whole else dim, 0.3, 1.6)
            norm(attention + "k_norm", kv_heads * dim if whole else dim, 0.3, 1.6)
        norm(after and prefix + after, hidden)
        norm(before_mlp and prefix + before_mlp, hidden)
        if fused:
            linear(mlp + "gate_up_proj", 2 * inner, hidden, 1.2, False)
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)),
                            ("down", (hidden, inner))):
            if name == "down" or not fused:
                linear(mlp + name + "_proj", *shape, 1.2, config.get("mlp_bias", False))
        norm(after_mlp and prefix + after_mlp, hidden)
    norm("model.norm", hidden)
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = normal((config["vocab_size"], hidden), 2.0 / math.sqrt(hidden))
    return out


def save_weights(folder: pathlib.Path, tensors: dict, shards: int) -> None:
    metadata = {"format": "pt"}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata)
        return
    names = list(tensors)
    cut = -(-len(names) // shards)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard * cut:(shard + 1) * cut]}
        save_file(part, folder / file, metadata)
        weight_map.update({name: file for name in part})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def make(name: str, seed: int) -> None:
    dtype, changes, *absent = MODELS[name]
    config = {key: value for key, value in (SMALL | changes).items() if key not in sum(absent, [])}
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_weights(folder, tensors_of(config, dtype, seed), 2 if name == "llama31" else 1)

    # Loading through the folder makes transformers read the same config.json as Pith does.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                 attn_implementation="eager")
    model.eval()
    ids = torch.randint(0, config["vocab_size"], (POSITIONS,),
                        generator=torch.Generator().manual_seed(seed + 1000))
    with torch.no_grad():
        out = model(ids[None], output_attentions=True)
    logits = out.logits[0].float().contiguous()
    peak = torch.stack([a[0, :, 32:].max(-1).values.mean() for a in out.attentions]).mean()
    save_file({"ids": ids, "logits": logits}, folder / "golden.safetensors")
    print(f"{name}: logits std {logits.std():.2f}, mean of the largest attention {peak:.2f}, "
          f"{sum(f.stat().st_size for f in folder.iterdir())} bytes")


if __name__ == "__main__":
    for number, each in enumerate(MODELS):
        if len(sys.argv) == 1 or each in sys.argv[1:]:
            make(each, number)
