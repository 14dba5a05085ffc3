// Index queries, scores, selections and candidates of sm_90a against the reference, bit for bit.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/test_device.h"
#include "numerics/bf16.h"
#include "ops/select/select_fixture.h"
#include "ops/select/select_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::ToDevice;
using cuda::ToHost;

constexpr int64_t kExtraRows = 3;  // that exist in every array beyond the count, and stay as they are
constexpr uint32_t kPoison = 0xFFC0DEADu;

bool SameBits(float a, float b) { return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(a)) == 0; }
float Poison() {
  float f;
  std::memcpy(&f, &kPoison, sizeof(f));
  return f;
}

class SelectSm90Test : public cuda::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    seed_ = std::random_device{}();
    random_.seed(seed_);
    trace_ = std::make_unique<testing::ScopedTrace>(__FILE__, __LINE__, "seed " + std::to_string(seed_));
  }
  uint64_t Seed() { return random_(); }

  uint32_t seed_ = 0;
  std::mt19937_64 random_;
  ThreadPool pool_{1};
  std::unique_ptr<testing::ScopedTrace> trace_;
};

TEST_F(SelectSm90Test, QueriesAreTheReferences) {
  struct Case {
    int64_t heads, dim, rope_dim;
  };
  for (const Case& c : {Case{32, 128, 64}, Case{4, 32, 8}, Case{3, 64, 64}, Case{1, 128, 64}, Case{5, 32, 6}}) {
    for (const int64_t rows : {1, 7, 65}) {
      const auto n = static_cast<size_t>(rows * c.heads * c.dim),
                 all = n + static_cast<size_t>(kExtraRows * c.heads * c.dim);
      const auto heads = static_cast<size_t>(rows * c.heads);
      std::normal_distribution<float> normal;
      std::vector<uint16_t> q(all, 0x7FA5), w(heads + static_cast<size_t>(kExtraRows * c.heads), 0x7FA5);
      std::vector<float> wide(n), rope(static_cast<size_t>((rows + kExtraRows) * c.rope_dim));
      for (size_t i = 0; i < n; ++i) {
        float v = std::ldexp(normal(random_), static_cast<int>(i / static_cast<size_t>(c.dim) % 40) - 20);
        if (random_() % 3000 == 0) v = random_() % 2 == 0 ? NAN : -INFINITY;
        if (random_() % 50 == 0) v = -0.0f;
        q[i] = numerics::FloatToBf16(v);
        wide[i] = numerics::Bf16ToFloat(q[i]);
      }
      for (size_t i = 0; i < heads; ++i) w[i] = numerics::FloatToBf16(normal(random_));
      for (float& f : rope) f = std::cos(normal(random_));
      IndexQueryParams r;
      r.rows = rows;
      r.heads = c.heads;
      r.dim = c.dim;
      r.rope_dim = c.rope_dim;
      r.q = wide.data();
      r.rope = rope.data();
      r.round_bf16 = true;
      std::vector<uint8_t> values(n / 2), scales(n / 32);
      r.values = values.data();
      r.scales = scales.data();
      IndexQueryReference(r, pool_);

      const DeviceBuffer<uint16_t> d_q = ToDevice(q), d_w = ToDevice(w);
      const DeviceBuffer<float> d_rope = ToDevice(rope), d_weights = ToDevice(std::vector<float>(w.size(), Poison()));
      const DeviceBuffer<uint8_t> d_values = ToDevice(std::vector<uint8_t>(all / 2, 0xA5)),
                                  d_scales = ToDevice(std::vector<uint8_t>(all / 32, 0xA5));
      const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(rows)});
      IndexQuerySm90Params p;
      p.rows = count.data();
      p.max_rows = rows + kExtraRows;
      p.heads = c.heads;
      p.dim = c.dim;
      p.rope_dim = c.rope_dim;
      p.q = reinterpret_cast<const __nv_bfloat16*>(d_q.data());
      p.rope = d_rope.data();
      p.w = reinterpret_cast<const __nv_bfloat16*>(d_w.data());
      p.weight_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.heads * c.dim)));
      p.values = d_values.data();
      p.scales = d_scales.data();
      p.weights = d_weights.data();
      IndexQuerySm90(p, nullptr);
      SENKO_CUDA(cudaDeviceSynchronize());
      values.resize(all / 2, 0xA5);
      scales.resize(all / 32, 0xA5);
      EXPECT_EQ(ToHost(d_values), values) << c.heads << " x " << c.dim << ", rows " << rows;
      EXPECT_EQ(ToHost(d_scales), scales) << c.heads << " x " << c.dim << ", rows " << rows;
      const std::vector<float> weights = ToHost(d_weights);
      for (size_t i = 0; i < weights.size(); ++i) {
        const float want = i < heads ? numerics::Bf16ToFloat(w[i]) * p.weight_scale : Poison();
        ASSERT_TRUE(SameBits(weights[i], want)) << i;
      }
    }
  }
}

// A fixture on the GPU. Rows see f.visible entries, at positions that `ratio` makes of them.
struct OnDevice {
  SelectFixture& f;
  int64_t rows, stride;
  DeviceBuffer<uint8_t> slab, q_values, q_scales, scratch;
  DeviceBuffer<float> weights, scores;
  std::vector<DeviceBuffer<int32_t>> pages;
  DeviceBuffer<SequenceKv> sequences;
  DeviceBuffer<int64_t> positions;
  DeviceBuffer<int32_t> row_sequence, count, selected, selected_count, candidates, candidate_count;
  SelectSm90Params p;

  template <typename T>
  static DeviceBuffer<T> Poisoned(size_t n) {
    DeviceBuffer<T> b(n);
    if (n > 0) SENKO_CUDA(cudaMemset(b.data(), 0xFF, b.bytes()));
    return b;
  }
  // `v` with kExtraRows rows of poison behind.
  template <typename T>
  DeviceBuffer<T> Rows(const std::vector<T>& v) const {
    DeviceBuffer<T> b = Poisoned<T>(v.size() + v.size() / static_cast<size_t>(rows) * kExtraRows);
    SENKO_CUDA(cudaMemcpy(b.data(), v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return b;
  }

  OnDevice(SelectFixture& fixture, std::mt19937_64& random, int ratio, bool keep_scores)
      : f(fixture), rows(static_cast<int64_t>(fixture.visible.size())) {
    const IndexScoreParams& s = f.params.score;
    slab = ToDevice(f.index.slab);
    q_values = Rows(f.index.q_values);
    q_scales = Rows(f.index.q_scales);
    weights = Rows(f.index.weights);
    std::vector<SequenceKv> kv;
    for (const auto& list : f.index.pages) {
      pages.push_back(ToDevice(list));
      kv.push_back({pages.back().data(), nullptr, 0, 0});
    }
    sequences = ToDevice(kv);
    std::vector<int64_t> at;
    for (const int64_t v : f.visible) {
      at.push_back(v * ratio - 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(ratio)));
    }
    positions = Rows(at);
    row_sequence = Rows(f.index.row_sequence);
    count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(rows)});
    const auto all = static_cast<size_t>(rows + kExtraRows);
    stride = f.params.selected_stride;
    selected = DeviceBuffer<int32_t>(all * static_cast<size_t>(stride));
    selected_count = DeviceBuffer<int32_t>(all);
    p.num_rows = count.data();
    p.max_rows = rows + kExtraRows;
    p.rows.positions = positions.data();
    p.rows.sequences = row_sequence.data();
    p.rows.sequence_kv = sequences.data();
    p.ratio = ratio;
    p.heads = s.heads;
    p.dim = s.dim;
    p.q_values = q_values.data();
    p.q_scales = q_scales.data();
    p.weights = weights.data();
    p.entries = s.entries;
    p.entries.slab = slab.data();
    p.topk = f.params.topk;
    p.candidate_blocks = f.params.candidate_blocks;
    p.candidate_block_size = f.params.candidate_block_size;
    p.candidate_stride = f.params.candidate_stride;
    if (f.params.candidates_out != nullptr || f.params.candidates != nullptr) {
      candidates = Rows(f.candidates_out);
      candidate_count = Rows(f.candidate_count_out);
    }
    if (f.params.candidates_out != nullptr) {
      p.candidates_out = candidates.data();
      p.candidate_count_out = candidate_count.data();
    } else if (f.params.candidates != nullptr) {
      p.candidates = candidates.data();
      p.candidate_count = candidate_count.data();
    }
    p.selected = selected.data();
    p.selected_count = selected_count.data();
    p.selected_stride = stride;
    if (keep_scores) {
      p.scores_stride = std::max<int64_t>(*std::max_element(f.visible.begin(), f.visible.end()), 1);
      scores = DeviceBuffer<float>(static_cast<size_t>(rows * p.scores_stride));
      p.scores = scores.data();
    }
    p.scratch_bytes = SelectScratchBytes(p.max_rows, 1 << 20, p.topk, p.candidate_blocks);
    scratch = Poisoned<uint8_t>(p.scratch_bytes);
    p.scratch = scratch.data();
    PoisonOutputs();
  }

  void PoisonOutputs() {
    SENKO_CUDA(cudaMemset(selected.data(), 0xFF, selected.bytes()));
    SENKO_CUDA(cudaMemset(selected_count.data(), 0xFF, selected_count.bytes()));
    if (p.candidates_out != nullptr) {
      SENKO_CUDA(cudaMemset(candidates.data(), 0xFF, candidates.bytes()));
      SENKO_CUDA(cudaMemset(candidate_count.data(), 0xFF, candidate_count.bytes()));
    }
    if (p.scores != nullptr) {
      const std::vector<float> poison(scores.size(), Poison());
      SENKO_CUDA(cudaMemcpy(scores.data(), poison.data(), scores.bytes(), cudaMemcpyHostToDevice));
    }
  }

  // Lists of `live` rows are the host's, nothing lies behind them.
  static void CheckLists(const DeviceBuffer<int32_t>& lists, const DeviceBuffer<int32_t>& counts, int64_t stride,
                         const std::vector<int32_t>& want, const std::vector<int32_t>& want_counts, int64_t live,
                         const char* what) {
    const std::vector<int32_t> got = ToHost(lists), got_counts = ToHost(counts);
    for (size_t r = 0; r < got_counts.size(); ++r) {
      const bool is_live = static_cast<int64_t>(r) < live;
      const int32_t n = is_live ? want_counts[r] : 0;
      ASSERT_EQ(got_counts[r], is_live ? n : -1) << what << " of row " << r;
      const auto at = static_cast<int64_t>(r) * stride;
      for (int64_t i = 0; i < stride; ++i) {
        ASSERT_EQ(got[static_cast<size_t>(at + i)], i < n ? want[static_cast<size_t>(at + i)] : -1)
            << what << " " << i << " of " << n << " of row " << r;
      }
    }
  }

  // f's reference has run.
  void Check(int64_t live) {
    CheckLists(selected, selected_count, stride, f.selected, f.selected_count, live, "selected");
    if (p.candidates_out != nullptr) {
      CheckLists(candidates, candidate_count, p.candidate_stride, f.candidates_out, f.candidate_count_out, live,
                 "candidates");
    }
  }

  // Every score that was made; how many.
  int64_t CheckScores() {
    const std::vector<float> got = ToHost(scores);
    int64_t made = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t visible = f.visible[static_cast<size_t>(row)];
      std::vector<float> want(static_cast<size_t>(visible));
      IndexScoreReference(f.params.score, row, 0, visible, want.data());
      for (int64_t e = 0; e < p.scores_stride; ++e) {
        const float score = got[static_cast<size_t>(row * p.scores_stride + e)];
        uint32_t bits;
        std::memcpy(&bits, &score, sizeof(bits));
        if (bits == kPoison) continue;
        EXPECT_LT(e, visible);
        if (e >= visible) return -1;
        EXPECT_TRUE(SameBits(score, want[static_cast<size_t>(e)]))
            << "row " << row << ", entry " << e << ": " << score << " for " << want[static_cast<size_t>(e)];
        if (!SameBits(score, want[static_cast<size_t>(e)])) return -1;
        ++made;
      }
    }
    return made;
  }
};

// Once with scores kept, once without, and then a count less by a third.
void RunAll(SelectFixture& f, std::mt19937_64& random, int ratio, ThreadPool& pool, bool check_scores = true) {
  SelectReference(f.params, pool);
  for (const bool keep_scores : {true, false}) {
    if (keep_scores && !check_scores) continue;
    OnDevice d(f, random, ratio, keep_scores);
    SelectSm90(d.p, nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    d.Check(d.rows);
    if (testing::Test::HasFatalFailure()) return;
    if (keep_scores) {
      int64_t most = 0;  // of slots that any row needs
      for (int64_t r = 0; r < d.rows; ++r) most = std::max(most, f.visible[static_cast<size_t>(r)]);
      const int64_t made = d.CheckScores();
      ASSERT_GE(made, 0);
      if (f.params.candidates == nullptr && most > f.params.topk) {
        ASSERT_GE(made, most);
      }
      continue;
    }
    const auto fewer = static_cast<int32_t>(d.rows - d.rows / 3);
    SENKO_CUDA(cudaMemcpy(d.count.data(), &fewer, sizeof(fewer), cudaMemcpyHostToDevice));
    d.PoisonOutputs();
    SelectSm90(d.p, nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    d.Check(fewer);
  }
}

// Runs of rows of one sequence, one to `longest` long.
void DrawRuns(SelectFixture& f, std::mt19937_64& random, int sequences, int longest) {
  int left = 0;
  int32_t sequence = 0;
  for (int32_t& s : f.index.row_sequence) {
    if (left == 0) {
      left = 1 + static_cast<int>(random() % static_cast<uint64_t>(longest));
      sequence = static_cast<int32_t>(random() % static_cast<uint64_t>(sequences));
    }
    s = sequence;
    --left;
  }
}

// Without rounding points: the same bits, as a query's only sum is a rotation's.
TEST_F(SelectSm90Test, FloatQueriesAreTheReferences) {
  constexpr int64_t kHeads = 5, kDim = 64, kRope = 16, kRows = 17;
  std::normal_distribution<float> normal;
  std::vector<float> q(static_cast<size_t>(kRows * kHeads * kDim)), w(static_cast<size_t>(kRows * kHeads)),
      rope(static_cast<size_t>(kRows * kRope));
  for (auto* v : {&q, &w, &rope}) {
    for (float& f : *v) f = normal(random_);
  }
  q[100] = NAN;
  std::vector<uint8_t> values(q.size() / 2), scales(q.size() / 32);
  IndexQueryParams r;
  r.rows = kRows;
  r.heads = kHeads;
  r.dim = kDim;
  r.rope_dim = kRope;
  r.q = q.data();
  r.rope = rope.data();
  r.values = values.data();
  r.scales = scales.data();
  IndexQueryReference(r, pool_);
  const DeviceBuffer<float> d_q = ToDevice(q), d_w = ToDevice(w), d_rope = ToDevice(rope),
                            weights = ToDevice(std::vector<float>(w.size(), Poison()));
  const DeviceBuffer<uint8_t> d_values(values.size()), d_scales(scales.size());
  const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(kRows)});
  BasicIndexQuerySm90Params<float> p;
  p.rows = count.data();
  p.max_rows = kRows;
  p.heads = kHeads;
  p.dim = kDim;
  p.rope_dim = kRope;
  p.q = d_q.data();
  p.rope = d_rope.data();
  p.w = d_w.data();
  p.weight_scale = 0.3f;
  p.values = d_values.data();
  p.scales = d_scales.data();
  p.weights = weights.data();
  IndexQuerySm90(p, nullptr);
  SENKO_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(ToHost(d_values), values);
  EXPECT_EQ(ToHost(d_scales), scales);
  const std::vector<float> got = ToHost(weights);
  for (size_t i = 0; i < w.size(); ++i) ASSERT_TRUE(SameBits(got[i], w[i] * 0.3f)) << i;
}

// Scale codes that fold, that are too far apart, that leave float32's range, that are NaN.
TEST_F(SelectSm90Test, ScoresAreTheReferencesForAnyScales) {
  struct Codes {
    int low, high;
  };
  for (const Codes& codes : {Codes{126, 128}, Codes{125, 128}, Codes{120, 130}, Codes{96, 98}, Codes{156, 159},
                             Codes{0, 30}, Codes{220, 254}, Codes{0, 255}}) {
    for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{32, 128}, {4, 32}, {3, 64}, {1, 128}, {31, 128}}) {
      for (const int64_t rows : {2, 70}) {
        SCOPED_TRACE("codes " + std::to_string(codes.low) + " to " + std::to_string(codes.high) + ", heads " +
                     std::to_string(heads) + ", dim " + std::to_string(dim) + ", rows " + std::to_string(rows));
        SelectFixture f({.heads = heads, .dim = dim, .entries = rows == 2 ? 700 : 130, .sequences = 2, .rows = rows},
                        Seed(), 40);
        f.index =
            IndexFixture({.heads = heads, .dim = dim, .entries = rows == 2 ? 700 : 130, .sequences = 2, .rows = rows},
                         Seed(), codes.low, codes.high);
        f.params.score = f.index.params;
        DrawRuns(f, random_, 2, 12);
        RunAll(f, random_, 1, pool_);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Weights at the ends of the range; queries of rows whose scales fold beside some whose do not; keys likewise.
TEST_F(SelectSm90Test, ScoresOfMixedRows) {
  for (const int64_t rows : {9, 90}) {
    SelectFixture f({.heads = 32, .dim = 128, .entries = 900, .sequences = 3, .rows = rows}, Seed(), 100);
    f.index = IndexFixture({.heads = 32, .dim = 128, .entries = 900, .sequences = 3, .rows = rows}, Seed(), 125, 127);
    f.params.score = f.index.params;
    DrawRuns(f, random_, 3, 20);
    for (size_t i = 0; i < f.index.weights.size(); ++i) {
      if (i / 32 % 10 == 3) f.index.weights[i] *= std::ldexp(1.0f, static_cast<int>(random_() % 200) - 100);
      if (random_() % 400 == 0) f.index.weights[i] = 0;
      if (random_() % 4000 == 0) f.index.weights[i] = random_() % 2 == 0 ? NAN : INFINITY;
    }
    for (int i = 0; i < 20; ++i)
      f.index.q_scales[random_() % f.index.q_scales.size()] = static_cast<uint8_t>(random_());
    for (int i = 0; i < 5; ++i) {
      *f.params.score.entries.KeyScales(f.index.sequence_kv[random_() % 3], static_cast<int64_t>(random_() % 900)) =
          static_cast<uint8_t>(random_());
    }
    RunAll(f, random_, 2, pool_);
  }
}

TEST_F(SelectSm90Test, EveryVisibleCountAroundTheThresholds) {
  const int64_t topk = 40;
  for (const int64_t repeat : {1, 6}) {  // rows by ones and by units
    std::vector<int64_t> counts;
    for (int64_t i = 0; i < repeat; ++i) {
      for (const int64_t v : {0, 1, 2, 39, 40, 41, 63, 64, 65, 127, 128, 129, 300}) counts.push_back(v);
    }
    if (repeat > 1) std::shuffle(counts.begin(), counts.end(), random_);
    for (const int ratio : {1, 2}) {
      SelectFixture f(
          {.heads = 4, .dim = 32, .entries = 300, .sequences = 2, .rows = static_cast<int64_t>(counts.size())}, Seed(),
          topk);
      f.visible = counts;
      f.params.visible = f.visible.data();
      DrawRuns(f, random_, 2, 9);
      RunAll(f, random_, ratio, pool_);
      f.Publish(6, 8);
      RunAll(f, random_, ratio, pool_);
    }
  }
}

TEST_F(SelectSm90Test, TiesGoToTheLowerIndex) {
  for (const int levels : {1, 2, 3, 4}) {
    for (const int64_t rows : {3, 80}) {
      SelectFixture f({.heads = 2, .dim = 32, .entries = 5000, .rows = rows, .entries_per_page = 64}, Seed(), 64);
      f.Coarsen(Seed(), levels);
      for (int64_t& v : f.visible) v -= static_cast<int64_t>(random_() % 1000);
      f.Publish(30, 8);
      RunAll(f, random_, 1, pool_, rows == 3);
      f.params.candidates_out = nullptr;
      RunAll(f, random_, 1, pool_, rows == 3);
    }
  }
}

TEST_F(SelectSm90Test, NanScoresComeLast) {
  for (const int64_t rows : {2, 70}) {
    SelectFixture f({.heads = 2, .dim = 32, .entries = 5000, .rows = rows, .entries_per_page = 64}, Seed(), 70);
    for (int i = 0; i < 20000; ++i) {
      *f.params.score.entries.KeyScales(f.index.sequence_kv[0], static_cast<int64_t>(random_() % 4990)) = 255;
    }
    f.Publish(100, 8);
    RunAll(f, random_, 1, pool_, rows == 2);
    for (int64_t e = 0; e < 5000; ++e) *f.params.score.entries.KeyScales(f.index.sequence_kv[0], e) = 255;
    RunAll(f, random_, 1, pool_, rows == 2);
  }
}

// Small configurations and the released one; then another layer's weights inside what was published.
TEST_F(SelectSm90Test, CandidatesArePublishedAndObeyed) {
  struct Case {
    int64_t heads, dim, entries, blocks, block_size, topk, rows;
  };
  for (const Case& c : {Case{4, 32, 97, 4, 4, 8, 5}, Case{4, 32, 16, 4, 4, 8, 5}, Case{4, 32, 900, 4, 4, 8, 100},
                        Case{3, 32, 96, 6, 8, 30, 4}, Case{3, 32, 89, 6, 8, 10, 4}, Case{3, 64, 49, 6, 8, 41, 70},
                        Case{2, 32, 900, 1, 16, 1, 4}, Case{2, 32, 900, 1, 16, 1, 66}, Case{2, 32, 3000, 40, 1, 30, 66},
                        Case{2, 32, 3000, 17, 32, 100, 3}, Case{32, 128, 20011, 2048, 8, 512, 3},
                        Case{2, 32, 20011, 2048, 8, 512, 70}}) {
    SCOPED_TRACE(std::to_string(c.entries) + " entries, " + std::to_string(c.rows) + " rows");
    SelectFixture f({.heads = c.heads, .dim = c.dim, .entries = c.entries, .sequences = 2, .rows = c.rows}, Seed(),
                    c.topk);
    for (int64_t& v : f.visible) v -= static_cast<int64_t>(random_() % 17);
    DrawRuns(f, random_, 2, 10);
    f.Publish(c.blocks, c.block_size);
    RunAll(f, random_, 1, pool_, c.rows < 10);
    f.RestrictToPublished();
    for (const int64_t topk : {c.topk, std::min<int64_t>(c.topk, 20)}) {
      f.params.topk = topk;
      for (float& w : f.index.weights) w = -w;
      RunAll(f, random_, 1, pool_, c.rows < 10);
    }
    if (HasFatalFailure()) return;
  }
}

// Rows whose keys many blocks share, the pieces' pieces included, with short rows beside them.
TEST_F(SelectSm90Test, LongContexts) {
  struct Case {
    int64_t entries, rows, topk;
    int levels;  // of coarse keys; 0: not
  };
  for (const Case& c :
       {Case{1 << 20, 1, 512, 0}, Case{1 << 20, 1, 512, 1}, Case{1 << 20, 2, 512, 2}, Case{300000, 3, 512, 0},
        Case{70000, 9, 300, 3}, Case{50000, 68, 512, 4}, Case{70000, 600, 512, 0}}) {
    SCOPED_TRACE(std::to_string(c.entries) + " entries, " + std::to_string(c.rows) + " rows");
    SelectFixture f({.heads = 2, .dim = 32, .entries = c.entries, .rows = c.rows, .entries_per_page = 64}, Seed(),
                    c.topk);
    if (c.levels > 0) f.Coarsen(Seed(), c.levels);
    for (size_t r = 1; r < f.visible.size(); ++r) {
      f.visible[r] =
          r % 3 == 0 ? static_cast<int64_t>(random_() % 2000) : f.visible[r] - static_cast<int64_t>(random_() % 30000);
    }
    RunAll(f, random_, 1, pool_, false);
    f.Publish(2048, 8);
    RunAll(f, random_, 1, pool_, false);
    f.RestrictToPublished();
    for (float& w : f.index.weights) w = -w;
    RunAll(f, random_, 1, pool_, false);
    if (HasFatalFailure()) return;
  }
}

// A prompt's chunk, and as many rows in runs; then all of them restricted.
TEST_F(SelectSm90Test, ManyRows) {
  for (const bool runs : {false, true}) {
    SelectFixture f({.heads = 1, .dim = 32, .entries = 2000, .sequences = 3, .rows = 8192, .entries_per_page = 128},
                    Seed(), 128);
    for (size_t r = 0; r < f.visible.size(); ++r) {
      f.visible[r] = runs ? 1 + static_cast<int64_t>(random_() % 2000) : 1 + static_cast<int64_t>(r) / 5;
      if (!runs) f.index.row_sequence[r] = 0;
    }
    if (runs) DrawRuns(f, random_, 3, 40);
    RunAll(f, random_, 1, pool_, false);
    if (HasFatalFailure()) return;
    if (!runs) continue;
    f.Publish(60, 8);
    RunAll(f, random_, 1, pool_, false);
    f.RestrictToPublished();
    for (float& w : f.index.weights) w = -w;
    RunAll(f, random_, 1, pool_, false);
  }
}

// A captured graph serves any smaller count, and gives the same every time.
TEST_F(SelectSm90Test, ACapturedLaunchServesFewerRows) {
  for (const int64_t rows : {20, 100}) {
    SelectFixture f({.heads = 32, .dim = 128, .entries = 3000, .sequences = 4, .rows = rows, .entries_per_page = 64},
                    Seed(), 256);
    DrawRuns(f, random_, 4, 7);
    f.Publish(200, 8);
    SelectReference(f.params, pool_);
    OnDevice d(f, random_, 1, false);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    SENKO_CUDA(cudaStreamCreate(&stream));
    SelectSm90(d.p, stream);  // loads the module
    SENKO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    SelectSm90(d.p, stream);
    SelectSm90(d.p, stream);
    SENKO_CUDA(cudaStreamEndCapture(stream, &graph));
    SENKO_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (const int64_t live : {rows, int64_t{1}, int64_t{0}, rows / 2, rows, rows}) {
      const auto count = static_cast<int32_t>(live);
      SENKO_CUDA(cudaMemcpy(d.count.data(), &count, sizeof(count), cudaMemcpyHostToDevice));
      d.PoisonOutputs();
      SENKO_CUDA(cudaGraphLaunch(exec, stream));
      SENKO_CUDA(cudaStreamSynchronize(stream));
      d.Check(live);
      if (HasFatalFailure()) break;
    }
    SENKO_CUDA(cudaGraphExecDestroy(exec));
    SENKO_CUDA(cudaGraphDestroy(graph));
    SENKO_CUDA(cudaStreamDestroy(stream));
  }
}

}  // namespace
}  // namespace senko::ops
