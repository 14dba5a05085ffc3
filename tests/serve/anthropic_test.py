"""The official Anthropic client against a server."""
import pytest
from parrot import bytes_of, calls, invoke, parameter

anthropic = pytest.importorskip("anthropic")

ARGUMENTS = {"command": "find /tmp 2>&1"}
TOOLS = [{"name": "shell", "description": "Runs a command",
          "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}]
FIELDS = {"model": "m", "max_tokens": 2000, "messages": [{"role": "user", "content": "hi"}]}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@pytest.fixture(scope="module")
def server(make_parrot, running):
    answer = "Let me look." + calls(invoke("shell", parameter("command", ARGUMENTS["command"])),
                                    invoke("shell", parameter("n", "[1, 2]", string=False)))
    model = make_parrot({
        "</think>": bytes_of("Hello 😀 STOP world", 2),
        "<think>": bytes_of("I should.</think>" + answer, 5),
        "A": bytes_of(" behind", 3),
    })
    with running("--threads", 1, "--served-model-name", "m", "--api-key", "secret", model=model) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0, timeout=60) as client:
        yield client


def test_messages(client):
    message = client.messages.create(**FIELDS)
    assert [(b.type, b.text) for b in message.content] == [("text", "Hello 😀 STOP world")]
    assert (message.stop_reason, message.role, message.type) == ("end_turn", "assistant", "message")
    count = client.messages.count_tokens(model="m", messages=FIELDS["messages"]).input_tokens
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == count
    with client.messages.stream(**FIELDS) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == message.content[0].text == final.content[0].text
    assert final.usage.output_tokens == message.usage.output_tokens
    stopped = client.messages.create(**FIELDS, stop_sequences=["STOP"])
    assert stopped.content[0].text == "Hello 😀 "
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "STOP")
    short = client.messages.create(**{**FIELDS, "max_tokens": 2})
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)


def test_a_turn_goes_on(client):
    messages = [*FIELDS["messages"], {"role": "assistant", "content": "A"}]
    assert client.messages.create(**{**FIELDS, "messages": messages}).content[0].text == " behind"


def test_thinking_and_tools(client):
    fields = {**FIELDS, **THINKING, "tools": TOOLS, "system": "Be brief."}
    message = client.messages.create(**fields)
    assert [b.type for b in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[0].thinking == "I should." and message.content[1].text == "Let me look."
    assert [b.input for b in message.content[2:]] == [ARGUMENTS, {"n": [1, 2]}]
    assert message.stop_reason == "tool_use"
    with client.messages.stream(**fields) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    assert [b.type for b in final.content] == [b.type for b in message.content]
    assert [b.input for b in final.content[2:]] == [ARGUMENTS, {"n": [1, 2]}]
    results = [{"type": "tool_result", "tool_use_id": b.id, "content": "done"} for b in message.content[2:]]
    history = [*FIELDS["messages"], {"role": "assistant", "content": message.content},
               {"role": "user", "content": results}]
    assert client.messages.create(**{**fields, "messages": history}).stop_reason == "tool_use"


def test_errors(server, client):
    with pytest.raises(anthropic.BadRequestError) as error:
        client.messages.create(**FIELDS, extra_body={"temperature": -1})
    assert error.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0, timeout=60).messages.create(**FIELDS)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**FIELDS, "messages": []})
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**FIELDS, "max_tokens": 1 << 40})
