"""A Llama-architecture language model: GQA, RoPE, SwiGLU, RMSNorm, tied embeddings.

Parameters have the names of Hugging Face's Llama without the prefix "model.", so that saving is a
renaming. Letters: B sequences, T tokens, H query heads, G KV heads, D head_dim.
"""

import dataclasses
import json
import math

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from corpus import BOS, EOS

EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class Shape:
    """Defaults are the demo model."""
    vocab: int = 8192
    hidden: int = 384
    layers: int = 8
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    feed_forward: int = 1024
    rope_theta: float = 100000.0
    context: int = 8192


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x, cos, sin):
    """RoPE on x [B, heads, T, D] in the half-split layout that Hugging Face uses."""
    low, high = x.chunk(2, -1)
    return (x * cos + torch.cat([-high, low], -1) * sin).to(x.dtype)


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, EPSILON)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.q_proj = linear(shape.hidden, shape.heads * shape.head_dim)
        self.k_proj = linear(shape.hidden, shape.kv_heads * shape.head_dim)
        self.v_proj = linear(shape.hidden, shape.kv_heads * shape.head_dim)
        self.o_proj = linear(shape.heads * shape.head_dim, shape.hidden)

    def forward(self, x, cos, sin):
        def split(projected):  # [B, T, heads * D] -> [B, heads, T, D]
            return projected.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)

        q = rotate(split(self.q_proj(x)), cos, sin)
        k = rotate(split(self.k_proj(x)), cos, sin)
        v = split(self.v_proj(x))
        group = self.shape.heads // self.shape.kv_heads
        k, v = (t.repeat_interleave(group, 1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = linear(shape.hidden, shape.feed_forward)
        self.up_proj = linear(shape.hidden, shape.feed_forward)
        self.down_proj = linear(shape.feed_forward, shape.hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.self_attn, self.mlp = Attention(shape), FeedForward(shape)
        self.input_layernorm, self.post_attention_layernorm = Norm(shape.hidden), Norm(shape.hidden)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class LanguageModel(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # Matrices that add into the residual stream start smaller, so that its variance does not
                # grow with the depth.
                residual = "o_proj" in name or "down_proj" in name
                nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * shape.layers) if residual else 1))

    def rope_tables(self, tokens, device):
        """(cos, sin), each f32 [1, 1, T, D]."""
        channels = torch.arange(0, self.shape.head_dim, 2, device=device).float()
        rates = self.shape.rope_theta ** (-channels / self.shape.head_dim)
        angles = torch.arange(tokens, device=device).float()[:, None] * rates
        angles = torch.cat([angles, angles], -1)
        return angles.cos()[None, None], angles.sin()[None, None]

    def hidden(self, ids, cos, sin):
        """Final hidden states [B, T, hidden] of ids [B, T]."""
        x = self.embed_tokens(ids)
        for block in self.layers:
            x = block(x, cos, sin)
        return self.norm(x)

    def logits(self, hidden):
        return (hidden @ self.embed_tokens.weight.t().to(hidden.dtype)).float()

    def forward(self, ids, targets, cos, sin):
        """Mean cross-entropy of the next tokens, in nats."""
        logits = self.logits(self.hidden(ids, cos, sin))
        return F.cross_entropy(logits.view(-1, self.shape.vocab), targets.reshape(-1))


def save(model, folder):
    """Writes config.json and model.safetensors (bf16) the way Hugging Face lays them out."""
    shape = model.shape
    tensors = {"model." + name: value.detach().to(torch.bfloat16).contiguous().cpu()
               for name, value in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": shape.hidden, "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "vocab_size": shape.vocab, "rope_theta": shape.rope_theta, "rms_norm_eps": EPSILON,
        "max_position_embeddings": shape.context, "tie_word_embeddings": True, "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False, "bos_token_id": BOS, "eos_token_id": EOS,
        "torch_dtype": "bfloat16"}, indent=1))
