"""Checkpoints in the released layout (model.md 2) without torch: raw safetensors, FP8, FP4 and Engram rows.

Values are decoded by table from the bytes, so this file is independent of every implementation it judges.
"""

import json
import pathlib

import numpy as np

NUMPY_OF = {"F64": np.float64, "F32": np.float32, "I64": np.int64, "I32": np.int32, "I8": np.int8, "U8": np.uint8,
            "F16": np.float16, "BF16": np.uint16, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "BOOL": np.bool_}


def e4m3_table():
    """Value of every e4m3fn byte: bias 7, no infinities, 0x7F and 0xFF are NaN."""
    out = np.empty(256)
    for byte in range(256):
        exponent, mantissa = (byte >> 3) & 15, byte & 7
        value = mantissa * 2.0 ** -9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
        out[byte] = np.nan if byte & 127 == 127 else (-value if byte & 128 else value)
    return out


E4M3 = e4m3_table()
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])


def bf16_to_float(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float_to_bf16(x):
    """Round to nearest, ties to even; NaN is not handled."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class SafetensorsFile:
    """Lazy access: `raw(name)` is (dtype string, array of storage units)."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.bytes = np.memmap(self.path, np.uint8, "r")
        size = int.from_bytes(self.bytes[:8].tobytes(), "little")
        header = json.loads(self.bytes[8:8 + size].tobytes())
        header.pop("__metadata__", None)
        self.entries, self.base = header, 8 + size

    def keys(self):
        return self.entries.keys()

    def raw(self, name):
        entry = self.entries[name]
        begin, end = entry["data_offsets"]
        data = self.bytes[self.base + begin:self.base + end]
        return entry["dtype"], data.view(NUMPY_OF[entry["dtype"]]).reshape(entry["shape"])


def read_safetensors(path):
    """Every tensor of a file of plain dtypes (F32, F64, I32, I64, BF16 widened), as numpy arrays."""
    file = SafetensorsFile(path)
    out = {}
    for name in file.keys():
        dtype, data = file.raw(name)
        out[name] = bf16_to_float(data) if dtype == "BF16" else np.array(data)
    return out


def read_dump(path):
    """A dump file of one prompt, named prompt_k.safetensors: {name without the prompt: array}."""
    prefix = pathlib.Path(path).stem + "."
    return {name.removeprefix(prefix): value for name, value in read_safetensors(path).items()}


def write_safetensors(path, tensors, metadata=None):
    """tensors: name -> array, or name -> (dtype string, array of storage units)."""
    plain = {np.dtype(v): k for k, v in NUMPY_OF.items() if k not in ("BF16", "F8_E4M3", "F8_E8M0")}
    header, blobs, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = metadata
    for name, value in tensors.items():
        dtype, data = value if isinstance(value, tuple) else (plain[value.dtype], value)
        data = np.ascontiguousarray(data)
        header[name] = {"dtype": dtype, "shape": list(data.shape), "data_offsets": [offset, offset + data.nbytes]}
        blobs.append(data)
        offset += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for blob in blobs:
            file.write(blob.tobytes())


class Checkpoint:
    """A directory: config.json, model.safetensors or an index of shards, engram_map.json."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        index = self.directory / "model.safetensors.index.json"
        names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() \
            else ["model.safetensors"]
        self.where = {}
        for name in names:
            file = SafetensorsFile(self.directory / name)
            self.where.update({key: file for key in file.keys()})

    def __contains__(self, name):
        return name in self.where

    def raw(self, name):
        if name not in self.where:
            raise KeyError(f"{self.directory}: no tensor {name}")
        return self.where[name].raw(name)

    def value(self, name):
        """A plain tensor as float32 (exact)."""
        dtype, data = self.raw(name)
        if dtype == "BF16":
            return bf16_to_float(data)
        if dtype == "F32":
            return np.array(data)
        raise TypeError(f"{name}: dtype {dtype} is not plain")

    def linear(self, name):
        """`name`.weight dequantised, exact in float32: FP8 32x32 tiles, FP4 32-wide groups, or BF16."""
        dtype, data = self.raw(name + ".weight")
        if dtype in ("BF16", "F32"):
            return self.value(name + ".weight")
        kind, scale = self.raw(name + ".scale")
        if kind != "F8_E8M0":
            raise TypeError(f"{name}.scale: dtype {kind}")
        scale = np.exp2(scale.astype(np.float64) - 127)
        if dtype == "F8_E4M3":
            rows, cols = data.shape
            if name.endswith("engram.embed"):
                scale = np.repeat(scale, 32, axis=1)
            else:
                scale = np.repeat(np.repeat(scale, 32, axis=0), 32, axis=1)[:rows, :cols]
            return (E4M3[data] * scale).astype(np.float32)
        if dtype == "I8":
            byte = data.view(np.uint8)
            values = np.stack([E2M1[byte & 15], E2M1[byte >> 4]], axis=-1).reshape(data.shape[0], -1)
            return (values * np.repeat(scale, 32, axis=1)).astype(np.float32)
        raise TypeError(f"{name}.weight: dtype {dtype}")

    def engram_map(self):
        return np.array(json.loads((self.directory / "engram_map.json").read_text()), np.int64)
