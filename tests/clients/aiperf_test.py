"""aiperf's load: no error, and its counts, the server's counters and what was asked for are the same."""
import json

REQUESTS = 24


def test_counts_agree(server, model, run_tool, moved, tmp_path):
    run_tool("aiperf", "aiperf", "profile", "--model", "model", "--url", server.url, "--tokenizer", model,
             "--endpoint-type", "chat", "--streaming", "--concurrency", 6, "--request-count", REQUESTS,
             "--num-dataset-entries", REQUESTS, "--isl", 60, "--isl-stddev", 20, "--osl", 12, "--osl-stddev", 4,
             "--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--no-gpu-telemetry", "--workers-max", 1,
             "--ui", "none", "--output-artifact-dir", tmp_path / "out")
    counted = moved()
    report = json.loads((tmp_path / "out/profile_export_aiperf.json").read_text())
    value = lambda name: report[name]["avg"]  # noqa: E731
    assert report["error_summary"] == [] and not report["was_cancelled"] and value("request_error_rate") == 0
    assert value("request_count") == REQUESTS

    # The server's counters are up to date: aiperf's last reading of them is seconds behind its last answer.
    assert {name: n for name, n in counted.items() if name.startswith("request_success_total") and n} == {
        "request_success_total:length": REQUESTS}
    assert counted["generation_tokens_total"] == value("total_osl") == value("total_usage_completion_tokens")
    assert counted["prompt_tokens_total"] == value("total_isl") == value("total_usage_prompt_tokens")
    assert counted["http_clients_gone_total"] == 0

    # Request by request: as many tokens as were asked for, and the prompt that the server makes of these messages.
    sent = {s["session_id"]: s["payloads"][0] for s in json.loads((tmp_path / "out/inputs.json").read_text())["data"]}
    records = [json.loads(line) for line in (tmp_path / "out/profile_export.jsonl").read_text().splitlines()]
    assert len(records) == REQUESTS and not any(record.get("error") for record in records)
    outputs = set()
    for record in records:
        payload = sent[record["metadata"]["conversation_id"]]
        metrics = {name: metric["value"] for name, metric in record["metrics"].items()}
        outputs.add(metrics["output_sequence_length"])
        assert metrics["output_sequence_length"] == payload["max_completion_tokens"]
        assert metrics["input_sequence_length"] == server.ask("/tokenize", messages=payload["messages"])["count"]
        assert 0 < metrics["time_to_first_token"] <= metrics["request_latency"]
    assert len(outputs) > 3  # requests differ

    # What it read from /metrics by itself.
    read = json.loads((tmp_path / "out/server_metrics_export.json").read_text())
    assert read["summary"]["endpoints_successful"] == [server.url + "/metrics"]
    for name in ("prompt_tokens", "generation_tokens"):
        assert read["metrics"]["senko:" + name]["series"][0]["stats"]["total"] == counted[name + "_total"]
