"""Commands that write files and are ended by a signal leave nothing behind."""
import json
import pathlib
import signal
import subprocess
import time

import pytest

MODELS = pathlib.Path(__file__).parents[2] / "models"


def start(*command, **how):
    """As from a terminal: what runs in the background of a script ignores SIGINT."""
    return subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **how)


def end_when(process, ready, number):
    end = time.monotonic() + 60
    while not ready():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.002)
    process.send_signal(number)
    return process.wait(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_make_model(senko, tmp_path, number):
    out = tmp_path / "new" / "model"
    process = start(senko, "make-model", "--config", MODELS / "slim" / "config.json", "--seed", "1", "--out", out,
                    "--max-shard-bytes", str(200 << 20), stdout=subprocess.DEVNULL)
    # In the second file: a whole one and a half one are there.
    assert end_when(process, lambda: len(list(out.glob("*"))) > 1, number) == -number
    assert list(tmp_path.iterdir()) == []


def test_logits(senko, tmp_path):
    model = tmp_path / "model"
    subprocess.run([senko, "make-model", "--config", MODELS / "tiny" / "config.json", "--seed", "1", "--out", model],
                   check=True, stdout=subprocess.DEVNULL)
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"prompts": [[5] * 30_000]}))
    process = start(senko, "logits", "--model", model, "--tokens", tokens, "--out", tmp_path / "out",
                    "--decoder-replay", "full", "--max-num-batched-tokens", "64")
    assert end_when(process, (tmp_path / "out.partial").exists, signal.SIGINT) == -signal.SIGINT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "tokens.json"]


def test_an_ignored_signal_stays_ignored(senko, tmp_path):
    out = tmp_path / "model"
    process = start("sh", "-c", 'trap "" HUP; exec "$@"', "sh", senko, "make-model", "--config",
                    MODELS / "tiny" / "config.json", "--seed", "1", "--out", out, stdout=subprocess.DEVNULL)
    assert end_when(process, out.exists, signal.SIGHUP) == 0
    assert (out / "config.json").exists()
