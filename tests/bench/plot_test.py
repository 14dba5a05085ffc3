"""`tools/plot_bench.py` draws what the benchmarks write. Skipped without matplotlib, which CI does not install."""
import json
import pathlib
import subprocess
import sys

import pytest

from bench import report

PLOT = pathlib.Path(__file__).parents[2] / "tools" / "plot_bench.py"


def plot(folder, *reports):
    return subprocess.run([sys.executable, str(PLOT), "--out", str(folder / "figures"), *map(str, reports)],
                          capture_output=True, text=True, timeout=120)


def test_every_figure_is_written(senko, tmp_path):
    pytest.importorskip("matplotlib")
    reports = [report(senko, "ttft", "--repeats", 1, "--prompt-tokens", "32,64", "--cached-tokens", "128,256",
                      "--new-tokens", 4),
               report(senko, "decode", "--batch", "1,2", "--context", "128", "--decode-tokens", 1)]
    mixed = report(senko, "mixed", "--budgets", "64,128", "--prompt-tokens", 200, "--stream-tokens", 8,
                   "--quiet-tokens", 2)
    (tmp_path / "several.json").write_text(json.dumps(reports))
    (tmp_path / "one.json").write_text(json.dumps(mixed))
    done = plot(tmp_path, tmp_path / "several.json", tmp_path / "one.json")
    assert done.returncode == 0, done.stderr
    for name in ("cold_ttft", "cached_ttft", "decode", "mixed"):
        svg = (tmp_path / "figures" / f"{name}.svg").read_text()
        assert svg.count("<path") > 10 and "</svg>" in svg
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_of_nothing_drawn_is_refused(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "ops.json").write_text('{"benchmark": "ops", "ops": []}')
    done = plot(tmp_path, tmp_path / "ops.json")
    assert done.returncode == 1 and "no report" in done.stderr
