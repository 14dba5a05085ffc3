"""Runs the binary under test for the comparison scripts: makes golden checkpoints, computes logits and dumps."""

import hashlib
import json
import pathlib
import subprocess

import make_random

CONFIGS = pathlib.Path(__file__).parent / "configs"


def fingerprint(folder):
    digest = hashlib.sha256()
    for file in sorted(pathlib.Path(folder).glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def run(command):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\nexit {done.returncode}: {done.stderr.strip()}")


def make_model(senko, data, name, folder):
    """The checkpoint golden data NAME was computed for; refuses any other bytes."""
    info = json.loads((pathlib.Path(data) / f"{name}.info.json").read_text())
    config = CONFIGS / info["config"]
    if info["weights"] == "make_random.py":
        make_random.make(config, info["seed"], folder)
    else:
        run([senko, "make-model", "--config", config, "--seed", info["seed"], "--out", folder])
    found = fingerprint(folder)
    if found != info["model_sha256"]:
        raise SystemExit(f"{name}: the checkpoint is not the one the golden data was made for ({found[:12]}, expected "
                         f"{info['model_sha256'][:12]}): make-model changed, so run generate.py again")


def logits(senko, model, tokens, out, *more):
    """Every row, in float32: no row is trimmed."""
    run([senko, "logits", "--model", model, "--tokens", tokens, "--out", out, "--numerics", "float",
         "--decoder-replay", "full", *more])
