#!/usr/bin/env python3
"""Makes the tiny models of tests/data/models and their golden logits.

Each folder gets config.json in the style of the real checkpoints of its family, random weights,
and golden.safetensors: `ids` i64 [64] and `logits` f32 [64, vocab] from transformers in f32 with
eager attention. Weights of 16 bits are widened, so the golden numbers are f32 arithmetic over the
rounded weights. Needs torch, transformers (4.57 was used) and safetensors; run it from anywhere.
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
}


def tensors_of(config: dict, dtype: torch.dtype, seed: int) -> dict:
    """Random weights in the order of the checkpoint."""
    random = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim", hidden // heads)
    qwen2, qwen3 = (config["model_type"] == name for name in ("qwen2", "qwen3"))
    attention_bias = config.get("attention_bias", False)

    def normal(shape, std, mean=0.0):
        return (mean + std * torch.randn(shape, generator=random)).to(dtype)

    def linear(name, rows, columns, gain, bias):
        out[name + ".weight"] = normal((rows, columns), gain / math.sqrt(columns))
        if bias:
            out[name + ".bias"] = normal((rows,), 0.5)

    out = {"model.embed_tokens.weight": normal((config["vocab_size"], hidden), 1.0 / 8)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        out[prefix + "input_layernorm.weight"] = normal((hidden,), 0.2, 1.0)
        linear(attention + "q_proj", heads * dim, hidden, 1.6, qwen2 or attention_bias)
        linear(attention + "k_proj", kv_heads * dim, hidden, 1.6, qwen2 or attention_bias)
        linear(attention + "v_proj", kv_heads * dim, hidden, 1.0, qwen2 or attention_bias)
        linear(attention + "o_proj", hidden, heads * dim, 1.0, attention_bias)
        if qwen3:
            out[attention + "q_norm.weight"] = normal((dim,), 0.3, 1.6)
            out[attention + "k_norm.weight"] = normal((dim,), 0.3, 1.6)
        out[prefix + "post_attention_layernorm.weight"] = normal((hidden,), 0.2, 1.0)
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)),
                            ("down", (hidden, inner))):
            linear(mlp + name + "_proj", *shape, 1.2, config.get("mlp_bias", False))
    out["model.norm.weight"] = normal((hidden,), 0.2, 1.0)
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
    dtype, changes = MODELS[name]
    config = SMALL | changes
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
