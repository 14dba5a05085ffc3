// The promises that only whole runs can show: a prompt's cut, its neighbours and the thread count never change a bit,
// and replay follows the rules of model.md 5.
#include "runtime/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "runtime/cpu_executor.h"
#include "runtime/generate.h"
#include "runtime/load.h"
#include "runtime/test_models.h"

namespace senko::runtime {
namespace {

using Rows = std::map<int64_t, std::vector<float>>;  // position -> logits

// One of those models, loaded with threads, pages and slots of its own.
class Rig {
 public:
  Rig(const std::string& config_name, const std::string& numerics, int threads = 2, int64_t max_rows = 512)
      : pool(threads) {
    LoadOptions options;
    options.directory = TestModel(config_name);
    options.numerics = ParseNumericsMode(numerics);
    options.block_size = 64;
    loaded = LoadModel(options);
    pages = std::make_unique<cache::PagePool>(loaded.model->page_layout(), 64);
    slots = std::make_unique<cache::SlotPool>(loaded.model->slot_layout(), 4);
    executor = std::make_unique<CpuExecutor>(*loaded.model, *pages, pool, model::WorkspaceLimits{max_rows, 2});
  }

  std::vector<int32_t> Prompt(int64_t tokens, uint64_t seed) const {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < tokens; ++i) {
      const uint32_t word = PhiloxDraw(seed, static_cast<uint64_t>(i), 0).word[0];
      ids.push_back(static_cast<int32_t>(word % static_cast<uint32_t>(loaded.config.vocab_size - 1)));
    }
    return ids;
  }

  // Feeds all of `prompt` from the session's size on in pieces (the last repeats) and keeps the logits of every kept
  // row.
  Rows Feed(Session& session, const std::vector<int32_t>& prompt, const std::vector<int64_t>& pieces) {
    Rows rows;
    const int64_t vocab = loaded.config.vocab_size;
    for (size_t i = 0; session.size() < static_cast<int64_t>(prompt.size()); ++i) {
      const int64_t left = static_cast<int64_t>(prompt.size()) - session.size();
      const int64_t count = std::min(left, pieces[std::min(i, pieces.size() - 1)]);
      const std::span<const int32_t> all(prompt);
      const int64_t kept = session.Feed(all.subspan(static_cast<size_t>(session.size()), static_cast<size_t>(count)));
      for (int64_t r = 0; r < kept; ++r) {
        std::vector<float> logits(static_cast<size_t>(vocab), std::numeric_limits<float>::quiet_NaN());
        executor->Logits(r, 1, logits.data(), nullptr);
        rows[executor->kept_positions()[static_cast<size_t>(r)]] = std::move(logits);
      }
    }
    return rows;
  }

  Rows Run(const std::vector<int32_t>& prompt, const std::vector<int64_t>& pieces, DecoderReplay replay) {
    Session session(*executor, *slots, static_cast<int64_t>(prompt.size()), replay);
    return Feed(session, prompt, pieces);
  }

  ThreadPool pool;
  LoadedModel loaded;
  std::unique_ptr<cache::PagePool> pages;
  std::unique_ptr<cache::SlotPool> slots;
  std::unique_ptr<CpuExecutor> executor;
};

// Bit equality; a NaN fails.
void ExpectSame(const Rows& a, const Rows& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [position, logits] : a) {
    ASSERT_TRUE(b.contains(position)) << what << " row " << position;
    for (size_t v = 0; v < logits.size(); ++v) {
      ASSERT_EQ(logits[v], b.at(position)[v]) << what << " row " << position << " logit " << v;
    }
  }
}

struct Case {
  std::string config, numerics;
};

class SessionChunks : public testing::TestWithParam<Case> {};

TEST_P(SessionChunks, TheCutOfAPromptNeverChangesABit) {
  Rig rig(GetParam().config, GetParam().numerics);
  const int64_t w = rig.loaded.config.window;
  const std::vector<int32_t> prompt = rig.Prompt(150, 3);
  const Rows whole = rig.Run(prompt, {150}, DecoderReplay::kFull);
  ASSERT_EQ(whole.size(), 150u);
  for (const std::vector<int64_t>& pieces : std::vector<std::vector<int64_t>>{
           {1}, {2}, {3}, {w - 1}, {w}, {w + 1}, {5, 40, 1, 1, 17}, {149, 1}, {2 * w + 3}}) {
    ExpectSame(whole, rig.Run(prompt, pieces, DecoderReplay::kFull), "piece " + std::to_string(pieces[0]));
  }
}

TEST_P(SessionChunks, TrimmingDoesNotDependOnTheCut) {
  Rig rig(GetParam().config, GetParam().numerics);
  const std::vector<int32_t> prompt = rig.Prompt(150, 4);
  const Rows whole = rig.Run(prompt, {150}, DecoderReplay::kTrim);
  for (const std::vector<int64_t>& pieces : std::vector<std::vector<int64_t>>{{1}, {7}, {140, 10}, {149, 1}, {33}}) {
    ExpectSame(whole, rig.Run(prompt, pieces, DecoderReplay::kTrim), "piece " + std::to_string(pieces[0]));
  }
}

TEST_P(SessionChunks, TheHaloIsExactFromTheLastPromptRowOn) {
  Rig rig(GetParam().config, GetParam().numerics);
  const std::vector<int32_t> text = rig.Prompt(170, 5);
  auto run = [&](DecoderReplay replay) {
    Session session(*rig.executor, *rig.slots, 150, replay);
    Rows rows = rig.Feed(session, std::vector<int32_t>(text.begin(), text.begin() + 150), {64});
    rows.merge(rig.Feed(session, text, {1}));
    rows.erase(rows.begin(), rows.find(149));
    return rows;
  };
  ExpectSame(run(DecoderReplay::kFull), run(DecoderReplay::kHalo), "halo");
}

INSTANTIATE_TEST_SUITE_P(Models, SessionChunks,
                         testing::Values(Case{"mini10", "float"}, Case{"mini10", "model"}, Case{"mini10", "model-noaq"},
                                         Case{"engram_first", "model"}, Case{"ratio1_clamp", "model"},
                                         Case{"ratio2_shared", "model"}, Case{"window_only", "model"}),
                         [](const auto& i) {
                           std::string name = i.param.config + "_" + i.param.numerics;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Session, ThreadsDoNotChangeABit) {
  Rig one("mini10", "model", 1), three("mini10", "model", 3);
  const std::vector<int32_t> prompt = one.Prompt(120, 6);
  ExpectSame(one.Run(prompt, {50}, DecoderReplay::kFull), three.Run(prompt, {120}, DecoderReplay::kFull), "threads");
}

TEST(Session, NeighboursInAStepDoNotChangeABit) {
  Rig rig("mini10", "model");
  const std::vector<int32_t> a = rig.Prompt(90, 7), b = rig.Prompt(70, 8);
  const Rows solo_a = rig.Run(a, {90}, DecoderReplay::kFull), solo_b = rig.Run(b, {70}, DecoderReplay::kFull);

  // Both in the same steps, with different spans in each.
  const auto& model = *rig.loaded.model;
  std::vector<cache::PageRef> pages;
  std::vector<std::vector<int32_t>> tables(2);
  std::vector<cache::SlotRef> slots;
  for (size_t s = 0; s < 2; ++s) {
    for (int p = 0; p < 2; ++p) {
      pages.push_back(std::move(*rig.pages->Allocate()));
      tables[s].push_back(pages.back().index());
    }
    slots.push_back(std::move(*rig.slots->Allocate()));
  }
  Rows got_a, got_b;
  int64_t done_a = 0, done_b = 0;
  for (const auto& [next_a, next_b] : std::vector<std::pair<int64_t, int64_t>>{{40, 1}, {41, 35}, {41, 70}, {90, 70}}) {
    const model::SequenceInput inputs[2] = {{a.data(), done_a, next_a, tables[0].data(), slots[0].data(), 0, 0, 0, 0},
                                            {b.data(), done_b, next_b, tables[1].data(), slots[1].data(), 0, 0, 0, 0}};
    const int64_t kept = rig.executor->Run(inputs);
    ASSERT_EQ(kept, next_a - done_a + next_b - done_b);
    for (int64_t r = 0; r < kept; ++r) {
      std::vector<float> logits(static_cast<size_t>(model.config().vocab_size));
      rig.executor->Logits(r, 1, logits.data(), nullptr);
      Rows& rows = r < next_a - done_a ? got_a : got_b;
      rows[rig.executor->kept_positions()[static_cast<size_t>(r)]] = logits;
    }
    done_a = next_a;
    done_b = next_b;
  }
  ExpectSame(solo_a, got_a, "first sequence");
  ExpectSame(solo_b, got_b, "second sequence");
}

TEST(Session, APrefixHitReplaysWindowsAndRewritesNoEntry) {
  Rig rig("mini10", "model");
  const int64_t hit = 128;
  const std::vector<int32_t> prompt = rig.Prompt(180, 9);
  Session cold(*rig.executor, *rig.slots, hit, DecoderReplay::kFull);
  rig.Feed(cold, std::vector<int32_t>(prompt.begin(), prompt.begin() + hit), {64});
  const auto& layout = rig.loaded.model->page_layout();
  std::vector<uint8_t> before;
  for (const cache::PageRef& page : cold.pages()) {
    const uint8_t* data = rig.pages->slab() + page.index() * layout.page_bytes;
    before.insert(before.end(), data, data + layout.page_bytes);
  }
  auto after_hit = [&](const std::vector<int64_t>& pieces) {
    Session warm(*rig.executor, *rig.slots, static_cast<int64_t>(prompt.size()), DecoderReplay::kTrim);
    warm.AdoptPrefix(std::span<const int32_t>(prompt).first(static_cast<size_t>(hit)), cold.pages());
    return rig.Feed(warm, prompt, pieces);
  };
  const Rows warm = after_hit({52});
  ExpectSame(warm, after_hit({1}), "cut after the hit");
  std::vector<uint8_t> after;
  for (const cache::PageRef& page : cold.pages()) {
    const uint8_t* data = rig.pages->slab() + page.index() * layout.page_bytes;
    after.insert(after.end(), data, data + layout.page_bytes);
  }
  EXPECT_EQ(before, after);
  EXPECT_EQ(warm.rbegin()->first, 179);
}

TEST(Session, ReplayIsForgottenWhereWindowsNoLongerReach) {
  // Without entries, what a hit shortens (windows before hit - window) reaches layers * (window - 1) rows: rows past
  // that are exact, and the first row after the hit is not.
  Rig rig("window_only", "model");
  const auto& config = rig.loaded.config;
  const int64_t hit = 64, reach = config.num_layers * (config.window - 1);
  ASSERT_LT(config.window, hit);
  const std::vector<int32_t> prompt = rig.Prompt(hit + reach + 8, 10);
  ASSERT_LE(static_cast<int64_t>(prompt.size()), config.max_positions);
  Session cold(*rig.executor, *rig.slots, hit, DecoderReplay::kFull);
  rig.Feed(cold, std::vector<int32_t>(prompt.begin(), prompt.begin() + hit), {64});
  Session warm(*rig.executor, *rig.slots, static_cast<int64_t>(prompt.size()), DecoderReplay::kFull);
  warm.AdoptPrefix(std::span<const int32_t>(prompt).first(static_cast<size_t>(hit)), cold.pages());
  const Rows replayed = rig.Feed(warm, prompt, {30});
  const Rows exact = rig.Run(prompt, {30}, DecoderReplay::kFull);
  ASSERT_EQ(replayed.begin()->first, hit);
  EXPECT_NE(replayed.at(hit), exact.at(hit));
  for (int64_t p = hit - config.window + reach; p < static_cast<int64_t>(prompt.size()); ++p) {
    EXPECT_EQ(replayed.at(p), exact.at(p)) << "row " << p;
  }
}

TEST(Session, WithoutKvSourcesTrimIsFull) {
  Rig rig("window_only", "model");
  const std::vector<int32_t> prompt = rig.Prompt(60, 13);
  const Rows full = rig.Run(prompt, {25}, DecoderReplay::kFull);
  ASSERT_EQ(full.size(), prompt.size());
  ExpectSame(full, rig.Run(prompt, {25}, DecoderReplay::kTrim), "trim");
  ExpectSame(full, rig.Run(prompt, {25}, DecoderReplay::kHalo), "halo");
}

TEST(Session, RefusedTokensChangeNothing) {
  Rig rig("mini10", "model");
  const std::vector<int32_t> prompt = rig.Prompt(40, 11);
  Session session(*rig.executor, *rig.slots, 40, DecoderReplay::kFull);
  rig.Feed(session, std::vector<int32_t>(prompt.begin(), prompt.begin() + 20), {20});
  for (int32_t bad : {-1, static_cast<int32_t>(rig.loaded.config.vocab_size), INT32_MAX}) {
    const std::vector<int32_t> tokens = {1, bad};
    EXPECT_THROW(session.Feed(tokens), Error);
    EXPECT_EQ(session.size(), 20);
  }
  const Rows rest = rig.Feed(session, prompt, {20});
  Rows expected = rig.Run(prompt, {40}, DecoderReplay::kFull);
  expected.erase(expected.begin(), expected.find(20));
  ExpectSame(expected, rest, "after refusals");
}

TEST(Session, RunsOutOfPagesAndGivesThemBack) {
  Rig rig("mini10", "model");
  {
    std::vector<cache::PageRef> held;
    while (auto page = rig.pages->Allocate()) held.push_back(std::move(*page));
    held.pop_back();
    Session session(*rig.executor, *rig.slots, 100, DecoderReplay::kFull);
    const std::vector<int32_t> prompt = rig.Prompt(100, 12);
    EXPECT_THROW(session.Feed(std::span<const int32_t>(prompt)), Error);
    EXPECT_EQ(session.size(), 0);
    EXPECT_EQ(session.Feed(std::span<const int32_t>(prompt).first(64)), 64);
  }
  EXPECT_EQ(rig.pages->free_pages(), rig.pages->num_pages());
  EXPECT_EQ(rig.slots->free_slots(), 4);
}

TEST(Generate, GreedyFollowsTheLogitsAndTheSeedFixesADraw) {
  Rig rig("mini10", "model");
  const std::vector<int32_t> prompt = rig.Prompt(30, 13);
  GenerateParams params;
  params.max_tokens = 12;
  params.temperature = 0;
  params.decoder_replay = DecoderReplay::kFull;
  const auto all = [](int32_t) { return true; };
  const GenerateResult greedy = Generate(*rig.executor, *rig.slots, prompt, params, all, {});
  ASSERT_EQ(greedy.tokens.size(), 12u);
  std::vector<int32_t> text = prompt;
  text.insert(text.end(), greedy.tokens.begin(), greedy.tokens.end());
  const Rows rows = rig.Run(text, {64}, DecoderReplay::kFull);
  for (size_t i = 0; i < greedy.tokens.size(); ++i) {
    const std::vector<float>& logits = rows.at(static_cast<int64_t>(prompt.size() + i) - 1);
    EXPECT_EQ(greedy.tokens[i], std::max_element(logits.begin(), logits.end()) - logits.begin()) << i;
  }
  params.temperature = 1;
  params.seed = 5;
  const auto first = Generate(*rig.executor, *rig.slots, prompt, params, all, {}).tokens;
  EXPECT_EQ(first, Generate(*rig.executor, *rig.slots, prompt, params, all, {}).tokens);
  params.seed = 6;
  EXPECT_NE(first, Generate(*rig.executor, *rig.slots, prompt, params, all, {}).tokens);
}

}  // namespace
}  // namespace senko::runtime
