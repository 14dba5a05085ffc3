"""The arithmetic of model.md 3 in numpy, in the three numerics of `senko logits`. Written from that text alone.

Arrays are float64 throughout; where the text says float32 this carries more. `Numerics` holds the rounding points:
  float       none; the KV and index quantisers act on unrounded values
  model-noaq  every bf16 rounding point
  model       those, and activation rounding in front of FP8 and FP4 weights
"""

import numpy as np

from checkpoint import E2M1, E4M3

E4M3_POSITIVE = E4M3[:127]
MODES = ("float", "model", "model-noaq")


def f32(x):
    return np.asarray(x, np.float64).astype(np.float32)


def bf16(x):
    """float64 -> nearest bf16 (ties to even), through float32 as a float32 machine does."""
    bits = f32(x).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def pow2ceil(t):
    """Smallest power of two >= t, from the bits of the float32 t."""
    bits = f32(t).view(np.uint32)
    k = ((bits >> 23) & 0xFF).astype(np.int64) - 127 + ((bits & 0x7FFFFF) != 0)
    return np.exp2(k.astype(np.float64))


def round_to(grid, y):
    """Nearest of the ascending grid for y >= 0; ties go to the even code."""
    middle = (grid[1:] + grid[:-1]) / 2
    low = np.searchsorted(middle, y, side="left")     # a tie stays below
    high = np.searchsorted(middle, y, side="right")   # a tie goes above
    return grid[np.where(low % 2 == 0, low, high)]


def e4m3(y):
    return np.copysign(round_to(E4M3_POSITIVE, np.minimum(np.abs(y), 448.0)), y)


def e2m1(y):
    return np.copysign(round_to(E2M1[:8], np.minimum(np.abs(y), 6.0)), y)


def _quantise(x, size, scale_of, rounding):
    x32 = f32(x)
    blocks = x32.reshape(*x32.shape[:-1], -1, size)
    scale = scale_of(np.abs(blocks).max(-1, keepdims=True).astype(np.float32))
    ratio = (blocks / scale.astype(np.float32)).astype(np.float64)  # one float32 division
    return (rounding(ratio) * scale).reshape(x32.shape)


def qdq_fp8_32(x):
    return _quantise(x, 32, lambda a: pow2ceil(np.maximum(a, np.float32(1e-4)) * np.float32(1 / 448)), e4m3)


def qdq_fp4_32(x):
    floor = np.float32(6 * 2.0 ** -126)
    return _quantise(x, 32, lambda a: pow2ceil(np.maximum(a, floor) * np.float32(1 / 6)), e2m1)


def qdq_fp4_16(x):
    floor = np.float32(6 * 2.0 ** -9)
    return _quantise(x, 16, lambda a: e4m3((np.maximum(a, floor) / np.float32(6)).astype(np.float64)), e2m1)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(z):
    return np.where(z > 20, z, np.log1p(np.exp(np.minimum(z, 20))))


def top(scores, k):
    """Ascending indices of the k largest scores above -inf; equal scores in index order."""
    order = np.argsort(-scores, kind="stable")[:k]
    return np.sort(order[scores[order] > -np.inf])


def inv_freq(base, dim, yarn):
    """model.md 11.2, all in float32."""
    n = np.arange(dim // 2)
    f = np.float32(1) / (np.float64(base) ** (2.0 * n / dim)).astype(np.float32)
    if not yarn:
        return f
    def corr(rotations):
        return dim * np.log(yarn["original_max_position_embeddings"] / (rotations * 2 * np.pi)) / (2 * np.log(base))
    low = max(np.floor(corr(yarn["beta_fast"])), 0)
    high = min(np.ceil(corr(yarn["beta_slow"])), dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((n.astype(np.float32) - np.float32(low)) / np.float32(high - low), np.float32(0), np.float32(1))
    s = np.float32(1) - ramp
    return f / np.float32(yarn["factor"]) * (np.float32(1) - s) + f * s


class Numerics:
    def __init__(self, mode, eps, products=np.float64):
        if mode not in MODES:
            raise ValueError(f"numerics {mode}: one of {', '.join(MODES)}")
        self.mode, self.eps, self.products = mode, eps, products
        self.off = set()   # rounding points left out, by name: to see that the judges notice
        self.sites = set()  # those met so far

    def rounds(self, site):
        self.sites.add(site)
        return site not in self.off

    def linf(self, x, w):
        return (x.astype(self.products) @ w.astype(self.products).T).astype(np.float64)

    def r(self, x, site):
        """A bf16 rounding point, by name."""
        return bf16(x) if self.mode != "float" and self.rounds(site) else x

    def lin8(self, x, w, site):
        """Rounds the activation (`site in`) and the output (`site`)."""
        return self.r(self.linf(qdq_fp8_32(x) if self.mode == "model" and self.rounds(site + " in") else x, w), site)

    def linb(self, x, w, site):
        return self.r(self.linf(x, w), site)

    def norm(self, x, w, site):
        return self.r(w * (x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)), site)

    def rope(self, x, positions, freq, site, inverse=False):
        """x [T, ..., width]: rotates the last 2 * len(freq) channels in interleaved pairs."""
        angle = (f32(positions)[:, None] * freq).astype(np.float32).astype(np.float64)
        cos, sin = f32(np.cos(angle)).astype(np.float64), f32(np.sin(angle)).astype(np.float64)
        sin = -sin if inverse else sin
        shape = (len(positions),) + (1,) * (x.ndim - 2) + (len(freq),)
        cos, sin = cos.reshape(shape), sin.reshape(shape)
        split = x.shape[-1] - 2 * len(freq)
        even, odd = x[..., split::2], x[..., split + 1::2]
        out = x.copy()
        out[..., split::2] = self.r(even * cos - odd * sin, site)
        out[..., split + 1::2] = self.r(even * sin + odd * cos, site)
        return out
