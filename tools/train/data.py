"""Makes training sequences: windows of prose, and tasks whose answers lie far back in the context.

The task templates follow RULER's needles and variable chains (arXiv 2404.06654), and the key-value
and multi-document questions of "Lost in the Middle" (arXiv 2307.03172). Texts and names are
made here. A sequence is a list of token ids; every task returns about the length that it was asked
for, or None when that is too short for it.
"""

import json
import random
import string

import numpy as np
import torch
from tokenizers import Tokenizer

from corpus import BOS, EOS

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
FIRST_NAMES = ("Aldo Bera Cato Dara Edin Fola Goran Hana Ivo Jana Kato Lena Milo Nora Otto Pila "
               "Quin Rosa Sven Tara Ugo Vera Wim Xena Yara Zeno").split()
RELATIONS = [("was born in the town of", "In which town was {} born?"),
             ("works as a", "What does {} work as?"),
             ("keeps a pet called", "What is the pet of {} called?"),
             ("likes to eat", "What does {} like to eat?"),
             ("lives in the house of", "In whose house does {} live?")]
SHORTEST_TASK = 200


def needle_head(kind):
    return (f"Some special magic {kind} are hidden within the following text. Make sure to "
            f"memorize it. I will quiz you about the {kind} afterwards.\n")


def needle(kind, key, value):
    return f" One of the special magic {kind} for {key} is: {value}."


def needle_question(kind, key):
    return (f"\nWhat are all the special magic {kind} for {key} mentioned in the provided text? "
            f"The special magic {kind} for {key} mentioned in the provided text are")


class Maker:
    """Makes sequences from a tokenizer, a token stream (uint16 [T]) and a word list."""

    def __init__(self, tokenizer, stream, words, seed):
        self.tokenizer, self.stream, self.words = tokenizer, stream, words
        self.random = random.Random(seed)
        self.numpy = np.random.default_rng(seed)

    @classmethod
    def from_folder(cls, folder, stream, seed):
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")),
                   np.load(folder / stream, mmap_mode="r"),
                   json.loads((folder / "words.json").read_text()), seed)

    def encode(self, text):
        return self.tokenizer.encode(text).ids

    def window(self, n):
        """n tokens of prose from a random place."""
        start = int(self.numpy.integers(0, len(self.stream) - n - 1))
        return self.stream[start:start + n].tolist()

    def noise(self, n):
        """n tokens of the same few sentences again and again."""
        sentence = self.encode(NOISE + "\n")
        return (sentence * (n // len(sentence) + 1))[:n]

    def key(self):
        return f"{self.random.choice(self.words)}-{self.random.choice(self.words)}"

    def value(self, kind):
        if kind == "numbers":
            return str(self.random.randint(1000000, 9999999))
        if kind == "words":
            return self.key()
        return "".join(self.random.choice("0123456789abcdef") for _ in range(8))

    def splice(self, hay, needles):
        """The needles, in order, at random places of the hay."""
        places = sorted(self.numpy.integers(0, len(hay) + 1, size=len(needles)).tolist())
        out, last = [], 0
        for place, tokens in zip(places, needles):
            out += hay[last:place] + tokens
            last = place
        return out + hay[last:]

    def hay_of_needles(self, kind, n):
        hay = []
        while len(hay) < n:
            hay += self.encode(needle(kind, self.key(), self.value(kind)))
        return hay[:n]

    def needles(self, n):
        """1 to 8 facts hidden in prose, noise or other facts; some of them are asked for."""
        kind = self.random.choice(["numbers", "numbers", "words", "ids"])
        facts = [(self.key(), self.value(kind)) for _ in range(self.random.choice([1, 1, 2, 4, 8]))]
        head = self.encode(needle_head(kind))
        hidden = [self.encode(needle(kind, key, value)) for key, value in facts]
        asked = self.random.sample(facts, len(facts))[:self.random.choice([1, 2, 4, 8])]
        tail = []
        for key, value in asked:
            tail += self.encode(f"{needle_question(kind, key)} {value}.")
        room = n - len(head) - len(tail) - sum(map(len, hidden)) - 2
        if room < 32:
            return None
        if self.random.random() < 0.2:
            hay = self.noise(room)
        elif self.random.random() < 0.25:
            hay = self.hay_of_needles(kind, room)
        else:
            hay = self.window(room)
        return [BOS] + head + self.splice(hay, hidden) + tail + [EOS]

    def key_values(self, n):
        """A long JSON object, then three of its values."""
        out, pairs = self.encode("JSON data:\n{"), []
        while len(out) < n - 120:
            pairs.append((self.key(), self.value(self.random.choice(["numbers", "words", "ids"]))))
            out += self.encode(f'"{pairs[-1][0]}": "{pairs[-1][1]}",\n')
        out += self.encode("}\n")
        for key, value in self.random.sample(pairs, min(3, len(pairs))):
            out += self.encode(f'Key: "{key}"\nValue: "{value}"\n')
        return [BOS] + out[:n - 2] + [EOS]

    def documents(self, n):
        """Numbered documents with three facts about a person each, then three questions."""
        out = self.encode("Write an answer for the given questions using only the provided "
                          "documents.\n\n")
        facts, number = [], 1
        while len(out) < n - (320 if n > 700 else 200):
            family = self.random.choice(self.words).capitalize()
            name = f"{self.random.choice(FIRST_NAMES)} {family}"
            about = [(relation, question.format(name), self.random.choice(self.words).capitalize())
                     for relation, question in self.random.sample(RELATIONS, 3)]
            body = " ".join(f"{name} {relation} {answer}." for relation, _, answer in about)
            out += self.encode(f"Document [{number}](Title: {name}) {body}")
            out += self.window(self.random.randint(20, 160)) + self.encode("\n")
            facts += about
            number += 1
        for _, question, answer in self.random.sample(facts, min(3, len(facts))):
            out += self.encode(f"\nQuestion: {question} Answer: {answer}.")
        return [BOS] + out[:n - 2] + [EOS]

    def variables(self, n):
        """A chain of assignments spread over a text; all names of one value are asked for."""
        names = ["".join(self.random.choice(string.ascii_uppercase) for _ in range(3))
                 for _ in range(self.random.choice([2, 3, 4]))]
        value = str(self.random.randint(10000, 99999))
        hidden = [self.encode(f" VAR {names[0]} = {value}.")]
        hidden += [self.encode(f" VAR {name} = VAR {source}.")
                   for source, name in zip(names, names[1:])]
        tail = self.encode(f"\nQuestion: Find all variables that are assigned the value {value} in "
                           f"the text above. Answer: they are: {' '.join(names)}.")
        room = n - len(tail) - sum(map(len, hidden)) - 2
        if room < 32:
            return None
        hay = self.noise(room) if self.random.random() < 0.5 else self.window(room)
        return [BOS] + self.splice(hay, hidden) + tail + [EOS]

    def copy(self, n):
        """A text twice: prose, or in three cases of ten random tokens."""
        half = (n - 2) // 2
        if self.random.random() < 0.7:
            text = self.window(half)
        else:
            text = self.numpy.integers(2, self.tokenizer.get_vocab_size() - 192, half).tolist()
        return [BOS] + text + text + [EOS]

    def sequence(self, n, task_share):
        """n tokens: prose alone, or with probability `task_share` tasks of mixed lengths packed."""
        if self.random.random() >= task_share:
            return [BOS] + self.window(n - 1)
        tasks = [self.needles, self.key_values, self.documents, self.variables, self.copy]
        out = []
        while len(out) < n:
            length = n - len(out)
            if length >= 600:  # log-uniform: short tasks are as common as long ones
                drawn = np.exp(self.numpy.uniform(np.log(400), np.log(n + 1)))
                length = min(length, int(drawn))
            if length < SHORTEST_TASK:
                out += self.window(length)
                break
            task = self.random.choices(tasks, [40, 15, 20, 15, 10])[0]
            out += task(length) or self.window(SHORTEST_TASK)
        return out[:n]


class Sequences(torch.utils.data.IterableDataset):
    """An endless stream of sequences of n + 1 tokens; every loader worker has its own seed."""

    def __init__(self, folder, n, task_share, seed):
        self.folder, self.n, self.task_share, self.seed = folder, n, task_share, seed

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        seed = (self.seed * 100_000 + self.n) * 1000 + (worker.id if worker else 0)
        maker = Maker.from_folder(self.folder, "stream.npy", seed)
        while True:
            yield torch.tensor(maker.sequence(self.n + 1, self.task_share), dtype=torch.int64)
