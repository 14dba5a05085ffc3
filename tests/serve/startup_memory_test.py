"""Memory: what the flags say, and no more under the heaviest load."""
import random

from server import together

MIB = 1 << 20


def test_memory_is_that_of_the_flags(running, small_model):
    """A context sixteen times as long costs nothing by itself."""
    used = []
    for length in (2048, 32768):
        with running("--threads", 1, "--max-model-len", length, "--max-num-seqs", 8,
                     "--kv-cache-memory-bytes", 64 * MIB, model=small_model) as server:
            server.complete("a", max_tokens=2)
            used.append(server.memory_bytes())
    assert abs(used[1] - used[0]) < 8 * MIB, used


def test_the_worst_batch_fits(running, small_model):
    """Every place taken, steps full, logprobs of everything: what that takes is within the pages and a fixed rest."""
    pages = 16 * MIB
    with running("--threads", 1, "--max-model-len", 2048, "--max-num-seqs", 16, "--max-num-batched-tokens", 512,
                 "--kv-cache-memory-bytes", pages, model=small_model) as server:
        server.complete("a", max_tokens=2)
        before = server.memory_bytes()
        lengths = [2040 if i < 2 else 300 for i in range(16)]
        prompts = [[random.randrange(30, 500) for _ in range(length)] for length in lengths]
        answers = together(16, lambda i: server.complete(prompts[i], max_tokens=8, logprobs=20, ignore_eos=True,
                                                         **({"prompt_logprobs": 20} if i == 1 else {})))
        assert [a["usage"]["completion_tokens"] for a in answers] == [8] * 16
        # Workspaces are touched for the first time here, so a rest is allowed; a matrix of the context's square is not.
        assert server.memory_bytes() - before < pages + 48 * MIB
