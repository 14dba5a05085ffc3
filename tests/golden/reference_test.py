"""Checks the numpy reference against itself and, where given, against stored float64 logits of the library.

  reference_test.py [--golden DIR]   DIR: config.json, model.safetensors, engram_map.json, golden.safetensors

Without --golden it makes its own small checkpoints. Needs numpy only.
"""

import argparse
import pathlib
import tempfile
import unittest

import numpy as np

import boundaries
import make_random
import reference_ops as ops
from checkpoint import read_safetensors
from reference import Reference

GOLDEN = None
CONFIGS = pathlib.Path(__file__).parent / "configs"


def error(a, b):
    return np.abs(a - b).max() / np.sqrt((b * b).mean())


class Golden(unittest.TestCase):
    def test_float_mode_is_the_library(self):
        if GOLDEN is None:
            self.skipTest("no --golden")
        stored, reference = read_safetensors(GOLDEN / "golden.safetensors"), Reference(GOLDEN)
        for k in range(sum(name.endswith(".tokens") for name in stored)):
            _, logits = reference.run(stored[f"prompt_{k}.tokens"].tolist())
            self.assertLess(error(logits, stored[f"prompt_{k}.logits"].astype(np.float64)), 2.5e-7)  # stored in float32


class Replay(unittest.TestCase):
    """Statements of model.md 11.6 and 11.7 that need no second implementation."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        make_random.make(CONFIGS / "engram_first.json", 3, cls.folder.name)
        cls.reference = Reference(cls.folder.name)
        cls.tokens = np.random.default_rng(4).integers(0, 511, 90).tolist()
        cls.full = cls.reference.run(cls.tokens)[1]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_chunks_do_not_matter(self):
        for options in ({}, {"decoder": "trim"}, {"hit": 32}, {"hit": 32, "decoder": "trim"}):
            positions, whole = self.reference.run(self.tokens, **options)
            for chunks in ([1], [7, 16], [15], [17, 3]):
                at, cut = self.reference.run(self.tokens, chunks, **options)
                np.testing.assert_array_equal(at, positions)
                self.assertLess(error(cut, whole), 1e-12)

    def test_trim_keeps_the_last_window(self):
        positions, logits = self.reference.run(self.tokens, decoder="trim")
        np.testing.assert_array_equal(positions, np.arange(90 - 16, 90))
        self.assertGreater(error(logits[-1], self.full[-1]), 1e-9)  # an approximation, not the same thing

    def test_halo_makes_the_last_row_exact(self):
        positions, logits = self.reference.run(self.tokens, decoder="halo")
        self.assertLess(len(positions), 90)
        self.assertLess(error(logits[-1], self.full[-1]), 1e-12)

    def test_short_hits_are_not_adopted(self):
        self.assertLess(error(self.reference.run(self.tokens, hit=16)[1], self.full), 1e-12)

    def test_first_replayed_row_sees_no_window(self):
        positions, logits = self.reference.run(self.tokens, hit=32)
        self.assertEqual(positions[0], 16)
        self.assertGreater(error(logits[0], self.full[16]), 1e-9)


class Image(unittest.TestCase):
    def test_image_tokens_block_ngrams_and_switch_the_bias(self):
        with tempfile.TemporaryDirectory() as folder:
            make_random.make(CONFIGS / "mini10.json", 5, folder)
            reference, tokens = Reference(folder), [5, 6, 7, 511, 511, 8, 9, 10, 11]
            rows = [reference.hash.rows(0, tokens, p) for p in range(9)]
            self.assertEqual(rows[3], rows[4])                              # a dead token blocks everything
            self.assertEqual(rows[5], reference.hash.rows(0, [8], 0))       # history ends at the span
            self.assertNotEqual(rows[8], reference.hash.rows(0, [9, 10, 11], 2))
            self.assertEqual(rows[8][:2], reference.hash.rows(0, [9, 10, 11], 2)[:2])
            before = reference.run(tokens)[1]
            for layer in reference.layers:
                layer.w("ffn.gate.bias_vl", True)[:] = layer.w("ffn.gate.bias", True)
            after = reference.run(tokens)[1]
            self.assertLess(error(before[:3], after[:3]), 1e-12)
            self.assertGreater(error(before[3], after[3]), 1e-6)


class Quantisers(unittest.TestCase):
    def test_ties_and_floors(self):
        np.testing.assert_array_equal(ops.e2m1(np.array([.25, .75, 1.25, 1.75, 2.5, 3.5, 5, -.25])),
                                      [0, 1, 1, 2, 2, 4, 4, -0.])
        self.assertEqual(float(ops.e4m3(np.array(1.0625))), 1.0)
        self.assertEqual(float(ops.e4m3(np.array(1.1875))), 1.25)
        self.assertEqual(float(ops.e4m3(np.array(1e9))), 448.0)
        self.assertEqual(float(ops.pow2ceil(np.float32(4))), 4.0)
        self.assertEqual(float(ops.pow2ceil(np.nextafter(np.float32(4), np.float32(5)))), 8.0)
        for quantise in (ops.qdq_fp8_32, ops.qdq_fp4_32, ops.qdq_fp4_16):
            self.assertTrue((quantise(np.zeros((2, 64))) == 0).all())

    def test_boundaries_are_where_values_step(self):
        """Moving every value by less than the recorded distance changes nothing; the nearest step is really there."""
        rng = np.random.default_rng(6)
        for quantise, gap in ((ops.qdq_fp8_32, boundaries.fp8_gap), (ops.qdq_fp4_32, boundaries.fp4_32_gap),
                              (ops.qdq_fp4_16, boundaries.fp4_16_gap)):
            stepped = 0
            for _ in range(200):
                x = np.float64(np.float32(rng.standard_normal(64) * np.exp2(rng.integers(-6, 6))))
                room = gap(x) * np.sqrt((x * x).mean())
                noise = rng.choice([-1.0, 1.0], 64)
                np.testing.assert_array_equal(quantise(x + 0.9 * room * noise), quantise(x))
                stepped += any((quantise(x + 1.2 * room * s) != quantise(x)).any() for s in (1, -1))
            self.assertGreater(stepped, 150)

    def test_selection_gap(self):
        self.assertTrue(np.isinf(boundaries.selection_gap(np.array([3., 1, -np.inf]), 2)))
        self.assertEqual(boundaries.selection_gap(np.array([4., 3, 1]), 2), 0.5)
        self.assertEqual(boundaries.selection_gap(np.array([4., 0, 0, 0]), 2), 1.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--golden", type=pathlib.Path)
    options, rest = parser.parse_known_args()
    GOLDEN = options.golden
    unittest.main(argv=[__file__, *rest])
