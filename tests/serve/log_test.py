"""One line of the log for each request, whoever answered it."""
import json
import time

import pytest

SECRET = "a-key-that-nobody-may-read"
WORDS = "words that stay between us"


@pytest.fixture(scope="module")
def server(running, small_model):
    with running("--threads", 1, "--served-model-name", "tested", "--api-key", SECRET, model=small_model) as server:
        yield server


def line_of(server, name, seconds=10):
    """The one line of a request; a line comes when the answer has left, so a moment later than it."""
    end = time.monotonic() + seconds
    while True:
        text = (server.log.parent / "access.log").read_text()
        assert SECRET not in text and WORDS not in text
        lines = [json.loads(line) for line in text.splitlines() if text.endswith("\n")]
        found = [line for line in lines if line["id"] == name]
        if found:
            assert len(found) == 1
            return found[0]
        assert time.monotonic() < end, f"no line for {name}"
        time.sleep(0.01)


def headers(name):
    return {"Authorization": f"Bearer {SECRET}", "X-Request-Id": name}


def test_a_request_that_the_engine_took(server):
    body = {"prompt": WORDS * 20, "max_tokens": 5, "ignore_eos": True, "n": 2}
    cold = server.post("/v1/completions", body, headers=headers("cold"))
    warm = server.post("/v1/completions", body, headers=headers("warm"))
    for name, reply in (("cold", cold), ("warm", warm)):
        line, usage = line_of(server, name), reply.json["usage"]
        assert (line["method"], line["path"], line["route"]) == ("POST", "/v1/completions", "/v1/completions")
        assert (line["status"], line["model"], line["finish_reason"]) == (200, "tested", "length")
        assert (line["stream"], line["choices"], line["gone"]) == (False, 2, False)
        assert line["prompt_tokens"] == usage["prompt_tokens"] and line["completion_tokens"] == 10
        assert line["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert 0 <= line["queue_seconds"] <= line["ttft_seconds"] <= line["e2e_seconds"] <= reply.seconds
        assert len(line["key"]) == 8
    assert line_of(server, "warm")["cached_tokens"] > 0


def test_a_stream_and_a_client_that_leaves(server):
    with server.open_stream("/v1/completions", headers=headers("stream"), prompt="a", max_tokens=3,
                            ignore_eos=True) as stream:
        list(stream)
    line = line_of(server, "stream")
    assert line["stream"] and line["completion_tokens"] == 3 and not line["gone"]

    stream = server.open_stream("/v1/completions", headers=headers("left"), prompt="a", max_tokens=30_000,
                                ignore_eos=True)
    next(stream)
    stream.reset()
    line = line_of(server, "left")
    assert line["gone"] and line["finish_reason"] == "cancelled" and line["completion_tokens"] >= 1


def test_requests_without_the_engine(server):
    refused = server.post("/v1/completions", {"prompt": WORDS, "top_p": 7}, headers=headers("refused"))
    assert refused.status == 400
    line = line_of(server, "refused")
    assert (line["status"], line["route"], line["finish_reason"]) == (400, "/v1/completions", "error")
    assert "prompt_tokens" not in line and "ttft_seconds" not in line
    server.get("/v1/models", headers=headers("models"))
    assert line_of(server, "models")["route"] == "/v1/models"
    server.get("/health", headers={"X-Request-Id": "health"})
    assert "route" not in line_of(server, "health")
    server.post("/v1/completions", {"prompt": WORDS}, headers={"X-Request-Id": "nobody"})
    line = line_of(server, "nobody")
    assert line["status"] == 401 and "route" not in line and "key" not in line


def test_answers_without_room(running, small_model):
    """What the server had no room for is no success, no fault of its own and no client that left."""
    with running("--threads", 1, "--max-unsent-bytes", 1 << 16, "--max-buffered-answer-bytes", 1 << 16,
                 model=small_model) as server:
        # Its scores alone are 300 kB.
        prompt = {"prompt": [40] * 800, "max_tokens": 1, "ignore_eos": True, "echo": True, "logprobs": 20}
        reply = server.post("/v1/completions", prompt, headers={"X-Request-Id": "whole"})
        assert (reply.status, reply.error["code"]) == (400, "answer_too_large"), reply
        assert "--max-buffered-answer-bytes" in reply.error["message"] and "65536" in reply.error["message"]
        with server.open_stream("/v1/completions", headers={"X-Request-Id": "stream"}, **prompt) as stream:
            events = list(stream)
        assert stream.done and events[-1]["error"]["code"] == "overloaded"
        for name, status in (("whole", 400), ("stream", 200)):
            line = line_of(server, name)
            assert (line["status"], line["finish_reason"]) == (status, "error")
            assert line["no_room"] is True and line["gone"] is False
        server.complete("a", max_tokens=4, ignore_eos=True)
        after = server.metrics()
        ends = {reason: after[f"request_success_total:{reason}"] for reason in ("stop", "length", "abort", "error")}
        assert ends == {"stop": 0, "length": 1, "abort": 0, "error": 2}
        assert after["http_no_room_total"] == 2 and after["http_clients_gone_total"] == 0


def test_two_requests_may_have_one_name(server):
    """Ids are the clients': the halves of a line are not found by them."""
    for tokens in (1, 2, 3):
        server.post("/v1/completions", {"prompt": "a", "max_tokens": tokens, "ignore_eos": True}, headers=headers("same"))
    end = time.monotonic() + 10
    while True:
        text = (server.log.parent / "access.log").read_text()
        lines = [json.loads(line) for line in text.splitlines() if '"same"' in line]
        if len(lines) == 3:
            break
        assert time.monotonic() < end
        time.sleep(0.01)
    assert [line["completion_tokens"] for line in lines] == [1, 2, 3]
