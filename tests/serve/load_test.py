"""A short load (load.py) with clients that leave: no errors, and nothing stays behind."""
import json
import pathlib
import subprocess
import sys


def test_many_streams(running, small_model):
    script = pathlib.Path(__file__).with_name("load.py")
    with running("--threads", 1, model=small_model) as server:
        done = subprocess.run([sys.executable, str(script), server.url, "--pid", str(server.pid), "--streams", "64",
                               "--seconds", "4", "--leave", "0.4"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr + server.errors()[-1000:]
        report = json.loads(done.stdout)
        assert report["finished"] > 0 and report["left"] > 0
