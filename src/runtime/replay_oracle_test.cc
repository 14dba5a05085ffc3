// The engine's planning on the reference operators against a dense computation without caches: logits equal in every
// bit, for every hit, prompt length and cut around the edges.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "base/random.h"
#include "ops/op_table.h"
#include "runtime/cpu_executor.h"
#include "runtime/dense_oracle.h"
#include "runtime/load.h"
#include "runtime/prompt_runner.h"
#include "runtime/test_models.h"

namespace senko::runtime {
namespace {

// Three shapes: windows of 8, 16 and 128 over different mixes of ratios.
struct Shape {
  const char* config;
  int64_t window;
};

class ReplayOracle : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    // The reference operators take minutes there; the smallest shape runs the same code.
    if (GetParam().window > 8) GTEST_SKIP() << "only the smallest shape under a sanitizer";
#endif
    Load(64);
  }

  void Load(int64_t block_size) {
    LoadOptions load;
    load.directory = TestModelWithWindow(GetParam().config, GetParam().window);
    load.block_size = block_size;
    load.op_impl = ReferenceOps();
    answer_.clear();
    loaded_ = LoadModel(load);
  }

  std::vector<int32_t> Prompt(int64_t tokens, uint64_t seed) const {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < tokens; ++i) {
      const uint32_t word = PhiloxDraw(seed, static_cast<uint64_t>(i), 0).word[0];
      ids.push_back(static_cast<int32_t>(word % static_cast<uint32_t>(loaded_.config.vocab_size - 1)));
    }
    return ids;
  }

  void Check(const std::vector<int32_t>& prompt, int64_t hit, const std::vector<int64_t>& pieces,
             config::DecoderReplay replay) {
    CheckAll({prompt}, hit, pieces, replay);
  }

  // Runs the first `hit` tokens cold and then each prompt warm in `pieces`; every row of the warm runs against the
  // oracle. The prompts begin with the same `hit` tokens and no two share a page more.
  void CheckAll(const std::vector<std::vector<int32_t>>& prompts, int64_t hit, const std::vector<int64_t>& pieces,
                config::DecoderReplay replay) {
    const model::Model& model = *loaded_.model;
    int64_t length = 0, most_pages = 2;
    const int64_t block = model.page_layout().block_size;
    for (const auto& prompt : prompts) {
      length = std::max(length, static_cast<int64_t>(prompt.size()));
      most_pages += 2 * (static_cast<int64_t>(prompt.size()) / block + 1);  // nothing is handed out twice
    }
    cache::PagePool pages(model.page_layout(), most_pages);
    cache::SlotPool slots(model.slot_layout(), 1);
    ThreadPool pool(1);
    CpuExecutor executor(model, pages, pool, model::WorkspaceLimits{length, 1});
    engine::SchedulerOptions options;
    options.max_rows = length;
    options.max_model_len = length + 1;
    options.decoder_replay = replay;
    PromptRunner runner(executor, slots, options);
    std::vector<uint8_t> adopted;
    if (hit > 0) {
      runner.Run(std::span(prompts[0]).first(static_cast<size_t>(hit)), pieces, "", {});
      // A fresh pool hands out its pages in order.
      adopted.assign(pages.slab(), pages.slab() + hit / block * model.page_layout().page_bytes);
    }
    for (const auto& prompt : prompts) {
      CheckWarm(runner, executor, prompt, hit, adopted, pieces, replay);
      if (HasFatalFailure()) return;
    }
  }

  void CheckWarm(PromptRunner& runner, CpuExecutor& executor, const std::vector<int32_t>& prompt, int64_t hit,
                 const std::vector<uint8_t>& adopted, const std::vector<int64_t>& pieces,
                 config::DecoderReplay replay) {
    const auto length = static_cast<int64_t>(prompt.size());
    std::map<int64_t, std::vector<float>> got;
    int64_t rows = 0;
    const engine::SchedulerStats before = runner.stats();
    const int64_t found = runner.Run(prompt, pieces, "", [&](std::span<const int64_t> positions) {
      for (size_t r = 0; r < positions.size(); ++r) {
        std::vector<float> logits(static_cast<size_t>(loaded_.config.vocab_size));
        executor.Logits(static_cast<int64_t>(r), 1, logits.data(), nullptr);
        got[positions[r]] = std::move(logits);
        ++rows;
      }
    });
    ASSERT_EQ(found, hit);
    const int64_t window = loaded_.config.window;
    const bool trims = replay == config::DecoderReplay::kTrim;
    if (trims) {
      EXPECT_EQ(rows, std::min(length, window));
    }
    EXPECT_EQ(runner.stats().replayed_rows - before.replayed_rows, hit > 0 ? static_cast<uint64_t>(window) : 0u);
    if (hit > 0) {
      EXPECT_TRUE(std::equal(adopted.begin(), adopted.end(), executor.pages().slab())) << "a shared page was written";
    }
    DenseInput input;
    input.tokens = prompt;
    input.prompt_tokens = length;
    input.hit = hit;
    input.adopted = adopted;
    input.decoder_trims = trims;
    const auto& expected = Oracle(executor.model(), input);
    ASSERT_EQ(got.size(), expected.size());
    for (const auto& [position, logits] : expected) {
      const auto row = got.find(position);
      ASSERT_TRUE(row != got.end());
      ASSERT_EQ(row->second, logits) << "row " << position << ", hit " << hit << ", length " << length << ", piece "
                                     << pieces[0];
    }
  }

  // The oracle knows no cuts: it is asked once per prompt and bytes of the adopted pages.
  const DenseRows& Oracle(const model::Model& model, const DenseInput& input) {
    const bool same = asked_.decoder_trims == input.decoder_trims && asked_.hit == input.hit &&
                      std::ranges::equal(asked_tokens_, input.tokens) &&
                      std::ranges::equal(asked_adopted_, input.adopted);
    if (!same || answer_.empty()) {
      answer_ = RunDense(model, input).logits;
      asked_ = input;
      asked_tokens_.assign(input.tokens.begin(), input.tokens.end());
      asked_adopted_.assign(input.adopted.begin(), input.adopted.end());
    }
    return answer_;
  }

  static std::vector<int64_t> RandomCuts(int64_t most) {
    std::mt19937 random(5);
    std::vector<int64_t> cuts;
    for (int i = 0; i < 40; ++i) cuts.push_back(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)));
    return cuts;
  }

  LoadedModel loaded_;

 private:
  DenseInput asked_;  // its spans are stale; the bytes are in the next two
  std::vector<int32_t> asked_tokens_;
  std::vector<uint8_t> asked_adopted_;
  DenseRows answer_;
};

TEST_P(ReplayOracle, TheEdgesOfAHit) {
  const int64_t w = loaded_.config.window, hit = (w / 64 + 1) * 64;
  for (const int64_t length : {int64_t{1}, w, w + 1}) {
    Check(Prompt(length, static_cast<uint64_t>(length)), 0, {length}, config::DecoderReplay::kTrim);
    Check(Prompt(hit + length, static_cast<uint64_t>(length)), hit, {length + 3}, config::DecoderReplay::kTrim);
    if (HasFatalFailure()) return;
  }
}

TEST_P(ReplayOracle, NoCutChangesABit) {
  const int64_t w = loaded_.config.window, hit = (w / 64 + 1) * 64;
  const std::vector<int32_t> prompt = Prompt(hit + w + 5, 77);
  for (const auto& pieces : std::vector<std::vector<int64_t>>{{1}, RandomCuts(w + 1)}) {
    Check(prompt, hit, pieces, config::DecoderReplay::kTrim);
    if (HasFatalFailure()) return;
  }
  Check(prompt, hit, {7}, config::DecoderReplay::kFull);
}

// Pages of 128 and 256: hits of one page and of two, prompts of one token more, of a window more and of whole pages.
TEST_P(ReplayOracle, LargerPages) {
  const int64_t w = GetParam().window;
  struct Case {
    int64_t block, hit;
    std::vector<int64_t> lengths;
  };
  std::vector<Case> cases{
      {128, 128, {129, 128 + w, 256}}, {128, 256, {257, 256 + w + 1}}, {256, 256, {257, 256 + w, 512}}};
  if (w == 16) cases = {{128, 128, {129, 128 + w}}, {256, 256, {257}}};
  if (w == 128) cases = {{128, 256, {257}}, {256, 256, {257}}};
  for (const Case& one : cases) {
    if (loaded_.model->page_layout().block_size != one.block) Load(one.block);
    std::vector<std::vector<int32_t>> prompts;
    for (const int64_t length : one.lengths) {
      prompts.push_back(Prompt(length, static_cast<uint64_t>(length)));
      std::copy_n(prompts[0].begin(), one.hit, prompts.back().begin());
    }
    CheckAll(prompts, one.hit, {w + 1}, config::DecoderReplay::kTrim);
    if (HasFatalFailure()) return;
  }
}

// A prefix no longer than the window is no hit, though a whole page of it is there.
TEST_P(ReplayOracle, APageWithinTheWindowIsNoHit) {
  if (GetParam().window < 128) GTEST_SKIP() << "every page is longer than the window";
  Load(128);
  const std::vector<int32_t> prompt = Prompt(130, 4);
  cache::PagePool pages(loaded_.model->page_layout(), 8);
  cache::SlotPool slots(loaded_.model->slot_layout(), 1);
  ThreadPool pool(1);
  CpuExecutor executor(*loaded_.model, pages, pool, model::WorkspaceLimits{130, 1});
  engine::SchedulerOptions options;
  options.max_rows = 130;
  options.max_model_len = 131;
  PromptRunner runner(executor, slots, options);
  runner.Run(std::span(prompt).first(128), {}, "", {});
  CheckWarm(runner, executor, prompt, 0, {}, {130}, config::DecoderReplay::kTrim);
}

// Under `--all`: every hit and length near them, every cut, the other page sizes.
TEST_P(ReplayOracle, DISABLED_Long) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "hours under a sanitizer, of code that the tests above run too";
#endif
  for (const int64_t block : {int64_t{64}, int64_t{128}, int64_t{256}}) {
    Load(block);
    const int64_t w = loaded_.config.window;
    for (int64_t hit = 0; hit <= 256; hit += block) {
      if (hit > 0 && hit <= w) continue;
      const int64_t longest = std::min(hit + 2 * w + 3, loaded_.config.max_positions);
      for (const int64_t length : {hit + 1, hit + 2, hit + w - 1, hit + w, hit + w + 1, longest}) {
        for (const auto& pieces :
             std::vector<std::vector<int64_t>>{{length}, {1}, {w - 1}, {w}, {w + 1}, {7}, RandomCuts(w)}) {
          Check(Prompt(length, static_cast<uint64_t>(length)), hit, pieces, config::DecoderReplay::kTrim);
          if (HasFatalFailure()) return;
        }
        Check(Prompt(length, static_cast<uint64_t>(length)), hit, {w}, config::DecoderReplay::kFull);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ReplayOracle,
                         testing::Values(Shape{"ratio1_clamp", 8}, Shape{"mini10", 16}, Shape{"ratio2_shared", 128}),
                         [](const auto& one) {
                           return std::string(one.param.config) + "_" + std::to_string(one.param.window);
                         });

}  // namespace
}  // namespace senko::runtime
