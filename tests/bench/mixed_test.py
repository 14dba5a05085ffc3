"""`senko bench mixed`: a stream goes on while a prompt is cut to the step's budget."""
import math

from bench import report, run


def test_the_stream_gets_a_token_with_every_piece_of_the_prompt(senko):
    prompt, budgets = 1500, [64, 256, 1024]
    found = report(senko, "mixed", "--budgets", ",".join(map(str, budgets)), "--prompt-tokens", prompt,
                   "--stream-tokens", 40, "--quiet-tokens", 8)
    assert (found["prompt_tokens"], found["stream_tokens"]) == (prompt, 40)
    rows = found["results"]
    assert [r["budget"] for r in rows] == budgets
    for r in rows:
        pieces = math.ceil(prompt / (r["budget"] - 1))  # the stream has one row of each step
        assert r["tokens"] >= pieces, r  # and those of steps that were under way when the prompt came
        assert 0 < r["gap_seconds"] <= r["longest_gap_seconds"], r
        assert r["quiet_gap_seconds"] > 0 and r["ttft_seconds"] > 0
    assert rows[0]["tokens"] > rows[2]["tokens"]


def test_the_table_has_a_line_for_each_budget(senko):
    done = run(senko, "mixed", "--budgets", "256,64", "--prompt-tokens", 300, "--stream-tokens", 8, "--quiet-tokens", 2)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["budget", "256", "64"]


def test_what_cannot_be_run_is_refused(senko):
    for flags, word in ((("--budgets", "1"), "--budgets"),
                        (("--prompt-tokens", "40000"), "--max-model-len"),
                        (("--max-num-batched-tokens", "64"), "--budgets")):
        done = run(senko, "mixed", *flags)
        assert done.returncode == 2 and word in done.stderr, done.stderr
