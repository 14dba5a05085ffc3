"""Logprobs in OpenAI's shapes, whatever the bytes; what a draw depends on; many at once as one alone."""
import math

import pytest
from parrot import bytes_of
from server import together

TEXT = "日本 😀 e\u0301 plain"


@pytest.fixture(scope="module")
def parrot(make_parrot, running):
    model = make_parrot({"A": bytes_of(TEXT, 1), "</think>": bytes_of(TEXT, 2),
                         "<think>": bytes_of("thought</think>" + TEXT, 3)})
    with running("--threads", 1, model=model) as server:
        yield server


def joined(content):
    return bytes(b for token in content for b in token["bytes"] or []).decode()


def check_shape(content, top):
    for token in content:
        assert isinstance(token["token"], str) and token["logprob"] <= 0 and math.isfinite(token["logprob"])
        assert len(token["top_logprobs"]) == top
        values = [t["logprob"] for t in token["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        for other in token["top_logprobs"]:
            assert isinstance(other["token"], str) and (other["bytes"] is None or isinstance(other["bytes"], list))


@pytest.mark.parametrize("top", [None, 0, 1, 5, 20])
def test_bytes_joined_are_the_text(parrot, top):
    fields = {"logprobs": True} | ({} if top is None else {"top_logprobs": top})
    for thinking in (False, True):
        fields["chat_template_kwargs"] = {"thinking": thinking}
        choice = parrot.chat("hi", **fields)["choices"][0]
        content = choice["logprobs"]["content"]
        assert joined(content) == choice["message"]["content"] == TEXT
        check_shape(content, top or 0)
        if thinking:
            thought = choice["logprobs"]["reasoning_content"]
            assert joined(thought).startswith("thought") and choice["message"]["reasoning_content"] == "thought"
        chunks = parrot.events("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], temperature=0,
                               **fields)
        streamed = [t for e in chunks if e["choices"][0]["logprobs"]
                    for t in e["choices"][0]["logprobs"].get("content") or []]
        assert streamed == content


def test_legacy_shape(parrot):
    choice = parrot.complete("A", max_tokens=100, logprobs=2)["choices"][0]
    logprobs = choice["logprobs"]
    assert len({len(logprobs[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}) == 1
    assert logprobs["tokens"][0] == "bytes:\\xe6"
    for token, value, tops in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
        assert tops[token] == value and len(tops) <= 3
    assert logprobs["text_offset"][:7] == [0, 0, 0, 1, 1, 1, 2]
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])


def test_echo_and_prompt_logprobs(small):
    """All positions but the first, also where the prompt is cached, and the same then."""
    prompt = "".join(chr(97 + i * 7 % 26) for i in range(300))
    ids = small.ask("/tokenize", prompt=prompt)["tokens"]
    assert len(ids) > 200
    fields = {"max_tokens": 1, "logprobs": 3, "echo": True}
    cold = small.complete(prompt, **fields)
    choice = cold["choices"][0]
    assert choice["text"].startswith(prompt)
    values = choice["logprobs"]["token_logprobs"]
    assert len(values) == len(ids) + 1 and values[0] is None
    assert all(math.isfinite(v) and v <= 0 for v in values[1:])
    small.complete(prompt, max_tokens=1)  # leaves it in the cache
    assert small.complete(prompt, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128
    warm = small.complete(prompt, **fields)
    assert warm["choices"][0]["logprobs"] == choice["logprobs"]
    scored = small.complete(prompt, max_tokens=0, logprobs=3, echo=True)
    assert scored["choices"][0]["text"] == prompt
    assert scored["choices"][0]["logprobs"]["token_logprobs"] == values[:-1]
    assert scored["usage"]["completion_tokens"] == 0
    listed = small.complete(prompt, max_tokens=1, prompt_logprobs=2)["choices"][0]["prompt_logprobs"]
    assert listed[0] is None and len(listed) == len(ids)
    assert [entry[str(i)]["logprob"] for entry, i in zip(listed[1:], ids[1:])] == values[1:-1]
    events = small.events("/v1/completions", prompt=prompt, temperature=0, **fields)
    streamed = [v for e in events for v in (e["choices"][0]["logprobs"] or {"token_logprobs": []})["token_logprobs"]]
    assert streamed == values


def test_many_at_once_are_as_one_alone(small):
    """Equal texts, equal bits of every logprob: alone, and 32 in one batch. Salts keep all of them cold."""
    fields = {"max_tokens": 12, "logprobs": 5}
    prompt = "the same for everybody " * 12
    alone = small.complete(prompt, **fields, cache_salt="alone")["choices"][0]
    with_others = together(32, lambda i: small.complete(prompt, **fields, cache_salt=f"salt {i}")["choices"][0])
    for other in with_others:
        assert other["text"] == alone["text"]
        assert other["logprobs"] == alone["logprobs"]


def test_more_choices_than_sequences(small):
    """As many as are allowed, of which not all can run at once; and a neighbour who does not notice."""
    answers = together(2, lambda i: small.ask("/v1/completions", prompt="many", n=(128, 1)[i], max_tokens=3,
                                              ignore_eos=True, seed=5))
    assert [len(a["choices"]) for a in answers] == [128, 1]
    assert answers[0]["usage"]["completion_tokens"] == 3 * 128
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]


def test_seeds(small):
    def draw(**fields):
        return [c["text"] for c in small.ask("/v1/completions", prompt="seeds", max_tokens=8, **fields)["choices"]]

    first = draw(seed=1)
    assert together(4, lambda i: draw(seed=1 + i % 2)) == [first, draw(seed=2)] * 2
    assert first != draw(seed=2)
    several = draw(seed=1, n=4)
    assert several == draw(seed=1, n=4) and len(set(several)) > 1
    assert several[0] == first[0]
    assert len({draw()[0] for _ in range(4)}) > 1  # unseeded draws differ
    assert draw(seed=0) == draw(seed=0) and draw(seed=-5) == draw(seed=-5)


def test_temperature_tends_to_greedy(small):
    greedy = small.complete("warm", max_tokens=10)["choices"][0]["text"]
    for temperature in (1e-3, 1e-5, 1e-8, 1e-12, 1e-45):
        answer = small.ask("/v1/completions", prompt="warm", max_tokens=10, temperature=temperature, seed=3)
        assert answer["choices"][0]["text"] == greedy, temperature
    for temperature in (2, 100):
        answer = small.ask("/v1/completions", prompt="warm", max_tokens=10, temperature=temperature, logprobs=0)
        values = answer["choices"][0]["logprobs"]["token_logprobs"]
        assert answer["usage"]["completion_tokens"] <= 10 and all(math.isfinite(v) for v in values)


def test_bias_and_penalties(small):
    ids = small.ask("/tokenize", prompt="z")["tokens"]
    forced = small.complete("a", max_tokens=5, logit_bias={str(ids[0]): 100})["choices"][0]
    assert forced["text"] == "zzzzz"
    barred = small.complete("a", max_tokens=5, logit_bias={str(ids[0]): 100}, bad_words=["z"])["choices"][0]
    assert "z" not in barred["text"]
    stopped = small.complete("a", max_tokens=5, logit_bias={str(ids[0]): 100}, stop_token_ids=ids)["choices"][0]
    assert (stopped["text"], stopped["finish_reason"], stopped["stop_reason"]) == ("", "stop", ids[0])
