"""A stream that has nothing to say yet is not silent."""
import http.client
import json

import pytest


@pytest.fixture(scope="module")
def server(running, small_model):
    with running("--threads", 1, "--sse-keepalive", 1, "--max-num-seqs", 1, "--max-num-batched-tokens", 16,
                 model=small_model) as server:
        yield server


LONG = [30 + i * 7 % 400 for i in range(20_000)]


def test_comments_while_a_prompt_is_read_and_while_waiting(server):
    """Headers at once, then at least a comment a second, in prefill and in the queue; none in a body that is no stream,
    and none between tokens that come quickly."""
    with server.open_stream("/v1/completions", prompt=LONG, max_tokens=3) as prefill, \
            server.open_stream("/v1/chat/completions", messages=[{"role": "user", "content": "w"}], max_tokens=3) as queued:
        for stream in (prefill, queued):
            line = stream.answer.readline()
            assert line.startswith(b":"), line
            assert stream.answer.readline() == b"\n"
        prefill.reset()
        events = list(queued)
        assert events[-1]["choices"][0]["finish_reason"] and queued.done
    server.wait_metric("num_requests_running", 0)
    with server.open_stream("/v1/completions", prompt="quick", max_tokens=20, ignore_eos=True) as stream:
        assert len(list(stream)) >= 2


def test_a_stream_that_breaks_off_looks_broken(start):
    """Headers and comments are out when the server is told to end at once: an error in the stream, or its broken end."""
    import signal
    import time
    server = start("--threads", 1, "--sse-keepalive", 1, "--max-num-batched-tokens", 64)
    with server.open_stream("/v1/completions", prompt=LONG, max_tokens=3) as stream:
        assert stream.answer.readline().startswith(b":")
        server.signal(signal.SIGTERM)
        end = time.monotonic() + 10
        while "finishing" not in server.errors():
            assert time.monotonic() < end
            time.sleep(0.01)
        server.signal(signal.SIGTERM)
        try:
            rest = stream.answer.read()
        except (ConnectionError, http.client.IncompleteRead) as error:
            rest = getattr(error, "partial", b"")
            broken = True
        else:
            broken = False
    data = [line[6:] for line in rest.splitlines() if line.startswith(b"data: ")]
    assert broken or "error" in json.loads(data[0])
    assert not any(b"finish_reason" in line for line in data)
    assert server.wait_exit() == 0


def test_no_comments_in_bodies(server):
    reply = server.post("/v1/completions", {"prompt": LONG[::-1], "max_tokens": 1})
    assert reply.status == 200 and reply.body.startswith(b"{") and reply.json["usage"]["prompt_tokens"] == len(LONG)
    if reply.seconds < 1.5:
        pytest.skip("answered before a comment was due")
