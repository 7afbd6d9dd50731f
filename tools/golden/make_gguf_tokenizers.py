"""Makes tests/data/gguf_tokenizers.json: ids that the tokenizers and transformers packages give with
the vocabularies of two real GGUF files, those that `pith pull` fetches.

    python tools/golden/make_gguf_tokenizers.py FOLDER   # that holds the two .gguf files

Needs tokenizers 0.23, transformers 5.23 and gguf 0.19. What it writes:

    {name: {"file": ..., "rows": [...], "ids": [[...]], "extra": [[text, ids], ...]}}

rows: strings of tests/data/tokenizers/strings.json. Special tokens in a text become their ids.
"""

import json
import os
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(REPO, "tests", "data")
EXTRA = ["Hello world", "The capital of France is", " 12345 it's\n\n  x", "Größe 漢字 🚀", "a\u0004b\u0000c", "",
         " ",
         "  two  spaces   three\n\n\n\n\ttab",
         "<|im_start|>user\nHi<|im_end|>\n", "<start_of_turn>user\nHi<end_of_turn>\n",
         "x <bos> y<eos>z", "1,234.5 67890 ٣٤٥ Ⅷ½", "def f(x):\n    return x ** 2\n\n\n# end",
         "▁a ▁▁ b", "\u0004\u0005"]


def smollm2(path):
    """From the file's vocabulary and merges, split as the model's own tokenizer.json splits."""
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ", 1)) for m in fields["tokenizer.ggml.merges"].contents()]
    t = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    t.add_special_tokens([AddedToken(token, special=True, normalized=False)
                          for token, kind in zip(tokens, types) if kind == 3])
    return lambda text: t.encode(text, add_special_tokens=False).ids


def gemma3(path):
    t = AutoTokenizer.from_pretrained(os.path.dirname(path), gguf_file=os.path.basename(path))
    return lambda text: t(text, add_special_tokens=False)["input_ids"]


def main():
    strings = json.load(open(os.path.join(DATA, "tokenizers", "strings.json"), encoding="utf-8"))["text"]
    rows = list(range(0, len(strings), 9))
    out = {}
    for name, file, make in (("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", smollm2),
                             ("gemma3-270m", "gemma-3-270m-q4_k_m.gguf", gemma3)):
        encode = make(os.path.join(sys.argv[1], file))
        out[name] = {"file": file, "rows": rows, "ids": [encode(strings[r]) for r in rows],
                     "extra": [[text, encode(text)] for text in EXTRA]}
    with open(os.path.join(DATA, "gguf_tokenizers.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    sys.exit(main())
