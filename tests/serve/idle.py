#!/usr/bin/env python3
"""Holds connections that say nothing more and connections that send their head a byte a second, and times /health among
them. Standard library alone.

    python idle.py http://127.0.0.1:8000 --idle 2000 --slow 500 --probes 500

The silent ones have had one answer each, so that a server keeps them for its --timeout-keep-alive. Every probe is a
connection of its own, from connect to the last byte. Prints a JSON object with the times, in milliseconds, before those
connections were opened and among them; exit code 77 if this machine's limit of open files is too low, 1 if the server did
not hold all of the connections.
"""
import argparse
import json
import multiprocessing
import resource
import socket
import sys
import time
import urllib.parse

HEAD = b"GET /version HTTP/1.1\r\nHost: idle\r\nX: "
BYTES = 8  # that a slow connection sends before it gives up and comes again: within every server's patience


def get(address, path):
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: idle\r\nConnection: close\r\n\r\n".encode())
        text = b""
        while part := connection.recv(1 << 16):
            text += part
    assert text.startswith(b"HTTP/1.1 200 "), text[:200]
    return text.split(b"\r\n\r\n", 1)[1].decode()


def rest(address):
    """A connection that has had an answer and waits for its next request."""
    connection = socket.create_connection(address, timeout=30)
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: idle\r\n\r\n")
    text = b""
    while not text.endswith(b"}"):
        part = connection.recv(1 << 12)
        assert part, "the connection ended"
        text += part
    return connection


def hold(address, idle, slow, ready):
    """A process of its own, so that its work is not in the times. Ends when it is killed."""
    resting = [rest(address) for _ in range(idle)]
    dripping = [[socket.create_connection(address, timeout=30), i % BYTES] for i in range(slow)]
    for entry in dripping:  # not all of them come again in the same second
        entry[0].sendall(HEAD[:entry[1] + 1])
    ready.set()
    turn, begin = 0, time.monotonic()
    while resting or dripping:
        for entry in dripping[turn % 50::50]:
            entry[1] += 1
            if entry[1] == BYTES:
                entry[0].close()
                entry[:] = [socket.create_connection(address, timeout=30), 0]
            entry[0].sendall(HEAD[entry[1]:entry[1] + 1])
        turn += 1
        time.sleep(max(0, begin + turn / 50 - time.monotonic()))


def probe(address, count, gap):
    times = []
    for _ in range(count):
        begin = time.monotonic()
        get(address, "/health")
        times.append((time.monotonic() - begin) * 1e3)
        time.sleep(gap)
    times.sort()
    return {"p50": round(times[count // 2], 2), "p99": round(times[min(count - 1, count * 99 // 100)], 2),
            "max": round(times[-1], 2)}


def connections(address):
    for line in get(address, "/metrics").splitlines():
        if line.startswith("senko:http_connections{"):
            return int(float(line.rsplit(" ", 1)[1]))
    raise AssertionError("no senko:http_connections")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--slow", type=int, default=500)
    parser.add_argument("--probes", type=int, default=500)
    parser.add_argument("--gap", type=float, default=0.02, help="seconds between two probes")
    args = parser.parse_args()
    parts = urllib.parse.urlsplit(args.url)
    address, held = (parts.hostname, parts.port or 80), args.idle + args.slow
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit != resource.RLIM_INFINITY and limit < held + 600:  # the server keeps some for itself
        print(f"the limit of open files is {limit}, {held} connections need {held + 600}")
        return 77
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    report = {"idle": args.idle, "slow": args.slow, "probes": args.probes,
              "health_ms_alone": probe(address, args.probes, args.gap)}
    ready = multiprocessing.Event()
    holder = multiprocessing.Process(target=hold, args=(address, args.idle, args.slow, ready), daemon=True)
    holder.start()
    try:
        if not ready.wait(60):
            raise SystemExit("the connections could not be opened within 60 s")
        before = connections(address)
        report["health_ms_among"] = probe(address, args.probes, args.gap)
        report["connections"] = [before, connections(address)]
    finally:
        holder.kill()
        holder.join()
    print(json.dumps(report, indent=1))
    # One that comes again may be missing for a moment.
    return 0 if min(report["connections"]) >= held - args.slow // 10 else 1


if __name__ == "__main__":
    sys.exit(main())
