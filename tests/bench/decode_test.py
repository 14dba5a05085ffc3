"""`senko bench decode`: every batch at every context, with what a step must read."""
from bench import EXPERTS, EXPERTS_PER_TOKEN, LAYERS, report, run


def decode(senko, *flags):
    return report(senko, "decode", "--decode-tokens", 3, *flags)


def expected_experts(rows):
    return EXPERTS * (1 - (1 - EXPERTS_PER_TOKEN / EXPERTS) ** rows)


def test_every_batch_at_every_context(senko):
    found = decode(senko, "--batch", "1,5", "--context", "0,128,256")
    rows = found["results"]
    assert [(r["context"], r["batch"]) for r in rows] == [(c, b) for c in (0, 128, 256) for b in (1, 5)]
    limit = found["machine"]["read_bytes_per_second"]
    for r in rows:
        assert abs(r["distinct_experts"] - expected_experts(r["batch"])) < 1e-9
        assert 0 < r["pass_seconds"] <= r["step_seconds"]
        assert abs(r["tokens_per_second"] * r["step_seconds"] - r["batch"]) < 1e-6
        read = r["weight_bytes"] + r["kv_bytes"]
        assert abs(r["fraction_of_limit"] * r["pass_seconds"] * limit / read - 1) < 1e-6
        # Three steps of one row a sequence: every operator ran once a layer and step, the head once a step.
        assert r["ops"]["attention"]["calls"] == 3 * LAYERS
        assert r["ops"]["logits"]["calls"] == 3
    one, five = rows[0], rows[1]
    assert one["weight_bytes"] < five["weight_bytes"] < 5 * one["weight_bytes"]
    assert abs(five["kv_bytes"] / one["kv_bytes"] - 5) < 1e-9
    assert rows[4]["kv_bytes"] > rows[2]["kv_bytes"] > rows[0]["kv_bytes"], "a longer context is read further"


def test_the_operators_read_what_is_claimed(senko):
    # On the CPU the operators count the weights they are given: with one row a step these are the expected ones.
    r = decode(senko, "--context", 128)["results"][0]
    counted = sum(op["bytes"] for name, op in r["ops"].items() if name != "logits") / 3
    assert 0.98 < counted / r["weight_bytes"] < 1.02, (counted, r["weight_bytes"])


def test_rows_to_verify_share_a_step(senko):
    r = decode(senko, "--batch", 2, "--context", 128, "--rows", 6)["results"][0]
    assert r["rows"] == 6
    assert abs(r["distinct_experts"] - expected_experts(12)) < 1e-9
    assert abs(r["tokens_per_second"] * r["step_seconds"] - 2) < 1e-6, "one token a sequence is certain"


def test_the_table_ends_with_a_line_for_each_case(senko):
    done = run(senko, "decode", "--batch", "1,3", "--context", 64, "--block-size", 64, "--decode-tokens", 1)
    assert done.returncode == 0, done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines()[-2:]] == [["1", "64", "1"], ["3", "64", "1"]]


def test_what_cannot_be_run_is_refused(senko):
    for flags, word in ((("--context", "200"), "--context 200"),
                        (("--context", "32768"), "context"),
                        (("--batch", "0"), "--batch"),
                        (("--batch", "300", "--rows", "2"), "--max-num-batched-tokens"),
                        (("--device", "cuda", "--load-format", "auto", "--context", "128"), "cuda")):
        done = run(senko, "decode", *flags)
        assert done.returncode == 2 and word in done.stderr.lower(), done.stderr
