// A row's logits on a GPU are the same bits however it is computed: alone or among neighbours, in one step or in many,
// in any regime of row counts, with graphs or without, beside rows to be verified, and whatever lay in memory before.
#include "runtime/cuda/cuda_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cuda/test_device.h"
#include "runtime/load.h"
#include "runtime/session.h"
#include "runtime/test_models.h"

namespace senko::runtime {
namespace {

constexpr int64_t kRows = 300, kSequences = 20, kVerifyRows = 8, kBlock = 64, kPages = 128;

using Rows = std::map<int64_t, std::vector<float>>;  // position -> logits

struct Sequence {
  std::vector<int32_t> ids;  // of the whole text
  int64_t done = 0;          // positions before it have run
  int64_t keep_begin = 0;
  std::vector<cache::PageRef> pages;
  std::vector<int32_t> table;
  cache::SlotRef slot;
};

struct Span {
  Sequence* sequence = nullptr;
  int64_t rows = 0;
};

// One model on the GPU with pages and slots of its own. `name`: a configuration's, _float behind it for --numerics
// float.
class Rig {
 public:
  Rig(const std::string& name, bool graphs, int64_t max_rows) : pool_(4) {
    LoadOptions load;
    const size_t as_float = name.rfind("_float");
    load.directory = TestModel(name.substr(0, as_float));
    if (as_float != std::string::npos) load.numerics = numerics::NumericsMode::kFloat;
    load.block_size = kBlock;
    load.verify_rows = kVerifyRows;
    loaded_ = LoadModel(load);
    BackendOptions device;
    device.device = "cuda";
    device.cuda_graphs = graphs;
    backend_ = MakeBackend(device, *loaded_.model, pool_, {});
    pages_ = std::make_unique<cache::PagePool>(loaded_.model->page_layout(), kPages, backend_->memory());
    slots_ = std::make_unique<cache::SlotPool>(loaded_.model->slot_layout(), kSequences, backend_->memory());
    ExecutorLimits limits;
    limits.max_rows = max_rows;
    limits.max_sequences = kSequences;
    limits.max_drawn_rows = max_rows;
    executor_ = backend_->MakeExecutor(*pages_, limits);
  }

  const config::ModelConfig& config() const { return loaded_.config; }
  Executor& executor() { return *executor_; }
  cache::SlotPool& slots() { return *slots_; }
  // Before every step from here on: workspace, free pages, free slots and rows that left a window become NaN.
  void set_poison(bool poison) { poison_ = poison; }

  std::vector<int32_t> Text(int64_t tokens, uint64_t seed) const {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < tokens; ++i) {
      const uint32_t word = PhiloxDraw(seed, static_cast<uint64_t>(i), 0).word[0];
      ids.push_back(static_cast<int32_t>(word % static_cast<uint32_t>(config().vocab_size - 1)));
    }
    return ids;
  }

  Sequence Begin(std::vector<int32_t> ids, int64_t keep_begin = 0) {
    Sequence sequence;
    sequence.ids = std::move(ids);
    sequence.keep_begin = keep_begin;
    auto slot = slots_->Allocate();
    EXPECT_TRUE(slot);
    sequence.slot = std::move(*slot);
    if (poison_) backend_->memory().Fill(sequence.slot.data(), 0xFF, loaded_.model->slot_layout().slot_bytes);
    return sequence;
  }

  // One step of all spans; the kept rows of each.
  std::vector<Rows> Step(const std::vector<Span>& spans) {
    std::vector<model::SequenceInput> inputs;
    if (poison_) Poison(spans);
    for (const Span& span : spans) {
      Sequence& s = *span.sequence;
      const int64_t end = s.done + span.rows;
      while (static_cast<int64_t>(s.pages.size()) * kBlock < end) {
        auto page = pages_->Allocate();
        EXPECT_TRUE(page);
        s.table.push_back(page->index());
        s.pages.push_back(std::move(*page));
      }
      model::SequenceInput input;
      input.tokens = s.ids.data();
      input.begin = s.done;
      input.end = end;
      input.pages = s.table.data();
      input.slot = s.slot.data();
      input.keep_begin = s.keep_begin;
      input.tail_start = s.keep_begin;
      inputs.push_back(input);
    }
    const int64_t kept = executor_->Run(inputs);
    const auto vocab = static_cast<size_t>(config().vocab_size);
    std::vector<float> logits(static_cast<size_t>(kept) * vocab, std::nanf(""));
    if (kept > 0) executor_->Logits(0, kept, logits.data(), nullptr);
    std::vector<Rows> out;
    size_t row = 0;
    for (const Span& span : spans) {
      Rows& rows = out.emplace_back();
      Sequence& s = *span.sequence;
      for (int64_t p = std::max(s.done, s.keep_begin); p < s.done + span.rows; ++p, ++row) {
        EXPECT_EQ(executor_->kept_positions()[row], p);
        rows[p].assign(logits.begin() + static_cast<int64_t>(row * vocab),
                       logits.begin() + static_cast<int64_t>((row + 1) * vocab));
      }
      s.done += span.rows;
    }
    EXPECT_EQ(static_cast<int64_t>(row), kept);
    return out;
  }

  // The whole text alone, in pieces of these sizes (the last repeats).
  Rows Run(const std::vector<int32_t>& ids, const std::vector<int64_t>& pieces, int64_t keep_begin = 0) {
    Sequence sequence = Begin(ids, keep_begin);
    const auto size = static_cast<int64_t>(ids.size());
    Rows rows;
    for (size_t i = 0; sequence.done < size; ++i) {
      rows.merge(Step({{&sequence, std::min(size - sequence.done, pieces[std::min(i, pieces.size() - 1)])}})[0]);
    }
    return rows;
  }

  // After a hit of `hit` tokens, in pieces; windows are replayed in steps of this executor's size.
  Rows RunHit(const std::vector<int32_t>& ids, int64_t hit, const std::vector<int64_t>& pieces, DecoderReplay replay) {
    const std::span<const int32_t> text(ids);
    const auto vocab = static_cast<size_t>(config().vocab_size);
    Session cold(*executor_, *slots_, hit, DecoderReplay::kFull);
    while (cold.size() < hit) {
      const int64_t count = std::min(hit - cold.size(), executor_->max_rows());
      cold.Feed(text.subspan(static_cast<size_t>(cold.size()), static_cast<size_t>(count)));
    }
    Session warm(*executor_, *slots_, static_cast<int64_t>(ids.size()), replay);
    warm.AdoptPrefix(text.first(static_cast<size_t>(hit)), cold.pages());
    Rows rows;
    for (size_t i = 0; warm.size() < static_cast<int64_t>(ids.size()); ++i) {
      const int64_t left = static_cast<int64_t>(ids.size()) - warm.size();
      const int64_t count = std::min(left, pieces[std::min(i, pieces.size() - 1)]);
      const int64_t kept = warm.Feed(text.subspan(static_cast<size_t>(warm.size()), static_cast<size_t>(count)));
      for (int64_t r = 0; r < kept; ++r) {
        std::vector<float>& logits = rows[executor_->kept_positions()[static_cast<size_t>(r)]];
        logits.assign(vocab, std::nanf(""));
        executor_->Logits(r, 1, logits.data(), nullptr);
      }
    }
    return rows;
  }

 private:
  void Poison(const std::vector<Span>& spans) {
    cache::Memory& memory = backend_->memory();
    dynamic_cast<CudaExecutor&>(*executor_).PoisonWorkspace();
    const auto page_bytes = static_cast<size_t>(pages_->layout().page_bytes);
    for (int32_t page = 0; page < pages_->num_pages() && page_bytes > 0; ++page) {
      if (pages_->references(page) == 0) memory.Fill(pages_->data(page), 0xFF, page_bytes);
    }
    // No row of these spans sees further back than window - 1 before its sequence's first.
    const config::SlotLayout& slot = loaded_.model->slot_layout();
    for (const Span& span : spans) {
      std::set<int64_t> live;
      for (int64_t p = std::max<int64_t>(span.sequence->done - config().window + 1, 0); p < span.sequence->done; ++p) {
        live.insert(p % slot.ring_rows);
      }
      for (int64_t layer = 0; layer < config().num_layers; ++layer) {
        for (int64_t row = 0; row < slot.ring_rows; ++row) {
          if (live.contains(row)) continue;
          memory.Fill(span.sequence->slot.data() + slot.RingOffset(layer) + row * slot.row_stride, 0xFF,
                      static_cast<size_t>(slot.row_stride));
        }
      }
    }
  }

  ThreadPool pool_;
  LoadedModel loaded_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<cache::PagePool> pages_;
  std::unique_ptr<cache::SlotPool> slots_;
  std::unique_ptr<Executor> executor_;
  bool poison_ = false;
};

// Bit equality of every row of `got`, all of which are finite.
void ExpectSame(const Rows& expected, const Rows& got, const std::string& what) {
  ASSERT_FALSE(got.empty()) << what;
  for (const auto& [position, logits] : got) {
    ASSERT_TRUE(expected.contains(position)) << what << " row " << position;
    const std::vector<float>& wanted = expected.at(position);
    ASSERT_TRUE(std::all_of(logits.begin(), logits.end(), [](float v) { return std::isfinite(v); }))
        << what << " row " << position;
    if (std::memcmp(logits.data(), wanted.data(), wanted.size() * sizeof(float)) == 0) continue;
    size_t v = 0;
    while (std::memcmp(&logits[v], &wanted[v], sizeof(float)) == 0) ++v;
    FAIL() << what << " row " << position << " logit " << v << ": " << logits[v] << ", expected " << wanted[v];
  }
}
void ExpectAll(const Rows& expected, const Rows& got, const std::string& what) {
  EXPECT_EQ(expected.size(), got.size()) << what;
  ExpectSame(expected, got, what);
}

class CudaSteps : public cuda::DeviceTest, public testing::WithParamInterface<std::string> {
 protected:
  static void TearDownTestSuite() { rigs_.clear(); }

  // Made once.
  static Rig& With(bool graphs, int64_t max_rows = kRows) {
    auto& rig = rigs_[{GetParam(), graphs, max_rows}];
    if (rig == nullptr) rig = std::make_unique<Rig>(GetParam(), graphs, max_rows);
    rig->set_poison(false);
    return *rig;
  }
  static bool wide() { return GetParam() == "wide"; }

 private:
  static inline std::map<std::tuple<std::string, bool, int64_t>, std::unique_ptr<Rig>> rigs_;
};

TEST_P(CudaSteps, RunToRunWithGraphsOrWithout) {
  Rig &graphs = With(true), &eager = With(false);
  const std::vector<int32_t> text = graphs.Text(290, 1);
  const Rows whole = graphs.Run(text, {290});
  ASSERT_EQ(whole.size(), 290u);
  ExpectAll(whole, graphs.Run(text, {290}), "again");
  ExpectAll(whole, eager.Run(text, {290}), "eager");
  ExpectAll(whole, eager.Run(text, {290}), "eager again");
  for (const int64_t piece : {7, 64}) {
    ExpectAll(whole, eager.Run(text, {piece}), "eager, pieces of " + std::to_string(piece));
  }
}

TEST_P(CudaSteps, TheCutNeverChangesABit) {
  Rig& rig = With(true);
  const std::vector<int32_t> text = rig.Text(290, 2);
  const int64_t w = rig.config().window;
  const Rows whole = rig.Run(text, {290});
  for (const std::vector<int64_t>& pieces : std::vector<std::vector<int64_t>>{
           {1}, {2}, {3}, {w - 1}, {w}, {w + 1}, {5, 40, 1, 1, 17}, {289, 1}, {2 * w + 3}, {1, 289}}) {
    ExpectAll(whole, rig.Run(text, pieces), "first piece " + std::to_string(pieces[0]));
  }
}

TEST_P(CudaSteps, AcrossEveryRegimeOfRows) {
  Rig &graphs = With(true), &eager = With(false);
  const std::vector<int32_t> text = graphs.Text(kRows, 3);
  const Rows whole = graphs.Run(text, {kRows});
  const int64_t w = graphs.config().window;
  std::set<int64_t> sizes;
  for (const int64_t n : PassGraphs::Regimes(kRows)) {
    for (const int64_t rows : {n - 1, n, n + 1}) {
      if (rows >= 1 && rows <= kRows) sizes.insert(rows);
    }
  }
  ASSERT_GE(sizes.size(), 20u);
  for (const int64_t rows : sizes) {
    const std::string what = std::to_string(rows) + " rows";
    // As a text's first rows, then behind others, then few kept of many.
    const std::vector<int32_t> head(text.begin(), text.begin() + rows);
    ExpectSame(whole, graphs.Run(head, {rows}), what);
    ExpectSame(whole, eager.Run(head, {rows}), what + ", eager");
    if (rows > 1 && kRows - rows > 0) ExpectAll(whole, graphs.Run(text, {kRows - rows, rows}), what + " at the end");
    if (!wide()) ExpectAll(whole, graphs.Run(text, {rows}), "pieces of " + what);
    const Rows kept = graphs.Run(text, {kRows}, kRows - rows);
    ASSERT_EQ(static_cast<int64_t>(kept.size()), rows);
    ExpectAll(kept, graphs.Run(text, {kRows - w - 1, w + 1}, kRows - rows), what + " kept, cut");
    ExpectAll(kept, eager.Run(text, {kRows}, kRows - rows), what + " kept, eager");
  }
}

TEST_P(CudaSteps, NeighboursNeverChangeABit) {
  Rig &graphs = With(true), &eager = With(false);
  const std::vector<int64_t> lengths = {97, 30, 64, 129, 5, 71};
  std::vector<std::vector<int32_t>> texts;
  std::vector<Rows> alone;
  for (size_t i = 0; i < lengths.size(); ++i) {
    texts.push_back(graphs.Text(lengths[i], 10 + i));
    alone.push_back(graphs.Run(texts.back(), {lengths[i]}));
  }
  std::mt19937 random(5);
  for (int round = 0; round < (wide() ? 2 : 6); ++round) {
    Rig& rig = round % 2 == 0 ? graphs : eager;
    std::vector<Sequence> sequences;
    std::vector<size_t> order;
    for (size_t i = 0; i < lengths.size(); ++i) {
      sequences.push_back(rig.Begin(texts[i]));
      order.push_back(i);
    }
    while (!order.empty()) {
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Span> spans;
      int64_t room = kRows;
      for (const size_t i : order) {
        const int64_t left = lengths[i] - sequences[i].done;
        const int64_t rows = std::min({left, room, random() % 3 == 0 ? 1 : static_cast<int64_t>(random() % 90) + 1});
        if (rows > 0) spans.push_back({&sequences[i], rows});
        room -= std::max<int64_t>(rows, 0);
      }
      const std::vector<Rows> got = rig.Step(spans);
      for (size_t k = 0; k < spans.size(); ++k) {
        const auto i = static_cast<size_t>(spans[k].sequence - sequences.data());
        ExpectSame(alone[i], got[k], "round " + std::to_string(round) + " sequence " + std::to_string(i));
      }
      std::erase_if(order, [&](size_t i) { return sequences[i].done == lengths[i]; });
    }
  }
}

TEST_P(CudaSteps, DecodingOneToEighteenSequences) {
  Rig& rig = With(true);
  constexpr int64_t kMost = 18;
  std::vector<std::vector<int32_t>> texts;
  std::vector<Rows> alone;
  std::vector<Sequence> sequences;
  for (int64_t i = 0; i < kMost; ++i) {
    const int64_t prompt = 3 + 13 * i % 50;
    texts.push_back(rig.Text(prompt + 2 * kMost, 40 + static_cast<uint64_t>(i)));
    alone.push_back(rig.Run(texts.back(), {kRows}));
    sequences.push_back(rig.Begin(texts.back()));
    rig.Step({{&sequences.back(), prompt}});
  }
  // Up and down again: every count between meets every sequence at other positions.
  for (int64_t step = 0; step < 2 * kMost; ++step) {
    const int64_t count = step < kMost ? step + 1 : 2 * kMost - step;
    std::vector<Span> spans;
    for (int64_t i = 0; i < count; ++i) spans.push_back({&sequences[static_cast<size_t>((i + step) % kMost)], 1});
    const std::vector<Rows> got = rig.Step(spans);
    for (size_t k = 0; k < spans.size(); ++k) {
      const auto i = static_cast<size_t>(spans[k].sequence - sequences.data());
      ExpectSame(alone[i], got[k], std::to_string(count) + " sequences, number " + std::to_string(i));
    }
  }
}

TEST_P(CudaSteps, OneToEightRowsToVerify) {
  Rig &graphs = With(true), &eager = With(false);
  constexpr int64_t kTexts = 3, kLength = 150;
  std::vector<std::vector<int32_t>> texts;
  std::vector<Rows> alone;
  for (uint64_t i = 0; i < kTexts; ++i) {
    texts.push_back(graphs.Text(kLength, 60 + i));
    alone.push_back(graphs.Run(texts.back(), {kLength}));
  }
  std::mt19937 random(7);
  std::set<std::pair<int64_t, int64_t>> seen;  // rows, of them right
  for (int round = 0; round < (wide() ? 2 : 4); ++round) {
    Rig& rig = round % 2 == 0 ? graphs : eager;
    std::vector<Sequence> sequences;
    for (size_t i = 0; i < kTexts; ++i) {
      sequences.push_back(rig.Begin(texts[i]));
      rig.Step({{&sequences[i], 20 + static_cast<int64_t>(i)}});
    }
    for (int step = 0; step < 40; ++step) {
      std::vector<Span> spans;
      std::vector<int64_t> right;
      for (size_t i = 0; i < kTexts; ++i) {
        Sequence& s = sequences[i];
        const int64_t rows = std::min<int64_t>((step + static_cast<int64_t>(i)) % kVerifyRows + 1, kLength - s.done);
        if (rows == 0) continue;
        right.push_back(1 + static_cast<int64_t>(random() % static_cast<uint32_t>(rows)));
        for (int64_t p = s.done + right.back(); p < s.done + rows; ++p) {
          const auto at = static_cast<size_t>(p);
          s.ids[at] = (texts[i][at] + 1) % static_cast<int32_t>(rig.config().vocab_size);
        }
        spans.push_back({&s, rows});
      }
      if (spans.empty()) break;
      std::vector<Rows> got = rig.Step(spans);
      for (size_t k = 0; k < spans.size(); ++k) {
        Sequence& s = *spans[k].sequence;
        const auto i = static_cast<size_t>(&s - sequences.data());
        seen.insert({spans[k].rows, right[k]});
        s.done += right[k] - spans[k].rows;  // the wrong ones are taken back
        s.ids = texts[i];
        std::erase_if(got[k], [&](const auto& row) { return row.first >= s.done; });
        ExpectSame(alone[i], got[k], std::to_string(spans[k].rows) + " rows, sequence " + std::to_string(i));
      }
    }
  }
  for (int64_t rows = 1; rows <= kVerifyRows; ++rows) {
    EXPECT_TRUE(seen.contains({rows, rows}) || wide()) << rows;
    EXPECT_TRUE(seen.lower_bound({rows, 0}) != seen.lower_bound({rows + 1, 0})) << rows;
  }
}

TEST_P(CudaSteps, APrefixHitReplaysTheSameBits) {
  Rig &graphs = With(true), &eager = With(false), &small = With(true, 7);
  const int64_t hit = graphs.config().window >= 64 ? 192 : 128;
  const std::vector<int32_t> text = graphs.Text(hit + 70, 80);
  for (const DecoderReplay replay : {DecoderReplay::kTrim, DecoderReplay::kHalo, DecoderReplay::kFull}) {
    const std::string what = "replay " + std::to_string(static_cast<int>(replay));
    const Rows whole = graphs.RunHit(text, hit, {70}, replay);
    EXPECT_EQ(whole.rbegin()->first, hit + 69);
    ExpectAll(whole, graphs.RunHit(text, hit, {1, 33}, replay), what + ", cut");
    ExpectAll(whole, eager.RunHit(text, hit, {16}, replay), what + ", eager");
    ExpectAll(whole, small.RunHit(text, hit, {7}, replay), what + ", seven rows a step");
  }
}

TEST_P(CudaSteps, TrimmedAndHaloedPromptsDoNotDependOnTheCut) {
  Rig &graphs = With(true), &eager = With(false);
  const std::vector<int32_t> text = graphs.Text(250, 90);
  const Rows full = graphs.Run(text, {250});
  for (const DecoderReplay replay : {DecoderReplay::kTrim, DecoderReplay::kHalo}) {
    const int64_t keep = FirstKeptRow(graphs.config(), 250, replay);
    const Rows whole = graphs.Run(text, {250}, keep);
    ASSERT_EQ(static_cast<int64_t>(whole.size()), 250 - keep);
    for (const std::vector<int64_t>& pieces : std::vector<std::vector<int64_t>>{{1}, {7}, {240, 10}, {249, 1}, {33}}) {
      ExpectAll(whole, graphs.Run(text, pieces, keep), "first piece " + std::to_string(pieces[0]));
    }
    ExpectAll(whole, eager.Run(text, {100}, keep), "eager");
    if (replay != DecoderReplay::kHalo) continue;
    ExpectSame(full, {{249, whole.at(249)}}, "the halo's last row");
  }
}

TEST_P(CudaSteps, WhatLayInMemoryNeverReachesARow) {
  Rig &graphs = With(true), &eager = With(false);
  const std::vector<int32_t> text = graphs.Text(200, 70), other = graphs.Text(90, 71);
  const Rows alone = graphs.Run(text, {200}), other_alone = graphs.Run(other, {90});
  const int64_t keep = FirstKeptRow(graphs.config(), 200, DecoderReplay::kTrim);
  const Rows trimmed = graphs.Run(text, {200}, keep);
  for (Rig* rig : {&graphs, &eager}) {
    rig->set_poison(true);
    for (const std::vector<int64_t>& pieces : std::vector<std::vector<int64_t>>{{200}, {65}, {33, 1, 1, 9, 60}}) {
      ExpectAll(alone, rig->Run(text, pieces), "poisoned, first piece " + std::to_string(pieces[0]));
      ExpectAll(trimmed, rig->Run(text, pieces, keep), "trimmed, first piece " + std::to_string(pieces[0]));
    }
    Sequence a = rig->Begin(text), b = rig->Begin(other);
    for (const auto& [rows_a, rows_b] : std::vector<std::pair<int64_t, int64_t>>{{61, 1}, {1, 62}, {1, 1}, {137, 26}}) {
      const std::vector<Rows> got = rig->Step({{&b, rows_b}, {&a, rows_a}});
      ExpectSame(other_alone, got[0], "poisoned neighbour");
      ExpectSame(alone, got[1], "poisoned beside a neighbour");
    }
  }
}

// The poison itself is seen: a row of a window that is live, made NaN, reaches the logits.
TEST_P(CudaSteps, PoisonInALiveRowIsSeen) {
  Rig& rig = With(true);
  const std::vector<int32_t> text = rig.Text(40, 72);
  Sequence s = rig.Begin(text);
  rig.Step({{&s, 30}});
  s.done = 31;  // leaves row 30 unwritten, then overwritten below
  const config::SlotLayout& slot = rig.executor().model().slot_layout();
  const std::vector<uint8_t> nan(static_cast<size_t>(slot.row_stride), 0xFF);
  SENKO_CUDA(cudaMemcpy(s.slot.data() + slot.RingOffset(0) + 30 % slot.ring_rows * slot.row_stride, nan.data(),
                        nan.size(), cudaMemcpyHostToDevice));
  const Rows rows = rig.Step({{&s, 1}})[0];
  EXPECT_TRUE(std::isnan(rows.at(31)[0]));
}

INSTANTIATE_TEST_SUITE_P(Models, CudaSteps,
                         testing::Values("mini10", "ratio1_clamp", "window_only", "wide", "mini10_float"),
                         [](const auto& i) { return i.param; });

}  // namespace
}  // namespace senko::runtime
