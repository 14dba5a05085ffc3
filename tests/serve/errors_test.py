"""Requests that are wrong: 400 with the field's name, a small body, and nobody else notices."""
import json
import random

import pytest
from server import raw, together

COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
USER = [{"role": "user", "content": "hi"}]
BODIES = {
    COMPLETIONS: {"prompt": "hi", "max_tokens": 1},
    CHAT: {"messages": USER, "max_tokens": 1},
    RESPONSES: {"input": "hi", "max_output_tokens": 1},
    MESSAGES: {"messages": USER, "max_tokens": 1},
}


@pytest.fixture(scope="module")
def server(running):
    with running("--threads", 1, "--max-body-bytes", 8 << 20, "--timeout-header", 1, "--timeout-body", 2,
                 "--max-connections", 300) as server:
        yield server
        server.wait_metric("num_requests_running", 0)


def with_raw(path, field, text):
    """A body in which `field` has any text as its value, JSON or not."""
    body = {key: value for key, value in BODIES[path].items() if key != field}
    return json.dumps(body)[:-1] + f', "{field}": {text}}}'


def refused(reply, param=None, status=400, code=None, what=None):
    assert reply.status == status, (what, reply)
    assert len(reply.body) <= 4096
    assert reply.headers["Content-Type"] == "application/json"
    error = reply.error
    assert error["type"] and error["message"]
    if param is not None:
        # Anthropic's errors have words only, and those of the parser do not name the field.
        assert error.get("param", param) == param, (what, reply)
        assert "param" in error or param in error["message"] or "body:" in error["message"], (what, reply)
    if code is not None:
        assert error["code"] == code
    return error


NUMBERS = {
    "temperature": ["-1", "-0.001", "1e6"],
    "top_p": ["0", "2", "-1", "1.0001"],
    "min_p": ["-0.1", "1.1"],
    "top_k": ["-2", "1.5", "4294967296"],
    "presence_penalty": ["-2.1", "2.1"],
    "frequency_penalty": ["-2.1", "2.1"],
    "repetition_penalty": ["0", "-1", "1e9"],
    "seed": [str(2**63), str(2**70), "0.5"],
    "n": ["0", "-1", "129", str(2**63)],
    "max_tokens": ["0", "-1", "-2", str(2**63), str(2**64), "1.5"],
    "min_tokens": ["-1"],
    "stop": ["[]x", "[1]", '""', '["a", ""]', "5"],
    "logit_bias": ["[]", '{"a": 1}', '{"5": 101}', '{"5": "1"}'],
    "stop_token_ids": ['"a"', "[1.5]", "[null]"],
    "stream": ["1", '"true"'],
    "logprobs": ["-1", "21"],
}
NOT_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"0.7"', "true", "[]x", "{}x"]


@pytest.mark.parametrize("field", NUMBERS)
def test_numbers_by_name(server, field):
    fine = {("true", "stream"), ("true", "logprobs"), ('"0.7"', "stop")}
    values = NUMBERS[field] + [v for v in NOT_NUMBERS if (v, field) not in fine]
    bodies = []
    for path in (COMPLETIONS, CHAT):
        for value in values:
            if path == CHAT and field == "logprobs" and value in NUMBERS[field]:
                continue
            body = with_raw(path, field, value)
            bodies.append((path, body))
            if field != "stream":
                bodies.append((path, body.replace("{", '{"stream": true, ', 1)))
    for request, reply in zip(bodies, server.post_all(bodies)):
        refused(reply, field, what=request)
    for reply in server.post_all([(path, with_raw(path, field, "null")) for path in (COMPLETIONS, CHAT)]):
        assert reply.status == 200


@pytest.mark.parametrize("field", ["temperature", "top_p", "top_k"])
def test_numbers_in_the_other_apis(server, field):
    bodies = [(path, with_raw(path, field, value)) for path in (RESPONSES, MESSAGES)
              for value in (*NUMBERS[field], "NaN", '"1"')]
    for request, reply in zip(bodies, server.post_all(bodies)):
        refused(reply, field, what=request)


def test_edges_that_are_allowed(server):
    fields = [("temperature", "-0.0"), ("temperature", "2"), ("temperature", "0"), ("top_p", "1"), ("top_p", "1e-6"),
              ("min_p", "1"), ("seed", str(2**63 - 1)), ("seed", str(-2**63)), ("top_k", "-1"), ("n", "1.0"),
              ("stop", "[]"), ("logit_bias", "{}"), ("seed", "0")]
    bodies = [(COMPLETIONS, with_raw(COMPLETIONS, *field)) for field in fields]
    for request, reply in zip(bodies, server.post_all(bodies)):
        assert reply.status == 200, (request, reply)


def test_ids_outside_the_vocabulary_hurt_nobody(server):
    """While another answer is made greedily: refused, and the other answer stays as it was."""
    vocabulary = 512
    alone = server.complete("neighbour", max_tokens=40, cache_salt="a")["choices"][0]["text"]

    def one(i):
        if i == 0:
            return server.complete("neighbour", max_tokens=40, cache_salt="b")["choices"][0]["text"]
        for bad in (vocabulary, vocabulary + 1, -1, 2**31, 2**63, 2**64, 2**70):
            replies = server.post_all([
                (COMPLETIONS, {"prompt": [1, bad]}), (COMPLETIONS, {"prompt": [[5], [bad]]}),
                (COMPLETIONS, {"prompt": "a", "logit_bias": {str(bad): 1}}),
                (CHAT, {"messages": USER, "stop_token_ids": [bad]}), ("/detokenize", {"tokens": [bad]})])
            for reply, param in zip(replies, ("prompt", "prompt[1]", "logit_bias", "stop_token_ids", "tokens")):
                refused(reply, param, what=bad)

    assert together(3, one)[0] == alone


def test_the_image_token_needs_an_image(server):
    refused(server.post(COMPLETIONS, {"prompt": [5, 511]}), "prompt")
    refused(server.post(COMPLETIONS, {"prompt": "<｜deepseek_image｜>"}), "prompt")
    for url in ("file:///etc/passwd", "http://169.254.169.254/latest", "data:image/png;base64,AAAA"):
        part = {"type": "image_url", "image_url": {"url": url}}
        error = refused(server.post(CHAT, {"messages": [{"role": "user", "content": [part]}]}))
        assert error["param"].startswith("messages[0].content[0]") and url not in json.dumps(error)


def test_prompts(server):
    bad = ("", [], [""], ["a", ""], [[]], [[1], []], {}, 5, None, [1, "a"], [["a"]], [1.5], [True])
    for prompt, reply in zip(bad, server.post_all([(COMPLETIONS, {"prompt": prompt}) for prompt in bad])):
        assert refused(reply)["param"].startswith("prompt"), prompt
    refused(server.post(COMPLETIONS, {}), "prompt")
    alone = [server.complete(p, max_tokens=4)["choices"][0]["text"] for p in ("ab", "xyz")]
    both = server.complete(["ab", "xyz"], max_tokens=4)
    assert [c["text"] for c in both["choices"]] == alone and [c["index"] for c in both["choices"]] == [0, 1]
    ids = [server.ask("/tokenize", prompt=p)["tokens"] for p in ("ab", "xyz")]
    assert [c["text"] for c in server.complete(ids, max_tokens=4)["choices"]] == alone
    assert server.complete(ids[0], max_tokens=4)["choices"][0]["text"] == alone[0]


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


@pytest.mark.parametrize("messages, param", [
    ([], "messages"), ("hi", "messages"), (None, "messages"), ([5], "messages[0]"),
    ([{"content": "hi"}], "messages[0].role"), ([{"role": "robot", "content": "hi"}], "messages[0].role"),
    ([{"role": "user", "content": 5}], "messages[0].content"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "audio", "text": "x"}]}], "messages[0].content[0].type"),
    ([{"role": "user", "content": "hi", "colour": "red"}], "messages[0].colour"),
    ([USER[0], {"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[1].tool_calls[0].function.name"),
    ([USER[0], {"role": "assistant", "tool_calls": "f"}], "messages[1].tool_calls"),
    ([{"role": "user", "content": ""}], None),
    ([{"role": "user", "content": None}], None),
    ([{"role": "user"}], None),
    ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], None),
    ([{"role": "developer", "content": "s"}, *USER], None),
    ([USER[0], {"role": "assistant", "content": "text", "tool_calls": [CALL]},
      {"role": "tool", "tool_call_id": "c1", "content": "r"}], None),
    ([USER[0], {"role": "assistant", "content": None, "tool_calls": [CALL]},
      {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "r"}]}], None),
    ([USER[0], {"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "content": "r"}], None),
    ([USER[0], {"role": "assistant", "content": ""}, *USER], None),
    ([USER[0], {"role": "assistant", "content": "begun", "prefix": True}], None),
    ([USER[0], {"role": "assistant", "content": "an answer"}], None),
])
def test_odd_histories(server, messages, param):
    body = {"messages": messages, "max_tokens": 1}
    for reply in server.post_all([(CHAT, {**body, "stream": stream}) for stream in (False, True)]):
        if param is None:
            assert reply.status == 200, reply
        else:
            refused(reply, param)


@pytest.mark.parametrize("path", BODIES)
def test_unknown_fields_are_named(server, path):
    refused(server.post(path, {**BODIES[path], "temprature": 1}), "temprature")
    refused(server.post(path, {**BODIES[path], "model": "another"}), "model", status=404)
    assert server.post(path, {**BODIES[path], "model": "bundled"}).status == 200


def test_fields_that_would_change_the_answer(server):
    for field, value in (("best_of", 2), ("suffix", "x"), ("use_beam_search", True), ("truncate_prompt_tokens", 5)):
        refused(server.post(COMPLETIONS, {**BODIES[COMPLETIONS], field: value}), field, code="unsupported")
    for field, value in (("functions", [{}]), ("audio", {"a": 1}), ("web_search_options", {"a": 1})):
        refused(server.post(CHAT, {**BODIES[CHAT], field: value}), field, code="unsupported")
    for field, value in (("previous_response_id", "resp_1"), ("background", True), ("truncation", "auto")):
        refused(server.post(RESPONSES, {**BODIES[RESPONSES], field: value}), field, code="unsupported")


@pytest.mark.parametrize("path", BODIES)
def test_bodies_that_are_no_request(server, path):
    good = json.dumps(BODIES[path]).encode()
    deep = [b"[" * depth + b"]" * depth for depth in (100, 10_000, 1_000_000)]
    deep += [b'{"a":' * depth + b"1" + b"}" * depth for depth in (100, 10_000, 1_000_000)]
    bodies = [b"", b"[]", b"5", b"null", b'"x"', good[:-1], good + b"x", b"\xef\xbb\xbf" + good, b"\xff\xfe" + good,
              good.replace(b"hi", b"\xff"), good.replace(b"hi", b"\xc0\xaf"), good.replace(b"hi", b"\xed\xa0\x80"),
              good.replace(b"hi", b"\xf4\x90\x80\x80"), good.replace(b"hi", b"\x00"), good.replace(b"hi", b"\\ud83d"),
              good.replace(b"hi", b"\\ude00\\ud83d"), good.replace(b"hi", b"\\ud83dx\\ude00"),
              good[:-1] + b', "stream": false, "stream": true}', good.replace(b":", b"=", 1), *deep,
              *(good[:-1] + b', "metadata": ' + d + b"}" for d in deep)]

    bodies += [body.replace(b'"max', b'"stream": true, "max', 1) for body in bodies if b'"max' in body]
    small = [(path, body) for body in bodies if len(body) < 1000]
    for request, reply in zip(small, server.post_all(small)):
        refused(reply, what=request)
    large = [body for body in bodies if len(body) >= 1000]
    together(4, lambda i: [refused(server.post(path, body)) for body in large[i::4]])
    assert server.post(path, good).status == 200
    assert server.post(path, good.replace(b"hi", b"\\ud83d\\ude00 \\u0000 \\u20ac")).status == 200


def test_a_pair_split_over_two_parts(server):
    for parts in (["\\ud83d", "\\ude00"], ["a\\ud83d", "b"]):
        listed = ", ".join('{"type": "text", "text": "%s"}' % part for part in parts)
        refused(server.post(CHAT, '{"messages": [{"role": "user", "content": [%s]}]}' % listed))


def test_error_bodies_are_bounded_and_echo_nothing(server):
    marker = "secret-" + "".join(random.choice("0123456789abcdef") for _ in range(16))
    bad = {"type": "nonsense", "text": marker, marker: marker}
    bodies = {
        RESPONSES: {"input": [bad] * 12_000},
        CHAT: {"messages": [bad] * 12_000},
        MESSAGES: {"messages": [bad] * 12_000, "max_tokens": 1},
        COMPLETIONS: {"prompt": [marker, {"a": marker}] * 400},
    }
    for path, body in bodies.items():
        for text in (json.dumps(body), json.dumps(body)[:-1], json.dumps({**BODIES[path], "temperature": marker * 9000}),
                     json.dumps({**BODIES[path], "model": marker * 9000})):
            reply = server.post(path, text)
            assert reply.status in (400, 404), reply
            assert len(reply.body) <= 4096 and marker.encode() not in reply.body, reply
            for name, value in reply.headers.items():
                assert marker not in value
    reply = server.post(COMPLETIONS, {**BODIES[COMPLETIONS], "x" * 100_000: 1})
    assert reply.status == 400 and len(reply.body) <= 4096


def test_five_megabytes_of_string(server):
    refused(server.post(CHAT, {"messages": [{"role": "user", "content": "a b " * (5 << 18)}]}),
            code="context_length_exceeded")


def test_bodies_over_the_limit(server):
    refused(server.post(CHAT, b" " * ((8 << 20) + 1)), status=413)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    declared = raw(server, (head + "Content-Length: 99999999999\r\n\r\n{}").encode())
    assert declared.startswith(b"HTTP/1.1 413 ")
    chunked = (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + (b"100000\r\n" + b" " * (1 << 20) + b"\r\n") * 9
    assert raw(server, chunked).startswith(b"HTTP/1.1 413 ")
    for lengths in ("-1", "5, 6", "1e3", "0x10", " "):
        answer = raw(server, (head + f"Content-Length: {lengths}\r\n\r\n{{}}").encode())
        assert answer.startswith(b"HTTP/1.1 400 "), lengths
    twice = raw(server, (head + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}").encode())
    assert twice.startswith(b"HTTP/1.1 400 ")


def test_the_default_limit_of_a_body(small):
    """64 MiB are read and answered; one byte more is not, whether or not its length was told."""
    limit = 64 << 20
    body = json.dumps(BODIES[COMPLETIONS]).encode()
    assert small.post(COMPLETIONS, body.ljust(limit)).status == 200
    refused(small.post(COMPLETIONS, body.ljust(limit + 1)), status=413)
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + body.ljust(1 << 20) + b"\r\n"
    spaces = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    assert raw(small, head.encode() + chunk + spaces * 63 + b"0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert raw(small, head.encode() + chunk + spaces * 63 + b"1\r\n \r\n").startswith(b"HTTP/1.1 413 ")


def test_methods_and_paths(server):
    refused(server.get(CHAT), status=405)
    refused(server.post("/v1/models", {}), status=405)
    refused(server.get("/v1/nothing"), status=404)
    refused(server.get("/v1/models/another"), status=404)
    assert server.get("/v1/models/bundled").json["id"] == "bundled"
    assert server.request("DELETE", CHAT).headers["Allow"]


def test_request_ids(server):
    asked = server.post(COMPLETIONS, BODIES[COMPLETIONS], headers={"X-Request-Id": "mine-1"})
    assert asked.headers["X-Request-Id"] == "mine-1"
    made_up = [server.post(COMPLETIONS, BODIES[COMPLETIONS]).headers["X-Request-Id"] for _ in range(2)]
    assert made_up[0] and made_up[0] != made_up[1]
    assert server.post(CHAT, b"{", headers={"X-Request-Id": "mine-2"}).headers["X-Request-Id"] == "mine-2"
    for bad in ("a\tb" * 2000, "x" * 5000):
        reply = server.get("/health", headers={"X-Request-Id": bad})
        assert reply.headers["X-Request-Id"] != bad and len(reply.headers["X-Request-Id"]) < 256


def test_half_sent_requests_hold_up_nobody(server):
    """64 bodies and 64 heads that never end: others are served meanwhile, and the silent ones are told to go."""
    import socket
    silent = []
    try:
        for i in range(128):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n"
            connection.sendall((head + ("Content-Length: 100\r\n\r\n{" if i % 2 else "")).encode())
            silent.append(connection)
        times = [server.get("/health").seconds for _ in range(10)]
        assert sorted(times)[5] < 0.5, times  # a thread pool that waits for bodies would take its whole timeout
        assert server.post(COMPLETIONS, BODIES[COMPLETIONS]).status == 200
        answers = [connection.recv(4096) for connection in silent[:2]]
        assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers), answers
    finally:
        for connection in silent:
            connection.close()
