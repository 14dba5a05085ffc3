"""What is found again: every turn of a conversation hits all but its new tokens, rounded down to a page."""
import json
import random

import pytest
from parrot import bytes_of, calls, invoke, parameter
from server import together

PAGE = 128
WINDOW = 32
TOOLS = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}]


def conversations(kind):
    """A salt for each, so that nobody finds another's system prompt."""
    return f"{kind} {random.random()}"


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def random_words(count, seed=None):
    draw = random.Random(seed)
    return " ".join("".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(6)) for _ in range(count))


@pytest.fixture(scope="module")
def agent(make_parrot, running):
    # Spelled as no template would: what was sampled, and not what would be rendered, has to be found again.
    odd = calls(invoke("shell", parameter("command", "ls  -l 2>&1"), parameter("n", "[1,2 ,3]", string=False)))
    model = make_parrot({"<think>": bytes_of("I look around.</think>Looking." + odd, 3),
                         "</think>": bytes_of("Plain answer, of a few words.", 4)})
    with running("--threads", 1, model=model) as server:
        yield server


def test_an_agents_conversation(agent):
    """Calls, their results, and again: each prompt is the one before, its answer, and the new part. The client sends
    back the calls as they were parsed for it; a turn with a hit runs one window of what it adopted again, and no more."""
    messages = [{"role": "system", "content": "You are an agent. " + random_words(60)},
                {"role": "user", "content": "Find it. " + random_words(20)}]
    salt = conversations("agent")
    known = 0  # tokens of the prompt before with its answer but for the last, which nobody has run
    hits, replayed = 0, agent.metrics()["replayed_tokens_total"]
    for turn in range(40):
        answer = agent.chat(messages, tools=TOOLS, cache_salt=salt)
        usage, message = answer["usage"], answer["choices"][0]["message"]
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        assert usage["prompt_tokens"] > known
        assert cached(answer) == known // PAGE * PAGE, f"turn {turn}: {usage}, {known} were known"
        hits += cached(answer) > 0
        agent.wait_metric("replayed_tokens_total", replayed + hits * WINDOW)
        # The last token was drawn and not run, and the end of the sentence is written by the template.
        known = usage["prompt_tokens"] + usage["completion_tokens"] - 1
        if turn % 3 == 2:  # a client that parses arguments and writes them again, and one that drops the reasoning
            call = message["tool_calls"][0]["function"]
            call["arguments"] = json.dumps(json.loads(call["arguments"]), separators=(",", ":"))
            message.pop("reasoning_content"), message.pop("reasoning")
        messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"],
                               "content": random_words(draw_length(turn))}]
    assert hits >= 38 and known > 40 * 60  # all but the first, or two when the first prompt fills no page


def draw_length(turn):
    return (3, 40, 17, 1, 80)[turn % 5]


def test_an_agent_in_the_other_apis(agent):
    items = [{"role": "user", "content": "Find it. " + random_words(40)}]
    tools = [{"type": "function", "name": "shell", "parameters": {"type": "object"}}]
    known, salt = 0, conversations("responses")
    for _ in range(4):
        answer = agent.ask("/v1/responses", input=items, tools=tools, temperature=0, cache_salt=salt)
        usage = answer["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] == known // PAGE * PAGE
        known = usage["input_tokens"] + usage["output_tokens"] - 1
        items = [*items, *answer["output"], {"type": "function_call_output", "output": random_words(30),
                                             "call_id": answer["output"][-1]["call_id"]}]
    messages = [{"role": "user", "content": "Find it. " + random_words(40)}]
    known, salt = 0, conversations("messages")
    for _ in range(4):
        answer = agent.ask("/v1/messages", messages=messages, max_tokens=2000, temperature=0, cache_salt=salt,
                           thinking={"type": "adaptive"}, tools=[{"name": "shell", "input_schema": {"type": "object"}}])
        usage = answer["usage"]
        assert usage["cache_read_input_tokens"] == known // PAGE * PAGE
        known = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] - 1
        messages = [*messages, {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": answer["content"][-1]["id"], "content": random_words(30)}]}]


@pytest.mark.parametrize("words", [4, 12, 60, 200])
def test_plain_conversations(agent, words):
    """The hit grows with the shared prefix, from the first page. (A parrot's words are not tokenized as it said them, so
    the answer itself is new to the next turn.)"""
    messages = [{"role": "user", "content": random_words(words)}]
    known, salt = 0, conversations("plain")
    for _ in range(4):
        answer = agent.chat(messages, chat_template_kwargs={"thinking": False}, user="somebody",
                            metadata={"time": str(random.random())}, cache_salt=salt)
        assert cached(answer) == known // PAGE * PAGE
        known = answer["usage"]["prompt_tokens"]
        messages += [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]},
                     {"role": "user", "content": random_words(words)}]


def test_every_hit_length_and_the_whole_prompt(small):
    """Also a prompt that is cached as a whole: at least its last token runs."""
    draw = random.Random()
    ids = [draw.randrange(30, 500) for _ in range(3 * PAGE)]
    cold = small.complete(ids, max_tokens=2)
    assert cached(cold) == 0
    for length in (1, PAGE - 1, PAGE, PAGE + 1, PAGE + 2, 2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1, 3 * PAGE):
        answer = small.complete(ids[:length], max_tokens=1)
        assert cached(answer) == (length - 1) // PAGE * PAGE, length
    other = [*ids[:PAGE + 60], *(draw.randrange(30, 500) for _ in range(200))]
    assert cached(small.complete(other, max_tokens=1)) == PAGE


def test_salts(small):
    prompt = random_words(60)
    ask = lambda **fields: cached(small.complete(prompt, max_tokens=1, **fields))  # noqa: E731
    assert ask(cache_salt="a") == 0
    assert ask(cache_salt="a") >= PAGE
    assert ask(cache_salt="b") == 0
    assert ask() == 0
    assert ask() >= PAGE and ask(cache_salt="b") >= PAGE
    for bad in ("", "x" * 5000, 5):
        assert small.post("/v1/completions", {"prompt": "a", "cache_salt": bad}).error["param"] == "cache_salt"


def test_usage_is_the_same_in_both_modes(small):
    prompt = random_words(80)
    small.complete(prompt, max_tokens=1)
    whole = small.complete(prompt, max_tokens=5)["usage"]
    assert whole["prompt_tokens_details"]["cached_tokens"] >= PAGE
    events = small.events("/v1/completions", prompt=prompt, max_tokens=5, temperature=0,
                            stream_options={"include_usage": True})
    assert events[-1]["usage"] == whole and events[-1]["choices"] == []
    running = small.events("/v1/completions", prompt=prompt, max_tokens=5, temperature=0,
                             stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert all(e["usage"]["prompt_tokens_details"] == whole["prompt_tokens_details"] for e in running)
    counts = [e["usage"]["completion_tokens"] for e in running]
    assert counts == sorted(counts) and counts[-1] == whole["completion_tokens"]


@pytest.mark.parametrize("page", [64, 256])
def test_other_page_sizes(running, small_model, page):
    with running("--threads", 1, "--block-size", page, model=small_model) as server:
        ids = [random.randrange(30, 500) for _ in range(600)]
        assert cached(server.complete(ids, max_tokens=1)) == 0
        for length in (page, page + 1, 600):
            assert cached(server.complete(ids[:length], max_tokens=1)) == (length - 1) // page * page


def test_many_sessions_keep_their_hits(running, small_model):
    """More sessions than sequences that run at once: nobody's prefix is lost while the pages last."""
    with running("--threads", 1, "--max-num-seqs", 2, model=small_model) as server:
        prompts = [[random.randrange(30, 500) for _ in range(2 * PAGE + 10)] for _ in range(16)]
        together(16, lambda i: server.complete(prompts[i], max_tokens=1))
        hits = together(16, lambda i: cached(server.complete(prompts[i], max_tokens=1)))
        assert hits == [2 * PAGE] * 16


def test_pages_that_all_are_cached_are_taken_again(running, small_model):
    """Prompts that fill the pool several times over: what is only kept for hits gives way."""
    slot, page = 24_064, PAGE * 100  # bytes
    with running("--threads", 1, "--max-model-len", 640, "--max-num-seqs", 2,
                 "--kv-cache-memory-bytes", 2 * slot + 12 * page, model=small_model) as server:
        for _ in range(8):
            ids = [random.randrange(30, 500) for _ in range(600)]
            assert server.complete(ids, max_tokens=2)["usage"]["completion_tokens"] >= 1
        server.wait_metric("kv_cache_usage_perc", 0)
        # The same prompt for several at once, all its pages referenced by all of them.
        answers = together(4, lambda i: server.complete(ids, max_tokens=30, ignore_eos=True))
        assert [a["usage"]["completion_tokens"] for a in answers] == [30] * 4


def test_without_the_cache(running, small_model):
    with running("--threads", 1, "--no-enable-prefix-caching", model=small_model) as server:
        prompt = random_words(60)
        for _ in range(2):
            assert cached(server.complete(prompt, max_tokens=1)) == 0


def test_exact_mode_cold_and_warm(running, small_model):
    """Without bounded replay a hit changes nothing: the same text, the same bits of every logprob."""
    with running("--threads", 1, "--no-swa-bounded-replay", "--window-snapshot-memory-bytes", 8 << 20,
                 model=small_model) as server:
        prompt = random_words(90)
        fields = {"max_tokens": 16, "logprobs": 3}
        cold = server.complete(prompt, **fields)
        warm = server.complete(prompt, **fields)
        assert cached(cold) == 0 and cached(warm) >= PAGE
        assert warm["choices"] == cold["choices"]
        longer = prompt + cold["choices"][0]["text"].replace("\ufffd", "?") + random_words(10)
        hit = server.complete(longer, **fields)
        assert cached(hit) >= PAGE
        assert hit["choices"] == server.complete(longer, **fields, cache_salt="cold")["choices"]
