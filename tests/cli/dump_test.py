"""`senko logits --dump-from`: the same values, without the rows before it; all entries."""

import json
import pathlib
import subprocess
import sys

import numpy as np

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
sys.path.insert(0, str(GOLDEN))

from checkpoint import read_dump  # noqa: E402

PROMPT, FROM = 90, 70


def test_rows_before_it_are_left_out_and_entries_are_not(senko, tmp_path):
    model = tmp_path / "model"
    config = GOLDEN / "configs/mini10.json"
    subprocess.run([senko, "make-model", "--config", config, "--seed", "3", "--out", model], check=True)
    (tmp_path / "tokens.json").write_text(json.dumps({"prompts": [list(range(3, 3 + PROMPT))]}))

    def dump(name, *more):
        subprocess.run([senko, "logits", "--model", model, "--tokens", tmp_path / "tokens.json", "--out",
                        tmp_path / f"{name}.safetensors", "--chunks", "32", "--dump", tmp_path / name, *more], check=True)
        return read_dump(tmp_path / name / "prompt_0.safetensors")

    whole, part = dump("whole"), dump("part", "--dump-from", str(FROM))
    assert whole.keys() == part.keys()
    for name in (name for name in whole if not name.endswith(".positions")):
        keep = whole[f"{name}.positions"] >= (0 if name.endswith((".latent", ".key")) else FROM)
        assert np.array_equal(part[f"{name}.positions"], whole[f"{name}.positions"][keep]), name
        assert part[name].tobytes() == whole[name][keep].tobytes(), name
    assert (whole["layer_0.q.positions"] == np.arange(PROMPT)).all()


def test_it_needs_a_dump(senko, tmp_path):
    done = subprocess.run([senko, "logits", "--model", tmp_path, "--tokens", tmp_path / "t", "--out", tmp_path / "o",
                           "--dump-from", "7"], capture_output=True, text=True)
    assert done.returncode == 2 and "--dump" in done.stderr
