"""Rules for the prose of documents and of comments in C++, used by tools/check_docs.py.

Words and patterns that docs/glossary.md replaces, prose lines over 120 columns, sentences over 40
words, and sentences that begin with "What" or "That of". Code, tables, headings, quotations and
generated blocks are not prose. Comments are checked for words and beginnings alone.
"""

import re

COLUMNS = 120
WORDS = 40
MARK = "<!-- generated: begin"
FENCE = re.compile(r"^\s*(```|~~~)")
# Patterns that are not used here, and the word of docs/glossary.md instead.
UNUSED = [
    (r"\bjudg(?:e|es|ed|ing|ements?)\b", "select, selection; compare"),
    (r"\blen(?:d|ds|t|ding)\b", "borrow, scratch"),
    (r"\bin company\b|\bthe company\b|\bcompany of\b", "batch"),
    (r"\b(?:keys?|quer(?:y|ies)|rows?|vectors?)\b[^.;:|]{0,30}\bturn(?:s|ed)?\b"
     r"(?! (?:out|by turns))", "rotate"),
    (r"\bturn(?:s|ed|ing)? (?:the |a |its )?(?:keys?|quer(?:y|ies)|rows?|vectors?)\b", "rotate"),
    (r"\blet(?:s|ting)? go\b", "evict"),
    (r"\b(?:one|two|launch|block|copy|scale|byte|bit|times|us|ms|bits|bytes|tokens|nats|rows|"
     r"numbers|words|operations|instructions|pieces|microseconds|lines?|threads?|warps?|entry|"
     r"atoms|policies|multiply-adds) an? "
     r"(?:layer|head|row|token|session|number|block|step|second|kv head|query|group|pair|channel|"
     r"side|chunk|weight|prediction|piece|policy|method|command|run|lane|warp|thread)\b", "per"),
    (r"\bgo(?:es)? on (?:from|bit)\b", "continue"),
]
UNUSED = [(re.compile(pattern, re.I), instead) for pattern, instead in UNUSED]
BEGINS = re.compile(r"^(?:What|That of|Those that)\b")
# A full stop within these ends no sentence.
SHORT = re.compile(r"\b(?:e\.g|i\.e|vs|cf|etc|Fig|Sec|approx|No)\.|(?<=\d)\.(?=\d)|\.(?=[\w/])")


def paragraphs(text):
    """(first line's number, text) of every paragraph or list item of prose."""
    found, held, start, fenced, generated = [], [], 0, False, False

    def flush():
        if held:
            found.append((start, " ".join(held)))
            held.clear()

    for number, line in enumerate(text.splitlines(), 1):
        generated |= line.startswith(MARK)
        if FENCE.match(line):
            fenced = not fenced
            flush()
        elif (fenced or generated or not line.strip()
              or line.lstrip().startswith(("|", "#", "<", ">"))
              or (line.startswith(("    ", "\t")) and not held)):
            flush()
            generated &= not line.startswith("<!-- generated: end")
        else:
            if re.match(r"^\s*(?:[-*+]|\d+[.)])\s", line):
                flush()
                line = re.sub(r"^\s*(?:[-*+]|\d+[.)])\s+", "", line)
            if not held:
                start = number
            held.append(line.strip())
    flush()
    return found


def sentences(paragraph):
    """The sentences of a paragraph, without marks of links, code and emphasis."""
    plain = re.sub(r"`[^`]*`", "code", paragraph)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain).replace("*", "")
    plain = SHORT.sub(lambda found: found.group(0).replace(".", ""), plain)
    return [part.strip() for part in re.split(r"(?<=[.!?;])[\s)]+(?=[\w\"'(\[])", plain)
            if part.strip()]


def prose_faults(path, text):
    """Faults in the prose of one document, as printable lines."""
    faults, generated, fenced = [], False, False
    for number, line in enumerate(text.splitlines(), 1):
        generated |= line.startswith(MARK)
        fenced ^= bool(FENCE.match(line))
        prose = not (fenced or generated or line.lstrip().startswith(("|", "#", "<", ">", "!["))
                     or line.startswith("    "))
        generated &= not line.startswith("<!-- generated: end")
        breaks = " " in re.sub(r"`[^`]*`", "code", line).strip()
        if prose and breaks and len(line) > COLUMNS:
            faults.append(f"{path}:{number}: {len(line)} columns, {COLUMNS} at most")
    for number, paragraph in paragraphs(text):
        for sentence in sentences(paragraph):
            words = len(re.findall(r"[\w'-]+(?:[./][\w'-]+)*", sentence))
            if words > WORDS:
                faults.append(f"{path}:{number}: a sentence of {words} words: {sentence[:60]}...")
            faults += word_faults(f"{path}:{number}", sentence)
    return faults


def comments(text):
    """(first line's number, text) of every run of // comments, and of each behind code."""
    found, held, start = [], [], 0
    for number, line in enumerate(text.splitlines() + [""], 1):
        whole = re.match(r"\s*//[/!]*<?\s?(.*)$", line)
        if whole:
            start = start if held else number
            held.append(whole.group(1))
            continue
        if held:
            found.append((start, " ".join(held)))
            held = []
        behind = re.match(r"[^\"]*?[^\":\s]\s*//[/!]*<?\s(.*)$", line)
        if behind:
            found.append((number, behind.group(1)))
    return found


def word_faults(where, sentence):
    """Words that are replaced, and beginnings, of one sentence."""
    faults = []
    if BEGINS.match(sentence) and not sentence.endswith("?"):
        faults.append(f"{where}: begins with a relative clause: {sentence[:60]}")
    for pattern, instead in UNUSED:
        said = pattern.search(sentence)
        if said:
            faults.append(f"{where}: '{said.group(0)}': say {instead}")
    return faults


def comment_faults(path, text):
    """Faults in the comments of a C++ or CUDA file, as printable lines."""
    return [fault for number, comment in comments(text) for sentence in sentences(comment)
            for fault in word_faults(f"{path}:{number}", sentence)]
