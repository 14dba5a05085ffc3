"""Runs `senko bench` on the bundled model."""
import json
import subprocess

WINDOW = 32  # of the bundled model
LAYERS = 10
EXPERTS, EXPERTS_PER_TOKEN = 16, 3


def run(senko, *flags):
    return subprocess.run([str(senko), "bench", *map(str, flags), "--threads", "1"],
                          capture_output=True, text=True, timeout=120)


def report(senko, *flags):
    done = run(senko, *flags, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
