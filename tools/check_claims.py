#!/usr/bin/env python3
"""Reruns the quick claims of the documents.

A page says behind or before a figure
    <!-- claim: pith inspect -m LLAMA_8B -c 131072 --kv-policy exact+int4 => 4.51 GiB; 3.5x -->
and the command must print each text that stands behind `=>`, and the page must hold it too. LLAMA_8B is a
folder with a config.json of Llama-3.1-8B's shape. Commands run from the repository, `pith` is build/bin/pith.
`<!-- claim of MODEL: ... -->` needs a model that `pith pull MODEL` fetches, and is skipped aloud where it is not there.
`--self-test` proves that a wrong figure fails.
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from tracked import tracked

ROOT = pathlib.Path(__file__).resolve().parent.parent
PITH = ROOT / "build/bin/pith"
CLAIM = re.compile(r"<!-- claim(?: of (?P<model>\S+))?: (?P<command>.*?) => (?P<texts>.*?) -->", re.S)
LLAMA_8B = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
            "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072, "rope_theta": 500000, "torch_dtype": "bfloat16"}


def plain(text):
    return re.sub(r"\s+", " ", text)


def pulled():
    listed = subprocess.run([PITH, "list", "--json"], capture_output=True, text=True, check=False)
    return {m["name"] for m in json.loads(listed.stdout)["models"]} if listed.returncode == 0 else set()


def faults_of(page, text, models, folder, skipped):
    """What is wrong with the claims of one page."""
    faults = []
    said = plain(CLAIM.sub("", text))
    for claim in CLAIM.finditer(text):
        command = plain(claim["command"])
        if claim["model"] and claim["model"] not in models:
            skipped.append(f"{page}: {command}: {claim['model']} is not pulled")
            continue
        words = [w.replace("LLAMA_8B", str(folder)) for w in shlex.split(command)]
        if words[0] != "pith":
            faults.append(f"{page}: a claim runs pith, not {words[0]}")
            continue
        ran = subprocess.run([PITH, *words[1:]], capture_output=True, text=True, check=False, cwd=ROOT, timeout=300,
                             env={**os.environ, "COLUMNS": "200"})
        printed = plain(ran.stdout + ran.stderr)
        for figure in filter(None, (plain(t).strip() for t in claim["texts"].split(";"))):
            if figure not in printed:
                faults.append(f"{page}: `{command}` does not print '{figure}' but: {printed[-300:]}")
            if figure not in said:
                faults.append(f"{page}: the page does not say '{figure}', which `{command}` prints")
    return faults


def check(pages):
    models, skipped, faults, claims = pulled(), [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(LLAMA_8B))
        for page, text in pages.items():
            claims += len(CLAIM.findall(text))
            faults += faults_of(page, text, models, folder, skipped)
    return claims, skipped, faults


def self_test():
    claim = "<!-- claim: pith inspect -m LLAMA_8B -c 4096 => {} -->"
    good = {"good.md": "It takes 512 MiB. " + claim.format("512 MiB")}
    assert check(good)[2] == [], check(good)
    assert len(check({"a.md": "It takes 511 MiB. " + claim.format("511 MiB")})[2]) == 1
    assert len(check({"a.md": "It takes much. " + claim.format("512 MiB")})[2]) == 1
    assert len(check({"a.md": "x <!-- claim: rm -r x => x -->"})[2]) == 1
    absent = check({"a.md": "x <!-- claim of no-such-model: pith list => x -->"})
    assert absent[1] and not absent[2]


def main():
    if not PITH.exists():
        print("claims: SKIPPED, there is no build/bin/pith: `make` builds it")
        return 0
    if "--self-test" in sys.argv[1:]:
        self_test()
        return 0
    claims, skipped, faults = check({f: (ROOT / f).read_text() for f in tracked(ROOT, (".md",))})
    for line in skipped:
        print(f"claims: SKIPPED: {line}")
    for line in faults:
        print(line)
    print(f"claims: {claims} run again, {len(skipped)} of them skipped, {len(faults)} faults")
    return 1 if faults else 0


sys.exit(main())
