"""Streamed text: characters, ends, stop strings. A parrot says what is cut where (parrot.py)."""
import random

import pytest
from parrot import bytes_of
from server import together

UNICODE = "日本語 👩\u200d👩\u200d👧 e\u0301e\u0327 😀🇩🇪 \u0e01\u0e33 \U00020000 end"
STOPS = "The cabbage abc bcd, abcabd aaab. STOP \nHuman: öäü and so on"
THOUGHT = "first STOP then</think>said STOP more"


@pytest.fixture(scope="module")
def parrot(make_parrot, running):
    model = make_parrot({
        "A": bytes_of(UNICODE, 1), "B": bytes_of(UNICODE, 3), "C": [UNICODE],
        "E": bytes_of("😀😁😂", 1),
        "S": bytes_of(STOPS, 1), "T": bytes_of(STOPS, 3), "U": bytes_of(STOPS, 7),
        "L": (["la"], "loop"),
        "</think>": ["plain ", "answer"],
        "<think>": bytes_of(THOUGHT, 4),
    })
    with running("--threads", 1, model=model) as server:
        yield server


def streamed_completion(server, prompt, **fields):
    events = server.events("/v1/completions", prompt=prompt, temperature=0, **fields)
    check_chunks(events, "text")
    return "".join(e["choices"][0]["text"] for e in events if e["choices"]), events


def streamed_chat(server, messages, **fields):
    events = server.events("/v1/chat/completions", messages=messages, temperature=0, **fields)
    check_chunks(events, "delta")
    deltas = [e["choices"][0]["delta"] for e in events if e["choices"]]
    return {key: "".join(d.get(key) or "" for d in deltas) for key in ("content", "reasoning_content")}, events


def check_chunks(events, body, usage=False):
    """One finish_reason for each choice, null before it; then at most one chunk of usage without choices."""
    finished = {}
    for at, event in enumerate(events):
        if not event["choices"]:
            assert usage and at == len(events) - 1 and event["usage"]["total_tokens"] > 0
            continue
        (choice,) = event["choices"]
        index = choice["index"]
        assert index not in finished, "a chunk behind its choice's end"
        assert body in choice and "finish_reason" in choice and "logprobs" in choice
        if choice["finish_reason"] is not None:
            finished[index] = choice["finish_reason"]
        if usage and event["choices"]:
            assert event["usage"] is None
    assert events[0]["id"] and {e["id"] for e in events} == {events[0]["id"]}
    return finished


def continued(letter):
    """A chat whose last turn goes on behind a letter."""
    return [{"role": "user", "content": "hi"}, {"role": "assistant", "content": letter, "prefix": True}]


@pytest.mark.parametrize("letter", "ABC")
def test_characters_cut_anywhere_come_whole(parrot, letter):
    assert parrot.complete(letter, max_tokens=500)["choices"][0]["text"] == UNICODE
    text, events = streamed_completion(parrot, letter, max_tokens=500)
    assert text == UNICODE
    assert all("\ufffd" not in e["choices"][0]["text"] for e in events)
    assert streamed_chat(parrot, continued(letter))[0]["content"] == UNICODE


@pytest.mark.parametrize("tokens", range(1, 10))
def test_the_end_inside_a_character(parrot, tokens):
    """Bytes of a character that never completes are one U+FFFD, in both modes and in both APIs."""
    wanted = "😀😁😂".encode()[:tokens].decode("utf-8", "replace")
    whole = parrot.complete("E", max_tokens=tokens)["choices"][0]
    assert (whole["text"], whole["finish_reason"]) == (wanted, "length")
    assert streamed_completion(parrot, "E", max_tokens=tokens)[0] == wanted
    chat = parrot.chat(continued("E"), max_tokens=tokens)["choices"][0]
    assert (chat["message"]["content"], chat["finish_reason"]) == (wanted, "length")
    assert streamed_chat(parrot, continued("E"), max_tokens=tokens)[0]["content"] == wanted


def before_stop(text, stops):
    """The text before the stop string that is complete first; the longest of those complete at one place."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[:end - len(stop)], stop
    return text, None


@pytest.mark.parametrize("stops", [["STOP"], ["\nHuman:"], ["ab", "abc", "bc"], ["abcabc"], ["aab", "aaab"], ["öä"],
                                   ["abd"], ["so on"], ["so on and on"], ["T"]])
def test_stops_whatever_the_cuts(parrot, stops):
    wanted, stop = before_stop(STOPS, stops)
    for letter in "STU":
        choice = parrot.complete(letter, max_tokens=100, stop=stops)["choices"][0]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (wanted, "stop", stop)
        text, events = streamed_completion(parrot, letter, max_tokens=100, stop=stops)
        assert (text, events[-1]["choices"][0]["stop_reason"]) == (wanted, stop)
        assert streamed_chat(parrot, continued(letter), stop=stops)[0]["content"] == wanted


def test_random_stop_lists(parrot):
    """Nothing twice, nothing lost, whatever is held back when the answer ends."""
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)

    def one(_):
        stops = []
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(STOPS))
            stop = STOPS[at:at + draw.randint(1, 9)]
            stops.append(stop if draw.random() < 0.6 else stop[:-1] + "#" if len(stop) > 1 else stop + "#")
        tokens = draw.randint(1, 70)
        letter = draw.choice("STU")
        cut = STOPS.encode()[:tokens * {"S": 1, "T": 3, "U": 7}[letter]].decode("utf-8", "replace")
        wanted, _ = before_stop(cut, stops)
        fields = {"max_tokens": tokens, "stop": stops}
        what = (seed, letter, fields)
        assert parrot.complete(letter, **fields)["choices"][0]["text"] == wanted, what
        assert streamed_completion(parrot, letter, **fields)[0] == wanted, what

    for _ in range(8):
        together(5, one)


def test_stops_are_for_content_alone(parrot):
    reasoning, content = THOUGHT.split("</think>")
    fields = {"messages": [{"role": "user", "content": "hi"}], "stop": ["STOP"]}
    message = parrot.chat(**fields)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (reasoning, content.split("STOP")[0])
    said, _ = streamed_chat(parrot, **fields)
    assert said == {"reasoning_content": reasoning, "content": content.split("STOP")[0]}


def test_include_stop_and_stop_tokens(parrot):
    choice = parrot.complete("T", max_tokens=100, stop=["abc"], include_stop_str_in_output=True)["choices"][0]
    assert choice["text"] == "The cabbage abc"
    ids = parrot.ask("/tokenize", prompt="L")["tokens"]
    assert len(ids) == 1
    loop = parrot.complete("L", max_tokens=4)["choices"][0]
    assert (loop["text"], loop["finish_reason"]) == ("la" * 4, "length")


@pytest.mark.parametrize("fields, reasons", [
    ({"max_tokens": 100, "stop": ["abc"]}, {0: "stop"}),
    ({"max_tokens": 5}, {0: "length"}),
    ({"max_tokens": 5, "n": 3}, {0: "length", 1: "length", 2: "length"}),
    ({"max_tokens": 100, "n": 3}, {0: "stop", 1: "stop", 2: "stop"}),
])
def test_every_chunk_has_its_shape(parrot, fields, reasons):
    for path, prompt, body in (("/v1/completions", {"prompt": "T"}, "text"),
                               ("/v1/chat/completions", {"messages": continued("T")}, "delta")):
        events = parrot.events(path, **prompt, **fields, temperature=0, stream_options={"include_usage": True})
        assert check_chunks(events, body, usage=True) == reasons
        whole = parrot.ask(path, **prompt, **fields, temperature=0)
        assert {c["index"]: c["finish_reason"] for c in whole["choices"]} == reasons
        usage = events[-1]["usage"]
        assert usage["prompt_tokens"] == whole["usage"]["prompt_tokens"]
        assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_streamed_is_what_comes_whole_on_random_text(bundled):
    """The same with words that nobody chose: learn a greedy answer, stop in it, compare the modes.

    Each request has a salt of its own: behind a hit the windows are replayed, so the words may be others.
    """
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    prompt = "".join(draw.choice("abcdefgh \n{}0123é猫") for _ in range(60))
    text = bundled.complete(prompt, max_tokens=60)["choices"][0]["text"]
    clean = text.split("\ufffd")
    longest = max(clean, key=len)
    for stops in ([longest[:2]], [longest[-1:], longest], [longest[1:4] or longest]):
        stops = [s for s in stops if s]
        if not stops:
            continue
        wanted, _ = before_stop(text, stops)
        fields = {"max_tokens": 60, "stop": stops}
        assert bundled.complete(prompt, **fields)["choices"][0]["text"] == wanted, (seed, prompt, stops)
        assert streamed_completion(bundled, prompt, **fields)[0] == wanted, (seed, prompt, stops)
    for thinking in (True, False):
        fields = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 50,
                  "chat_template_kwargs": {"thinking": thinking}}
        message = bundled.chat(**fields, cache_salt=f"{seed} whole")["choices"][0]["message"]
        said, _ = streamed_chat(bundled, **fields, cache_salt=f"{seed} streamed")
        assert said["content"] == message["content"], (seed, prompt)
        assert said["reasoning_content"] == message.get("reasoning_content", ""), (seed, prompt)
