"""The judge of compare_gpu.py: what is within its bounds passes, and the smallest fault beside them does not."""

import numpy as np
import pytest

from compare_gpu import COEFFICIENT, FLIPS, FLOAT, Judge, steps


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@pytest.fixture
def values():
    return bf16(np.random.default_rng(1).standard_normal((50, 64)))


def judged(point, cpu, gpu, engram_layers=()):
    judge = Judge("test", engram_layers)
    judge.values(f"layer_3.{point}", cpu, gpu)
    return judge.reasons


@pytest.mark.parametrize("point", ["kv", "attn_in", "stream_in", "o", "ffn_out"])
def test_the_same_passes_and_nan_does_not(values, point):
    assert not judged(point, values, values)
    for bad in (np.nan, np.inf):
        other = values.copy()
        other[7, 7] = bad
        assert judged(point, values, other)
        assert judged(point, other, other)


def test_one_step_passes_and_two_do_not(values):
    for count, fails in ((1, False), (2, True)):
        other = values.copy()
        other[20, 5] += count * steps(other[20, 5])
        assert bool(judged("q", values, other)) == fails


def test_too_many_single_steps_do_not_pass(values):
    other = values.copy()
    flat = other.reshape(-1)
    flat[:int(FLIPS * flat.size)] += steps(flat[:int(FLIPS * flat.size)])
    assert not judged("q", values, other)
    flat[:2 * int(FLIPS * flat.size)] += steps(flat[:2 * int(FLIPS * flat.size)])
    assert judged("q", values, other)


def test_float_values_have_no_steps(values):
    cpu = (values * 1.001).astype(np.float32)
    row = np.sqrt((cpu[3].astype(np.float64) ** 2).mean())
    for size, fails in ((0.9, False), (1.5, True)):
        gpu = cpu.copy()
        gpu[3, 3] += np.float32(size * FLOAT * row)
        assert bool(judged("z", cpu, gpu)) == fails


def test_a_coefficient_that_is_off(values):
    pre = np.abs(values[:, :4]) + np.float32(1e-3)
    other = pre.copy()
    other[9, 1] += np.float32(5 * COEFFICIENT)
    assert judged("pre_mid", pre, other)
    assert not judged("pre_mid", pre, other, engram_layers=(3,))
    other[9, 1] += np.float32(2e-3)
    assert judged("pre_mid", pre, other, engram_layers=(3,))


def test_another_choice_does_not_pass():
    judge = Judge("test")
    cpu = np.array([[1, 4, -1], [2, 3, 5]], np.int32)
    judge.choices("layer_3.select", cpu, cpu)
    assert not judge.reasons
    other = cpu.copy()
    other[1, 2] = 6
    judge.choices("layer_3.select", cpu, other)
    assert judge.reasons


def test_a_layer_with_a_row_far_off_or_many_rows_off(values):
    for rows, size, fails in ((3, 0.05, False), (3, 1.0, True), (25, 0.05, True)):
        judge, other = Judge("test"), values.copy()
        other[:rows, 0] += size
        judge.rows("layer_3.attn_out", values, other)
        assert bool(judge.reasons) == fails
    everywhere = Judge("test")
    everywhere.rows("layer_3.attn_out", values, values * 1.02, everywhere=True)
    assert not everywhere.reasons
    for bad in (values * 1.05, values * np.nan):
        judge = Judge("test")
        judge.rows("layer_3.attn_out", values, bad, everywhere=True)
        assert judge.reasons


def test_attention_by_blocks_may_move_values_a_little_and_rows_less(values):
    def fails(other):
        judge = Judge("test", weights_by_block=True)
        judge.values("layer_3.o", values, other)
        return judge.reasons

    one = values.copy()
    column = int(np.abs(values[20]).argmin())
    one[20, column] += 2.0 ** -7
    assert judged("o", values, one) and not fails(bf16(one))
    one[20, column] += 2.0 ** -7
    assert fails(bf16(one))
    assert not fails(bf16(values * (1 + 2.0 ** -10)))
    assert fails(bf16(values * (1 + 2.0 ** -6)))  # each within three steps, but all of a row
