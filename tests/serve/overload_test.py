"""More than fits: refused quickly and exactly, small bodies that say when to try again; what was let in finishes."""
import http.client
import json
import random
import statistics
import threading
import time

import pytest
from server import together

LONG = {"prompt": "go", "max_tokens": 30_000, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(running, small_model):
    with running("--threads", 1, "--max-num-seqs", 2, "--max-num-waiting", 3, model=small_model) as server:
        yield server


def refused(reply, status):
    assert reply.status == status, reply
    assert len(reply.body) < 1024 and int(reply.headers["Retry-After"]) >= 1
    return reply.error


def test_a_full_queue(server):
    """Two run, three wait; of forty more exactly none is let in, whoever they speak to."""
    running = [server.open_stream("/v1/completions", **LONG) for _ in range(2)]
    for stream in running:
        next(stream)
    waiting = [server.open_stream("/v1/completions", **LONG) for _ in range(3)]
    try:
        server.wait_metric("num_requests_waiting", 3)
        bodies = [("/v1/completions", {"prompt": "a"}), ("/v1/completions", {"prompt": "a", "stream": True}),
                  ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                  ("/v1/responses", {"input": "a"})]
        replies = server.post_all(bodies * 10)
        for reply in replies:
            assert refused(reply, 503)["code"] == "overloaded"
        reply = server.post("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})
        assert refused(reply, 529)["type"] == "overloaded_error"
        assert server.get("/health").status == 200
    finally:
        for stream in (*running, *waiting):
            stream.reset()
    server.wait_metric("num_requests_running", 0)
    server.wait_metric("num_requests_waiting", 0)
    assert server.complete("a", max_tokens=1)["usage"]["completion_tokens"] == 1


def let_in(server, count, choices):
    """The streams of those that are not turned away of `count` that come together, the i-th asking for choices(i)."""

    def one(i):
        try:
            return server.open_stream("/v1/completions", n=choices(i), **LONG)
        except AssertionError as error:
            assert str(error).startswith("503"), error

    return [stream for stream in together(count, one) if stream]


def test_a_flood_fills_the_queue_exactly(server):
    """All at once while nothing can run: as many wait as may, each a request whatever choices it has."""
    running = [server.open_stream("/v1/completions", **LONG) for _ in range(2)]
    waiting = []
    try:
        for stream in running:
            next(stream)

        waiting = let_in(server, 40, lambda i: 8 if i % 2 else 1)
        assert len(waiting) == 3 == server.metrics()["num_requests_waiting"]
    finally:
        for stream in (*running, *waiting):
            stream.reset()
    server.wait_metric("num_requests_running", 0)
    server.wait_metric("num_requests_waiting", 0)


def test_a_list_that_never_fits(server):
    """Each prompt of a list waits as a request: more of them than may wait are the request's fault, not the hour's."""
    reply = server.post("/v1/completions", {"prompt": ["a"] * 4, "max_tokens": 1})
    assert (reply.status, reply.error["param"]) == (400, "prompt")
    assert "at most 3 items" in reply.error["message"] and "Retry-After" not in reply.headers
    reply = server.post("/v1/completions", {"prompt": ["a"] * 3, "n": 2, "max_tokens": 1})
    assert reply.status == 200 and len(reply.json["choices"]) == 6


def test_two_hundred_are_told_at_once(running, small_model):
    """Eight are in; of two hundred that come together, and of two hundred more one by one, none. Each is told without
    waiting for those who run (they take minutes) or for a step of theirs (one reads a long prompt, in steps of many
    milliseconds): as quickly as /health answers, which waits for nothing, however busy the machine is."""
    with running("--threads", 1, "--max-num-seqs", 2, "--max-num-waiting", 6, model=small_model) as server:
        running_streams = [server.open_stream("/v1/completions", **LONG)]
        waiting = []
        try:
            next(running_streams[0])
            draw = random.Random(4)
            running_streams.append(server.open_stream(
                "/v1/completions", prompt=[draw.randrange(30, 500) for _ in range(30_000)], max_tokens=2000))
            server.wait_metric("num_requests_running", 2)
            waiting = let_in(server, 200, lambda _: 1)
            assert len(waiting) == 6 == server.metrics()["num_requests_waiting"]
            begin, steps = time.monotonic(), server.metrics()["engine_steps_total"]
            alike, times = [], []
            for _ in range(200):  # in turn: what slows the one down slows the other
                alike.append(server.get("/health").seconds)
                times.append(refused_after(server))
            step = (time.monotonic() - begin) / max(1, server.metrics()["engine_steps_total"] - steps)
            most = 3 * statistics.median(alike) + step / 4  # where a step is waited for it is half of one and more
            print(f"refused after {statistics.median(times) * 1e3:.2f} ms (median), {max(times) * 1e3:.1f} ms at most, "
                  f"limit {most * 1e3:.2f} ms; a step takes {step * 1e3:.1f} ms")
            assert statistics.median(times) < most, (sorted(times), sorted(alike))
        finally:
            for stream in (*running_streams, *waiting):
                stream.reset()
        server.wait_metric("num_requests_running", 0)
        server.wait_metric("num_requests_waiting", 0)


def refused_after(server):
    """Seconds that a refusal took, connection and all."""
    reply = server.post("/v1/completions", LONG)
    refused(reply, 503)
    return reply.seconds


def test_a_flood(server):
    """All at once: some are let in and finish, all others are told; nobody gets anything else."""
    replies = together(60, lambda i: server.post("/v1/completions", {"prompt": f"{i}", "max_tokens": 8}))
    good = [reply for reply in replies if reply.status == 200]
    for reply in replies:
        if reply.status == 200:
            assert reply.json["choices"][0]["finish_reason"] in ("stop", "length")
        else:
            refused(reply, 503)
    assert len(good) >= 3
    server.wait_metric("num_requests_running", 0)


def test_requests_in_flight(running, small_model):
    with running("--threads", 1, "--limit-concurrency", 3, model=small_model) as server:
        streams = [server.open_stream("/v1/completions", **LONG) for _ in range(3)]
        try:
            for stream in streams:
                next(stream)
            for reply in (server.post("/v1/completions", {"prompt": "a"}), server.get("/v1/models"),
                          server.post("/tokenize", {"prompt": "a"})):
                refused(reply, 503)
            assert server.get("/health").status == server.get("/metrics").status == 200
            assert server.metrics()["http_refused_total"] == 3
        finally:
            for stream in streams:
                stream.reset()
        server.wait_metric("http_requests_in_flight", 0)
        assert server.get("/v1/models").status == 200


def test_requests_per_minute(running, small_model):
    with running("--threads", 1, "--requests-per-minute", 5, "--api-key", "a", "--api-key", "b",
                 model=small_model) as server:
        for key in "ab":
            header = {"Authorization": f"Bearer {key}"}
            replies = [server.post("/tokenize", {"prompt": "x"}, headers=header) for _ in range(8)]
            assert [reply.status for reply in replies[:5]] == [200] * 5
            for reply in replies[6:]:
                assert refused(reply, 429)["type"] == "rate_limit_error"
        assert server.get("/health").status == 200


def test_more_than_the_pages_hold(running, small_model):
    """A pool that is always full: sequences give way and come back, and every one gets its whole answer. In the exact
    mode it is the answer that one alone gets."""
    sequences, length, slot, page = 6, 240, 24_064, 64 * 100  # bytes of a slot and of a page
    with running("--threads", 1, "--block-size", 64, "--max-model-len", 256, "--max-num-seqs", sequences,
                 "--no-swa-bounded-replay", "--kv-cache-memory-bytes", sequences * slot + 7 * page,
                 model=small_model) as server:
        alone = server.complete("many pages", max_tokens=length, ignore_eos=True)["choices"][0]["text"]
        answers = together(sequences, lambda i: server.complete("many pages", max_tokens=length, ignore_eos=True))
        for answer in answers:
            assert answer["usage"]["completion_tokens"] == length
            assert answer["choices"][0]["text"] == alone
        assert server.metrics()["num_preemptions_total"] >= 1
        server.wait_metric("kv_cache_usage_perc", 0)


def test_health_under_load(server):
    """While another decodes and a prompt of ten thousand tokens is read: live, ready, and about as quick as idle."""
    idle = statistics.median(server.get("/health").seconds for _ in range(100))
    stop = threading.Event()
    times = []

    def probe():
        while not stop.is_set():
            reply = server.get("/health")
            assert (reply.status, reply.json) == (200, {"status": "ok"})
            times.append(reply.seconds)

    thread = threading.Thread(target=probe)
    with server.open_stream("/v1/completions", **LONG) as stream:
        next(stream)
        thread.start()
        draw = random.Random(3)
        steps = server.metrics()["engine_steps_total"]
        reply = server.post("/v1/completions", {"prompt": [draw.randrange(30, 500) for _ in range(10_000)],
                                                "max_tokens": 1})
        stop.set()
        steps = server.metrics()["engine_steps_total"] - steps
        assert reply.status == 200 and reply.json["usage"]["prompt_tokens"] == 10_000
        assert server.get("/ready").status == 200
        thread.join(10)
        stream.reset()
    middle = statistics.median(times)
    # Behind a step it would be half of one, and the steps that read the prompt are longer than the mean.
    most = 5 * idle + reply.seconds / steps / 4
    print(f"{len(times)} times /health in {reply.seconds:.1f} s: {middle * 1e3:.2f} ms (median), "
          f"{max(times) * 1e3:.1f} ms at most; {idle * 1e3:.2f} ms when idle, limit {most * 1e3:.2f} ms")
    assert len(times) > 3 and middle < most, sorted(times)


def test_keep_alive_connections_are_served_in_turn(server):
    """One connection, many requests, an error among them."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    for i in range(20):
        body = json.dumps({"prompt": "a", "max_tokens": 1, **({"top_p": 7} if i % 3 == 1 else {})})
        connection.request("POST", "/v1/completions", body)
        answer = connection.getresponse()
        assert answer.status == (400 if i % 3 == 1 else 200)
        answer.read()
    connection.close()
