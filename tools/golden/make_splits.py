"""Makes tests/data/tokenizer_gaps.json and tests/data/tokenizer_splits.json: how the tokenizers
package encodes with vocabularies that lack some bytes, and how it splits texts by the rules that
GGUF files know by name.

    python tools/golden/make_splits.py

Needs the package tokenizers 0.23. Reads tests/data/tokenizers (tools/golden/make_tokenizers.py). Writes:

    tokenizer_gaps.json    {case: {"base": folder, "remove": [tokens], "set": {model's members},
                            "rows": [...], "ids": [[...]]}}
    tokenizer_splits.json  {"extra": [strings], "rules": {name: {"pre_tokenizer": as in tokenizer.json,
                            "rows": [...], "words": [[bytes of each word]], "extra": the same}}}

rows: strings of tests/data/tokenizers/strings.json. The regular expressions are those that the
models' own tokenizer.json hold, not those that src/ has: the two are written down twice.
"""

import json
import os
import sys

from tokenizers import Regex, Tokenizer, pre_tokenizers

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(REPO, "tests", "data")

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
FIRST = r"[^\r\n\p{L}\p{N}]?"


def by_words(letters, digits, symbols=r" ?[^\s\p{L}\p{N}]+[\r\n]*"):
    return f"{CONTRACTION}|{FIRST}{letters}+|{digits}|{symbols}|{TAIL}"


def by_case(suffix, digits):
    return (f"{FIRST}{UPPER}*{LOWER}+{suffix}|{FIRST}{UPPER}+{LOWER}*{suffix}|{digits}|"
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL)


def splits(*patterns):
    steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    return pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


RULES = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]),
    "llama-bpe": splits(by_words(r"\p{L}", r"\p{N}{1,3}")),
    "qwen2": splits(by_words(r"\p{L}", r"\p{N}")),
    "qwen35": splits(by_words(r"[\p{L}\p{M}]", r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")),
    "tekken": splits(by_case("", r"\p{N}")),
    "gpt-4o": splits(by_case(CONTRACTION + "?", r"\p{N}{1,3}")),
    "default": splits(r"[\p{P}\$\+<=>\^~\|]+",
                      r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
                      r"\p{N}+", r"[0-9][0-9][0-9]"),
}
# Numbers and marks in every position, and characters that came with Unicode 15.1 and 16.
EXTRA = ["12345",
         " 12345 it's\n\n  x", "1234567,89 1. 22% 333x4444", "IT'S we'LL I'D 'ſ", "camelCaseXMLParser ABCdefGHI",
         "e\u0301te\u0301 O\u0308l \u0301a", "path/to//file.txt/\r\n/x", "a\r\n\r\n  b\n \tc  ", "Größe 漢字 🚀",
         "$1+2<=3>^~|x| [a](b) {c}", "\u1c89\u1c8a\ua7cb\ua7da \U00010d40\U00010d41", "\U000105c0x\U00011bf0\U0001e5f1",
         "\U0002ebf0\U0002ebf1 \U00010d50\U00010d70", "\U000113b8a\U0001612a \U00010d6a-\U00010d6e", "", " ", "\n"]

GAPS = {
    "gpt2/dropped": ("gpt2", {}), "gpt2/unknown": ("gpt2", {"unk_token": "<|endoftext|>", "fuse_unk": False}),
    "gpt2/fused": ("gpt2", {"unk_token": "<|endoftext|>", "fuse_unk": True}),
    "llama2_json/dropped": ("llama2_json", {"unk_token": None}),
    "llama2_json/unknown": ("llama2_json", {"unk_token": "<unk>", "fuse_unk": False}),
    "llama2_json/fused": ("llama2_json", {"unk_token": "<unk>", "fuse_unk": True}),
}
# Bytes 4, "!", "z", 0xC3 and 0x9F of GPT-2's alphabet, and byte tokens of characters that Llama's lacks.
REMOVED = {"gpt2": ["\u0104", "!", "z", "\u00c3", "\u0141"], "llama2_json": ["<0x04>", "<0xF0>", "<0xC7>", "<0x80>"]}


def read(*path):
    with open(os.path.join(DATA, *path), encoding="utf-8") as f:
        return json.load(f)


def write(name, root):
    with open(os.path.join(DATA, name), "w", encoding="utf-8") as f:
        json.dump(root, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


def without(root, removed):
    """The tokenizer less the tokens and every token that merges make from them."""
    model = root["model"]
    gone = set(removed)
    kept = []
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if left in gone or right in gone:
            gone.add(left + right)
        else:
            kept.append(merge)
    gone -= {a + b for a, b in (m.split(" ") if isinstance(m, str) else m for m in kept)} - set(removed)
    model["merges"] = [m for m in kept if not gone & set(m.split(" ") if isinstance(m, str) else m)]
    model["vocab"] = {t: i for t, i in model["vocab"].items() if t not in gone}
    return sorted(gone)


def gap_case(name, strings, rows):
    base, options = GAPS[name]
    root = read("tokenizers", base, "tokenizer.json")
    gone = without(root, REMOVED[base])
    root["model"].update(options)
    root["model"]["type"] = "BPE"
    t = Tokenizer.from_str(json.dumps(root))
    ids = [t.encode(strings[r], add_special_tokens=False).ids for r in rows]
    return {"base": base, "remove": gone, "set": options, "rows": rows, "ids": ids}


def split_case(rule, strings, rows):
    def words(text):
        # ByteLevel spells a byte as one letter: the length of a word is that of its bytes.
        return [len(w) for w, _ in rule.pre_tokenize_str(text)]
    t = Tokenizer.from_file(os.path.join(DATA, "tokenizers", "gpt2", "tokenizer.json"))
    t.pre_tokenizer = rule
    return {"pre_tokenizer": json.loads(t.to_str())["pre_tokenizer"], "rows": rows,
            "words": [words(strings[r]) for r in rows], "extra": [words(s) for s in EXTRA]}


def main():
    strings = read("tokenizers", "strings.json")["text"]
    special = {i for i, s in enumerate(strings) if "<" in s}
    rows = [i for i in range(0, len(strings), 9) if i not in special]
    write("tokenizer_gaps.json", {name: gap_case(name, strings, rows) for name in GAPS})
    write("tokenizer_splits.json", {"extra": EXTRA, "rules": {n: split_case(r, strings, rows)
                                                               for n, r in RULES.items()}})


if __name__ == "__main__":
    sys.exit(main())
