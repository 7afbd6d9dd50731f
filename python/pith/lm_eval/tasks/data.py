"""Made texts with hidden facts: the same for a seed on every machine, without a network."""

import pathlib
import random

import datasets

_WHO = ["The baker", "A tall sailor", "My neighbour", "The old teacher", "A young painter", "The postman",
        "Her brother", "The gardener"]
_DID = ["walked along", "looked at", "wrote a letter about", "remembered", "talked for an hour about", "drew",
        "went back to", "sold"]
_WHAT = ["the stone bridge", "a wooden boat", "the market by the river", "the lamp in the window", "a field of barley",
         "the narrow street", "a small red box", "the church tower"]
_WHEN = ["in the early morning", "after the rain", "on a Sunday", "before the winter came", "while the others slept",
         "late in the evening"]
_NAMES = ["Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Henry", "Irene", "Jonas", "Karin", "Louis"]


def _sentence(draw):
    return f"{draw.choice(_WHO)} {draw.choice(_DID)} {draw.choice(_WHAT)} {draw.choice(_WHEN)}."


def _document(draw, words, facts):
    """(text, {name: number}) of about so many words, the facts spread over it."""
    names = draw.sample(_NAMES, facts)
    numbers = [str(number) for number in draw.sample(range(1000, 10000), facts)]
    sentences = []
    while sum(len(s.split()) for s in sentences) < words:
        sentences.append(_sentence(draw))
    for i, (name, number) in enumerate(zip(names, numbers)):
        place = (2 * i + 1) * len(sentences) // (2 * facts)
        sentences.insert(place, f"The secret number of {name} is {number}.")
    return " ".join(sentences), dict(zip(names, numbers))


def _samples(words, samples, facts, seed):
    if not 1 <= facts <= len(_NAMES):
        raise ValueError(f"facts={facts}: a text hides 1 to {len(_NAMES)}")
    for number in range(samples):
        draw = random.Random(f"{seed} {number}")
        text, hidden = _document(draw, words, facts)
        name = draw.choice(list(hidden))
        yield text, name, hidden, draw


def facts(words=600, samples=50, facts=4, seed=1, **_):
    """The number of one name, to be written."""
    rows = [{"text": text, "name": name, "answer": hidden[name]}
            for text, name, hidden, _ in _samples(words, samples, facts, seed)]
    return {"test": datasets.Dataset.from_list(rows)}


def choice(words=600, samples=50, facts=4, seed=1, **_):
    """The same with the text's numbers as choices."""
    rows = []
    for text, name, hidden, draw in _samples(words, samples, max(facts, 2), seed):
        choices = list(hidden.values())
        draw.shuffle(choices)
        rows.append({"text": text, "name": name, "choices": choices, "label": choices.index(hidden[name])})
    return {"test": datasets.Dataset.from_list(rows)}


def text(text="", characters=20000, pieces=4, **_):
    """Pieces of a text file."""
    if not text:
        raise ValueError("pith_text needs a file: --metadata '{\"text\": \"book.txt\"}', or "
                         "task_manager(metadata={\"text\": \"book.txt\"})")
    whole = pathlib.Path(text).read_text(encoding="utf-8")
    rows = [{"page": whole[i * characters:(i + 1) * characters]} for i in range(pieces)]
    rows = [row for row in rows if row["page"].strip()]
    if not rows:
        raise ValueError(f"{text} is empty")
    return {"test": datasets.Dataset.from_list(rows)}
