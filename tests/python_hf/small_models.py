"""Small random models of transformers, the attention of each as wide apart as trained models have it."""

import contextlib

import tokenizers
import torch
import transformers
from transformers.models.nemotron import modeling_nemotron

import pith.hf  # registers attention "pith"
from pith.hf._rope import cache_keyword

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

SMALL = {"vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "attention_dropout": 0.0}
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
# Class of the configuration: what it differs in.
ARCHITECTURES = {
    "Llama": {}, "Qwen2": {}, "Qwen3": {}, "Olmo2": {},
    "Mistral": {"sliding_window": 10},
    "Mixtral": {**EXPERTS, "sliding_window": None},
    "Qwen3Moe": EXPERTS,
    "Gemma2": {"attn_logit_softcapping": 1.5, "sliding_window": 9, "query_pre_attn_scalar": 40,
               "layer_types": WINDOWS},
    "GptOss": {**EXPERTS, "sliding_window": 9, "layer_types": WINDOWS},
    "Gemma3Text": {"sliding_window": 9, "query_pre_attn_scalar": 40, "layer_types": WINDOWS},
    "Cohere2": {"sliding_window": 9, "layer_types": WINDOWS},
    "Granite": {"attention_multiplier": 0.11, "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
    "SmolLM3": {"no_rope_layers": [1, 0, 1], "use_sliding_window": False},
    "Starcoder2": {"sliding_window": 11},
    # Fused projections, or a RoPE of a part of the channels.
    "Phi3": {"sliding_window": 12}, "Phi": {"partial_rotary_factor": 0.5}, "Glm4": {"partial_rotary_factor": 0.5},
    "Nemotron": {"partial_rotary_factor": 0.5}, "StableLm": {"partial_rotary_factor": 0.25},
    "GPTNeoX": {"num_key_value_heads": 4, "rotary_pct": 0.25},
}


@contextlib.contextmanager
def attention(model, name):
    """The model with another attention function."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield model
    finally:
        model.set_attn_implementation(before)


def make_model(name, attention="pith", **changes):
    torch.manual_seed(3)
    config = getattr(transformers, name + "Config")(**{**SMALL, **ARCHITECTURES.get(name, {}), **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # the usual 0.02 makes attention almost uniform
            if parameter.ndim > 1:
                parameter.mul_(5)
    return model


CACHE = cache_keyword(transformers.LlamaModel)  # "cache", past_key_values before transformers 5.24
VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
# With prefill_chunk_size, transformers 5.2 gives every chunk the positions of the last one.
CHUNKS_HAVE_POSITIONS = VERSION > (5, 2)
if not hasattr(modeling_nemotron, "ALL_ATTENTION_FUNCTIONS"):
    del ARCHITECTURES["Nemotron"]  # in older releases its attention could not be replaced


def prompt(batch, tokens, seed=1):
    return torch.randint(2, SMALL["vocab_size"], (batch, tokens), generator=torch.Generator().manual_seed(seed))


def words():
    """A tokenizer whose words are letters."""
    vocabulary = {chr(97 + i % 26) * (1 + i // 26): i for i in range(SMALL["vocab_size"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
