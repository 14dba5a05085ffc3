"""Clients that leave: at once noticed, in the queue, in prefill, in decode; nothing stays behind."""
import random
import socket
import struct
import time

import pytest
from server import together

SOON = 5  # seconds; about one on an idle machine


@pytest.fixture(scope="module")
def server(running, small_model):
    """One sequence at a time and short steps, so that prefills last."""
    with running("--threads", 1, "--max-num-seqs", 1, "--max-num-batched-tokens", 64, model=small_model) as server:
        yield server
        server.wait_metric("num_requests_running", 0)


def prompt(tokens, seed=None):
    draw = random.Random(seed)
    return [draw.randrange(30, 500) for _ in range(tokens)]


def settled(server):
    server.wait_metric("num_requests_running", 0, SOON)
    server.wait_metric("num_requests_waiting", 0, SOON)
    server.wait_metric("http_requests_in_flight", 0, SOON)
    server.wait_metric("kv_cache_usage_perc", 0, SOON)


def test_in_decode(server):
    before = server.metrics()
    with server.open_stream("/v1/completions", prompt="go on", max_tokens=30_000, ignore_eos=True) as stream:
        for _ in range(3):
            next(stream)
        assert server.metrics()["num_requests_running"] == 1
        stream.reset()
    settled(server)
    assert server.complete("next", max_tokens=2)["usage"]["completion_tokens"] <= 2
    after = server.metrics()
    assert after["generation_tokens_total"] - before["generation_tokens_total"] < 10_000
    assert after["request_success_total:abort"] - before["request_success_total:abort"] == 1
    assert after["http_clients_gone_total"] - before["http_clients_gone_total"] == 1


def leave(server, path, body, when):
    """Sends a request that is not streamed, waits for `when()`, and closes or resets the connection."""
    import json
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    when()
    if random.random() < 0.5:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_without_streaming(server):
    leave(server, "/v1/completions", {"prompt": "go on", "max_tokens": 30_000, "ignore_eos": True},
          lambda: server.wait_metric("num_requests_running", 1))
    settled(server)


def test_in_prefill(server):
    """What was computed of the prompt is found by the next try."""
    long = prompt(20_000)
    before = server.metrics()

    def some_pages():
        steps = before["engine_steps_total"] + 8
        server.wait_metric("engine_steps_total", lambda value: value >= steps)

    leave(server, "/v1/completions", {"prompt": long, "max_tokens": 5}, some_pages)
    settled(server)
    metrics = server.metrics()
    assert metrics["generation_tokens_total"] == before["generation_tokens_total"]
    steps = metrics["engine_steps_total"] - before["engine_steps_total"]
    assert steps < 300, "the whole prompt was computed"
    # Not the whole prompt again: as much as the tried part needs.
    cached = server.complete(long[:700], max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 2 * 128 and cached % 128 == 0


def test_in_the_queue(server):
    with server.open_stream("/v1/completions", prompt="holds the place", max_tokens=30_000, ignore_eos=True) as first:
        next(first)
        before = server.metrics()["prompt_tokens_total"]
        for stream in (False, True):
            leave(server, "/v1/completions", {"prompt": prompt(200), "max_tokens": 5, "stream": stream},
                  lambda: server.wait_metric("num_requests_waiting", 1))
            server.wait_metric("num_requests_waiting", 0, SOON)
        assert server.metrics()["prompt_tokens_total"] == before
        next(first)
        first.reset()
    settled(server)


def test_all_choices_stop(running, small_model):
    """Three hundred times n = 4, cut at a random byte: afterwards memory, pages and files are as after the first."""
    with running("--threads", 1, "--max-num-seqs", 16, model=small_model) as server:
        def one(seed):
            draw = random.Random(seed)
            with server.open_stream("/v1/completions", prompt=prompt(draw.randint(1, 200)), n=4, max_tokens=2000,
                                    ignore_eos=True) as stream:
                assert b'data: {"error"' not in stream.answer.read(draw.randint(0, 3000))
                stream.reset()

        def round_of(count):
            seeds = [random.getrandbits(64) for _ in range(count)]
            together(count, lambda i: one(seeds[i]))
            settled(server)

        round_of(20)
        memory, files = server.memory_bytes(), server.open_files()
        for _ in range(14):
            round_of(20)
        assert server.memory_bytes() - memory < 8 << 20
        server.wait_files(files)
        metrics = server.metrics()
        assert metrics["request_success_total:abort"] == 300
        assert server.complete("still here", max_tokens=2)["usage"]["completion_tokens"] <= 2


def test_a_slow_reader_is_gone(running, small_model):
    """One who takes nothing is cut off at the limit, and holds up nobody."""
    with running("--threads", 1, "--max-unsent-bytes", 4096, "--timeout-send", 1, model=small_model) as server:
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        body = b'{"prompt": "a", "max_tokens": 30000, "stream": true, "ignore_eos": true, "n": 8, "logprobs": 20}'
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        begin = time.monotonic()
        assert server.complete("others", max_tokens=3)["usage"]["completion_tokens"] <= 3
        server.wait_metric("http_clients_gone_total", 1, 20)
        server.wait_metric("num_requests_running", 0, 20)
        assert time.monotonic() - begin < 20
        connection.close()


def test_events_above_the_limit_reach_a_reader(running, small_model):
    """An event may be larger than what may wait, and another come at once: who reads is no slow reader."""
    with running("--threads", 1, "--max-unsent-bytes", 4096, model=small_model) as server:
        instructions = "long words " * 1000
        events = server.events("/v1/responses", input="a", instructions=instructions, max_output_tokens=4)
        assert [event["event"] for event in events[:2]] == ["response.created", "response.in_progress"]
        assert all(event["response"]["instructions"] == instructions for event in (*events[:2], events[-1]))
        with server.open_stream("/v1/completions", prompt=[30] * 500, echo=True, logprobs=20, n=4, max_tokens=3,
                                ignore_eos=True) as stream:
            finished = [event["choices"][0]["finish_reason"] for event in stream]
            assert stream.done and finished.count("length") == 4
