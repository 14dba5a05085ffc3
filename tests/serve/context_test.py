"""How much fits: one rule, with true numbers, before anything is streamed and before anybody is blocked."""
import re

import pytest

CONTEXT = 200


@pytest.fixture(scope="module")
def server(make_parrot, running):
    model = make_parrot({"a": (["x"], "loop"), "<think>": (["thought "], "loop"), "</think>": (["answer "], "loop")})
    with running("--threads", 1, "--max-model-len", CONTEXT, model=model) as server:
        assert server.get("/v1/models").json["data"][0]["max_model_len"] == CONTEXT
        yield server
        server.wait_metric("num_requests_running", 0)


def numbers(reply):
    return [int(n) for n in re.findall(r"\d+", reply.error["message"])]


@pytest.mark.parametrize("length", [1, CONTEXT - 1, CONTEXT, CONTEXT + 1, 10 * CONTEXT])
def test_completions(server, length):
    prompt, rest = "a" * length, CONTEXT - length
    for asked in (1, rest, rest + 1, 2**31, 2**63 - 1):
        if asked < 1:
            continue
        for stream in (False, True):
            reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": asked, "stream": stream})
            if asked <= rest:
                assert reply.status == 200
                continue
            assert reply.status == 400 and reply.error["code"] == "context_length_exceeded", reply
            assert reply.error["param"] == ("max_tokens" if rest >= 1 else "prompt")
            assert numbers(reply)[:3] == [CONTEXT, length, asked], reply
    for asked in (0, -1, 2**63):
        reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": asked})
        assert (reply.status, reply.error["param"]) == (400, "max_tokens")
    # Without a wish: this route's sixteen, or what is left.
    reply = server.post("/v1/completions", {"prompt": prompt})
    if rest < 1:
        assert numbers(reply)[:2] == [CONTEXT, length]
    else:
        assert reply.json["usage"]["completion_tokens"] == min(16, rest)
        assert reply.json["choices"][0]["finish_reason"] == "length"


def test_the_last_token_that_fits(server):
    for length in (1, 127, 128, 129, CONTEXT - 2, CONTEXT - 1):
        answer = server.complete("a" * length, max_tokens=CONTEXT - length)
        assert answer["usage"] == {**answer["usage"], "prompt_tokens": length, "completion_tokens": CONTEXT - length,
                                   "total_tokens": CONTEXT}
        assert answer["choices"][0]["text"] == "x" * (CONTEXT - length)


def test_chats_fill_what_is_left(server):
    count = server.ask("/tokenize", messages=[{"role": "user", "content": "a"}])["count"]
    for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
                       ("/v1/responses", {"input": "a"})):
        usage = server.ask(path, **body)["usage"]
        assert usage.get("prompt_tokens", usage.get("input_tokens")) == count
        assert usage["total_tokens"] == CONTEXT


@pytest.mark.parametrize("stream", [False, True])
def test_refusals_of_every_route(server, stream):
    words = "b" * (CONTEXT + 1)
    users = [{"role": "user", "content": words}]
    for path, body, param in (("/v1/chat/completions", {"messages": users}, "prompt"),
                              ("/v1/chat/completions", {"messages": users, "max_tokens": 5}, "prompt"),
                              ("/v1/responses", {"input": words}, "prompt")):
        reply = server.post(path, {**body, "stream": stream})
        assert reply.status == 400 and reply.headers["Content-Type"] == "application/json", reply
        assert (reply.error["code"], reply.error["param"]) == ("context_length_exceeded", param), reply
        assert numbers(reply)[0] == CONTEXT and numbers(reply)[1] > CONTEXT
    for field in ("max_tokens", "max_completion_tokens"):
        reply = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], field: CONTEXT,
                                                     "stream": stream})
        assert (reply.status, reply.error["param"]) == (400, field)
    reply = server.post("/v1/messages", {"messages": users, "max_tokens": 5, "stream": stream})
    assert reply.status == 400 and reply.error["type"] == "invalid_request_error"
    assert numbers(reply)[0] == CONTEXT


def test_too_long_a_prompt_blocks_nobody(server):
    for _ in range(3):
        assert server.post("/v1/completions", {"prompt": "a" * 50_000}).status == 400
    assert server.complete("a", max_tokens=3)["choices"][0]["text"] == "xxx"


def test_reasoning_that_takes_everything(server):
    """Thinking on and few tokens: the content is empty, the reasoning is not, and the reason is the length."""
    for fields in ({"max_tokens": 5}, {}):
        choice = server.chat("hi", **fields)["choices"][0]
        assert choice["message"]["content"] == "" and choice["message"]["reasoning_content"].startswith("thought ")
        assert choice["finish_reason"] == "length"
    usage = server.chat("hi", max_tokens=5)["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 5
    answer = server.ask("/v1/responses", input="hi", max_output_tokens=5)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    choice = server.chat("hi", max_tokens=5, chat_template_kwargs={"thinking": False})["choices"][0]
    assert choice["message"]["content"] == "answer " * 5
