#!/usr/bin/env python3
"""`pith serve` under Ray Serve: as many servers as their reserved memory needs (PyPI: ray[serve]).

    tools/serve/ray_app.py -m MODEL [--min 1] [--max 3] [--port 8000] [--folder FOLDER] [OPTIONS OF pith serve]

Each replica is an actor with a `pith serve` of its own. A conversation stays with the replica that its
header X-Session-ID names (Ray's consistent hash). There are as many replicas as keep the share of memory
that running answers have reserved (pith_reserved_bytes of pith_budget_bytes) at --share on average. Where a
replica ends, or others begin, conversations move as files in FOLDER and nothing is read again: a replica
that ends writes them (--autosave, --take-over), and one that stays gives them to whom a request reached.
One whose memory stays full for seconds cannot; what it has is read again.

FOLDER must be one that all machines of the Ray cluster see; between machines conversations move at a
replica's end alone. On standard input: `state` prints replicas and their servers' figures as a line of JSON;
end of input or Ctrl-C ends all.
"""

import argparse
import asyncio
import contextlib
import fcntl
import json
import math
import os
import pathlib
import signal
import socket
import sys
import tempfile

RETRIES, PAUSE = 50, 0.1  # of a conversation's move, seconds
HERE = pathlib.Path(__file__).resolve().parent
HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host", "content-length"}


def replicas_for(figures, share):
    """Of replicas' (reserved, budget) bytes: how many keep their mean share."""
    return math.ceil(sum(reserved / budget for reserved, budget in figures) / share)


class ByReservedBytes:
    """Ray's autoscaling policy; it applies the delays, --min and --max itself."""

    def __init__(self, share):
        self.share = share

    def __call__(self, ctx):
        found = ctx.aggregated_metrics or {}
        reserved, budget = found.get("reserved", {}), found.get("budget", {})
        figures = [(reserved[r], budget[r]) for r in ctx.running_replicas if r in reserved and budget.get(r)]
        if len(figures) < len(ctx.running_replicas) or not figures:
            return ctx.target_num_replicas, {}  # one has said nothing yet
        return replicas_for(figures, self.share), {}


class Slot:
    """A place of FOLDER: a replica's files while it holds the lock. One without conversations, if there is any:
    those of a server that has ended are for all others, also for requests that wait already."""

    def __init__(self, folder, count):
        self.places = [pathlib.Path(folder, f"server-{i}") for i in range(count)]
        for place in sorted(self.places, key=lambda place: len(list(place.glob("idle/*.conversation")))):
            place.mkdir(parents=True, exist_ok=True)
            self.lock = open(place / "lock", "a+", encoding="utf-8")  # noqa: SIM115 (held while it lives)
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.own = place
                return
            except OSError:
                self.lock.close()
        raise RuntimeError(f"all {count} places in {folder} are taken")

    def others(self):
        return [place for place in self.places if place != self.own]

    def announce(self, port):
        self.lock.truncate(0)
        self.lock.write(json.dumps({"host": socket.gethostname(), "port": port}))
        self.lock.flush()

    def peers(self):
        return servers_at(self.others())


def servers_at(places):
    """(folder, address) of servers of this machine; one that is gone does not answer."""
    for place in places:
        try:
            said = json.loads((place / "lock").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if said["host"] == socket.gethostname():
            yield place, f"http://127.0.0.1:{said['port']}"


def figures_of(text):
    import server
    return {name: server.metric(text, metric) for name, metric in (
        ("reserved", "pith_reserved_bytes"), ("budget", "pith_budget_bytes"), ("sessions", "pith_sessions"))}


class Pith:
    """A replica: passes requests on to its server, and fetches conversations that lie with another one."""

    def __init__(self, options, folder, places):
        import aiohttp

        import cluster
        self.slot = Slot(folder, places)
        self.server = cluster.Replica(self.slot.own.name, self.slot.own, self.slot.others(), options).start()
        self.url = f"http://127.0.0.1:{self.server.port}"
        self.slot.announce(self.server.port)
        self.aiohttp, self.client, self.known = aiohttp, None, {}

    def open(self):
        if self.client is None:  # in the loop that it serves
            self.client = self.aiohttp.ClientSession(timeout=self.aiohttp.ClientTimeout(total=None, connect=10),
                                                     auto_decompress=False)
        return self.client

    async def __call__(self, request):
        from starlette.responses import StreamingResponse
        body = await request.body()
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP}
        if name := headers.get("x-session-id"):
            async with self.known.setdefault(name, asyncio.Lock()):
                await self.fetch(name, headers, body)
        query = f"?{request.url.query}" if request.url.query else ""
        reply = await self.open().request(request.method, self.url + request.url.path + query, data=body,
                                          headers=headers)

        async def rest():
            try:
                async for piece in reply.content.iter_any():
                    yield piece
            finally:
                reply.close()  # a client that leaves ends the answer
        return StreamingResponse(rest(), reply.status, {k: v for k, v in reply.headers.items() if k.lower() not in HOP})

    async def ask(self, method, url, path, headers, body=None):
        """(status, answer); None for a server that is gone. Asks again while memory or a conversation is in use."""
        for _ in range(RETRIES):
            try:
                async with self.open().request(method, url + path, headers=headers, json=body) as reply:
                    found = reply.status, json.loads(await reply.read() or b"null")
            except (OSError, ValueError, self.aiohttp.ClientError):
                return None, None
            if found[0] not in (409, 503):
                break
            await asyncio.sleep(PAUSE)
        return found

    async def fetch(self, name, headers, body):
        """Moves a conversation here that another live server of this machine has."""
        path = "/v1/pith/sessions/" + name
        with_key = {k: v for k, v in headers.items() if k.lower() == "authorization"}
        if (await self.ask("GET", self.url, path, with_key))[0] != 404:
            return
        try:
            model = json.loads(body).get("model")
        except (ValueError, AttributeError):
            model = None
        for place, url in self.slot.peers():
            if (await self.ask("GET", url, path, with_key))[0] != 200:
                continue
            file = {"name": f"moved-{os.urandom(8).hex()}"}
            if (await self.ask("POST", url, path + "/save", with_key, file))[0] != 200:
                continue
            (place / file["name"]).rename(self.slot.own / file["name"])
            more = {"model": model} if model else {}
            status, _ = await self.ask("POST", self.url, path + "/restore", with_key, {**file, **more})
            (self.slot.own / file["name"]).unlink(missing_ok=True)
            if status == 200:
                await self.ask("DELETE", url, path, with_key)
            return

    async def record_autoscaling_stats(self):
        async with self.open().get(self.url + "/metrics") as reply:
            return figures_of(await reply.text())

    async def check_health(self):
        if not self.server.alive():
            raise RuntimeError("its server has ended")

    def __del__(self):
        if server := getattr(self, "server", None):
            server.end()  # SIGTERM: it writes its conversations


def options_of(arguments):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--min", type=int, default=1, help="replicas (default 1)")
    p.add_argument("--max", type=int, default=3, help="replicas (default 3)")
    p.add_argument("--share", type=float, default=0.5, help="of memory, reserved on average (default 0.5)")
    p.add_argument("--up", type=float, default=5, help="seconds of more load before a replica is added (default 5)")
    p.add_argument("--down", type=float, default=60, help="seconds of less before one ends (default 60)")
    p.add_argument("--cpus", type=float, default=0, help="that Ray sets aside for a replica (default 0)")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--folder", help="of the conversations' files; default: one that ends with the application")
    options, rest = p.parse_known_args(arguments)
    if not 1 <= options.min <= options.max:
        p.error("--min is 1 or more and at most --max")
    if not 0 < options.share <= 1:
        p.error("--share is above 0 and at most 1")
    return options, rest


def application(serve, options, rest, folder):
    window = max(0.5, min(5.0, options.up))
    return serve.deployment(
        name="pith", max_ongoing_requests=1000, graceful_shutdown_wait_loop_s=0.1, graceful_shutdown_timeout_s=3600,
        ray_actor_options={"num_cpus": options.cpus, "runtime_env": {"env_vars": {"PYTHONPATH": str(HERE)}}},
        request_router_config={
            "request_router_class": "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"},
        autoscaling_config={
            "min_replicas": options.min, "max_replicas": options.max, "upscale_delay_s": options.up,
            "downscale_delay_s": options.down, "look_back_period_s": window, "metrics_interval_s": window / 2,
            "policy": {"policy_function": "ray_app:ByReservedBytes", "policy_kwargs": {"share": options.share}}},
        # Replicas that begin while others end need places too.
    )(Pith).bind(["-m", options.model, *rest], str(folder), 2 * options.max)


def state_of(serve, folder):
    import server
    found = []
    for place, url in servers_at(sorted(folder.glob("server-*"))):
        with contextlib.suppress(OSError):
            found.append({"name": place.name, "url": url, **figures_of(server.get(url, "/metrics"))})
    return {"replicas": serve.status().applications["pith"].deployments["pith"].replica_states, "servers": found}


def main(arguments=None):
    options, rest = options_of(arguments)
    try:
        import ray
        from ray import serve
    except ImportError:
        sys.exit("ray_app: this needs Ray Serve: pip install 'ray[serve]'")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's processes do not find this file
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory() as own:
        folder = pathlib.Path(options.folder or own).resolve()
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
        serve.start(http_options={"host": "127.0.0.1", "port": options.port})
        try:
            serve.run(application(serve, options, rest, folder), name="pith")
            print(f"serving at http://127.0.0.1:{options.port}", flush=True)
            for line in sys.stdin:
                if line.strip() == "state":
                    print(json.dumps(state_of(serve, folder)), flush=True)
        except KeyboardInterrupt:
            pass
        finally:
            serve.shutdown()
            ray.shutdown()


if __name__ == "__main__":
    import ray_app  # under the name that Ray looks for

    ray_app.main()
