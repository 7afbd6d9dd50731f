"""Makes tests/data/tokenizers: small tokenizers of every supported structure, and the ids that
the reference libraries give for a few thousand strings.

    python tools/golden/make_tokenizers.py                  # writes tests/data/tokenizers
    python tools/golden/make_tokenizers.py --fuzz 100000 --out DIR   # other strings, same tokenizers

Needs the packages tokenizers 0.22, sentencepiece 0.2, transformers 4.57. All text is made here,
by a seeded generator: no borrowed prose. What it writes:

    <name>/tokenizer.json or tokenizer.model, and the small files that belong beside it
    strings.json  {"text": [...], "bytes": ["hex", ...]}  valid strings, then invalid UTF-8
    ids.json      {case: {"folder", "parse_special", "rows": null | [...], "ids": [[...]],
                   "decoded": {row: text}}}   rows: which strings; null: all of them

Cases marked parse_special = false were encoded with special tokens as plain text.
"""

import argparse
import json
import os
import random
import shutil
import sys
import unicodedata

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers
from transformers import LlamaTokenizer
from transformers.convert_slow_tokenizer import convert_slow_tokenizer

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(REPO, "models", "demo", "tokenizer.json")

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# Letters of several scripts from which pseudo-words are drawn: (consonants, vowels).
SCRIPTS = {
    "latin": ("bcdfghjklmnpqrstvwxz", "aeiouy"),
    "accents": ("bcčdđfgğhjklłmnñprřsšştťvzž", "aáàâäåãeéèêëiíîïoóôöõøuúûüů"),
    "cyrillic": ("бвгджзйклмнпрстфхцчшщ", "аеёиоуыэюя"),
    "greek": ("βγδζθκλμνξπρσςτφχψ", "αάεέηήιίοόυύωώ"),
    "hangul": ("가나다라마바사아자차카타파하", "강남동물과백두산이마르고닳도록"),
    "han": ("的一是不了人我在有他这为之大来", "以个中上们到说国和地也子时道出而要于就下得可你年生"),
    "kana": ("かきくけこさしすせそたちつてと", "アイウエオカキクケコガギグパピプ"),
    "arabic": ("ابتثجحخدذرزسشصضطظعغفقكلمن", "هويةىءؤئَُِّ"),
    "hebrew": ("אבגדהוזחטיכלמנסעפצקרשת", "ךםןףץָּ"),
    "devanagari": ("कखगघचछजझटठडढतथदधनपफबभमयरलवशसह", "ािीुूेैोौं्"),
    "thai": ("กขคฆงจฉชซญฎฏฐฑดตถทธนบปผฝพฟภมยรลวศษสหอฮ", "ะาิีึืุูเแโใไ่้"),
}
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\v", "\f", "\u00a0", "\u0085", "\u2028",
          "\u2029", "\u3000", "\u1680", "\u2003", "\u200a", "\u202f", "\u205f", "\ufeff", "\u200b",
          "\n\n", " \n", "\n ", "\t\t", "    ", " \t \n", "\r\n\r\n", "        "]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👨🏿‍🚀", "❤️", "🇩🇪🇫🇷", "1️⃣", "☂", "🧑‍🔬", "🫠", "✂️"]
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>",
           "<|end_header_id|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>",
           "</tool_call>", "<think>", "<s>", "</s>", "<unk>", "<|begin|>", "<|end|>", "[LEFT]",
           "[RIGHT]", "[BOTH]", "word", "ÉTÉ", "[FIM]", "[FIM]x"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL",
                "'D", "'ſ", "’s", "'x", "''s", "' s", "'", "'''"]
SYMBOLS = list("!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~") + [
    "->", "=>", "==", "!=", "&&", "||", "//", "/*", "*/", "...", "::", "§", "€", "°", "№", "½", "²",
    "³", "Ⅷ", "٣", "५", "๔", "一二", "①", "µ", "ª", "ß", "ﬆ", "ﬁ", "İ", "ı", "ǅ", "ⁿ", "K", "Å", "▁",
    "▁▁", "Ġ", "Ċ", "�", "\u0300", "\u0301", "\u0327", "\u20e3", "\u200d", "\u200c", "\u2066",
    "\U0001d54f", "\U00020000", "\U00010400", "\ue000", "\U0010ffff", "\ufffe", "\u0378"]
BAD = [b"\xff", b"\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\xaf", b"\xed\xa0\x80",
       b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe", b"\xf0\x80\x80\x80",
       b"\xe2\x28\xa1", b"\xc3\xc3\xa9", b"\xf0\x9f\x98\xf0\x9f\x98\x80", b"\xbf\xbf"]


def zipf(rng, items):
    return items[min(int(len(items) * rng.random() ** 3), len(items) - 1)]


def pseudo_word(rng, script):
    consonants, vowels = SCRIPTS[script]
    return "".join(rng.choice(consonants) + rng.choice(vowels) + rng.choice(["", "", rng.choice(consonants)])
                   for _ in range(rng.choice([1, 1, 2, 2, 3, 4])))


def lexicon(rng):
    return {s: [pseudo_word(rng, s) for _ in range(400)] for s in SCRIPTS}


def cased(rng, word):
    return rng.choice([word, word, word, word.capitalize(), word.upper()])


def code_line(rng, words):
    w = lambda: zipf(rng, words["latin"])
    n = lambda: rng.choice([str(rng.randrange(10)), str(rng.randrange(1000)), hex(rng.randrange(65536)),
                            "%.3f" % rng.random(), "1e-%d" % rng.randrange(9)])
    return rng.choice([
        lambda: "    " * rng.randrange(4) + f"def {w()}_{w()}({w()}, {w()}={n()}):",
        lambda: "\t" * rng.randrange(4) + f"for (int {w()} = 0; {w()} < {n()}; ++{w()}) {{",
        lambda: f"  return {w()}->{w()}[{n()}] * {n()};",
        lambda: "}" * rng.randrange(1, 4) + "\n",
        lambda: f"#include <{w()}/{w()}.h>\r\n",
        lambda: f"{{\"{w()}\": [{n()}, {n()}], \"{w()}\": null}}",
        lambda: f"// {w()} {w()}: https://{w()}.example/{w()}?{w()}={n()}&x=%20",
        lambda: f"{w().upper()}_{w().upper()} = '{w()}' + \"{w()}\"  # {w()}",
        lambda: f"<{w()} class=\"{w()}-{w()}\">{w()}</{w()}>",
    ])()


def number(rng):
    return rng.choice([
        lambda: str(rng.randrange(10 ** rng.randrange(1, 16))),
        lambda: f"{rng.randrange(10 ** 9):,}", lambda: "%.6f" % (rng.random() * 1e4),
        lambda: f"{rng.randrange(2100)}-{rng.randrange(13):02}-{rng.randrange(32):02}",
        lambda: "0" * rng.randrange(1, 12), lambda: "३४५", lambda: "١٢٣٤", lambda: "１２３４",
        lambda: f"-{rng.randrange(99)}.{rng.randrange(99)}e+{rng.randrange(9)}"])()


def sentence(rng, words, script=None):
    script = script or rng.choice(list(SCRIPTS))
    out = []
    for _ in range(rng.randrange(1, 12)):
        word = cased(rng, zipf(rng, words[script]))
        if script == "latin" and rng.random() < 0.1:
            word += rng.choice(CONTRACTIONS)
        out.append(word + rng.choice(["", "", "", "", ",", ".", "!", ";"]))
    return ("" if script in ("han", "kana", "thai") else " ").join(out)


def training_text(rng, words):
    for _ in range(12000):
        kind = rng.random()
        if kind < 0.45:
            yield sentence(rng, words, "latin")
        elif kind < 0.75:
            yield sentence(rng, words)
        elif kind < 0.9:
            yield code_line(rng, words)
        elif kind < 0.96:
            yield " ".join(number(rng) for _ in range(4))
        else:
            yield rng.choice(EMOJI) + rng.choice(SPACES) + rng.choice(SYMBOLS) * rng.randrange(1, 5)


def mixed(rng, words):
    """Anything next to anything."""
    parts = [lambda: sentence(rng, words), lambda: code_line(rng, words), lambda: number(rng),
             lambda: rng.choice(SPACES), lambda: rng.choice(SPACES) * rng.randrange(1, 4),
             lambda: rng.choice(SPACES) + rng.choice(SPACES), lambda: rng.choice(EMOJI),
             lambda: rng.choice(CONTRACTIONS), lambda: rng.choice(SYMBOLS), lambda: rng.choice(SPECIAL),
             lambda: chr(rng.randrange(0x20)), lambda: cased(rng, zipf(rng, words["latin"])),
             lambda: rng.choice(SYMBOLS) * rng.randrange(1, 6),
             lambda: unicodedata.normalize("NFD", sentence(rng, words, rng.choice(["accents", "hangul", "greek"])))]
    return "".join(rng.choice(parts)() for _ in range(rng.randrange(1, 7)))


def random_points(rng):
    """Characters from everywhere that reference and product agree to know (up to U+10FFFF)."""
    limit = rng.choice([0x80, 0x250, 0x800, 0x3100, 0x10000, 0x30000, 0x110000])
    out = []
    for _ in range(rng.randrange(1, 24)):
        c = rng.randrange(limit)
        out.append(chr(c) if not 0xD800 <= c < 0xE000 else " ")
    return "".join(out)


def make_strings(rng, words, count):
    text = [""] + SPACES + EMOJI + SPECIAL + CONTRACTIONS + SYMBOLS
    text += [a + b for a in SPACES[:14] for b in ("a", "1", ".", "\n", " x ")]
    text += ["a" + s + "b" for s in SPACES] + ["a" + s for s in SPACES]
    text += ["it" + c + " a" for c in CONTRACTIONS] + ["I" + c + "T" for c in CONTRACTIONS]
    text += ["a" + s + "b" for s in SPECIAL] + ["  " + s + "  " for s in SPECIAL] + [s * 2 for s in SPECIAL]
    text += [" " * n + "x" for n in range(12)] + ["x" + " " * n for n in range(12)]
    text += ["\n" * n + " " * m + "y" for n in range(4) for m in range(4)]
    text += [chr(c) for c in range(0x20)] + ["7" * n for n in range(1, 9)]
    text += ["é", "e\u0301", "한", "\u1112\u1161\u11ab", "a\u0327\u0301", "a\u0301\u0327", "\u212b", "\u0958"]
    text += ["x" * 3000, " " * 2000, "ab" * 1500, "é" * 700, "7" * 500, "的" * 500, "\n" * 400,
             "'" * 300, "😀" * 200, "ab " * 300]
    text = text[:count]
    makers = [mixed, mixed, mixed, lambda r, w: sentence(r, w), lambda r, w: code_line(r, w),
              lambda r, w: " ".join(number(r) for _ in range(3)), lambda r, w: random_points(r)]
    while len(text) < count:
        text.append(rng.choice(makers)(rng, words))
    broken = []
    for i in range(count // 12):
        parts = [rng.choice(BAD) if rng.random() < 0.5 else mixed(rng, words)[:20].encode() for _ in range(4)]
        data = b"".join(parts) if i >= len(BAD) else BAD[i]
        if i % 5 == 4:  # a valid text cut inside a character
            data = ("x" + rng.choice(EMOJI)).encode()[:-1]
        broken.append(data)
    return text, broken


def train(tokenizer, size, special, text):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(text, trainer)


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def special(*names, **options):
    return [AddedToken(n, special=True, normalized=False, **options) for n in names]


def llama3(text):
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = split(LLAMA3)
    t.decoder = decoders.ByteLevel()
    train(t, 3000, [], text)
    t.add_special_tokens(special("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>",
                                 "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"))
    bos = t.token_to_id("<|begin_of_text|>")
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                      pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                      special_tokens=[("<|begin_of_text|>", bos)])])
    return t, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>",
               "tokenizer_class": "PreTrainedTokenizerFast"}


def qwen2(text):
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = split(QWEN2)
    t.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    t.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    train(t, 2500, [], text)
    t.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    t.add_tokens([AddedToken(n, normalized=False) for n in ("<tool_call>", "</tool_call>", "<think>")])
    return t, {"bos_token": None, "eos_token": "<|im_end|>", "add_bos_token": False,
               "tokenizer_class": "Qwen2Tokenizer"}


def gpt2(text):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.decoder = decoders.ByteLevel()
    train(t, 1500, special("<|endoftext|>"), text)
    return t, {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "tokenizer_class": "GPT2Tokenizer"}


def variety(text):
    """A tokenizer that no supported model has: every option of added tokens and of the pre-tokenizers."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([normalizers.Replace("Ä", "AE"), normalizers.NFC()])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split("-", "merged_with_next"), pre_tokenizers.Split(Regex(r"[.!?]\s*"), "merged_with_previous"),
        pre_tokenizers.Split(Regex(r"\t"), "removed"), pre_tokenizers.Split(Regex(r"[一-鿿A-Z]"), "contiguous"),
        pre_tokenizers.Split(Regex(r"[^,;\P{L}]+"), "isolated", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)])
    t.decoder = decoders.ByteLevel()
    train(t, 1200, [], text)
    t.add_special_tokens(special("[LEFT]", lstrip=True) + special("[RIGHT]", rstrip=True) +
                         special("[BOTH]", lstrip=True, rstrip=True) + special("[FIM]"))
    t.add_tokens([AddedToken("word", single_word=True), AddedToken("ÉTÉ", normalized=True), AddedToken("[FIM]x")])
    return t, None


def old_style(path):
    """GPT-2's own file: merges as "a b", no model type."""
    root = json.load(open(path))
    del root["model"]["type"]
    root["model"]["merges"] = [" ".join(m) for m in root["model"]["merges"]]
    return root


def write(path, root):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(root, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def make_json_folder(out, name, make, text):
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    tokenizer, config = make(text)
    path = os.path.join(folder, "tokenizer.json")
    tokenizer.save(path, pretty=False)
    write(path, old_style(path) if name == "gpt2" else json.load(open(path)))
    if config:
        write(os.path.join(folder, "tokenizer_config.json"), config)


def make_sentencepiece(out, name, text, **options):
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.model"), "wb") as f:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(x.replace("\0", " ") for x in text), model_writer=f, num_threads=1,
            minloglevel=2, input_sentence_size=0, shuffle_input_sentence=False, **options)
    return os.path.join(folder, "tokenizer.model")


def make_folders(out):
    rng = random.Random(1)
    words = lexicon(rng)
    text = list(training_text(rng, words))
    for make in (llama3, qwen2, gpt2, variety):
        make_json_folder(out, make.__name__, make, text)
    model = make_sentencepiece(out, "llama2", text, model_type="bpe", vocab_size=2000, byte_fallback=True,
                               character_coverage=0.995, normalization_rule_name="identity",
                               remove_extra_whitespaces=False, split_digits=True,
                               allow_whitespace_only_pieces=True, max_sentence_length=8192)
    make_sentencepiece(out, "unigram", text, model_type="unigram", vocab_size=1500,
                       character_coverage=0.995, user_defined_symbols="[FIM],<think>")
    # The two forms in which transformers writes the same model as tokenizer.json.
    for name, legacy in (("llama2_json", True), ("metaspace_json", False)):
        os.makedirs(os.path.join(out, name), exist_ok=True)
        fast = convert_slow_tokenizer(LlamaTokenizer(model, legacy=legacy))
        path = os.path.join(out, name, "tokenizer.json")
        fast.save(path, pretty=False)
        write(path, json.load(open(path)))
    os.makedirs(os.path.join(out, "llama2_new"), exist_ok=True)
    shutil.copy(model, os.path.join(out, "llama2_new", "tokenizer.model"))
    write(os.path.join(out, "llama2_new", "tokenizer_config.json"),
          {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True,
           "bos_token": "<s>", "eos_token": "</s>",
           "added_tokens_decoder": {"2000": {"content": "<|im_end|>", "special": True, "normalized": False}}})


def case(folder, parse_special, encode, strings, rows=None, decode=None):
    ids = [encode(s) for s in (strings if rows is None else [strings[r] for r in rows])]
    out = {"folder": folder, "parse_special": parse_special, "rows": rows, "ids": ids}
    if decode:
        which = range(len(ids)) if rows is None else rows
        decoded = {str(r): decode(i) for r, i in list(zip(which, ids))[::6]}
        out["decoded"] = {r: t for r, t in decoded.items() if "\ufffd" not in t and "\u2047" not in t}
    return out


def make_cases(folders, strings):
    marked = [i for i, s in enumerate(strings) if any(x in s for x in SPECIAL)]
    cases = {}
    for name in ("llama3", "qwen2", "gpt2", "variety", "llama2_json", "metaspace_json", "demo"):
        folder = "models/demo" if name == "demo" else name
        t = Tokenizer.from_file(DEMO if name == "demo" else os.path.join(folders, name, "tokenizer.json"))
        encode = lambda s: t.encode(s, add_special_tokens=False).ids
        decode = (lambda i: t.decode(i, skip_special_tokens=False)) if name.endswith("_json") else None
        rows = None if name != "metaspace_json" else marked
        cases[name] = case(folder, True, encode, strings, rows, decode)
        t.encode_special_tokens = True
        cases[name + "/plain"] = case(folder, False, encode, strings, marked)
    for name in ("llama2", "unigram"):
        s = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folders, name, "tokenizer.model"))
        cases[name + "/plain"] = case(name, False, s.encode, strings, None, s.decode)
    for name, legacy in (("llama2", True), ("llama2_new", False)):
        t = LlamaTokenizer(os.path.join(folders, name, "tokenizer.model"), legacy=legacy)
        if name == "llama2_new":
            t.add_tokens([AddedToken("<|im_end|>", special=True, normalized=False)], special_tokens=True)
        cases[name] = case(name, True, lambda s: t.encode(s, add_special_tokens=False), strings, marked)
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", default=os.path.join(REPO, "tests", "data", "tokenizers"))
    parser.add_argument("--fuzz", type=int, default=0, help="this many other strings, for the tokenizers already made")
    parser.add_argument("--seed", type=int, default=2)
    args = parser.parse_args()
    folders = os.path.join(REPO, "tests", "data", "tokenizers")
    os.makedirs(args.out, exist_ok=True)
    if not args.fuzz:
        make_folders(folders)
    rng = random.Random(args.seed)
    text, broken = make_strings(rng, lexicon(random.Random(1)), args.fuzz or 2200)
    write(os.path.join(args.out, "strings.json"), {"text": text, "bytes": [b.hex() for b in broken]})
    strings = text + [b.decode("utf-8", errors="replace") for b in broken]
    write(os.path.join(args.out, "ids.json"), make_cases(folders, strings))


if __name__ == "__main__":
    sys.exit(main())
