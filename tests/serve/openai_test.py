"""The official OpenAI client against a server: what it parses, streamed and whole."""
import json

import pytest
from parrot import bytes_of, calls, invoke, parameter

openai = pytest.importorskip("openai")

SAID = "Let me look."
ARGUMENTS = {"command": "ls 2>&1"}
TOOLS = [{"type": "function", "function": {
    "name": "shell", "description": "Runs a command",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}]
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server(make_parrot, running):
    answer = SAID + calls(invoke("shell", parameter("command", ARGUMENTS["command"])),
                          invoke("other", parameter("n", "1", string=False)))
    model = make_parrot({
        "</think>": bytes_of("Hello 😀 world", 2),
        "<think>": bytes_of("I should.</think>" + answer, 5),
        "A": bytes_of("one two three", 3),
    })
    with running("--threads", 1, "--served-model-name", "deepseek-chat", model=model) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


NO_THINKING = {"chat_template_kwargs": {"thinking": False}}


def test_models(client):
    assert [m.id for m in client.models.list()] == ["deepseek-chat"]
    assert client.models.retrieve("deepseek-chat").id == "deepseek-chat"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_chat(client):
    whole = client.chat.completions.create(model="deepseek-chat", messages=USER, extra_body=NO_THINKING)
    (choice,) = whole.choices
    assert (choice.message.content, choice.finish_reason, choice.message.role) == ("Hello 😀 world", "stop", "assistant")
    assert choice.message.tool_calls is None
    usage = whole.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    chunks = list(client.chat.completions.create(model="deepseek-chat", messages=USER, extra_body=NO_THINKING,
                                                 stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == choice.message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == usage.prompt_tokens
    assert len({c.id for c in chunks}) == 1 and chunks[0].model == "deepseek-chat"


def test_chat_with_tools(client):
    fields = {"model": "deepseek-chat", "messages": USER, "tools": TOOLS}
    message = client.chat.completions.create(**fields).choices[0].message
    assert message.content == SAID and message.reasoning_content == "I should."
    assert [c.function.name for c in message.tool_calls] == ["shell", "other"]
    assert json.loads(message.tool_calls[0].function.arguments) == ARGUMENTS
    with client.chat.completions.stream(**fields) as stream:
        names = [event.name for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert names == ["shell", "other"]
    assert final.finish_reason == "tool_calls" and final.message.content == SAID
    assert [c.function.arguments for c in final.message.tool_calls] == \
        [c.function.arguments for c in message.tool_calls]
    # The message as the client gives it is a turn of the next request.
    history = [*USER, message.model_dump(), *({"role": "tool", "tool_call_id": c.id, "content": "done"}
                                              for c in message.tool_calls)]
    again = client.chat.completions.create(**{**fields, "messages": history})
    assert again.choices[0].finish_reason == "tool_calls"


def test_completions(client):
    whole = client.completions.create(model="deepseek-chat", prompt=["xA", "yA"], n=2, max_tokens=100, logprobs=1)
    assert [(c.index, c.text, c.finish_reason) for c in whole.choices] == [(i, "one two three", "stop") for i in range(4)]
    assert "".join(whole.choices[0].logprobs.tokens) == "one two three"
    texts = [""] * 4
    for chunk in client.completions.create(model="deepseek-chat", prompt=["xA", "yA"], n=2, max_tokens=100, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["one two three"] * 4


def test_responses(client):
    fields = {"model": "deepseek-chat", "input": "hi"}
    plain = client.responses.create(**fields, reasoning={"effort": "none"})
    assert (plain.output_text, plain.status) == ("Hello 😀 world", "completed")
    tools = [{"type": "function", "strict": False, **TOOLS[0]["function"]}]
    answer = client.responses.create(**fields, tools=tools)
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
    assert json.loads(answer.output[2].arguments) == ARGUMENTS
    assert answer.output_text == SAID
    with client.responses.stream(**fields, tools=tools) as stream:
        deltas = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert deltas == SAID and final.status == "completed"
    assert [item.type for item in final.output] == [item.type for item in answer.output]
    assert final.usage.output_tokens == answer.usage.output_tokens
    # What came back goes in again, with the results.
    items = [{"role": "user", "content": "hi"}, *(item.model_dump(exclude_none=True) for item in answer.output),
             *({"type": "function_call_output", "call_id": item.call_id, "output": "done"}
               for item in answer.output if item.type == "function_call")]
    again = client.responses.create(model="deepseek-chat", input=items, tools=tools)
    assert again.output_text == SAID


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="deepseek-chat", messages=USER, temperature=-1)
    assert error.value.param == "temperature" and error.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="deepseek-chat", messages=USER, max_tokens=1 << 40, stream=True)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt", messages=USER)
    assert error.value.code == "model_not_found"
