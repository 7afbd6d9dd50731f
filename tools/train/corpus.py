"""Turns a folder of texts into what training reads: a tokenizer, two token streams and a word list.

The corpus is any folder of *.txt.xz files in UTF-8; <|endoftext|> separates texts inside a file.
Files with "valid" in their name are held out. A second call finds the results and returns.
Cost: 190 million characters take 30 seconds on 16 cores.
"""

import collections
import json
import lzma
import pathlib
import random
import re
import time

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, EOS = 0, 1
SEPARATOR = "<|endoftext|>"
# GPT-2's way of splitting, except that digits stand alone: numbers then copy digit by digit.
SPLIT = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
TOKENIZER_CHARACTERS = 40_000_000  # enough for 8192 merges; more only costs time
SHORTEST_TEXT = 500


def read_texts(corpus):
    """(training texts, held-out texts) of a folder."""
    train, valid = [], []
    for file in sorted(pathlib.Path(corpus).glob("*.txt.xz")):
        with lzma.open(file, "rt", encoding="utf-8") as opened:
            texts = [text.strip() for text in opened.read().split(SEPARATOR)]
        (valid if "valid" in file.name else train).extend(
            text for text in texts if len(text) > SHORTEST_TEXT)
    if not train:
        raise SystemExit(f"{corpus} holds no *.txt.xz with a text over {SHORTEST_TEXT} characters")
    random.Random(0).shuffle(train)
    return train, valid


def train_tokenizer(text, vocab):
    """A byte-level BPE tokenizer of `vocab` tokens whose first two are the begin and end marks."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    pieces = (text[i:i + 10000] for i in range(0, len(text), 10000))
    tokenizer.train_from_iterator(pieces, trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def encode(tokenizer, texts):
    """All texts as one stream of token ids, uint16 [T]."""
    pieces = [text[i:i + 100_000] for text in texts for i in range(0, len(text), 100_000)]
    ids = []
    for i in range(0, len(pieces), 512):
        ids += [np.array(done.ids, np.uint16) for done in tokenizer.encode_batch(pieces[i:i + 512])]
    return np.concatenate(ids)


def word_list(text, top=4000):
    """The `top` most frequent words of 4 to 9 letters after the first 300, for keys and values."""
    counts = collections.Counter(re.findall(r"[a-z]{4,9}", text))
    words = [word for word, _ in counts.most_common(top + 300)]
    return words[300:] or words  # a tiny corpus has fewer


def prepare(corpus, out, vocab, say):
    """Writes tokenizer.json, stream.npy, valid.npy and words.json into the folder `out`."""
    if (out / "words.json").exists():
        return
    started = time.time()
    train, valid = read_texts(corpus)
    sample = "".join(train)[:TOKENIZER_CHARACTERS]
    say(f"read {sum(map(len, train)) / 1e6:.1f} M characters, {time.time() - started:.0f} s")
    tokenizer = train_tokenizer(sample, vocab)
    tokenizer.save(str(out / "tokenizer.json"))
    say(f"tokenizer of {tokenizer.get_vocab_size()} tokens, {time.time() - started:.0f} s")
    stream = encode(tokenizer, train)
    held_out = encode(tokenizer, valid) if valid else stream[-200_000:]
    np.save(out / "stream.npy", stream)
    np.save(out / "valid.npy", held_out)
    (out / "words.json").write_text(json.dumps(word_list(sample.lower())))
    say(f"{len(stream) / 1e6:.1f} M tokens, {len(held_out) / 1e6:.2f} M held out, "
        f"{time.time() - started:.0f} s")
