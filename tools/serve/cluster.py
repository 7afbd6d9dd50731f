#!/usr/bin/env python3
"""Several servers behind HAProxy: conversations stay with their server and outlive it (standard library).

    tools/serve/cluster.py -m MODEL [-n 3] [--port 8080] [--folder FOLDER] [--router PROGRAM] [OPTIONS OF pith serve]

Starts -n `pith serve` at ports of their own and HAProxy (Debian's package) before them. A conversation
stays with the server that its header X-Session-ID names (a consistent hash). A server that ends (`drain`)
or is gone hands its saved conversations to those that are left (--autosave, --take-over); what was not
saved is read again. Answers are the same either way. --router VENV/bin/vllm-router is in HAProxy's place
(pip install vllm-router).

On standard input: `drain I` (SIGTERM, answers are finished), `kill I` (SIGKILL), `start I`; end of input or
Ctrl-C ends all. FOLDER keeps the conversations' files, so that a cluster that starts there goes on.
"""

import argparse
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

import server

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Requests are held whole until a server has taken them, so that another one gets what the first refused or
# did not answer. Bytes of a request at most; a larger one is passed on, and not tried twice. Checks find who
# is gone for good; they never end an answer, since a server that drains fails them and finishes its answers.
BUFFER = 1 << 20
CONFIG = """
global
  maxconn 2000
  tune.bufsize {buffer}
defaults
  mode http
  option http-buffer-request
  option http-no-delay
  option redispatch 1
  retries 5
  retry-on conn-failure empty-response response-timeout 503
  timeout connect 2s
  timeout client 1h
  timeout server 1h
  timeout http-request 30s
  timeout queue 1m
  timeout check 10s
frontend all
  bind 127.0.0.1:{port}
  default_backend servers
backend servers
  balance hdr(X-Session-ID)
  hash-type consistent
  option httpchk
  http-check send meth GET uri /health ver HTTP/1.1 hdr Host 127.0.0.1
  default-server check inter 500ms fall 2 rise 1
{servers}
"""


def router_command(program, port, urls):
    """vllm-router, which sends a request again where a server refuses it or is gone."""
    return [program, "--host", "127.0.0.1", "--port", str(port), "--policy", "consistent_hash", "--log-level", "error",
            "--prometheus-port", str(free_port()), "--health-check-interval-secs", "1", "--health-failure-threshold",
            "2", "--health-success-threshold", "1", "--worker-startup-check-interval", "1", "--worker-urls", *urls]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def haproxy():
    """The program, or None."""
    return os.environ.get("HAPROXY") or shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")


def pith():
    return os.environ.get("PITH_PROGRAM", ROOT / "build/bin/pith")


class Replica:
    """One server; its port stays when it is started again."""

    def __init__(self, name, folder, others, options):
        self.name, self.folder, self.others, self.options = name, folder, others, options
        self.port = self.process = None
        folder.mkdir(parents=True, exist_ok=True)

    def start(self):
        command = [str(pith()), "serve", "--port", str(self.port or 0), "--autosave",
                   "--slot-save-path", str(self.folder), "-q", *self.options]
        for other in self.others:
            command += ["--take-over", str(other)]
        self.process, url = server.start(command, self.name)
        self.port = int(url.rsplit(":", 1)[1])
        return self

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def end(self, how=signal.SIGTERM, wait=True):
        if self.alive():
            self.process.send_signal(how)
            if wait:
                self.process.wait()


class Cluster:
    """A context: servers and the proxy, which listens at `port`. `router`: vllm-router instead of HAProxy."""

    def __init__(self, options, replicas=3, port=8080, folder=None, router=None):
        if not router and haproxy() is None:
            raise SystemExit("haproxy is missing; apt-get install haproxy, or name it with HAPROXY=PROGRAM")
        self.own = tempfile.TemporaryDirectory() if folder is None else None
        self.folder = pathlib.Path(folder or self.own.name)
        places = [self.folder / f"server-{i}" for i in range(replicas)]
        self.replicas = [Replica(place.name, place, [p for p in places if p != place], options) for place in places]
        self.port, self.router, self.proxy = port, router, None

    def __enter__(self):
        try:
            for replica in self.replicas:
                replica.start()
            # vllm-router says what it does on standard output, which is for answers to commands here.
            self.proxy = subprocess.Popen(self.proxy_command(), stdout=subprocess.DEVNULL)
        except BaseException:
            self.__exit__()
            raise
        return self

    def proxy_command(self):
        if self.router:
            return router_command(self.router, self.port, [f"http://127.0.0.1:{r.port}" for r in self.replicas])
        servers = "\n".join(f"  server {r.name} 127.0.0.1:{r.port}" for r in self.replicas)
        config = self.folder / "haproxy.cfg"
        config.write_text(CONFIG.format(port=self.port, servers=servers, buffer=BUFFER))
        return [haproxy(), "-db", "-q", "-f", str(config)]

    def __exit__(self, *_):
        if self.proxy:
            self.proxy.terminate()
            self.proxy.wait()
        for replica in self.replicas:
            replica.end(wait=False)
        for replica in self.replicas:
            if replica.process:
                replica.process.wait()
        if self.own:
            self.own.cleanup()

    def command(self, words):
        """What a line of standard input asks for."""
        verb, number = words
        replica = self.replicas[int(number)]
        if verb == "drain":
            replica.end()
        elif verb == "kill":
            replica.end(signal.SIGKILL)
        elif verb == "start" and not replica.alive():
            replica.start()
        else:
            raise ValueError(verb)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-n", "--replicas", type=int, default=3, choices=range(1, 65), metavar="N")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--folder", help="of the conversations' files; default: one that ends with the cluster")
    parser.add_argument("--router", help="vllm-router, instead of HAProxy")
    options, rest = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Cluster(["-m", options.model, *rest], options.replicas, options.port, options.folder,
                 options.router) as cluster:
        print(f"{options.replicas} servers behind http://127.0.0.1:{options.port}", flush=True)
        try:
            for line in sys.stdin:
                try:
                    cluster.command(line.split())
                    print("ok", flush=True)
                except (ValueError, IndexError):
                    print("drain I, kill I or start I, with I from 0; start one that is not there", flush=True)
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
