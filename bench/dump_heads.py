"""Writes queries, keys and values of a Llama-family model on a text, for methods_study_bench.

usage: dump_heads.py MODEL_FOLDER TEXT.txt OUT.bin [FIRST_CHARACTER]
Needs torch, transformers and tokenizers. Reads up to 8192 tokens of the text (also .xz).
"""

import lzma
import pathlib
import sys

import numpy as np
import torch
import transformers.models.llama.modeling_llama as modeling
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

TOKENS = 8192


def main() -> None:
    folder, text_path, out_path = sys.argv[1:4]
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    opener = lzma.open if text_path.endswith(".xz") else open
    with opener(text_path, "rt", encoding="utf-8") as f:
        text = f.read()[first : first + 10 * TOKENS]
    tokenizer = Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
    ids = [0] + tokenizer.encode(text, add_special_tokens=False).ids
    ids = torch.tensor([ids[:TOKENS]])
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    queries_and_keys, values = [], []
    rotate = modeling.apply_rotary_pos_emb

    def rotate_and_note(q, k, *rest, **named):
        q, k = rotate(q, k, *rest, **named)
        queries_and_keys.append((q[0].transpose(0, 1), k[0].transpose(0, 1)))
        return q, k

    modeling.apply_rotary_pos_emb = rotate_and_note
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(
            lambda module, given, out: values.append(out[0])
        )
    with torch.no_grad():
        model(ids)
    c = model.config
    shape = [len(values), c.num_attention_heads, c.num_key_value_heads, c.head_dim, ids.shape[1]]
    with open(out_path, "wb") as f:
        np.array(shape, dtype=np.int64).tofile(f)
        for (q, k), v in zip(queries_and_keys, values):
            for x in (q, k, v):
                x.contiguous().float().numpy().tofile(f)


main()
