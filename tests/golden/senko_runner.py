"""Runs the binary under test for the comparison scripts: makes golden checkpoints, computes logits and dumps."""

import hashlib
import json
import pathlib
import subprocess

import numpy as np

import make_random
from checkpoint import read_dump, read_safetensors, write_safetensors

CONFIGS = pathlib.Path(__file__).parent / "configs"


def fingerprint(folder):
    """Of everything that decides the logits: the weights and the Engram token map."""
    digest = hashlib.sha256()
    for file in sorted(pathlib.Path(folder).glob("*.safetensors")) + sorted(pathlib.Path(folder).glob("engram_map.json")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


class Refused(Exception):
    """The device does not take the configuration, and says which fields."""


def run(command):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode and "--device cuda: config.json: " in done.stderr:
        raise Refused(done.stderr.strip().split("config.json: ")[1])
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


def logits(senko, model, tokens, out, *more, numerics="float"):
    """Every row: none is trimmed."""
    run([senko, "logits", "--model", model, "--tokens", tokens, "--out", out, "--numerics", numerics,
         "--decoder-replay", "full", *more])


def layers_on_inputs_of(golden, senko, model, tokens, scratch, *more, numerics="float"):
    """What the binary computes when every layer gets golden's stream_in and pre_in; {name: array} like golden.

    A dump also keeps what an injected point would have been (NAME.computed): at a layer's stream_in and pre_in that is
    what the layer before it made, and is returned as that layer's stream_out and pre_out.
    """
    scratch, out = pathlib.Path(scratch), {}
    inject, dump = scratch / "inject", scratch / "dump"
    inject.mkdir(parents=True)
    write_safetensors(inject / "prompt_0.safetensors", {f"prompt_0.{name}": value for name, value in golden.items()
                                                        if name.endswith((".stream_in", ".pre_in"))})
    logits(senko, model, tokens, scratch / "out.safetensors", "--inject", inject, "--dump", dump, *more,
           numerics=numerics)
    for name, value in read_dump(dump / "prompt_0.safetensors").items():
        if name.endswith(".positions"):
            assert np.array_equal(value, np.arange(len(value))), f"{name}: rows missing or out of order"
        elif name.endswith(".computed"):
            if layer_of(name) > 0:
                out[f"layer_{layer_of(name) - 1}.{name.split('.')[1].replace('_in', '_out')}"] = value
        else:
            out[name] = value
    out["logits"] = read_safetensors(scratch / "out.safetensors")["prompt_0.logits"]
    return out


def layer_of(name):
    return int(name.split(".")[0].removeprefix("layer_"))
