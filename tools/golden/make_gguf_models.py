#!/usr/bin/env python3
"""Writes tests/data/gguf/NAME.gguf: models of tests/data/models as llama.cpp's converter stores them.

They must give the golden logits of the folders that they are made from. Only architectures whose
names, keys or fused matrices no other test covers. Rules: names and keys of the gguf package, the
row order and the scales of llama.cpp's conversion scripts as shared facts (Granite's queries and keys
are stored for a RoPE that turns neighbours; Phi 3 keeps its matrices fused and its rotation factors
in two tensors). Needs numpy and gguf (0.19 was used); run it from anywhere.
"""

import json
import math
import pathlib
import struct
import sys

import gguf
import numpy as np

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data"
TYPES = {"F32": gguf.GGMLQuantizationType.F32, "BF16": gguf.GGMLQuantizationType.BF16}
ARCHITECTURES = {
    "phi3": gguf.MODEL_ARCH.PHI3,
    "phi4_mini": gguf.MODEL_ARCH.PHI3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "granite": gguf.MODEL_ARCH.GRANITE,
}


def read_safetensors(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    for name, info in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        first, last = (8 + length + n for n in info["data_offsets"])
        width = 4 if info["dtype"] == "F32" else 2
        raw = np.frombuffer(data[first:last], np.uint8)
        yield name, info["dtype"], raw.reshape(*info["shape"][:-1], info["shape"][-1] * width)


def to_f32(raw, dtype):
    if dtype == "F32":
        return raw.view(np.float32)
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def for_neighbours(rows, heads):
    """Row i + b D/2 of a head goes to 2 i + b."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write_keys(writer, name, config):
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    if name == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if name.startswith("phi"):
        rotated = int(config.get("partial_rotary_factor", 1) * hidden / heads)
        writer.add_rope_dimension_count(rotated)
        writer.add_sliding_window(config["sliding_window"])
        original = config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        scaling = config["rope_scaling"]
        if scaling:
            scale = config["max_position_embeddings"] / original
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
            for length in ("long", "short"):
                factors = np.array(scaling[length + "_factor"], np.float32)
                writer.add_tensor(f"rope_factors_{length}.weight", factors)


def write(name):
    folder = DATA / "models" / name
    config = json.loads((folder / "config.json").read_text())
    arch = ARCHITECTURES[name]
    out = DATA / "gguf" / f"{name}.gguf"
    out.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(str(out), gguf.MODEL_ARCH_NAMES[arch])
    write_keys(writer, name, config)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for tensor, dtype, raw in read_safetensors(folder / "model.safetensors"):
        stored = names.get_name(tensor, try_suffixes=(".weight", ".bias"))
        if stored is None:
            sys.exit(f"{name}: the gguf package has no name for {tensor}")
        if raw.ndim == 1:
            writer.add_tensor(stored, to_f32(raw, dtype))
            continue
        if name == "granite" and ".q_proj" in tensor:
            raw = for_neighbours(raw, config["num_attention_heads"])
        if name == "granite" and ".k_proj" in tensor:
            raw = for_neighbours(raw, config["num_key_value_heads"])
        writer.add_tensor(stored, np.ascontiguousarray(raw), raw_dtype=TYPES[dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(out)


def main():
    for name in ARCHITECTURES:
        write(name)


if __name__ == "__main__":
    main()
