"""Output can't be forced into a form here: whoever asks for it is refused by name, and never answered freely."""
import pytest

USER = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 2000}}, "required": ["a"]}


def schema(value):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}


def refused(reply, param):
    assert reply.status == 400, reply
    assert len(reply.body) <= 4096
    assert reply.error["param"] == param and reply.error["code"] == "unsupported", reply


@pytest.mark.parametrize("value", [
    SCHEMA, "nonsense", 5, [], {"type": "nonsense"}, {"type": ["string"]}, {"$ref": "#"}, {"$ref": "#/nowhere"},
    {"items": [{}, {}]}, {"type": "string", "pattern": "(?=a)b"}, {"maxLength": 1}, {"maxLength": 1999},
    {"maxLength": 1000000}, {"enum": [str(i) for i in range(10_000)]}, {"properties": {"é\n\"": {}}},
])
def test_schemas(bundled, value):
    bodies = [(CHAT, {"messages": USER, "response_format": schema(value), "stream": stream,
                      "chat_template_kwargs": {"thinking": thinking}})
              for thinking in (True, False) for stream in (True, False)]
    # The list of ten thousand is too long for requests sent ahead.
    for reply in bundled.post_all(bodies) if len(str(value)) < 1000 else [bundled.post(*bodies[0])]:
        refused(reply, "response_format.type")
    refused(bundled.post("/v1/responses", {"input": "hi", "text": {"format": {"type": "json_schema", "name": "x",
                                                                              "schema": value}}}), "text.format.type")


@pytest.mark.parametrize("form", [{"type": "json_object"}, {"type": "grammar", "grammar": "x"}, {"type": "nonsense"},
                                  {"type": "structural_tag"}])
def test_formats(bundled, form):
    for path, body in ((CHAT, {"messages": USER}), ("/v1/completions", {"prompt": "a"})):
        refused(bundled.post(path, {**body, "response_format": form}), "response_format.type")
        assert bundled.post(path, {**body, "response_format": {"type": "text"}, "max_tokens": 1}).status == 200
    refused(bundled.post("/v1/responses", {"input": "hi", "text": {"format": form}}), "text.format.type")


@pytest.mark.parametrize("field, value", [
    ("guided_json", SCHEMA), ("guided_json", {"type": "nonsense"}), ("guided_regex", "a+"), ("guided_choice", ["a"]),
    ("guided_grammar", "root ::= x"), ("structured_outputs", {"json": SCHEMA}), ("structural_tag", {"a": 1}),
    ("grammar", "root ::= x"), ("json_schema", SCHEMA), ("regex", "("), ("ebnf", "x"),
])
def test_other_names(bundled, field, value):
    refused(bundled.post(CHAT, {"messages": USER, field: value}), field)
    refused(bundled.post("/v1/completions", {"prompt": "a", field: value}), field)


def test_strict_tools(bundled):
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
    refused(bundled.post(CHAT, {"messages": USER, "tools": [tool]}), "tools[0].function.strict")
    tool = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
    refused(bundled.post("/v1/responses", {"input": "hi", "tools": [tool]}), "tools[0].strict")
    reply = bundled.post("/v1/messages", {"messages": USER, "max_tokens": 1, "output_config": {"format": schema(SCHEMA)}})
    assert reply.status == 400 and "output_config.format" in reply.error["message"]


def test_nobody_else_notices(bundled):
    for _ in range(3):
        bundled.post(CHAT, {"messages": USER, "response_format": schema({"type": "nonsense"})})
    assert bundled.get("/ready").status == 200
    assert bundled.complete("a", max_tokens=2)["usage"]["completion_tokens"] == 2
