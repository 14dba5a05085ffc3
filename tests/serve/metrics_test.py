"""Metrics that move, and add up."""
import re
import time

import pytest
from server import together


@pytest.fixture(scope="module")
def server(running, small_model):
    with running("--threads", 1, "--max-num-seqs", 4, "--served-model-name", "tested", model=small_model) as server:
        yield server


def delta(server, before):
    after = server.metrics()
    return {name: after[name] - before[name] for name in before}


def test_counters_add_up_to_usage(server):
    before = server.metrics()
    prompts = [[20 + i] * (100 + 60 * i) for i in range(6)]

    usages = together(4, lambda i: server.complete(prompts[i], max_tokens=10 + i, ignore_eos=True)["usage"])
    usages += [server.complete(prompts[i], max_tokens=10 + i, n=3, ignore_eos=True)["usage"] for i in (4, 5)]
    usages.append(server.complete(prompts[5], max_tokens=5, ignore_eos=True)["usage"])
    total = lambda name: sum(usage[name] for usage in usages)  # noqa: E731
    server.wait_metric("generation_tokens_total",  # counted when its step is over, which is after its answer
                       before["generation_tokens_total"] + total("completion_tokens"))
    moved = delta(server, before)
    assert moved["prompt_tokens_total"] == total("prompt_tokens")
    assert moved["prefix_cache_queries_total"] == total("prompt_tokens")
    assert moved["prefix_cache_hits_total"] == sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages) > 0
    assert moved["replayed_tokens_total"] > 0 and moved["trimmed_rows_total"] > 0
    assert moved["request_success_total:length"] == 7
    assert moved["engine_steps_total"] > 0
    for name in ("time_to_first_token_seconds", "request_queue_time_seconds", "e2e_request_latency_seconds"):
        assert moved[name + "_count"] == 7 and moved[name + "_sum"] > 0
    assert moved["inter_token_latency_seconds_count"] == total("completion_tokens") - 11  # choices


def test_prompts_count_once_for_all_choices(server):
    """Six, of which four find a place."""
    before = server.metrics()
    usage = server.complete([60] * 100, n=6, max_tokens=3, ignore_eos=True)["usage"]
    server.wait_metric("generation_tokens_total", before["generation_tokens_total"] + usage["completion_tokens"])
    assert delta(server, before)["prompt_tokens_total"] == usage["prompt_tokens"] == 100


def test_gauges_follow_the_load(server):
    long = {"prompt": [40] * 300, "max_tokens": 30_000, "ignore_eos": True}
    streams = [server.open_stream("/v1/completions", **long) for _ in range(6)]
    try:
        next(streams[0])
        server.wait_metric("num_requests_running", 4)
        server.wait_metric("num_requests_waiting", 2)
        first = server.metrics()
        assert 0 < first["kv_cache_usage_perc"] <= 1
        assert first["http_requests_in_flight"] == 6
        server.wait_metric("generation_tokens_total", lambda value: value > first["generation_tokens_total"] + 40)
        assert server.metrics()["kv_cache_usage_perc"] >= first["kv_cache_usage_perc"]
    finally:
        for stream in streams:
            stream.reset()
    server.wait_metric("num_requests_running", 0)
    server.wait_metric("num_requests_waiting", 0)
    server.wait_metric("kv_cache_usage_perc", 0)
    after = server.metrics()
    assert after["kv_cache_pages_cached"] > 0
    assert after["request_success_total:abort"] == 6


def test_processor_time(running, small_model):
    """What the process used is what the kernel says, and the steps' part of it grows with work alone. Two threads: the
    second one's time is a step's too."""
    with running("--threads", 2, model=small_model) as server:
        begin = server.cpu_seconds()
        first = server.metrics()
        server.complete("work", max_tokens=300, ignore_eos=True)
        server.wait_metric("generation_tokens_total", 300)
        last, end = server.metrics(), server.cpu_seconds()
        assert begin - 0.02 <= first["process_cpu_seconds_total"]  # the kernel's file counts hundredths
        assert last["process_cpu_seconds_total"] <= end + 0.02
        process = last["process_cpu_seconds_total"] - first["process_cpu_seconds_total"]
        steps = last["compute_cpu_seconds_total"] - first["compute_cpu_seconds_total"]
        assert 0 < steps < process
        assert steps > process / 2  # this model's steps are most of what one stream costs
        assert abs(last["process_resident_memory_bytes"] / server.memory_bytes() - 1) < 0.2
        assert last["process_open_fds"] >= server.open_files()  # and the scrape's connection

        time.sleep(0.5)  # an idle server sleeps, its pool too
        idle = server.metrics()
        assert idle["compute_cpu_seconds_total"] == last["compute_cpu_seconds_total"]
        assert idle["process_cpu_seconds_total"] - last["process_cpu_seconds_total"] < 0.05


def test_outcomes_are_counted(server):
    before = server.metrics()
    # What never reached the engine is counted where HTTP counts, and nowhere else.
    replies = server.post_all([("/v1/completions", {"prompt": "a", "top_p": 7}), ("/v1/completions", "nonsense"),
                               ("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [20]}),
                               ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a"}]})])
    assert [reply.status for reply in replies] == [400, 400, 200, 200, 200]
    assert server.get("/v1/models").status == 200
    server.complete("a", max_tokens=4, logit_bias={"1": 100})  # the end of the sentence at once
    moved = delta(server, before)
    ends = {reason: moved[f"request_success_total:{reason}"] for reason in ("stop", "length", "abort", "error")}
    assert ends == {"stop": 1, "length": 0, "abort": 0, "error": 0}
    assert moved["e2e_request_latency_seconds_count"] == 1
    assert moved["http_requests_total"] == 8  # with the scrape


def test_the_text_is_prometheus(server):
    reply = server.get("/metrics")
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    typed = set()
    for line in reply.body.decode().splitlines():
        if line.startswith("#"):
            found = re.fullmatch(r"# (HELP|TYPE) (senko:\w+|process_\w+) (.+)", line)
            assert found, line
            if found[1] == "TYPE":
                assert found[2] not in typed and found[3] in ("counter", "gauge", "histogram")
                typed.add(found[2])
            continue
        found = re.fullmatch(r"(senko:\w+|process_\w+)(?:\{([^{}]*)\})? (\S+)", line)
        assert found, line
        float(found[3])
        if found[1].startswith("process_"):
            assert found[2] is None
        else:
            assert 'model_name="tested"' in found[2]
        assert re.sub(r"_(bucket|sum|count)$", "", found[1]) in typed or found[1] in typed
