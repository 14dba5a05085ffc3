"""server_soak.py itself: seconds of it on the CPU, with a tokenizer and without, and answers that its judge must refuse."""
import copy
import json
import pathlib
import subprocess
import sys

import pytest

import server_soak

HERE = pathlib.Path(__file__).resolve().parent
BODY = {"prompt": [5, 6, 7], "n": 2, "max_tokens": 3, "stream": True}
USAGE = {"prompt_tokens": 3, "completion_tokens": 6}


def chunk(index, finish=None):
    return {"choices": [{"index": index, "text": "x", "finish_reason": finish}]}


GOOD = [chunk(0), chunk(1), chunk(0, "length"), chunk(1, "length"), {"choices": [], "usage": USAGE}]


def test_a_whole_answer_passes():
    assert server_soak.judge(BODY, GOOD) is None


@pytest.mark.parametrize("at, wrong", [
    (3, chunk(1)),  # never ends
    (3, chunk(0, "length")),  # the other one does, twice
    (2, chunk(0, "stop")),
    (1, {"error": {"message": "no"}}),
    (4, {"choices": []}),
    (4, {"choices": [], "usage": USAGE | {"completion_tokens": 5}}),
    (4, {"choices": [], "usage": USAGE | {"prompt_tokens": 4}}),
])
def test_what_is_wrong_is_seen(at, wrong):
    events = copy.deepcopy(GOOD)
    events[at] = wrong
    assert server_soak.judge(BODY, events)


def test_memory_that_grows_is_seen():
    soak = server_soak.Soak(None, None, None)
    soak.samples = [(i, (100 + 10 * i) << 20, None) for i in range(9)]
    assert soak.growth(1) == [120, 180]
    assert soak.growth(2) is None


@pytest.mark.parametrize("spelled", [True, False])
def test_seconds_of_it(senko, tmp_path, spelled):
    bundled = pathlib.Path(senko).resolve().parent.parent / "models" / "bundled"
    model = bundled
    if not spelled:
        model = tmp_path / "model"
        config = HERE.parent / "golden" / "configs" / "mini10.json"
        subprocess.run([senko, "make-model", "--config", config, "--out", model, "--seed", "1"], check=True,
                       capture_output=True)
    command = [sys.executable, HERE / "server_soak.py", "--senko", senko, "--model", model, "--seconds", "8", "--streams",
               "8", "--least-prompt", "8", "--most-prompt", "100", "--max-tokens", "8", "--growth-mib", "256", "--",
               "--threads", "1", "--max-num-seqs", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["finished"] > 0 and report["left"] > 0 and report["exit_code"] == 0
