#!/usr/bin/env python3
"""Puts a server under load and checks what stays behind. Standard library alone.

    python load.py http://127.0.0.1:8000 --streams 256 --seconds 600 --leave 0.2

Keeps N streams open; a share of the clients leave at a random point, some before the first byte. A quarter of the time
goes before, to fill caches; then the same again, measured. Afterwards nothing may run, no page or slot may be held, and
the process may have no more files open and little more memory than before. Prints a JSON object; exit code 1 if something
was wrong, with the reasons under "problems".

`overhead_us_per_token` is what serving costs beside the model: the process's CPU time without that of the steps, for
each token generated, prompts and clients that left included. All of it is read from /metrics.
"""
import argparse
import asyncio
import json
import random
import re
import sys
import time
import urllib.parse

PROMPTS = 24  # a fixed set: what the cache keeps of it does not grow for ever
HELD = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "kv_cache_slots_in_use",
        "http_requests_in_flight", "http_buffered_body_bytes", "http_buffered_answer_bytes")  # zero when nothing runs


class Counts:
    def __init__(self):
        self.finished = self.left = self.refused = self.events = 0
        self.errors = {}

    def error(self, what):
        self.errors[what] = self.errors.get(what, 0) + 1


class Client:
    def __init__(self, url, key):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port or 80
        self.head = f"Host: {parts.netloc}\r\n" + (f"Authorization: Bearer {key}\r\n" if key else "")

    async def open(self, method, path, body=b""):
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        writer.write(f"{method} {path} HTTP/1.1\r\n{self.head}Connection: close\r\nContent-Type: application/json\r\n"
                     f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        return reader, writer

    async def get(self, path):
        reader, writer = await self.open("GET", path)
        data = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        return data.split(b"\r\n\r\n", 1)[1].decode()

    async def metrics(self):
        values = {}
        for line in (await self.get("/metrics")).splitlines():
            found = re.fullmatch(r"(?:senko:)?(\w+)(?:\{[^{}]*\})? (\S+)", line)
            if found:
                values[found[1]] = float(found[2])
        return values

    async def stream(self, body, leave_after, counts):
        """One request. `leave_after`: events to read before leaving, or None."""
        reader, writer = await self.open("POST", "/v1/completions", json.dumps(body).encode())
        try:
            if leave_after == 0:
                counts.left += 1
                return
            status = (await reader.readline()).split()
            if not status or status[1] != b"200":
                if status and status[1] in (b"503", b"429"):
                    counts.refused += 1
                    await asyncio.sleep(0.1)
                else:
                    counts.error(f"status {status[1].decode() if status else 'none'}")
                return
            seen, ends, done = 0, 0, False
            while line := await reader.readline():
                if line == b"data: [DONE]\n":
                    done = True
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        return counts.error(event["error"]["message"])
                    ends += event["choices"][0]["finish_reason"] is not None
                    seen += 1
                    counts.events += 1
                    if seen == leave_after:
                        counts.left += 1
                        return
            if not done or ends != body["n"]:
                return counts.error("a stream without its end")
            counts.finished += 1
        finally:
            if random.random() < 0.5:
                writer.transport.abort()  # RST where something is still unread
            writer.close()


async def load(client, args, seconds, counts):
    end = time.monotonic() + seconds

    async def worker(number):
        draw = random.Random(f"{args.seed} {number} {seconds}")
        while time.monotonic() < end:
            which = random.Random(f"{args.seed} prompt {draw.randrange(PROMPTS)}")
            words = "".join(which.choice("abcdefghij \n") for _ in range(which.randint(1, args.prompt_bytes)))
            body = {"prompt": words, "max_tokens": draw.randint(1, args.max_tokens), "temperature": 0, "stream": True,
                    "n": draw.choice((1, 1, 1, 2)), "ignore_eos": True}
            leave = draw.randint(0, args.max_tokens) if draw.random() < args.leave else None
            try:
                await asyncio.wait_for(client.stream(body, leave, counts), args.patience)
            except (OSError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError) as error:
                counts.error(type(error).__name__)
                await asyncio.sleep(0.1)

    await asyncio.gather(*(worker(i) for i in range(args.streams)))


async def settle(client, problems, patience=20):
    """Waits until nothing is held any more, `patience` seconds at most."""
    end = time.monotonic() + patience
    while True:
        metrics = await client.metrics()
        held = {name: metrics[name] for name in HELD if metrics[name] != 0}
        if not held:
            return metrics
        if time.monotonic() > end:
            problems.append(f"still held {patience} s after the last request: {held}")
            return metrics
        await asyncio.sleep(0.05)


async def run(args):
    client, problems = Client(args.url, args.key), []
    warm, counts = Counts(), Counts()
    await load(client, args, args.seconds / 4, warm)
    first = await settle(client, problems)
    begin = time.monotonic()
    await load(client, args, args.seconds, counts)
    seconds = time.monotonic() - begin
    last = await settle(client, problems)
    for _ in range(100):  # a connection that its client has closed stays for a moment
        if last["process_open_fds"] <= first["process_open_fds"]:
            break
        await asyncio.sleep(0.05)
        last = await settle(client, problems)

    def moved(name):
        return last[name] - first[name]

    def both(name):
        return [int(first[name]), int(last[name])]

    tokens = moved("generation_tokens_total")
    cpu, compute = moved("process_cpu_seconds_total"), moved("compute_cpu_seconds_total")
    report = {"seconds": round(seconds, 2), "finished": counts.finished, "left": counts.left,
              "refused": counts.refused, "errors": counts.errors | warm.errors, "tokens": int(tokens),
              "tokens_per_second": round(tokens / seconds, 1), "steps": int(moved("engine_steps_total")),
              "preemptions": int(moved("num_preemptions_total")), "requests": int(moved("http_requests_total")),
              "files": both("process_open_fds"), "bytes": both("process_resident_memory_bytes"),
              "model_us_per_token": round(compute * 1e6 / max(1, tokens), 1),
              "overhead_us_per_token": round((cpu - compute) * 1e6 / max(1, tokens), 1)}
    if report["errors"]:
        problems.append("errors")
    if counts.finished == 0:
        problems.append("no stream finished")
    if moved("process_open_fds") > 0:
        problems.append("more files open than before")
    if moved("process_resident_memory_bytes") > args.growth_mib * (1 << 20):
        problems.append("more memory than before")
    report["problems"] = problems
    print(json.dumps(report, indent=1))
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--leave", type=float, default=0.3, help="share of the clients that leave early")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--prompt-bytes", type=int, default=300)
    parser.add_argument("--patience", type=float, default=120, help="seconds that a stream may take")
    parser.add_argument("--growth-mib", type=float, default=16, help="memory that may be taken and not given back")
    parser.add_argument("--key", help="API key")
    parser.add_argument("--seed", default="load")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
