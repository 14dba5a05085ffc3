"""Load with clients that leave (load.py): no errors, and nothing stays behind. Seconds of it, or --load-seconds."""
import json
import pathlib
import subprocess
import sys


def test_many_streams(request, running):
    script = pathlib.Path(__file__).with_name("load.py")
    seconds = request.config.getoption("--load-seconds")
    with running("--threads", 1, "--max-num-seqs", 256) as server:
        command = [sys.executable, str(script), server.url, "--streams", "256", "--seconds", str(seconds or 4), "--leave",
                   "0.2", "--max-tokens", str(256 if seconds else 48), "--patience", "600"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * (seconds or 4) + 600)
        print(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr + server.errors()[-1000:]
        report = json.loads(done.stdout)
        assert report["finished"] > 0 and report["left"] > 0
        assert report["model_us_per_token"] > 0 and report["overhead_us_per_token"] > 0
