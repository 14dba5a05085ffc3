"""`tools/record_gpu.py` keeps what runs printed; one that fails leaves what was there. With programs that only print."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

RECORD = pathlib.Path(__file__).parents[2] / "tools" / "record_gpu.py"


@pytest.fixture
def record(tmp_path):
    def program(name, text):
        (tmp_path / name).write_text("#!/bin/sh\n" + text)
        (tmp_path / name).chmod(0o755)

    program("nvidia-smi", "echo 'NVIDIA H200, 580.1, 143771 MiB, 700.00 W'\n")

    def run(text, *more):
        program("senko", text)
        path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        out = tmp_path / "benchmarks.json"
        done = subprocess.run([sys.executable, RECORD, "--senko", tmp_path / "senko", "--out", out, *more], env=path,
                              capture_output=True, text=True, timeout=60)
        return done, json.loads(out.read_text()) if out.exists() else None
    return run


def test_runs_are_kept_and_made_again(record):
    done, kept = record('echo "{\\"all\\": \\"$*\\"}"\n', "--only", "decode,mixed", "--commit", "abc")
    assert done.returncode == 0, done.stderr
    assert kept["machine"]["name"] == "NVIDIA H200" and kept["machine"]["power.limit"] == "700.00 W"
    assert set(kept["runs"]) == {"decode", "mixed"}
    run = kept["runs"]["decode"]
    assert run["commit"] == "abc" and run["command"] == "senko " + run["result"]["all"]
    assert "--json" in run["command"] and "--batch" in run["command"]
    done, kept = record("echo '{\"second\": 1}'\n", "--only", "mixed", "--commit", "def")
    assert kept["runs"]["mixed"]["result"] == {"second": 1} and kept["runs"]["decode"]["commit"] == "abc"


@pytest.mark.parametrize("text", ["echo no >&2; exit 3\n", "echo not json\n"])
def test_a_run_that_fails_leaves_what_was_there(record, text):
    record("echo '{\"first\": 1}'\n", "--only", "decode", "--commit", "abc")
    done, kept = record(text, "--only", "decode", "--commit", "def")
    assert done.returncode == 1 and done.stderr.startswith("decode: ")
    assert kept["runs"]["decode"]["commit"] == "abc" and kept["runs"]["decode"]["result"] == {"first": 1}


def test_a_name_that_does_not_exist_is_refused(record):
    done, kept = record("exit 0\n", "--only", "decode,all")
    assert done.returncode == 2 and "there is no all" in done.stderr and kept is None
