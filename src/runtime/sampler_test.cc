// The sampler's promises: the same draws alone, in a crowd and ahead of time; penalties and bans as the answer so far
// asks for them; one sequence's fault is its own.
#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "engine/request.h"
#include "ops/sample/logprobs.h"

namespace senko::runtime {
namespace {

constexpr int64_t kVocab = 600;
constexpr int32_t kEos = 3;
const std::vector<int32_t> kPrompt = {10, 11, 12, 11, 10};
constexpr int64_t kLastRow = 4;  // of the prompt

using Row = std::vector<float>;

Row RandomRow(std::mt19937_64& random, float spread = 2) {
  std::normal_distribution<float> normal(0, spread);
  Row row(kVocab);
  for (float& x : row) x = normal(random);
  return row;
}

std::shared_ptr<SamplingOptions> Options(float temperature = 0) {
  auto options = std::make_shared<SamplingOptions>();
  options->temperature = temperature;
  options->seed = 17;
  return options;
}

uint64_t Id(uint64_t request, int64_t choice = 0) { return engine::SequenceId(request, choice); }

// One token from a sequence that lives for this draw only.
SampleDraw DrawOnce(std::shared_ptr<const SamplingOptions> options, const Row& row, int64_t position = kLastRow,
                    uint64_t sequence = Id(1), const uint32_t* allowed = nullptr) {
  Sampler sampler(kVocab, kEos);
  sampler.Begin(sequence, std::move(options), kPrompt);
  return sampler.Draw({sequence, position, row.data(), {}, allowed});
}

// `steps` tokens, the row a function of the position; committed one by one.
template <typename RowAt>
std::vector<int32_t> Generate(Sampler& sampler, uint64_t sequence, int64_t steps, RowAt row_at) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < steps; ++i) {
    const Row row = row_at(kLastRow + i);
    const SampleDraw draw = sampler.Draw({sequence, kLastRow + i, row.data(), {}, nullptr});
    EXPECT_EQ(draw.failure, DrawFailure::kNone);
    tokens.push_back(draw.output.token);
    if (tokens.back() < 0) return tokens;
    sampler.Commit(sequence, tokens.back());
  }
  return tokens;
}

Row RowAt(int64_t position) {
  std::mt19937_64 random(static_cast<uint64_t>(position) * 7919 + 1);
  return RandomRow(random, 1);
}

// Options of every kind, by number.
std::shared_ptr<SamplingOptions> Mixture(int kind) {
  auto options = Options(kind % 4 == 0 ? 0.0f : 0.9f);
  if (kind % 2 == 1) options->seed = 100 + static_cast<uint64_t>(kind);
  if (kind % 3 == 0) options->repetition_penalty = 1.3f;
  if (kind % 3 == 1) options->frequency_penalty = 0.5f;
  if (kind % 5 == 0) options->top_k = 20;
  if (kind % 5 == 1) options->top_p = 0.9f;
  if (kind % 5 == 2) options->min_p = 0.05f;
  if (kind % 7 == 0) options->logit_bias = {{5, 3.0f}, {6, -100.0f}};
  if (kind % 7 == 1) options->min_tokens = 3;
  if (kind % 7 == 2) options->bad_words = {{7}, {8, 9}};
  if (kind % 4 == 1) options->logprobs = 5;
  return options;
}

void ExpectSame(const SampleDraw& a, const SampleDraw& b) {
  EXPECT_EQ(a.output.token, b.output.token);
  EXPECT_EQ(a.failure, b.failure);
  ASSERT_EQ(a.output.logprob.has_value(), b.output.logprob.has_value());
  if (!a.output.logprob) return;
  EXPECT_EQ(a.output.logprob->logprob, b.output.logprob->logprob);
  EXPECT_EQ(a.output.logprob->rank, b.output.logprob->rank);
  ASSERT_EQ(a.output.top.size(), b.output.top.size());
  for (size_t i = 0; i < a.output.top.size(); ++i) {
    EXPECT_EQ(a.output.top[i].token, b.output.top[i].token);
    EXPECT_EQ(a.output.top[i].logprob, b.output.top[i].logprob);
  }
}

TEST(Sampler, NeighboursAndThreadsChangeNothing) {
  std::mt19937_64 random(std::random_device{}());
  constexpr int kCount = 32;
  Sampler together(kVocab, kEos);
  std::vector<Row> rows;
  std::vector<DrawJob> jobs;
  for (int i = 0; i < kCount; ++i) {
    together.Begin(Id(static_cast<uint64_t>(i)), Mixture(i), kPrompt);
    rows.push_back(RandomRow(random));
  }
  rows[7][100] = std::numeric_limits<float>::quiet_NaN();
  for (int i = 0; i < kCount; ++i) {
    // The last two share a row, as the choices of a request do.
    const Row& row = rows[static_cast<size_t>(std::min(i, kCount - 2))];
    jobs.push_back({Id(static_cast<uint64_t>(i)), kLastRow, row.data(), {}, nullptr});
  }
  const std::vector<Row> before = rows;
  ThreadPool one(1), four(4);
  const auto serial = together.DrawAll(jobs, one);
  for (int i = 0; i < kCount; ++i) {
    const size_t at = static_cast<size_t>(i);
    ExpectSame(serial[at],
               DrawOnce(Mixture(i), rows[std::min(at, size_t{kCount - 2})], kLastRow, Id(static_cast<uint64_t>(i))));
    EXPECT_EQ(serial[at].failure, i == 7 ? DrawFailure::kNotFinite : DrawFailure::kNone);
  }
  std::shuffle(jobs.begin(), jobs.end(), random);
  const auto parallel = together.DrawAll(jobs, four);
  for (size_t i = 0; i < jobs.size(); ++i) {
    ExpectSame(parallel[i], serial[static_cast<size_t>(engine::RequestOf(jobs[i].sequence))]);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(i == 7 || rows[i] == before[i]) << "a row was written";
  }
}

TEST(Sampler, TemperatureTendsToGreedyAndStaysFinite) {
  std::mt19937_64 random(std::random_device{}());
  for (int i = 0; i < 20; ++i) {
    Row row = RandomRow(random);
    const auto best = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
    row[static_cast<size_t>(best)] += 1e-2f;  // so that at 1e-5 the second is 1,000 nats away
    for (const float t : {0.0f, 1e-12f, 1e-6f, 1e-5f}) EXPECT_EQ(DrawOnce(Options(t), row).output.token, best) << t;
    const SampleDraw hot = DrawOnce(Options(100), row);
    EXPECT_TRUE(hot.output.token >= 0 && hot.output.token < kVocab);
  }
}

// 40,000 draws of positions in turn; Pearson's statistic has its degrees of freedom as mean, twice that as variance.
void ExpectDistribution(const SamplingOptions& options, const Row& row, const std::map<int32_t, double>& expected) {
  constexpr int kDraws = 40000;
  Sampler sampler(kVocab, kEos);
  sampler.Begin(Id(1), std::make_shared<SamplingOptions>(options), {});
  std::map<int32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.Draw({Id(1), i, row.data(), {}, nullptr}).output.token];
  double total = 0, statistic = 0;
  for (const auto& [token, weight] : expected) total += weight;
  for (const auto& [token, weight] : expected) {
    const double want = weight / total * kDraws;
    statistic += std::pow(counts[token] - want, 2) / want;
    counts.erase(token);
  }
  const double freedom = static_cast<double>(expected.size()) - 1;
  EXPECT_LT(statistic, freedom + 5 * std::sqrt(2 * freedom) + 5);
  EXPECT_TRUE(counts.empty()) << "token " << counts.begin()->first << " must not come";
}

TEST(Sampler, DrawsFromTheProcessedDistribution) {
  Row row(kVocab, -200);
  row[5] = 1;
  row[6] = 0.5f;
  row[7] = 0;
  row[8] = -1;
  SamplingOptions options;
  options.seed = 4;
  ExpectDistribution(options, row, {{5, std::exp(1)}, {6, std::exp(0.5)}, {7, 1}, {8, std::exp(-1)}});
  options.logit_bias = {{8, 2.0f}};
  ExpectDistribution(options, row, {{5, std::exp(1)}, {6, std::exp(0.5)}, {7, 1}, {8, std::exp(1)}});
  options.bad_words = {{5}};
  options.temperature = 2;
  ExpectDistribution(options, row, {{6, std::exp(0.25)}, {7, 1}, {8, std::exp(0.5)}});
  options.top_k = 2;
  ExpectDistribution(options, row, {{6, std::exp(0.25)}, {8, std::exp(0.5)}});
}

TEST(Sampler, SeedsAndChoices) {
  const auto texts = [](std::optional<uint64_t> seed, int64_t choices) {
    Sampler sampler(kVocab, kEos);
    auto options = Options(1);
    options->seed = seed;
    std::vector<std::vector<int32_t>> result;
    for (int64_t c = 0; c < choices; ++c) sampler.Begin(Id(9, c), options, kPrompt);
    for (int64_t c = 0; c < choices; ++c) result.push_back(Generate(sampler, Id(9, c), 20, RowAt));
    return result;
  };
  const auto a = texts(5, 4), b = texts(5, 4), c = texts(6, 4);
  EXPECT_EQ(a, b);
  EXPECT_NE(a[0], c[0]);
  EXPECT_EQ(std::set(a.begin(), a.end()).size(), 4u);
  EXPECT_EQ(texts(5, 1)[0], a[0]);  // n does not change the first choice
  const auto random = texts(std::nullopt, 2), again = texts(std::nullopt, 2);
  EXPECT_NE(random[0], random[1]);
  EXPECT_NE(random[0], again[0]);
}

// Penalties and bad words may reach the same draw through Commit or as tokens that run ahead.
TEST(Sampler, DrawsAheadAreTheSame) {
  for (int kind = 0; kind < 30; ++kind) {
    auto options = Mixture(kind);
    options->frequency_penalty = 0.8f;
    options->bad_words = {{7}, {8, 9}, {1, 2, 3}, {550, 550}};
    options->logit_bias = {{550, 6.0f}};
    Sampler behind(kVocab, kEos), ahead(kVocab, kEos);
    behind.Begin(Id(1), options, kPrompt);
    ahead.Begin(Id(1), options, kPrompt);
    const auto want = Generate(behind, Id(1), 24, RowAt);
    std::mt19937_64 random(std::random_device{}());
    size_t committed = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const Row row = RowAt(kLastRow + static_cast<int64_t>(i));
      // Some more than are missing, as a caller gives that does not know how far Commit has come.
      const size_t from = committed - std::min<size_t>(committed, random() % 3);
      const std::span<const int32_t> tail = std::span(want).first(i).subspan(from);
      const SampleDraw draw = ahead.Draw({Id(1), kLastRow + static_cast<int64_t>(i), row.data(), tail, nullptr});
      ASSERT_EQ(draw.output.token, want[i]) << "kind " << kind << " token " << i;
      while (committed <= i && random() % 3 != 0) ahead.Commit(Id(1), want[committed++]);
    }
  }
}

// Against the definition, written out for one row.
TEST(Sampler, PenaltiesFollowPromptAndAnswer) {
  auto options = Options();
  options->repetition_penalty = 2;
  options->frequency_penalty = 0.5f;
  options->presence_penalty = 0.25f;
  Row row(kVocab, -50);
  row[10] = 4;     // in the prompt, never drawn: 2
  row[20] = 4.5f;  // drawn twice: 4.5 / 2 - 1 - 0.25 = 1
  row[30] = 1.9f;  // fresh
  const auto greedy = [&](const std::vector<int32_t>& answer) {
    Sampler sampler(kVocab, kEos);
    sampler.Begin(Id(1), options, kPrompt);
    for (const int32_t token : answer) sampler.Commit(Id(1), token);
    return sampler.Draw({Id(1), kLastRow + static_cast<int64_t>(answer.size()), row.data(), {}, nullptr}).output.token;
  };
  EXPECT_EQ(greedy({}), 20);
  EXPECT_EQ(greedy({20, 20}), 10);
  EXPECT_EQ(greedy({20, 10, 20}), 30);  // 10: 2 - 0.75
  row[20] = 5.6f;                       // once: 2.8 - 0.75 = 2.05; twice: 1.55
  EXPECT_EQ(greedy({20}), 20);
  EXPECT_EQ(greedy({20, 20}), 10);
  row[10] = 8;  // in the prompt and drawn once: divided once, 4 - 0.75 = 3.25
  row[20] = -50;
  row[30] = 3;
  EXPECT_EQ(greedy({10}), 10);
  Sampler sampler(kVocab, kEos);
  sampler.Begin(Id(1), options, kPrompt);
  const std::vector<int32_t> ahead = {10};
  EXPECT_EQ(sampler.Draw({Id(1), kLastRow + 1, row.data(), ahead, nullptr}).output.token, 10);
}

TEST(Sampler, MinTokensBarsEveryEnd) {
  auto options = Options();
  options->min_tokens = 2;
  options->stop_token_ids = {50};
  Row row(kVocab, 0);
  row[kEos] = 9;
  row[50] = 8;
  row[60] = 7;
  EXPECT_EQ(DrawOnce(options, row, kLastRow).output.token, 60);
  EXPECT_EQ(DrawOnce(options, row, kLastRow + 1).output.token, 60);
  EXPECT_EQ(DrawOnce(options, row, kLastRow + 2).output.token, kEos);
  row[kEos] = 0;
  EXPECT_EQ(DrawOnce(options, row, kLastRow + 2).output.token, 50);
  options->min_tokens = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(DrawOnce(options, row, kLastRow + 1000).output.token, 60);
}

TEST(Sampler, BadWordsThatBeginEachOther) {
  auto options = Options();
  options->bad_words = {{1, 2, 3}, {1, 2}, {1, 2, 3, 4}, {2, 3}, {5}, {1, 1}, {7, 8, 9}};
  Sampler sampler(kVocab, kEos);
  sampler.Begin(Id(1), options, kPrompt);
  // Wants `first`, else `second`.
  const auto drawn = [&](std::vector<int32_t> answer, int32_t first, int32_t second) {
    Row row(kVocab, 0);
    row[static_cast<size_t>(first)] = 9;
    row[static_cast<size_t>(second)] = 8;
    const int64_t position = kLastRow + static_cast<int64_t>(answer.size());
    return sampler.Draw({Id(1), position, row.data(), answer, nullptr}).output.token;
  };
  EXPECT_EQ(drawn({}, 5, 100), 100);
  EXPECT_EQ(drawn({}, 2, 100), 2);  // a word's later tokens are free without its beginning
  EXPECT_EQ(drawn({1}, 2, 100), 100);
  EXPECT_EQ(drawn({1}, 1, 100), 100);
  EXPECT_EQ(drawn({1}, 3, 100), 3);
  EXPECT_EQ(drawn({2}, 3, 100), 100);
  EXPECT_EQ(drawn({6, 1, 2}, 3, 100), 100);
  EXPECT_EQ(drawn({1, 2, 3}, 4, 100), 100);
  EXPECT_EQ(drawn({0, 2, 3}, 4, 100), 4);
  EXPECT_EQ(drawn({7, 8}, 9, 100), 100);
  EXPECT_EQ(drawn({8}, 9, 100), 9);
  EXPECT_EQ(drawn({7, 6, 8}, 9, 100), 9);
  // The prompt ends with 10: a word is sought in the answer only.
  options = Options();
  options->bad_words = {{10, 4}};
  Row row(kVocab, 0);
  row[4] = 1;
  EXPECT_EQ(DrawOnce(options, row).output.token, 4);
}

TEST(Sampler, BiasForcesAndForbids) {
  std::mt19937_64 random(std::random_device{}());
  for (int i = 0; i < 20; ++i) {
    const Row row = RandomRow(random);
    auto force = Options(1), forbid = Options();
    const auto token = static_cast<int32_t>(random() % kVocab);
    force->logit_bias = {{token, 100.0f}};
    EXPECT_EQ(DrawOnce(force, row).output.token, token);
    const int32_t best = DrawOnce(forbid, row).output.token;
    forbid->logit_bias = {{best, -100.0f}};
    EXPECT_NE(DrawOnce(forbid, row).output.token, best);
  }
}

TEST(Sampler, LogprobsAreOfTheUntouchedRow) {
  std::mt19937_64 random(std::random_device{}());
  const Row row = RandomRow(random);
  const auto best = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  auto options = Options();
  options->logprobs = 3;
  options->bad_words = {{best}};
  const SampleDraw draw = DrawOnce(options, row);
  std::vector<ops::LogprobEntry> top(3);
  ops::LogprobEntry own;
  ASSERT_TRUE(ops::LogprobsReference({kVocab, row.data(), draw.output.token, &own, top}));
  ASSERT_TRUE(draw.output.logprob);
  EXPECT_NE(draw.output.token, best);
  EXPECT_EQ(draw.output.logprob->token, draw.output.token);
  EXPECT_EQ(draw.output.logprob->rank, 2);  // the best is barred, not forgotten
  EXPECT_NEAR(draw.output.logprob->logprob, own.logprob, 1e-5);
  ASSERT_EQ(draw.output.top.size(), 3u);
  EXPECT_EQ(draw.output.top[0].token, best);
  EXPECT_EQ(draw.output.top[1].token, draw.output.token);
  options->logprobs = 0;
  EXPECT_TRUE(DrawOnce(options, row).output.top.empty());
  EXPECT_TRUE(DrawOnce(options, row).output.logprob);
  options->logprobs = -1;
  EXPECT_FALSE(DrawOnce(options, row).output.logprob);
}

TEST(Sampler, PromptLogprobs) {
  std::mt19937_64 random(std::random_device{}());
  std::vector<Row> rows;
  std::vector<PromptRow> jobs;
  for (int i = 0; i < 9; ++i) rows.push_back(RandomRow(random));
  for (const Row& row : rows) jobs.push_back({row.data(), static_cast<int32_t>(random() % kVocab)});
  Sampler sampler(kVocab, kEos);
  ThreadPool pool(3);
  std::vector<TokenOutput> out(1);
  ASSERT_TRUE(sampler.PromptLogprobs(jobs, 2, pool, &out));
  ASSERT_EQ(out.size(), 10u);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<ops::LogprobEntry> top(2);
    ops::LogprobEntry own;
    ASSERT_TRUE(ops::LogprobsReference({kVocab, rows[i].data(), jobs[i].next, &own, top}));
    EXPECT_EQ(out[i + 1].token, jobs[i].next);
    ASSERT_TRUE(out[i + 1].logprob);
    EXPECT_EQ(out[i + 1].logprob->rank, own.rank);
    EXPECT_NEAR(out[i + 1].logprob->logprob, own.logprob, 1e-5);
    EXPECT_EQ(out[i + 1].top.at(1).token, top[1].token);
  }
  rows[4][0] = -HUGE_VALF;
  EXPECT_FALSE(sampler.PromptLogprobs(jobs, 2, pool, &out));
  EXPECT_EQ(out.size(), 10u);
}

TEST(Sampler, WhereEverythingIsBarredThatRequestFails) {
  Row row(kVocab, 0);
  std::vector<uint32_t> only_eos((kVocab + 31) / 32, 0);
  only_eos[0] = 1u << kEos;
  auto options = Options(1);
  EXPECT_EQ(DrawOnce(options, row, kLastRow, Id(1), only_eos.data()).output.token, kEos);
  options->min_tokens = 1;
  const SampleDraw barred = DrawOnce(options, row, kLastRow, Id(1), only_eos.data());
  EXPECT_EQ(barred.output.token, -1);
  EXPECT_EQ(barred.failure, DrawFailure::kNothingAllowed);
  EXPECT_NE(DescribeFailure(barred.failure).find("min_tokens"), std::string_view::npos);
  EXPECT_EQ(DrawOnce(options, row, kLastRow + 1, Id(1), only_eos.data()).output.token, kEos);
  for (const float bad : {HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::quiet_NaN()}) {
    for (const int32_t at : {kEos, 200}) {  // a barred token and another
      Row faulty = row;
      faulty[static_cast<size_t>(at)] = bad;
      for (const int kind : {0, 1, 5, 7}) {
        options = Mixture(kind);
        options->min_tokens = 1;
        const SampleDraw draw = DrawOnce(options, faulty);
        EXPECT_EQ(draw.output.token, -1);
        EXPECT_EQ(draw.failure, DrawFailure::kNotFinite);
      }
    }
  }
}

// A step behind a failed draw was planned before anybody knew.
TEST(Sampler, NothingIsDrawnBehindAFailure) {
  Sampler sampler(kVocab, kEos);
  const auto options = Options();
  options->presence_penalty = 0.5f;  // looks back
  const Row row(kVocab, 0);
  for (const int choice : {0, 1}) sampler.Begin(Id(1, choice), options, kPrompt);
  sampler.Fail(Id(1, 0));
  sampler.Fail(Id(2));
  for (const int ahead : {0, 1, 2}) {
    const SampleDraw draw = sampler.Draw({Id(1, 0), kLastRow + ahead, row.data(), {}, nullptr});
    EXPECT_EQ(draw.output.token, -1);
    EXPECT_EQ(draw.failure, DrawFailure::kBefore);
  }
  EXPECT_GE(sampler.Draw({Id(1, 1), kLastRow, row.data(), {}, nullptr}).output.token, 0);
}

TEST(Sampler, SequencesEndWithNothingLeft) {
  Sampler sampler(kVocab, kEos);
  auto options = Options(1);
  sampler.Begin(Id(1, 0), options, kPrompt);
  sampler.Begin(Id(1, 1), options, kPrompt);
  EXPECT_THROW(sampler.Begin(Id(1, 1), options, kPrompt), std::logic_error);
  sampler.End(Id(1, 0));
  sampler.End(Id(2, 0));
  EXPECT_EQ(sampler.sequences(), 1);
  EXPECT_EQ(options.use_count(), 2);
  sampler.End(Id(1, 1));
  EXPECT_EQ(sampler.sequences(), 0);
  EXPECT_EQ(options.use_count(), 1);
  const Row row(kVocab, 0);
  EXPECT_THROW(sampler.Draw({Id(1, 1), kLastRow, row.data(), {}, nullptr}), std::logic_error);
  auto faulty = Options();
  faulty->logit_bias = {{kVocab, 1.0f}};
  EXPECT_THROW(sampler.Begin(Id(3), faulty, kPrompt), std::logic_error);
  EXPECT_EQ(sampler.sequences(), 0);
  sampler.Begin(Id(3), Options(), kPrompt);  // nothing of the refused one remains
}

}  // namespace
}  // namespace senko::runtime
