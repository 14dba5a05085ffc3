#!/usr/bin/env python3
"""Writes golden.json beside itself: what ml_dtypes and numpy make of the number formats and quantisers of model.md 3.0.

Nothing here is derived from Senko's code except the inputs: the block generator repeats src/numerics/test_blocks.h, so
that the file needs to hold hashes only. Needs numpy and ml_dtypes (PyPI).

  make_golden.py           writes the file
  make_golden.py --check   compares instead; exit code 1 names the parts that differ
"""
import argparse
import json
import pathlib
import sys

import ml_dtypes
import numpy as np

F32, U32, U64 = np.float32, np.uint32, np.uint64
KINDS = ["uniform", "any_bits", "ties", "tiny", "near_powers", "sparse", "poisoned", "e4m3_scales"]
SEED, BLOCKS = 7, 1024


def bits(x):
    return np.asarray(x, F32).view(U32)


def floats(b):
    return np.asarray(b, U32).view(F32)


def fnv(data: bytes) -> str:
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def split_mix(x):
    x = np.asarray(x, U64) + U64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def power_of_two(e):
    return np.ldexp(F32(1), e).astype(F32)


def make_blocks(kind: int, count: int):
    """[count, 32] float32, as MakeBlock of src/numerics/test_blocks.h."""
    key = split_mix(split_mix(U64(SEED * 64 + kind)) + np.arange(count, dtype=U64))[:, None]
    shape = split_mix(key + U64(1000))
    r = split_mix(key + np.arange(32, dtype=U64)[None, :])
    sign = ((r >> U64(63)) << U64(31)).astype(U32)
    low = (r & U64(0xFFFFFFFF)).astype(U32)
    low24 = (low & U32(0xFFFFFF)).astype(F32)
    wide = (shape % U64(60)).astype(np.int32) - 40
    chosen = np.arange(32, dtype=U64)[None, :] == shape % U64(32)
    coin = ((shape >> U64(8)) & U64(1)) != 0
    name = KINDS[kind]
    if name == "any_bits":
        value = floats(low % U32(0x7F800000))
    elif name == "ties":
        value = (low % U32(49)).astype(F32) * power_of_two(wide - 2)
    elif name == "tiny":
        limit = (U64(0x00800000) << (shape % U64(5))).astype(U32)
        near = np.where(shape % U64(2) == 0, U32(0x38D1B717), U32(0x3C400000)) - U32(40)
        value = floats(np.where(shape % U64(3) == 0, near + low % U32(80), low % limit).astype(U32))
    elif name == "near_powers":
        top = floats(bits(np.where(coin, F32(448), F32(6))) - U32(2) + low % U32(5))
        value = np.where(chosen, top, (low % U32(0x600000)).astype(F32) * F32(2.0**-20)) * power_of_two(wide)
    elif name == "sparse":
        value = np.where(low % U32(4) == 0, low24 * power_of_two(wide - 24), F32(0))
    elif name == "e4m3_scales":
        value = low24 * power_of_two((shape % U64(23)).astype(np.int32) - 34)
    else:
        value = low24 * power_of_two(wide - 24)
    out = bits(value.astype(F32)) | sign
    if name == "poisoned":
        poison = np.where(coin, U32(0x7F800000), U32(0x7F800001) + low % U32(0x7FFFFF))
        out = np.where(chosen, sign | poison, out)
    return floats(out.astype(U32))


def pow2ceil(t):
    mantissa, exponent = np.frexp(t)  # t = mantissa * 2^exponent, mantissa in [0.5, 1)
    return np.where(mantissa == 0.5, exponent - 1, exponent)


def e4m3(x):
    return np.clip(x, F32(-448), F32(448)).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def e2m1(x):
    return np.clip(x, F32(-6), F32(6)).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)


def quantise(x, block, fmt):
    """Codes [n, block] and scale bytes [n], ours for poisoned blocks: NaN scale, codes all largest positive."""
    a = np.max(np.abs(x), axis=1)
    poisoned = ~np.isfinite(x).all(axis=1)
    with np.errstate(all="ignore"):
        if fmt == "fp4_16":
            scale = (np.maximum(a, F32(6 * 2.0**-9)) / F32(6)).astype(F32)
            scale_code = e4m3(scale)
            s = scale_code.view(ml_dtypes.float8_e4m3fn).astype(F32)
            nan_scale = 0x7F
        else:
            floor, top = (F32(1e-4), F32(448)) if fmt == "fp8" else (F32(6 * 2.0**-126), F32(6))
            exponent = pow2ceil(np.maximum(a, floor) * (F32(1) / top))
            s = power_of_two(np.where(poisoned, 0, exponent))
            scale_code = s.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
            nan_scale = 0xFF
        quotient = (x / s[:, None]).astype(F32)
        codes = e4m3(quotient) if fmt == "fp8" else e2m1(quotient)
    codes = np.where(poisoned[:, None], 0x7F if fmt == "fp8" else 0x7, codes).astype(np.uint8)
    scale_code = np.where(poisoned, nan_scale, scale_code).astype(np.uint8)
    if fmt != "fp8":
        codes = (codes[:, 0::2] | (codes[:, 1::2] << 4)).astype(np.uint8)
    return codes, scale_code


def block_hashes(kind):
    x = make_blocks(kind, BLOCKS)
    out = {"input": fnv(bits(x).astype("<u4").tobytes())}
    for fmt, rows in (("fp8", x), ("fp4", x), ("fp4_16", x.reshape(-1, 16))):
        codes, scales = quantise(rows, rows.shape[1], fmt)
        out[fmt] = fnv(codes.tobytes() + scales.tobytes())
    return out


def first_bits(convert, last_code):
    """For each code k, the smallest positive float (as bits) that rounds to k or above."""
    out = [0]
    for k in range(1, last_code + 1):
        low, high = out[-1], 0x7F000000
        while low < high:
            middle = (low + high) // 2
            if convert(floats(U32(middle)).reshape(1))[0] >= k:
                high = middle
            else:
                low = middle + 1
        out.append(low)
    return out


def bf16_hash():
    upper = np.arange(65536, dtype=U32)[:, None] << U32(16)
    x = floats((upper | np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], U32)[None, :]).ravel())
    x = x[~np.isnan(x)]
    with np.errstate(over="ignore"):
        return fnv(x.astype(ml_dtypes.bfloat16).view(np.uint16).astype("<u2").tobytes())


def values(dtype, count):
    v = np.arange(count, dtype=np.uint8).view(dtype).astype(F32)
    return [None if np.isnan(f) else int(bits(f)) for f in v]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="compare with the committed file")
    args = parser.parse_args()
    golden = {
        "made_by": f"tests/numerics/make_golden.py with ml_dtypes {ml_dtypes.__version__}, numpy {np.__version__}",
        "e4m3": {"values": values(ml_dtypes.float8_e4m3fn, 256), "first_bits": first_bits(e4m3, 0x7E)},
        "e2m1": {"values": values(ml_dtypes.float4_e2m1fn, 16), "first_bits": first_bits(e2m1, 7)},
        "ue8m0": {"values": values(ml_dtypes.float8_e8m0fnu, 256)},
        "bf16": {"hash": bf16_hash()},
        "blocks": {"seed": SEED, "count": BLOCKS, "kinds": [block_hashes(k) for k in range(len(KINDS))]},
    }
    path = pathlib.Path(__file__).with_name("golden.json")
    if args.check:
        stored = json.loads(path.read_text())
        wrong = [key for key in golden if key != "made_by" and golden[key] != stored.get(key)]
        sys.exit(f"{path}: differs in {', '.join(wrong)}" if wrong else 0)
    text = json.dumps(golden, indent=None, separators=(",", ":")).replace('],"', '],\n"').replace('},"', '},\n"')
    path.write_text(text + "\n")


if __name__ == "__main__":
    np.seterr(over="ignore")
    main()
