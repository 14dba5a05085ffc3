"""The comparisons must be able to fail: reference.py with one fault at a time against reference.py (numpy only)."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np

import compare
import compare_replay
import make_random
import reference_layer
from compare_layers import Comparison
from reference import Reference
from reference_ops import inv_freq

CONFIGS = Path(__file__).parent / "configs"
LENGTHS = (3, 40, 70)


def prompts(c):
    rng = np.random.default_rng(11)
    return [rng.integers(0, c.vocab_size - 1, n).tolist() for n in LENGTHS]


def no_yarn(reference):
    freq = inv_freq(reference.c.compress_rope_theta, reference.c.qk_rope_head_dim, {})
    for layer in reference.layers:
        layer.freq = freq if layer.ratio else layer.freq


def higher_index_wins(scores, k):
    order = np.lexsort((-np.arange(len(scores)), -scores))[:k]
    return np.sort(order[scores[order] > -np.inf])


FIELD_FAULTS = {"sliding_window": 1, "index_topk": -1, "candidate_topk_blocks": -1, "hc_sinkhorn_iters": -1,
                "routed_scaling_factor": 0.01}


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        make_random.make(CONFIGS / "yarn_ramp.json", 12, cls.folder.name)
        reference = Reference(cls.folder.name)
        cls.golden = {"columns": np.arange(0, 512, 7)}
        for k, tokens in enumerate(prompts(reference.c)):
            logits = reference.run(tokens)[1]
            order, rms = np.sort(logits, axis=1), np.sqrt((logits * logits).mean())
            far = np.full(len(tokens), 1.0)
            parts = {"positions": np.arange(len(tokens)), "logits": logits[:, ::7], "argmax": logits.argmax(1),
                     "rms": [rms], "margin": (order[:, -1] - order[:, -2]) / rms, "gap_select": far,
                     "gap_route": far, "gap_quant": far, "float32_error": far * 1e-6}
            cls.golden.update({f"prompt_{k}.{name}": np.asarray(value) for name, value in parts.items()})

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def reasons(self, prepare=lambda reference: None):
        reference, out = Reference(self.folder.name), {}
        prepare(reference)
        for k, tokens in enumerate(prompts(reference.c)):
            out[f"prompt_{k}.positions"], out[f"prompt_{k}.logits"] = reference.run(tokens)
        return compare.judge("yarn_ramp", self.golden, out)

    def test_itself(self):
        self.assertEqual(self.reasons(), [])

    def test_fields(self):
        for name, change in FIELD_FAULTS.items():
            with self.subTest(name):
                self.assertTrue(self.reasons(lambda r: r.c.__setitem__(name, r.c[name] + change)))

    def test_frequencies(self):
        self.assertTrue(self.reasons(no_yarn))

    def test_functions(self):
        for name, wrong in {"top": higher_index_wins, "qdq_fp4_16": lambda x: x, "qdq_fp4_32": lambda x: x,
                            "qdq_fp8_32": lambda x: x}.items():
            right = getattr(reference_layer, name)
            setattr(reference_layer, name, wrong)
            try:
                with self.subTest(name):
                    self.assertTrue(self.reasons())
            finally:
                setattr(reference_layer, name, right)

    def test_nan(self):
        golden = dict(self.golden)
        out = {f"prompt_{k}.{name}": golden[f"prompt_{k}.{name}"] for k in range(3) for name in ("positions",)}
        out.update({f"prompt_{k}.logits": np.full((n, 512), np.nan) for k, n in enumerate(LENGTHS)})
        self.assertTrue(compare.judge("nan", golden, out))

    def test_layers(self):
        reference = Reference(self.folder.name)
        reference.tensors = {}
        reference.run(prompts(reference.c)[1])
        golden = {name: np.concatenate(parts) for name, parts in reference.tensors.items()}
        self.assertEqual(Comparison(reference.c, golden, dict(golden)).run("same"), [])
        for point in ("attn_in", "attn_out", "ffn_in", "ffn_out", "route_weights", "stream_out", "pre_out", "window"):
            with self.subTest(point):
                key = f"layer_3.{point}"
                wrong = {**golden, key: golden[key] * 1.0001}
                self.assertTrue(Comparison(reference.c, golden, wrong).run(point))
        for layer, point in ((4, "select"), (4, "candidates"), (2, "route_ids")):
            with self.subTest(point):
                key = f"layer_{layer}.{point}"
                rows = golden[key].copy()
                rows[-1, 0] += 1 if rows[-1, 0] + 1 not in rows[-1] else 20
                self.assertTrue(Comparison(reference.c, golden, {**golden, key: rows}).run(point))


# Where it may be left out without a trace: model.md 3.7 derives that rounding stored rows again is exact.
LOSSLESS = {"engram.wkv in"}


class RoundingPoints(unittest.TestCase):
    """compare_layers.py on a binary that leaves out one rounding point: every one must be noticed."""

    def judge(self, length):
        """Reasons on a prompt of so many tokens; the golden side is computed with nothing left out."""
        reference, off = self.reference, self.reference.n.off
        tokens = np.random.default_rng(14).integers(0, reference.c.vocab_size - 1, length).tolist()
        if length not in self.golden:
            reference.n.off = set()
            self.golden[length] = self.dump(tokens, None)
            reference.n.off = off
        golden = self.golden[length]
        streams = {name: value for name, value in golden.items() if name.endswith((".stream_in", ".pre_in"))}
        return Comparison(reference.c, golden, self.dump(tokens, streams), rounded=True).run(f"without {off}")

    def dump(self, tokens, inject):
        self.reference.tensors, self.reference.inject = {}, inject
        logits = self.reference.run(tokens)[1]
        return {**{name: np.concatenate(parts) for name, parts in self.reference.tensors.items()}, "logits": logits}

    def check_every_site(self, numerics):
        with tempfile.TemporaryDirectory() as folder:
            make_random.make(CONFIGS / "yarn_ramp.json", 13, folder)
            self.reference, self.golden = Reference(folder, numerics), {}
            for length in (60, 240):
                self.assertEqual(self.judge(length), [])
            for site in sorted(self.reference.n.sites):
                self.reference.n.off = {site}
                with self.subTest(site):  # most show in few rows; compare_layers.py takes 240
                    self.assertEqual(not (self.judge(60) or self.judge(240)), site in LOSSLESS)

    def test_model(self):
        self.check_every_site("model")

    def test_model_noaq(self):
        self.check_every_site("model-noaq")


def later(*names, by=1):
    """A plan with these bounds moved; nothing is kept that did not start."""
    return lambda plan: plan.update({name: max(plan[name] + by, plan["start"]) for name in names})


def start_at(plan, start):
    plan.update(start=start, early=start, seam=start, late=max(plan["keep"], start))


# Fault of a plan -> (function, with a hit only). `keep` later would lose rows, which the positions show.
PLAN_FAULTS = {
    "later layers' windows clipped one row late": (later("late"), False),
    "one row too many kept": (later("keep", "late", by=-1), False),
    "the last source clipped like the later layers": (lambda plan: plan.update(seam=plan["late"]), False),
    "the first layers clipped like the later layers": (lambda plan: plan.update(early=plan["late"]), False),
    "first layers' windows clipped one row late": (later("early"), True),
    "replay starts one row late": (lambda plan: start_at(plan, plan["start"] + 1), True),
    "replay starts one row early": (lambda plan: start_at(plan, plan["start"] - 1), True),
    "every replayed entry written again": (lambda plan: plan.update(floor=0), True),
    "the last adopted entries written again": (lambda plan: plan.update(floor=plan["floor"] - 8), True),
    "windows of the first run read": (lambda plan: plan.update(windows=True, early=0, seam=0), True),
    "n-grams begin with the replay": (lambda plan: plan.update(history=plan["start"]), True),
}


class ReplayFaults(unittest.TestCase):
    """compare_replay.py on reference.py with one fault in its plan."""

    def rows(self, prompts, hit, mode):
        """As a binary with reference.fault writes them. Which rows come out is not at fault."""
        out, reference, fault = {}, self.reference, self.reference.fault
        parts = [tokens[:n] for tokens in prompts for n in compare_replay.lengths(reference.c.sliding_window, hit)]
        for k, tokens in enumerate(parts):
            reference.fault = None
            first = max(reference.plan(len(tokens), hit, mode)["keep"], hit)
            reference.fault = fault
            positions, logits = reference.run(tokens, hit=hit, decoder=mode)
            out[f"prompt_{k}.positions"] = positions[positions >= first]
            out[f"prompt_{k}.logits"] = logits[positions >= first]
        reference.fault = None
        return out

    def check(self, config):
        with tempfile.TemporaryDirectory() as folder:
            make_random.make(CONFIGS / f"{config}.json", 15, folder)
            self.reference = reference = Reference(folder)
            for hit in (0, compare_replay.BLOCK):
                expected = compare_replay.Expected(reference)
                prompts = [compare_replay.prompt(reference.c, seed, False, hit) for seed in (1, 2)]
                for mode in ("trim", "halo"):
                    judge = lambda rows: compare_replay.judge(mode, expected, prompts, hit, mode, rows, rows)[0]
                    self.assertEqual(judge(self.rows(prompts, hit, mode)), [])
                    for name, (fault, with_hit) in PLAN_FAULTS.items():
                        if hit or not with_hit:
                            reference.fault = fault
                            with self.subTest(f"{config} hit {hit} {mode}: {name}"):
                                self.assertTrue(judge(self.rows(prompts, hit, mode)))

    def test_engram_first(self):
        self.check("engram_first")

    def test_ratio2_shared(self):
        self.check("ratio2_shared")

    def test_seam_clipped_one_row_late_in_full(self):
        """Only where later rows are kept does the last source read the first replayed row often enough."""
        with tempfile.TemporaryDirectory() as folder:
            make_random.make(CONFIGS / "engram_first.json", 15, folder)
            self.reference, hit = Reference(folder), compare_replay.BLOCK
            expected = compare_replay.Expected(self.reference)
            prompts = [compare_replay.prompt(self.reference.c, 1, False, hit)]
            expected.rows(prompts[0], len(prompts[0]), hit, "full")
            self.reference.fault = later("seam")
            rows = self.rows(prompts, hit, "full")
            self.assertTrue(compare_replay.judge("seam", expected, prompts, hit, "full", rows, rows)[0])


class ImageFaults(unittest.TestCase):
    """compare_replay.py on reference.py that forgets one thing about image tokens."""

    def test_each(self):
        with tempfile.TemporaryDirectory() as folder:
            make_random.make(CONFIGS / "engram_first.json", 16, folder)
            reference = Reference(folder)
            expected = compare_replay.Expected(reference)
            prompts = [compare_replay.prompt(reference.c, seed, True, 0) for seed in (1, 2)]

            def judge():
                parts = [t[:n] for t in prompts for n in compare_replay.lengths(reference.c.sliding_window, 0)]
                rows = {}
                for k, tokens in enumerate(parts):
                    rows[f"prompt_{k}.positions"], rows[f"prompt_{k}.logits"] = reference.run(tokens)
                return compare_replay.judge("images", expected, prompts, 0, "full", rows, rows)[0]

            self.assertEqual(judge(), [])
            with self.subTest("images in n-grams"):
                with mock.patch.object(reference.hash, "image", -1):
                    self.assertTrue(judge())
            with self.subTest("gate open"):
                inject = reference_layer.Layer.engram

                def open_gate(layer, stream, positions):
                    with mock.patch.dict(reference.c, image_token_id=-1):
                        return inject(layer, stream, positions)

                with mock.patch.object(reference_layer.Layer, "engram", open_gate):
                    self.assertTrue(judge())
            with self.subTest("bias of text"):
                for layer in reference.layers:
                    layer.cached["ffn.gate.bias_vl"] = layer.w("ffn.gate.bias", True)
                self.assertTrue(judge())


if __name__ == "__main__":
    unittest.main()
