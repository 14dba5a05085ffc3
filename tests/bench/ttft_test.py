"""`senko bench ttft`: cold prompts with and without replay; behind a cached prefix of any length the rows run are the
window and the new tokens."""
from bench import WINDOW, report, run


def ttft(senko, *flags):
    return report(senko, "ttft", "--repeats", 1, *flags)


def test_rows_do_not_grow_with_what_is_cached(senko):
    lengths = [256, 512, 1280]
    for new in (1, 40, 300):  # also as many that they fill pages of their own
        found = ttft(senko, "--cached-tokens", ",".join(map(str, lengths)), "--new-tokens", new)
        assert (found["window"], found["device"], found["cached"]["new_tokens"]) == (WINDOW, "cpu", new)
        assert "cold" not in found
        rows = found["cached"]["results"]
        assert [r["cached_tokens"] for r in rows] == lengths
        assert [r["rows_run"] for r in rows] == [WINDOW + new] * len(lengths)
        for r in rows:
            assert 0 < r["index_seconds"] < r["ttft_seconds"], r
        fit = found["cached"]["fit"]
        mean = sum(r["ttft_seconds"] for r in rows) / len(rows)
        x = sum(lengths) / len(lengths) / 1024
        assert abs(fit["seconds_at_none"] + fit["seconds_per_1024"] * x - mean) < 1e-9, "a fitted line meets the means"


def test_cold_prompts_in_every_setting_there_is(senko):
    found = ttft(senko, "--prompt-tokens", "64,1000")
    assert "cached" not in found
    assert [r["prompt_tokens"] for r in found["cold"]] == [64, 1000]
    for r in found["cold"]:
        assert abs(r["replay_over_full"] * r["full_seconds"] / r["replay_seconds"] - 1) < 1e-9  # of one pair
        assert "graphs_seconds" not in r, "a CPU has no graphs"


def test_the_table_has_a_line_for_each_length(senko):
    done = run(senko, "ttft", "--repeats", 1, "--cached-tokens", "384,128", "--new-tokens", 128, "--prompt-tokens", 96)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["cold", "prompts"] and lines[2][0] == "96"
    assert lines[3][:4] == ["cached", "prefixes,", "window", f"{WINDOW},"]
    assert [line[:2] for line in lines[5:7]] == [["128", "160"], ["384", "160"]]
    assert lines[7][0] == "fitted:"


def test_what_cannot_be_a_hit_is_refused(senko):
    for flags, word in ((("--cached-tokens", "200"), "--cached-tokens 200"),
                        (("--cached-tokens", "32768"), "context"),
                        (("--prompt-tokens", "40000"), "context"),
                        (("--prompt-tokens", "0"), "--prompt-tokens"),
                        (("--cached-tokens", "64", "--new-tokens", "0"), "--new-tokens")):
        done = run(senko, "ttft", *flags)
        assert done.returncode == 2 and word in done.stderr, done.stderr
