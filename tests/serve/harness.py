"""A server of the demo model for one test, and small ways to talk to it (standard library alone)."""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PITH = pathlib.Path(os.environ.get("PITH_PROGRAM", ROOT / "build/bin/pith"))
MODEL = ROOT / "models/demo"
SKIPPED = 77  # as ctest reads it


class Server:
    """`pith serve` at a port of its own; a context."""

    def __init__(self, *options, policy="exact", threads="2"):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        command = [str(PITH), "serve", "-m", str(MODEL), "--port", "0", "-t", threads,
                   "--kv-policy", policy, "--no-check-weights", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            self.log.write(line)
            found = re.search(r"serving at (http://[^ ]*:(\d+))", line)
            if found:
                self.url, self.port = found.group(1), int(found.group(2))
                break
        else:
            self.log.seek(0)
            self.process.stderr.close()
            self.process.wait(10)
            sys.exit(f"the server did not start: {self.log.read()}")
        # What comes later goes nowhere, but must be read.
        self.rest = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=self.log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        self.rest.wait(10)
        self.process.stderr.close()
        self.log.close()

    def lines(self):
        """The log's lines about requests."""
        self.log.flush()
        text = pathlib.Path(self.log.name).read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def ask(self, method, path, body=None, headers=None):
        """(status, body as JSON or text, headers)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        send = dict(headers or {})
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        if body is not None:
            send.setdefault("Content-Type", "application/json")
        connection.request(method, path, body, send)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        kind = answer.headers.get("Content-Type", "")
        return answer.status, json.loads(text) if "json" in kind else text, answer.headers

    def post(self, path, body, **headers):
        status, answer, _ = self.ask("POST", path, body, headers)
        assert status == 200, (status, answer)
        return answer

    def raw(self, data, wait=30):
        """What comes back for these bytes until the server closes or says nothing for a moment."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as s:
            s.sendall(data)
            out = b""
            try:
                while True:
                    piece = s.recv(65536)
                    if not piece:
                        return out
                    out += piece
                    s.settimeout(1)
            except socket.timeout:
                return out

    def metric(self, name):
        """The sum of a metric's values."""
        _, text, _ = self.ask("GET", "/metrics")
        return sum(float(line.split()[-1]) for line in text.splitlines()
                   if line.split("{")[0] == name)


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def words(count, first=0):
    """Text of about so many tokens."""
    names = ["ship", "captain", "water", "island", "morning", "whale", "boat", "wind", "hand", "old"]
    return " ".join(names[(i * i + first + i) % len(names)] for i in range(count))
