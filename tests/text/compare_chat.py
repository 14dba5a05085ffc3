#!/usr/bin/env python3
"""Compares our chat encoding with the `deepseek-recipe` package's, text and ids, on seeded conversations.

    compare_chat.py --tool BUILD/bin/text_tool [--count 3000] [--seed 1] [--tokenizer FILE]

The wording of the tools block is taken from the package itself: a conversation with a known schema is rendered and
turned back into a template, which our side then reads from a file. Every recorded assistant turn is also rendered and
parsed again, cut at random bytes, and must come back. Default tokenizer: the small bundled one.
"""

import argparse
import json
import pathlib
import random
import sys
import tempfile

try:
    import deepseek_recipe as dr
except ImportError:
    print("SKIPPED: the deepseek-recipe package is not installed")
    sys.exit(77)

import corpus
from driver import TINY, ask

MARKS = ["<｜User｜>", "</think>", "<think>", "<｜end▁of▁sentence｜>", "｜DSML｜", "<｜deepseek_image｜>", "<｜System｜>",
         "<｜DSML｜ calls>", "<tool_result>", "\n\n<｜DSML｜ calls>\n"]
GROUNDING = ["<｜ref｜>", "<｜/ref｜>", "<｜box｜>", "<｜/polygon｜>"]


def tools_template():
    tool = dr.ToolDefinition("f", "", {})
    rendered = dr.DeepseekV41Encoding().render_conversation(
        dr.Conversation([dr.UserMessage("")], thinking_mode=False, tools=[tool]))
    names = {"｜DSML｜": "{dsml_token}", "<think>": "{thinking_start_token}", "</think>": "{thinking_end_token}"}
    out, at = "", 0
    for begin, end in [*rendered.special_ranges, (len(rendered.prompt), None)]:
        plain = rendered.prompt[at:begin].replace("{", "{{").replace("}", "}}")
        out += plain + (names.get(rendered.prompt[begin:end], "\0") if end else "")
        at = end
    block = next(part for part in out.split("\0") if "{dsml_token}" in part)
    schema = '{{"name": "f", "description": "", "parameters": {{}}}}'
    assert block.startswith("\n\n") and block.count(schema) == 1, block
    return block[2:].replace(schema, "{tool_schemas}")


def words(rng, special=()):
    if rng.random() < 0.15:
        return ""
    text = corpus.line(rng, MARKS)[:200]
    for token in special:
        if rng.random() < 0.2:
            at = rng.randrange(len(text) + 1)
            text = text[:at] + token + text[at:]
    return text


def value(rng, depth=0):
    kind = rng.randrange(9 if depth < 2 else 6)
    if kind == 0:
        return rng.choice([True, False, None])
    if kind == 1:
        return rng.choice([0, -1, 7, 2**53 + 1, 2**63 - 1, -2**63, 2**64 - 1])
    if kind == 2:  # below 1e16, where the package and Python agree
        return rng.choice([0.1, -2.5, 1e-5, 1.5e-7, 123456.789, 1e15, -0.0, 3.0, 0.0001, 5e-324, 1 / 3])
    if kind <= 5:
        return words(rng)
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {words(rng)[:20]: value(rng, depth + 1) for _ in range(rng.randrange(4))}


def tool(rng):
    return {"name": rng.choice(["f", "get_weather", "a.b", "naïve"]), "description": words(rng),
            "parameters": rng.choice([None, {}, value(rng)])}


def call(rng, number):
    arguments = {words(rng)[:12]: value(rng) for _ in range(rng.randrange(4))}
    text = json.dumps(arguments, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.15:
        text = rng.choice(["", "[1, 2]", "not json", "3", "{\"a\":", text + " x", "null"])
    return {"id": f"call{number}", "name": rng.choice(["f", "g", "get_weather"]), "arguments": text}


def conversation(rng):
    messages, calls = [], []
    for i in range(rng.randrange(1, 9)):
        role = rng.choice(["user", "user", "assistant", "assistant", "tool", "tool", "system", "latest_reminder"])
        if i == 0 and rng.random() < 0.5:
            role = "system"
        message = {"role": role, "content": words(rng, GROUNDING if role == "assistant" else ())}
        if role == "assistant":
            message["reasoning"] = words(rng, GROUNDING)
            calls = [call(rng, n) for n in range(rng.randrange(4))]
            message["tool_calls"] = calls
        elif role == "tool" and rng.random() < 0.9:
            message["tool_call_id"] = rng.choice([c["id"] for c in calls] + ["unknown"])
        elif role == "system" and rng.random() < 0.2:
            message["tools"] = [tool(rng) for _ in range(rng.randrange(1, 3))]
        messages.append(message)
    if messages[-1]["role"] == "assistant" and rng.random() < 0.6:
        messages[-1]["prefix"] = True
    result = {"messages": messages, "thinking": rng.random() < 0.6}
    if rng.random() < 0.4:
        result["tools"] = [tool(rng) for _ in range(rng.randrange(1, 4))]
        result["tool_choice"] = rng.choice(["auto", "auto", "none", "required"])
    if rng.random() < 0.5:
        result["effort"] = rng.choice(["low", "high", "xhigh", "max"])
    if rng.random() < 0.25:
        result["response_format"] = rng.choice([{"type": "json_object"}, {"type": "object", "properties": value(rng)}])
    return result


def theirs(c):
    def tools(items):
        return [dr.ToolDefinition(t["name"], t["description"], t["parameters"]) for t in items]

    def message(m):
        if m["role"] == "assistant":
            history = [dr.ToolCall(t["id"], t["name"], t["arguments"]) for t in m["tool_calls"]]
            return dr.AssistantMessage(m["content"], m["reasoning"], history or None, m.get("prefix", False))
        if m["role"] == "tool":
            return dr.ToolMessage(m["content"], m.get("tool_call_id"))
        if m["role"] == "system":
            return dr.SystemMessage(m["content"], tools=tools(m["tools"]) if "tools" in m else None)
        return {"user": dr.UserMessage, "latest_reminder": dr.LatestReminderMessage}[m["role"]](m["content"])

    response = c.get("response_format")
    options = {}
    if response == {"type": "json_object"}:
        options["response_format"] = "json_object"
    elif response is not None:
        options["response_schema"] = response
    return dr.Conversation(
        [message(m) for m in c["messages"]], thinking_mode=c["thinking"], tools=tools(c.get("tools", [])),
        tool_choice=c.get("tool_choice", "auto"), reasoning_effort=c.get("effort"), **options)


def cut(rng, data):
    pieces = []
    while data:
        size = rng.choice([1, 1, 2, 3, 7, 50])
        pieces.append(data[:size].hex())
        data = data[size:]
    return pieces


def arguments_of(c):
    try:
        parsed = json.loads(c["arguments"])
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"arguments": c["arguments"]}


def same(a, b):
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def check_turns(tool_path, tokenizer, count, seed):
    """Our rendering of one assistant turn, parsed from random cuts."""
    rng = random.Random(seed)
    turns, requests = [], []
    clean = lambda text: text.replace("｜DSML｜", "DSML").replace("</think>", "think")
    for _ in range(count):
        turn = {"role": "assistant", "content": clean(words(rng)), "reasoning": clean(words(rng)),
                "tool_calls": [call(rng, n) for n in range(rng.randrange(4))]}
        for c in turn["tool_calls"]:
            c["arguments"] = clean(c["arguments"]).replace("\\uff5cDSML\\uff5c", "DSML").replace("</think>", "")
        thinking = rng.random() < 0.7
        turns.append((turn, thinking))
        requests.append({"op": "chat", "conversation": {
            "messages": [{"role": "user", "content": "q"}, turn, {"role": "user", "content": "END"}],
            "thinking": thinking, "drop_thinking": False}})
    rendered = ask(tool_path, tokenizer, requests)
    parses = []
    for (turn, thinking), answer in zip(turns, rendered):
        text = answer["text"]
        begin = text.index("<｜Assistant｜>") + len("<｜Assistant｜>")
        begin += len("<think>" if thinking else "</think>")
        body = text[begin:text.rindex("<｜end▁of▁sentence｜><｜User｜>END")]
        parses.append({"op": "parse", "pieces": cut(rng, body.encode()), "start": "reasoning" if thinking else "content"})
    bad = 0
    for (turn, thinking), answer in zip(turns, ask(tool_path, tokenizer, parses)):
        want = turn["reasoning"] if thinking else ""
        calls = turn["tool_calls"]
        good = answer["content"] == turn["content"] and answer["reasoning"] == want and not answer["malformed"]
        good = good and len(answer["calls"]) == len(calls)
        good = good and all(a["name"] == c["name"] and same(json.loads(a["arguments"]), arguments_of(c))
                            for a, c in zip(answer["calls"], calls))
        if not good:
            bad += 1
            if bad <= 3:
                print("  turn does not come back:", turn, answer, sep="\n    ")
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", type=pathlib.Path, default=TINY)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    conversations = [conversation(rng) for _ in range(arguments.count)]
    encoder = dr.DeepseekV41Encoding().with_tokenizer(dr.Tokenizer.from_file(str(arguments.tokenizer)))
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "tools_prompt.txt").write_text(tools_template(), encoding="utf-8")
        ours = ask(arguments.tool, arguments.tokenizer,
                   [{"op": "chat", "conversation": c} for c in conversations], folder)
    bad = 0
    for c, answer in zip(conversations, ours):
        wanted = theirs(c)
        text, ids = encoder.render_conversation(wanted).prompt, encoder.encode(wanted)
        if answer.get("text") != text or answer.get("ids") != ids:
            bad += 1
            if bad <= 3:
                print("  differs:", json.dumps(c, ensure_ascii=False), repr(text), repr(answer.get("text", answer)), sep="\n    ")
    print(f"{len(conversations)} conversations, {bad} differences")
    lost = check_turns(arguments.tool, arguments.tokenizer, arguments.count, arguments.seed)
    print(f"{arguments.count} turns parsed back, {lost} differences")
    sys.exit(1 if bad or lost else 0)


if __name__ == "__main__":
    main()
