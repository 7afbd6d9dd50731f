"""A `pith serve` that a tool starts, and what it says of itself."""

import re
import subprocess
import threading
import urllib.request


def start(command, name):
    """(process, address) of the server, once it listens."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(r"serving at (http://\S+:\d+)", line):
            threading.Thread(target=read_on, args=[process.stderr], daemon=True).start()
            return process, found.group(1)
    process.wait()
    raise SystemExit(f"{name} did not start: {''.join(said)}")


def read_on(stream):
    """What comes later goes nowhere, but must be read."""
    with stream:
        stream.read()


def get(url, path):
    with urllib.request.urlopen(url.rstrip("/") + path, timeout=60) as reply:
        return reply.read().decode()


def metric(text, name, **labels):
    """The sum of a metric's values."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(float(line.split()[-1]) for line in text.splitlines()
               if line.split("{")[0] == name and all(w in line for w in wanted))
