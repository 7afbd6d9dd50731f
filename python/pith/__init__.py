"""Language models with a compressed KV cache.

    import pith
    llm = pith.LLM("smollm2", kv="quarter")        # a folder, a GGUF file or a name of pull()
    for piece in llm.chat("Why is the sky blue?"):
        print(piece.text, end="", flush=True)

`LLM` is the short way; `Model`, `Engine` and `Session` are the engine's own parts, `Chat` a
conversation of messages. Every failure is a `PithError`: its class says the kind (and is the built-in
one, such as ValueError, too), its text what was asked, what is supported and what to do.
"""

from . import _pith, results
from ._pith import (AttentionError, BufferTooSmall, Chat, Compute, ContextFull, Conversation, Corrupt, Engine,
                    GenerateOptions, Generation, InvalidArgument, Internal, IoError, LayerCache, Ledger, MethodInfo,
                    Model, ModelConfig, NonFinite, NotFound, OutOfMemory, ParameterInfo, Piece, PithError,
                    Policy, Rows, Session, SessionBusy, Tokenizer, Unsupported, __version__,
                    chat_template_names, estimate, known_models, methods, pull, read_in_all)
from .llm import LLM, AsyncLLM, Scores

__all__ = ["AsyncLLM", "AttentionError", "BufferTooSmall", "Chat", "Compute", "ContextFull", "Conversation", "Corrupt",
           "Engine", "GenerateOptions", "Generation", "InvalidArgument", "Internal", "IoError", "LLM",
           "LayerCache", "Ledger", "MethodInfo", "Model", "ModelConfig", "NonFinite", "NotFound", "OutOfMemory",
           "ParameterInfo", "Piece", "PithError", "Policy", "Rows", "Scores", "Session", "SessionBusy",
           "Tokenizer", "Unsupported", "__version__", "chat_template_names", "estimate", "known_models",
           "methods", "pull", "read_in_all", "results"]
for _name in __all__:
    _value = getattr(_pith, _name, None)
    if isinstance(_value, type):
        _value.__module__ = "pith"
del _name, _value
