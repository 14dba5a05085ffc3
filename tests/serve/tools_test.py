"""Reasoning and calls: taken apart the same way whatever the cuts, in every API."""
import json
import random
import string

import pytest
from parrot import DSML, bytes_of, calls, halves, invoke, parameter
from server import together

LETTERS = string.ascii_letters + string.digits
USER = {"role": "user", "content": "hi"}
TOOLS = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}]
TWO_CALLS = "Let me look." + calls(
    invoke("shell", parameter("command", "ls /tmp 2>&1"), parameter("timeout", "5", string=False)),
    invoke("shell", parameter("command", 'echo "日本" > /tmp/p')))
TWO_ARGUMENTS = [{"command": "ls /tmp 2>&1", "timeout": 5}, {"command": 'echo "日本" > /tmp/p'}]
ONE_CALL = calls(invoke("f", parameter("x", "find /tmp")))
THOUGHT = "I think so.</think>Answer"


def chat(server, message, **fields):
    return server.chat([USER, message], tools=TOOLS, **fields)["choices"][0]


def after(letter, reasoning=False):
    """A turn to be continued behind a letter, of its reasoning or of its answer."""
    if reasoning:
        return {"role": "assistant", "content": "", "reasoning_content": letter, "prefix": True}
    return {"role": "assistant", "content": letter, "prefix": True}


def streamed(server, message, **fields):
    """What a client puts together from a stream: (reasoning, content, [[name, arguments]], finish_reason)."""
    events = server.events("/v1/chat/completions", messages=[USER, message], tools=TOOLS, temperature=0, **fields)
    reasoning = content = ""
    found, finish = [], None
    for event in events:
        (choice,) = event["choices"]
        delta = choice["delta"]
        kinds = [k for k in ("content", "reasoning_content", "tool_calls") if delta.get(k)]
        assert len(kinds) <= 1, f"two kinds in one delta: {delta}"
        assert "DSML" not in (delta.get("content") or "") + (delta.get("reasoning_content") or "")
        reasoning += delta.get("reasoning_content") or ""
        content += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            if "name" in call["function"]:
                assert call["index"] == len(found) and call["id"]
                found.append([call["function"]["name"], ""])
            found[call["index"]][1] += call["function"].get("arguments", "")
        finish = choice["finish_reason"] or finish
    return reasoning, content, found, finish


def whole(server, message, **fields):
    choice = chat(server, message, **fields)
    found = [[c["function"]["name"], c["function"]["arguments"]] for c in choice["message"].get("tool_calls", [])]
    return (choice["message"].get("reasoning_content") or "", choice["message"]["content"] or "", found,
            choice["finish_reason"])


@pytest.fixture(scope="module")
def two_calls(make_parrot, running):
    """The two-call answer: a byte a token, whole, in random cuts, and straight behind the prompt."""
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    data = TWO_CALLS.encode()
    scripts = {"A": bytes_of(TWO_CALLS, 1), "B": [TWO_CALLS], "</think>": bytes_of(TWO_CALLS, 5),
               "<think>": bytes_of("I had better look.</think>" + TWO_CALLS, 3)}
    for letter in string.digits:
        cuts = sorted(draw.sample(range(1, len(data)), 12))
        scripts[letter] = [{"hex": data[a:b].hex()} for a, b in zip([0, *cuts], [*cuts, len(data)])]
    with running("--threads", 1, model=make_parrot(scripts)) as server:
        server.seed = seed
        yield server


@pytest.mark.parametrize("letter", "AB" + string.digits)
def test_two_calls_whatever_the_cuts(two_calls, letter):
    for read in (whole, streamed):
        reasoning, content, found, finish = read(two_calls, after(letter))
        assert (reasoning, content, finish) == ("", "Let me look.", "tool_calls"), two_calls.seed
        assert [name for name, _ in found] == ["shell", "shell"]
        assert "DSML" not in str(found)
        assert [json.loads(arguments) for _, arguments in found] == TWO_ARGUMENTS, two_calls.seed


def test_two_calls_in_responses(two_calls):
    tools = [{"type": "function", "name": "shell", "parameters": {"type": "object"}}]
    for effort, thought in (("none", None), ("high", "I had better look.")):
        fields = {"input": "hi", "tools": tools, "reasoning": {"effort": effort}, "temperature": 0}
        answer = two_calls.ask("/v1/responses", **fields)
        kinds = [item["type"] for item in answer["output"]]
        assert kinds == ["reasoning"] * (thought is not None) + ["message", "function_call", "function_call"]
        found = [item for item in answer["output"] if item["type"] == "function_call"]
        assert [json.loads(item["arguments"]) for item in found] == TWO_ARGUMENTS
        assert "DSML" not in json.dumps(answer, ensure_ascii=False)
        events = two_calls.events("/v1/responses", **fields)
        assert [e["sequence_number"] for e in events] == list(range(len(events)))
        assert all(e["event"] == e["type"] for e in events)
        last = events[-1]
        assert last["type"] == "response.completed"
        plain = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in last["response"]["output"]]
        assert plain == [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in answer["output"]]
        deltas = {}
        for event in events:
            if event["type"] == "response.function_call_arguments.delta":
                deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event["delta"]
        assert [json.loads(arguments) for arguments in deltas.values()] == TWO_ARGUMENTS


def test_two_calls_in_messages(two_calls):
    fields = {"messages": [USER], "max_tokens": 4000, "temperature": 0,
              "tools": [{"name": "shell", "input_schema": {"type": "object"}}]}
    answer = two_calls.ask("/v1/messages", **fields)
    assert [block["type"] for block in answer["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["input"] for block in answer["content"][1:]] == TWO_ARGUMENTS
    assert answer["stop_reason"] == "tool_use"
    events = two_calls.events("/v1/messages", **fields)
    assert [e["type"] for e in events if e["type"].startswith("message")] == \
        ["message_start", "message_delta", "message_stop"]
    inputs = {}
    for event in events:
        assert "DSML" not in json.dumps(event, ensure_ascii=False)
        if event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            inputs[event["index"]] = inputs.get(event["index"], "") + event["delta"]["partial_json"]
    assert [json.loads(text) for text in inputs.values()] == TWO_ARGUMENTS


def test_one_call_where_one_is_asked_for(two_calls):
    for read in (whole, streamed):
        found = read(two_calls, after("A"), parallel_tool_calls=False)[2]
        assert [json.loads(arguments) for _, arguments in found] == TWO_ARGUMENTS[:1]


def test_calls_end_with_the_answers_tokens(two_calls):
    """max_tokens inside the second call: it is closed so that its JSON parses, and nobody is told to run it."""
    tokens = len(TWO_CALLS.encode()) - 60
    for read in (whole, streamed):
        _, _, found, finish = read(two_calls, after("A"), max_tokens=tokens)
        assert finish == "length"
        assert json.loads(found[0][1]) == TWO_ARGUMENTS[0]
        for _, arguments in found:
            json.loads(arguments)


@pytest.fixture(scope="module")
def cut_everywhere(make_parrot, running):
    """Every cut of </think> and of a call's text in two tokens, in two models' worth of letters."""
    servers = []
    tag = THOUGHT.index("</think>")
    places = [tag + i for i in range(0, len("</think>") + 1)]
    data = ONE_CALL.encode()
    cuts = [(THOUGHT, at) for at in places] + [(ONE_CALL, at) for at in range(1, len(data))]
    table = [cuts[i:i + len(LETTERS)] for i in range(0, len(cuts), len(LETTERS))]
    import contextlib
    with contextlib.ExitStack() as stack:
        for part in table:
            scripts = {letter: halves(text, at) for letter, (text, at) in zip(LETTERS, part)}
            servers.append((stack.enter_context(running("--threads", 1, model=make_parrot(scripts))), part))
        yield servers


def test_every_cut_of_a_tag_and_of_a_call(cut_everywhere):
    cases = [(server, letter, text, at) for server, part in cut_everywhere for letter, (text, at) in zip(LETTERS, part)]
    assert len(cases) > 150

    def one(case):
        server, letter, text, at = case
        reasons = text is THOUGHT
        wanted = ("I think so.", "Answer", [], "stop") if reasons else \
            ("", "", [["f", '{"x": "find /tmp"}']], "tool_calls")
        assert streamed(server, after(letter, reasons)) == wanted, (text, at)

    together(8, lambda i: [one(case) for case in cases[i::8]])


@pytest.fixture(scope="module")
def oddities(make_parrot, running):
    """Answers that are not what they should be, and values that end like tags."""
    values = {}
    endings = ["parameter", "invoke", "calls", "<", "</", "</" + DSML, "<" + DSML + " invoke", "2>&1", "\n", "\\", '"',
               "}", "find /tmp"]
    endings += ["find /" + letter for letter in sorted(set("parameterinvokecalls"))]
    scripts = {}
    for letter, value in zip(LETTERS, endings):
        values[letter] = value
        scripts[letter] = bytes_of(calls(invoke("f", parameter("x", value))), 2)
    assert len(values) == len(endings)
    text = "a" * 2000
    scripts |= {
        "!": ["thought</think>Answer"],
        "#": bytes_of("thinking" + ONE_CALL, 3),  # the block ends the reasoning
        "$": bytes_of(f"Write <{DSML} calls> and <{DSML} invoke name=\"x\"> in prose.", 3),
        "%": bytes_of(calls(invoke("f", parameter("x", "the value"))).split(" value")[0], 3),  # ends inside a parameter
        "&": bytes_of("thought</thi", 1),
        "(": bytes_of(calls(invoke("f", parameter("x", text))), 20),
        ")": bytes_of(calls(f'<{DSML} invoke name="f">\n{{"x": [1, 2]}}</{DSML} invoke>\n'), 3),
        "*": bytes_of("text" + calls(invoke("f", parameter("n", "1", False), parameter("b", "true", False),
                                            parameter("o", '{"k": [null, 1.5]}', False), parameter("s", "1"))), 3),
        "+": bytes_of("<tool_call>{}</tool_call> <function=f> </parameter> <invoke>", 3),
    }
    with running("--threads", 1, model=make_parrot(scripts)) as server:
        server.values = values
        yield server


def test_values_are_exact(oddities):
    def one(letter, value):
        for read in (whole, streamed):
            _, content, found, finish = read(oddities, after(letter))
            assert (content, finish) == ("", "tool_calls"), value
            assert [(name, json.loads(arguments)) for name, arguments in found] == [("f", {"x": value})]

    cases = list(oddities.values.items())
    together(8, lambda i: [one(*case) for case in cases[i::8]])


def test_types_of_values(oddities):
    for read in (whole, streamed):
        _, content, found, _ = read(oddities, after("*"))
        assert content == "text"
        assert json.loads(found[0][1]) == {"n": 1, "b": True, "o": {"k": [None, 1.5]}, "s": "1"}
        assert json.loads(read(oddities, after(")"))[2][0][1]) == {"x": [1, 2]}


def test_one_token_with_both_kinds(oddities):
    for read in (whole, streamed):
        assert read(oddities, after("!", reasoning=True)) == ("thought", "Answer", [], "stop")


def test_a_call_ends_reasoning(oddities):
    for read in (whole, streamed):
        reasoning, content, found, finish = read(oddities, after("#", reasoning=True))
        assert (reasoning, content, finish) == ("thinking", "", "tool_calls")
        assert json.loads(found[0][1]) == {"x": "find /tmp"}


def test_markup_in_prose_is_prose(oddities):
    """Only the full marker at a line's start opens a block; other models' tags are text."""
    for letter, text in (("$", f"Write <{DSML} calls> and <{DSML} invoke name=\"x\"> in prose."),
                         ("+", "<tool_call>{}</tool_call> <function=f> </parameter> <invoke>")):
        choice = chat(oddities, after(letter))
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
        assert "tool_calls" not in choice["message"]


def test_a_tag_begun_at_the_end_of_reasoning(oddities):
    for read in (whole, streamed):
        reasoning, content, _, finish = read(oddities, after("&", reasoning=True))
        assert (reasoning, content, finish) == ("thought</thi", "", "stop")


def test_an_unfinished_call(oddities):
    """Closed, so that its arguments parse; the turn ended otherwise than with calls to run."""
    for read in (whole, streamed):
        _, content, found, finish = read(oddities, after("%"))
        assert (content, finish) == ("", "stop")
        assert [(name, json.loads(arguments)) for name, arguments in found] == [("f", {"x": "the"})]


def test_arguments_arrive_while_they_are_written(oddities):
    with oddities.open_stream("/v1/chat/completions", messages=[USER, after("(")], tools=TOOLS) as stream:
        arguments = [call["function"]["arguments"] for event in stream
                     for call in event["choices"][0]["delta"].get("tool_calls", [])]
    assert json.loads("".join(arguments)) == {"x": "a" * 2000}
    assert len(arguments) > 50 and max(map(len, arguments)) < 200


def test_forced_calls(make_parrot, running):
    """tool_choice puts the block's opening, and a named function, into the prompt: the model goes on from there."""
    body = calls(invoke("shell", parameter("command", "ls"))).split("calls>\n", 1)[1]
    arguments = body.split(">\n", 1)[1]
    # Behind "calls>\n" and behind "invoke name=..>\n" the prompt ends alike, so each has a model of its own.
    for choice, said in (("required", body), ({"type": "function", "function": {"name": "shell"}}, arguments)):
        with running("--threads", 1, model=make_parrot({"\n": bytes_of(said, 3)})) as server:
            for effort in ("none", "high"):
                fields = {"messages": [USER], "tools": TOOLS, "tool_choice": choice, "reasoning_effort": effort}
                message = server.chat(**fields)["choices"][0]
                assert message["finish_reason"] == "tool_calls"
                (call,) = message["message"]["tool_calls"]
                assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == \
                    ("shell", {"command": "ls"})
            reply = server.post("/v1/chat/completions", {**fields, "tools": []})
            assert (reply.status, reply.error["param"]) == (400, "tool_choice")


def test_the_bundled_model_takes_tools(start):
    """It brings a wording of its own: its prompt holds the tools, whatever a random model then says."""
    server = start("--threads", 1)
    fields = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "ignore_eos": True}
    bare = server.post("/v1/chat/completions", fields).json["usage"]["prompt_tokens"]
    with_tools = server.post("/v1/chat/completions", {**fields, "tools": TOOLS, "tool_choice": "auto"})
    assert with_tools.status == 200, with_tools
    assert with_tools.json["usage"]["prompt_tokens"] > bare + 100
    server.stop()
