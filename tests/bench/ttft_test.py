"""`senko bench ttft`: behind a cached prefix of any length the rows run are the window and the new tokens."""
import json
import subprocess

WINDOW = 32  # of the bundled model


def bench(senko, *flags):
    return subprocess.run([str(senko), "bench", "ttft", "--repeats", "1", "--threads", "1", *flags],
                          capture_output=True, text=True, timeout=120)


def test_rows_do_not_grow_with_what_is_cached(senko):
    lengths = [256, 512, 1280]
    for new in (1, 40, 300):  # also as many that they fill pages of their own
        done = bench(senko, "--cached-tokens", ",".join(map(str, lengths)), "--new-tokens", str(new), "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (report["window"], report["new_tokens"]) == (WINDOW, new)
        assert [r["cached_tokens"] for r in report["results"]] == lengths
        assert [r["rows_run"] for r in report["results"]] == [WINDOW + new] * len(lengths)
        for r in report["results"]:
            assert 0 < r["index_seconds"] < r["ttft_seconds"], r


def test_the_table_has_a_line_for_each_length(senko):
    done = bench(senko, "--cached-tokens", "384,128")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"window {WINDOW}, 128 new tokens"
    assert [line.split()[:2] for line in lines[2:]] == [["128", "160"], ["384", "160"]]


def test_what_cannot_be_a_hit_is_refused(senko):
    for flags, word in ((("--cached-tokens", "200"), "--cached-tokens 200"),
                        (("--cached-tokens", "32768"), "context"),
                        (("--cached-tokens", "64", "--new-tokens", "0"), "--new-tokens")):
        done = bench(senko, *flags)
        assert done.returncode == 2 and word in done.stderr, done.stderr
