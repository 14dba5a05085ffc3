"""Loads transformers' deepseek_v41 from a checkout of its repository, as is and widened to float64.

Nothing of that code lives here. The widened copy is the same text with every float32 cast made a float64 cast,
except where model.md says that float32 is meant: quantisers (11.4) and rotary angles (11.2), which are taken from
the unchanged copy and from this file.
"""

import contextlib
import importlib
import importlib.util
import io
import pathlib
import re
import sys
import tempfile

import numpy as np
import torch
import transformers

PACKAGE = "transformers.models.deepseek_v41"
FILES = ("configuration_deepseek_v41.py", "modeling_deepseek_v41.py")


def _load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _widen(text):
    text, casts = re.subn(r"\.float\(\)", ".double()", text)
    text, dtypes = re.subn(r"torch\.float32\b", "torch.float64", text)
    if casts < 20 or dtypes < 5:
        raise RuntimeError(f"the checkout's modelling file looks different: {casts} casts, {dtypes} dtypes")
    return text.replace("from .configuration_deepseek_v41", f"from {PACKAGE}.configuration_deepseek_v41")


class Source:
    """`plain`, `wide`: the two modelling modules; `Config`: the text configuration class."""

    def __init__(self, checkout):
        folder = pathlib.Path(checkout) / "src" / "transformers" / "models" / "deepseek_v41"
        for name in FILES:
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{folder / name}: pass a checkout of huggingface/transformers")
        spec = importlib.util.spec_from_loader(PACKAGE, loader=None, is_package=True)
        package = importlib.util.module_from_spec(spec)
        package.__path__ = [str(folder)]
        sys.modules[PACKAGE] = package
        self._scratch = tempfile.TemporaryDirectory()  # model code inspects its own file name
        with contextlib.redirect_stdout(io.StringIO()):  # its documentation decorators are chatty
            self._load_modules(folder)
        for name in ("_fake_quant_fp8_block", "_fake_quant_fp4_block"):
            setattr(self.wide, name, _in_float32(getattr(self.plain, name)))
        for module in (self.plain, self.wide):
            module.DeepseekV41RotaryEmbedding.forward = rotary_forward

    def _load_modules(self, folder):
        self.Config = importlib.import_module(PACKAGE + ".configuration_deepseek_v41").DeepseekV41TextConfig
        self.plain = importlib.import_module(PACKAGE + ".modeling_deepseek_v41")
        wide = pathlib.Path(self._scratch.name) / "models" / "deepseek_v41" / "modeling_deepseek_v41_wide.py"
        wide.parent.mkdir(parents=True)
        wide.write_text(_widen((folder / FILES[1]).read_text()))
        self.wide = _load(PACKAGE + ".modeling_deepseek_v41_wide", wide)


def _in_float32(quantiser):
    def quantise(x, *args, **kwargs):
        return quantiser(x.float(), *args, **kwargs).to(x.dtype)
    return quantise


def inv_freq(base, dim, yarn):
    """model.md 11.2: float32 frequencies, p = base^(2n/dim) correctly rounded, f = 1/p, YaRN in float32."""
    n = np.arange(dim // 2)
    f = (np.float32(1) / np.power(np.float64(base), 2.0 * n / dim).astype(np.float32)).astype(np.float32)
    if not yarn:
        return f
    corr = lambda rot: dim * np.log(yarn["original_max_position_embeddings"] / (rot * 2 * np.pi)) / (2 * np.log(base))
    low, high = max(np.floor(corr(yarn["beta_fast"])), 0), min(np.ceil(corr(yarn["beta_slow"])), dim - 1)
    high = high + 0.001 if high == low else high
    ramp = np.clip((n.astype(np.float32) - np.float32(low)) / np.float32(high - low), 0, 1).astype(np.float32)
    keep = np.float32(1) - ramp
    return f / np.float32(yarn["factor"]) * (np.float32(1) - keep) + f * keep


def rotary_forward(self, x, position_ids, layer_type=None):
    """cos and sin of angle = float32(position) * inv_freq (float32); rounded to float32 as model.md 11.2 says."""
    table = torch.from_numpy(self.senko_inv_freq[layer_type])
    angle = (position_ids[:, :, None].to(torch.float32) * table).to(torch.float64)
    return angle.cos().to(torch.float32).to(x.dtype), angle.sin().to(torch.float32).to(x.dtype)


def check_against_library(rotary, frequencies):
    """Both recipes must give the same bits, else the oracle would not be the library's model."""
    for kind, table in frequencies.items():
        library = getattr(rotary, f"{kind}_inv_freq").to(torch.float32).numpy()
        if not np.array_equal(library.view(np.uint32), table.view(np.uint32)):
            raise AssertionError(f"inv_freq {kind}: {np.abs(library / table - 1).max():.2e} away from the library's")


def versions():
    return {"torch": torch.__version__, "transformers": transformers.__version__}
