"""How near a value is to the next step of a selection or quantiser (model.md 11.13). numpy, float64.

Every distance is relative to the size of what is compared, so that a float32 implementation whose relative
error at that point is e can only step differently where distance <= about e:
  selections  gap between the last kept and the first dropped score, over the row's largest |score|;
  quantisers  distance of a value from its rounding boundary (or of a block's maximum from the next scale), over
              the root mean square of the vector it stands in.
"""

import numpy as np

FP4_STEPS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def selection_gap(values, k):
    """values [..., n] with -inf for what may not be chosen, +inf for what is pinned; k kept. Returns [...].

    inf: nothing is cut. Where the cut falls inside a group of equal values the lower indices win everywhere, and
    only a score entering or leaving the group can change that: the distance to its nearest neighbour.
    """
    n = values.shape[-1]
    rows = values.reshape(-1, n).astype(np.float64)
    out = np.full(len(rows), np.inf)
    for r, row in enumerate(rows):
        row = np.sort(row[row > -np.inf])[::-1]
        if len(row) <= k:
            continue
        kept, dropped = row[k - 1], row[k]
        finite = row[np.isfinite(row)]
        scale = max(np.abs(finite).max(), 1e-300)
        if kept != dropped:
            out[r] = (kept - dropped) / scale
        else:
            above, below = finite[finite > kept], finite[finite < kept]
            near = min(above.min() - kept if len(above) else np.inf, kept - below.max() if len(below) else np.inf)
            out[r] = near / scale
    return out.reshape(values.shape[:-1])


def _blocks(x, size):
    x = np.asarray(x, np.float64)
    rms = np.sqrt((x * x).mean(-1)) + 1e-300
    blocks = np.abs(x).reshape(*x.shape[:-1], -1, size)
    return blocks, blocks.max(-1), rms[..., None]


def _power_scale(top, largest, floor):
    """ue8m0 scale for a block maximum and the distance of that maximum from another scale."""
    t = np.maximum(top, floor) / largest
    scale = np.exp2(np.ceil(np.log2(t)))
    away = np.minimum(np.abs(t - scale), np.abs(t - scale / 2)) * largest
    return scale, np.where(top < floor * 0.99, np.inf, away)


def fp8_gap(x):
    """qdq_fp8_32 of x [..., n] -> [...]."""
    blocks, top, rms = _blocks(x, 32)
    scale, away = _power_scale(top, 448.0, 1e-4)
    y = blocks / scale[..., None]
    step = np.exp2(np.maximum(np.floor(np.log2(np.maximum(y, 2.0 ** -12))) - 3, -9))
    part = y / step
    near = np.abs(part - np.floor(part) - 0.5) * step
    return np.minimum(near.min(-1) * scale, away).min(-1) / rms[..., 0]


def _e2m1_near(y):
    return np.abs(y[..., None] - FP4_STEPS).min(-1)


def fp4_32_gap(x):
    """qdq_fp4_32 of x [..., n] -> [...]."""
    blocks, top, rms = _blocks(x, 32)
    scale, away = _power_scale(top, 6.0, 6 * 2.0 ** -126)
    return np.minimum(_e2m1_near(blocks / scale[..., None]).min(-1) * scale, away).min(-1) / rms[..., 0]


def fp4_16_gap(x):
    """qdq_fp4_16 of x [..., n] -> [...]: the scale is an e4m3 value of its own."""
    blocks, top, rms = _blocks(x, 16)
    t = np.maximum(top, 6 * 2.0 ** -9) / 6
    step = np.exp2(np.maximum(np.floor(np.log2(t)) - 3, -9))
    part = t / step
    scale = np.rint(part) * step
    away = np.where(top < 6 * 2.0 ** -9 * 0.99, np.inf, np.abs(part - np.floor(part) - 0.5) * step * 6)
    return np.minimum(_e2m1_near(blocks / scale[..., None]).min(-1) * scale, away).min(-1) / rms[..., 0]
