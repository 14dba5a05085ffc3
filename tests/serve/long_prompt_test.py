"""A prompt of any length in one workspace: only its KV pages and its token ids take memory for their number.

What a prompt of n tokens costs here: the layers before the last KV source take all n rows, a few microseconds each; the
one indexer among them scores row r against r / 2 entries with one head of 32, n^2 / 4 scores in all: 1.1e9 for 65,536
tokens and 2.7e11 for 1,048,576. At 4 ns a score that is 5 seconds and 20 minutes of one CPU, next to 3 seconds and one
minute for all else. The layers behind the seam take the last window's rows only. The thresholds are the released ones,
so that both selections cut at either length.
"""
import os
import pathlib
import random
import re
import shutil
import threading

import pytest
from parrot import ROOT, write_model

MIB = 1 << 20
NARROW = {"vocab_size": 512, "max_position_embeddings": (1 << 20) + 1024, "hidden_size": 128, "head_dim": 32,
          "num_attention_heads": 2, "q_lora_rank": 32, "o_lora_rank": 32, "sliding_window": 128, "index_n_heads": 1,
          "index_head_dim": 32, "index_topk": 512, "candidate_topk_blocks": 2048, "candidate_block_size": 8}
ROWS = 512  # of a step, at every length
# A token's, at most: its id with the request, the scheduler and the sequence, where a growing list has it twice for a
# moment, and its share of its page's name and place in the index.
IDS_BYTES = 20
SLACK = 4 * MIB  # huge pages at the ends of mappings, and what the allocator keeps of a request's text


@pytest.fixture(scope="module")
def model(senko, new_folder):
    model = write_model(senko, new_folder("narrow"), NARROW)
    shutil.copy(ROOT / "models/tiny/tokenizer.json", model)
    return model


class AnonymousPeak:
    """The most anonymous memory of a process while this is open, looked at often."""

    def __init__(self, pid):
        self.path = pathlib.Path(f"/proc/{pid}/status")
        self.bytes = 0
        self.end = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def _kib(self, text, name):
        return int(re.search(name + r":\s+(\d+) kB", text).group(1)) << 10

    def _watch(self):
        while not self.end.wait(0.01):
            self.bytes = max(self.bytes, self._kib(self.path.read_text(), "RssAnon"))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()
        text = self.path.read_text()
        # What was missed between two looks: files only come to the mapped ones.
        self.bytes = max(self.bytes, self._kib(text, "VmHWM") - self._kib(text, "RssFile"))


def prefill(running, model, tokens):
    """(workspace, peak anonymous memory without the KV pages that were used), bytes."""
    ids = [random.randrange(30, 500) for _ in range(tokens)]
    with running("--threads", len(os.sched_getaffinity(0)), "--max-model-len", tokens + 64, "--max-num-seqs", 1,
                 "--max-num-batched-tokens", ROWS, model=model) as server:
        pool = re.search(r"(\d+) pages in (\d+) bytes", server.errors())
        page_bytes = int(pool.group(2)) // int(pool.group(1))
        with AnonymousPeak(server.pid) as peak:
            reply = server.post("/v1/completions", {"prompt": ids, "max_tokens": 4, "temperature": 0,
                                                    "ignore_eos": True}, seconds=60 + tokens / 100)
        assert reply.status == 200, reply
        usage = reply.json["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (tokens, 4)
        server.wait_metric("num_requests_running", 0)
        metrics = server.metrics()
        assert metrics["trimmed_rows_total"] == tokens - NARROW["sliding_window"]
        assert metrics["engine_steps_total"] >= tokens / ROWS
        # It can be found again, so every page of it was written.
        pages = metrics["kv_cache_pages_cached"]
        assert pages == tokens // 128
        return metrics["workspace_bytes"], peak.bytes - pages * page_bytes


def test_one_workspace_for_every_length(running, model, request):
    lengths = [1 << 12, 1 << 16] + ([1 << 20] if request.config.getoption("--long") else [])
    workspace, rest = {}, {}
    for tokens in lengths:
        workspace[tokens], rest[tokens] = prefill(running, model, tokens)
        print(f"{tokens} tokens: workspace {workspace[tokens] / MIB:.2f} MiB, anonymous memory beside the KV pages "
              f"{rest[tokens] / MIB:.2f} MiB")
    assert min(workspace.values()) > 0 and len(set(workspace.values())) == 1, workspace
    for tokens in lengths:
        assert rest[tokens] > workspace[tokens] / 2  # the measure sees the workspace at all
        assert rest[tokens] - rest[lengths[0]] < SLACK + IDS_BYTES * tokens, rest
