// Random traffic through the scheduler, every token against an oracle that knows nothing of pages, slots or steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "engine/ghost_model.h"
#include "engine/scheduler.h"

namespace senko::engine {
namespace {

using ghost::Shape;

struct Setting {
  const char* name;
  bool encoder_replay = true;
  config::DecoderReplay decoder_replay = config::DecoderReplay::kTrim;
  bool prefix_caching = true;
  int64_t steps_in_flight = 2;
  int64_t verify_rows = 1;
  int64_t max_rows = 24;
  int64_t window = 6;
  int64_t threshold = 0;
};

constexpr int32_t kVocab = 5;
constexpr int32_t kEos = 4;
constexpr int64_t kMaxLen = 96;
constexpr int64_t kSlots = 6;
constexpr int64_t kBlock = 4;

config::ModelConfig GhostConfig(int64_t window) {
  config::ModelConfig config;
  config.window = window;
  config.max_positions = kMaxLen;
  config.num_layers = ghost::kLayers;
  config.kv_sources = {0, ghost::kSeam};
  config.engram.max_ngram = 4;
  return config;
}

// A request's choice as its client sees it, and the oracle of its present residency.
struct Client {
  Request request;
  std::vector<int32_t> tokens;           // the prompt and what was delivered
  std::optional<int64_t> admitted_with;  // hit length of a residency whose first span has not been planned yet
  std::optional<ghost::Oracle> oracle;
  bool finished = false;  // kept while a step that runs may still name it
};

// A residency that begins with some step.
struct Begin {
  int64_t hit = 0;
  std::vector<int32_t> pages;
};

class World {
 public:
  World(const Setting& setting, uint64_t seed)
      : setting_(setting),
        config_(GhostConfig(setting.window)),
        random_(seed),
        pages_(ghost::PageLayoutOf(MakeShape(setting)), kMaxLen / 4 * 3 / 2),  // one and a half longest sequences
        slots_(ghost::SlotLayoutOf(MakeShape(setting)), kSlots),
        snapshots_(ghost::SlotLayoutOf(MakeShape(setting)), 5 * ghost::SlotLayoutOf(MakeShape(setting)).slot_bytes),
        executor_(MakeShape(setting), pages_, slots_, snapshots_, kVocab),
        scheduler_(config_, MakeOptions(setting), pages_, slots_, snapshots_) {
    for (int d = 0; d < 4; ++d) {
      documents_.emplace_back();
      for (int i = 0; i < 80; ++i) documents_.back().push_back(Pick(kVocab - 1));
    }
  }

  static Shape MakeShape(const Setting& setting) {
    Shape shape;
    shape.window = setting.window;
    shape.ring_rows = setting.window + setting.verify_rows + 1;
    shape.pending_rows = 1 + setting.verify_rows / 2;
    return shape;
  }
  static SchedulerOptions MakeOptions(const Setting& setting) {
    SchedulerOptions options;
    options.max_model_len = kMaxLen;
    options.max_rows = setting.max_rows;
    options.long_prefill_token_threshold = setting.threshold;
    options.verify_rows = setting.verify_rows;
    options.steps_in_flight = setting.steps_in_flight;
    options.prefix_caching = setting.prefix_caching;
    options.encoder_replay = setting.encoder_replay;
    options.decoder_replay = setting.decoder_replay;
    return options;
  }

  void Run(int64_t steps) {
    for (int64_t n = 0; n < steps && !testing::Test::HasFatalFailure(); ++n) {
      if (live_ < 14 && Pick(3) == 0) Arrive();
      if (live_ > 0 && Pick(25) == 0) Cancel();
      Turn();
    }
    for (int64_t n = 0; n < 20000 && !testing::Test::HasFatalFailure() && !scheduler_.idle(); ++n) Turn();
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_TRUE(scheduler_.idle()) << "somebody starved";
    ASSERT_EQ(live_, 0);
    DropFinished();
    ASSERT_TRUE(clients_.empty());
    EXPECT_EQ(pages_.free_pages(), pages_.num_pages());
    EXPECT_EQ(slots_.free_slots(), slots_.num_slots());
    EXPECT_EQ(pages_.remembered_free_pages(), scheduler_.prefix_index().size());
    EXPECT_EQ(scheduler_.stats().committed_tokens, tokens_);
    EXPECT_EQ(scheduler_.stats().encoder_rows, encoder_rows_);
    EXPECT_GT(tokens_, 0u);
    if (steps >= 10000) {
      EXPECT_GT(failed_steps_, 10);
    }
  }
  const SchedulerStats& stats() const { return scheduler_.stats(); }
  uint64_t schedule_hash() const { return schedule_hash_; }

 private:
  int32_t Pick(int32_t below) { return static_cast<int32_t>(random_() % static_cast<uint64_t>(below)); }

  void Arrive() {
    Request request;
    request.id = next_id_++;
    // A beginning of a shared document and something of its own, so that prefixes meet.
    const auto& document = documents_[static_cast<size_t>(Pick(4))];
    const int shared = Pick(60);
    request.prompt.ids.assign(document.begin(), document.begin() + shared);
    for (int own = 1 + Pick(Pick(4) == 0 ? 30 : 6); own > 0; --own) request.prompt.ids.push_back(Pick(kVocab - 1));
    request.choices = Pick(6) == 0 ? 2 + Pick(3) : 1;
    request.priority = Pick(8) == 0 ? Pick(3) : 0;
    request.cache_salt = Pick(6) == 0 ? "other" : "";
    request.max_tokens = 1 + Pick(Pick(3) == 0 ? 60 : 10);
    request.min_tokens = Pick(4) == 0 ? Pick(5) : 0;
    if (Pick(5) != 0) request.stop_tokens = {kEos};
    request.prompt_logits = Pick(15) == 0;
    for (int32_t choice = 0; choice < request.choices; ++choice) {
      Client client;
      client.request = request;
      client.tokens = request.prompt.ids;
      clients_[SequenceId(request.id, choice)] = std::move(client);
      ++live_;
    }
    scheduler_.Add(std::move(request));
  }

  void Cancel() {
    auto victim = clients_.begin();
    std::advance(victim, Pick(static_cast<int32_t>(clients_.size())));
    const uint64_t request = RequestOf(victim->first);
    if (Pick(2) == 0) {
      scheduler_.EndRequest(request, Finish::kCancelled);
    } else {
      scheduler_.End(victim->first, Finish::kStop);
    }
    TakeEvents(nullptr, nullptr);
  }

  // Plans, runs or advances, in any order that is allowed.
  void Turn() {
    const int what = Pick(3);
    if (what == 0 || planned_.empty()) {
      auto plan = scheduler_.Plan();
      TakeEvents(nullptr, nullptr);
      if (plan) {
        CheckPlan(*plan);
        planned_.push_back(std::move(*plan));
      }
    } else if (what == 1 && ran_.size() < planned_.size()) {
      RunStep(planned_[ran_.size()]);
    } else if (!ran_.empty()) {
      const StepPlan plan = std::move(planned_.front());
      planned_.pop_front();
      const StepResult result = std::move(ran_.front());
      ran_.pop_front();
      if (!result.ran) {
        ++failed_steps_;
        for (const StepPlan& behind : planned_) LoseChoices(behind);
        const std::set<int32_t> slots = LoadedSlots(plan);
        for (const auto& [sequence, client] : clients_) {
          const Sequence* s = scheduler_.Find(sequence);
          if (s != nullptr && slots.contains(s->residency.slot.index())) lost_.insert(sequence);
        }
      }
      scheduler_.Advance(result);
      TakeEvents(&plan, &result);
      DropFinished();
    }
  }

  void DropFinished() {
    std::set<uint64_t> named;
    for (const StepPlan& plan : planned_) {
      for (const PlannedSample& sample : plan.samples) named.insert(sample.sequence);
      for (const PlannedSpan& span : plan.spans) named.insert(span.sequence);
    }
    std::erase_if(clients_,
                  [&](const auto& client) { return client.second.finished && !named.contains(client.first); });
  }

  void CheckPlan(const StepPlan& plan) {
    ASSERT_LE(plan.rows(), setting_.max_rows);
    std::set<int32_t> slots;
    for (const PlannedSpan& span : plan.spans) {
      ASSERT_TRUE(slots.insert(span.slot).second) << "two sequences in one slot";
      encoder_rows_ += static_cast<uint64_t>(span.rows());
      schedule_hash_ =
          ghost::Mix(ghost::Mix(schedule_hash_, span.sequence), static_cast<uint64_t>(span.begin * 1000 + span.end));
      const auto found = clients_.find(span.sequence);
      ASSERT_TRUE(found != clients_.end() && !found->second.finished) << "a span for a choice that has ended";
      Client& client = found->second;
      if (client.admitted_with) {
        // The first chunk may end inside the replay, before the last adopted page.
        Begin& begin = begins_[{plan.step, span.sequence}];
        begin.hit = *client.admitted_with;
        for (const cache::PageRef& page : scheduler_.Find(span.sequence)->residency.pages) {
          begin.pages.push_back(page.index());
        }
        client.admitted_with.reset();
      }
    }
  }

  int64_t KeepBegin(const Client& client) const {
    // The halo is exact where anybody looks: rows from the prompt's last on.
    if (client.request.prompt_logits || setting_.decoder_replay != config::DecoderReplay::kTrim) return 0;
    return std::max<int64_t>(client.request.prompt.size() - setting_.window, 0);
  }

  // The oracle of a residency that begins: under replay it takes over what the adopted pages hold at this moment.
  ghost::Oracle NewOracle(const Client& client, const Begin& begin) {
    const int64_t hit = begin.hit;
    const Shape shape = MakeShape(setting_);
    std::vector<uint64_t> entries1, entries2;
    std::vector<int32_t> before;
    if (hit > 0) {
      EXPECT_FALSE(client.request.prompt_logits);
      for (int64_t page = 0; page < hit / kBlock; ++page) {
        const int32_t at = begin.pages.at(static_cast<size_t>(page));
        uint64_t sum = 0;
        for (int64_t e = 0; e < kBlock; ++e) sum = ghost::Mix(sum, executor_.PageEntry1(at, e));
        for (int64_t e = 0; e < kBlock / 2; ++e) sum = ghost::Mix(sum, executor_.PageEntry2(at, e));
        const std::vector<int32_t> prefix(client.tokens.begin(), client.tokens.begin() + (page + 1) * kBlock);
        EXPECT_TRUE((written_[{client.request.cache_salt, prefix}].contains(sum)))
            << "an adopted page does not hold what anybody wrote for its prefix";
        if (!setting_.encoder_replay) continue;
        for (int64_t e = 0; e < kBlock; ++e) entries1.push_back(executor_.PageEntry1(at, e));
        for (int64_t e = 0; e < kBlock / 2; ++e) entries2.push_back(executor_.PageEntry2(at, e));
      }
      if (setting_.encoder_replay) {
        EXPECT_GT(hit, setting_.window);
        before.assign(client.tokens.begin(), client.tokens.begin() + (hit - setting_.window));
      }
    }
    return ghost::Oracle(shape, before, entries1, entries2, KeepBegin(client));
  }

  static std::set<int32_t> LoadedSlots(const StepPlan& plan) {
    std::set<int32_t> slots;
    for (const Copy& copy : plan.load_snapshots) slots.insert(copy.to);
    return slots;
  }

  // Those that go on from what a failed step lost.
  void LoseChoices(const StepPlan& plan) {
    for (const PlannedSample& sample : plan.samples) {
      if (lost_.contains(plan.spans[static_cast<size_t>(sample.span)].sequence)) lost_.insert(sample.sequence);
    }
  }

  void RunStep(const StepPlan& plan) {
    for (const PlannedSpan& span : plan.spans) {
      const auto begin = begins_.find({plan.step, span.sequence});
      const auto found = clients_.find(span.sequence);
      if (begin == begins_.end()) continue;
      if (found != clients_.end()) found->second.oracle.emplace(NewOracle(found->second, begin->second));
      begins_.erase(begin);
    }
    LoseChoices(plan);
    for (const PlannedSpan& span : plan.spans) {
      if (unloaded_.contains(span.slot)) lost_.insert(span.sequence);
    }
    unloaded_.clear();
    if (Pick(80) == 0) {
      for (const PlannedSpan& span : plan.spans) lost_.insert(span.sequence);
      for (const PlannedSample& sample : plan.samples) lost_.insert(sample.sequence);
      ran_.push_back(executor_.Fail(plan));
      unloaded_ = LoadedSlots(plan);
      last_tokens_ = std::vector<int32_t>(plan.samples.size(), 0);
      return;
    }
    const int propose = setting_.verify_rows > 1 ? Pick(static_cast<int32_t>(setting_.verify_rows) + 1) : 0;
    StepResult result = executor_.Run(plan, propose, random_());
    for (size_t i = 0; i < plan.spans.size(); ++i) CheckSpan(plan, static_cast<int64_t>(i));
    for (const PlannedSample& sample : plan.samples) {
      const PlannedSpan& span = plan.spans[static_cast<size_t>(sample.span)];
      const auto child = clients_.find(sample.sequence), parent = clients_.find(span.sequence);
      if (sample.sequence == span.sequence || child == clients_.end() || parent == clients_.end()) continue;
      child->second.oracle = parent->second.oracle;  // a choice goes on from the prompt's state
    }
    last_tokens_ = result.tokens;
    if (!plan.samples.empty() && Pick(60) == 0) {  // nothing to draw, found when the step has run
      const auto at = static_cast<size_t>(Pick(static_cast<int32_t>(plan.samples.size())));
      result.tokens[at] = Pick(2) == 0 ? kNotFinite : kNoToken;
      spoiled_.insert(plan.samples[at].sequence);
    }
    ran_.push_back(std::move(result));
  }

  void CheckSpan(const StepPlan& plan, int64_t index) {
    const PlannedSpan& span = plan.spans[static_cast<size_t>(index)];
    const auto found = clients_.find(span.sequence);
    if (found == clients_.end() || lost_.contains(span.sequence)) return;
    Client& client = found->second;
    ASSERT_TRUE(client.oracle);
    ghost::Oracle& oracle = *client.oracle;
    oracle.Truncate(span.begin);  // what was rejected, or drawn by a step that a preemption made void
    while (oracle.size() < span.begin) Feed(client, client.tokens[static_cast<size_t>(oracle.size())]);
    for (int64_t p = span.begin; p < span.end; ++p) {
      TokenSource id = plan.ids[static_cast<size_t>(span.first_id + p - span.ids_begin)];
      if (id < 0) id = last_tokens_.at(static_cast<size_t>(-1 - id));
      if (p < static_cast<int64_t>(client.tokens.size())) {
        ASSERT_EQ(id, client.tokens[static_cast<size_t>(p)]);
      }
      const uint64_t expected = Feed(client, id);
      const auto ran = executor_.logits().find({index, p});
      if (setting_.decoder_replay == config::DecoderReplay::kHalo && p < client.request.prompt.size() - 1) continue;
      ASSERT_EQ(ran != executor_.logits().end(), expected != 0) << "row " << p;
      if (expected != 0) {
        ASSERT_EQ(ran->second, expected) << setting_.name << " row " << p << " of " << span.sequence;
      }
    }
  }

  uint64_t Feed(Client& client, int32_t token) {
    const uint64_t logit = client.oracle->Next(token);
    if (client.oracle->size() % kBlock == 0) {
      const int64_t page = client.oracle->size() / kBlock - 1;
      written_[{client.request.cache_salt, client.oracle->tokens()}].insert(client.oracle->PageSum(page));
    }
    return logit;
  }

  void TakeEvents(const StepPlan* plan, const StepResult* result) {
    for (const Event& event : scheduler_.TakeEvents()) {
      const auto found = clients_.find(event.sequence);
      ASSERT_TRUE(found != clients_.end() && !found->second.finished) << "an event after the end";
      Client& client = found->second;
      const auto generated = static_cast<int64_t>(client.tokens.size()) - client.request.prompt.size();
      switch (event.kind) {
        case Event::Kind::kScheduled:
          EXPECT_EQ(event.cached_tokens % kBlock, 0);
          EXPECT_LT(event.cached_tokens, static_cast<int64_t>(client.tokens.size()));
          client.admitted_with = event.cached_tokens;
          break;
        case Event::Kind::kToken: {
          ASSERT_NE(plan, nullptr);
          const PlannedSample& sample = plan->samples[static_cast<size_t>(event.sample)];
          EXPECT_EQ(sample.sequence, event.sequence);
          EXPECT_EQ(sample.position + 1, static_cast<int64_t>(client.tokens.size()));
          EXPECT_EQ(event.token, result->tokens[static_cast<size_t>(event.sample)]);
          client.tokens.push_back(event.token);
          ++tokens_;
          break;
        }
        case Event::Kind::kFinished: {
          const Request& r = client.request;
          const bool eos =
              generated > 0 && !r.stop_tokens.empty() && client.tokens.back() == kEos && generated >= r.min_tokens;
          const bool length = generated == r.max_tokens || static_cast<int64_t>(client.tokens.size()) == kMaxLen;
          if (event.finish == Finish::kNumerical || event.finish == Finish::kNothingToDraw) {
            EXPECT_TRUE(spoiled_.contains(event.sequence) || lost_.contains(event.sequence) ||
                        lost_.contains(SequenceId(RequestOf(event.sequence), 0)))
                << "a neighbour's failure";
          } else if (plan != nullptr) {
            EXPECT_EQ(event.finish, eos ? Finish::kStop : Finish::kLength);
            EXPECT_TRUE(eos || length);
          }
          client.finished = true;
          --live_;
          break;
        }
      }
    }
  }

  Setting setting_;
  config::ModelConfig config_;
  std::mt19937_64 random_;
  cache::PagePool pages_;
  cache::SlotPool slots_;
  cache::SnapshotStore snapshots_;
  ghost::Executor executor_;
  Scheduler scheduler_;
  std::vector<std::vector<int32_t>> documents_;
  std::map<uint64_t, Client> clients_;
  std::map<std::pair<uint64_t, uint64_t>, Begin> begins_;  // by (step, sequence)
  std::map<std::pair<std::string, std::vector<int32_t>>, std::set<uint64_t>>
      written_;  // by salt and prefix up to a page's end
  std::deque<StepPlan> planned_;
  std::deque<StepResult> ran_;
  std::vector<int32_t> last_tokens_;
  std::set<uint64_t> lost_;     // named by a step that failed
  std::set<int32_t> unloaded_;  // slots that the step before should have loaded
  std::set<uint64_t> spoiled_;  // with a row from which nothing was drawn
  int64_t failed_steps_ = 0;
  int64_t live_ = 0;
  uint64_t next_id_ = 1, tokens_ = 0, encoder_rows_ = 0, schedule_hash_ = 0;
};

void EveryTokenIsTheOraclesAndNothingLeaks(const Setting& setting, int64_t turns) {
  World world(setting, 1);
  world.Run(turns);
  const SchedulerStats& stats = world.stats();
  std::printf(
      "%llu steps, %llu tokens, %llu preemptions, hits %llu of %llu, replayed %llu, trimmed %llu of %llu, discarded "
      "%llu\n",
      static_cast<unsigned long long>(stats.steps), static_cast<unsigned long long>(stats.committed_tokens),
      static_cast<unsigned long long>(stats.preemptions), static_cast<unsigned long long>(stats.prefix_hits),
      static_cast<unsigned long long>(stats.prefix_queries), static_cast<unsigned long long>(stats.replayed_rows),
      static_cast<unsigned long long>(stats.trimmed_rows), static_cast<unsigned long long>(stats.encoder_rows),
      static_cast<unsigned long long>(stats.discarded_tokens));
  // The traffic must reach what it is there for.
  EXPECT_GT(stats.preemptions, 10u);
  if (setting.prefix_caching) {
    EXPECT_GT(stats.prefix_hits, 100u);
  }
  if (setting.encoder_replay && setting.prefix_caching) {
    EXPECT_GT(stats.replayed_rows, 100u);
  }
  if (setting.decoder_replay == config::DecoderReplay::kTrim) {
    EXPECT_GT(stats.trimmed_rows, 100u);
  }
  if (setting.steps_in_flight == 2) {
    EXPECT_GT(stats.discarded_tokens, 10u);
  }
}

class SchedulerRandom : public testing::TestWithParam<Setting> {};

TEST_P(SchedulerRandom, EveryTokenIsTheOraclesAndNothingLeaks) {
  EveryTokenIsTheOraclesAndNothingLeaks(GetParam(), 60'000);  // more than 100,000 steps over all settings
}

// For `./senko.sh test --all`: 1.7 million steps over all settings, about a minute of one CPU.
TEST_P(SchedulerRandom, DISABLED_Long) { EveryTokenIsTheOraclesAndNothingLeaks(GetParam(), 1'000'000); }

TEST_P(SchedulerRandom, TheSameSeedGivesTheSameSchedule) {
  World a(GetParam(), 5), b(GetParam(), 5), c(GetParam(), 6);
  a.Run(500);
  b.Run(500);
  c.Run(500);
  EXPECT_EQ(a.schedule_hash(), b.schedule_hash());
  EXPECT_NE(a.schedule_hash(), c.schedule_hash());
}

using config::DecoderReplay;
INSTANTIATE_TEST_SUITE_P(Settings, SchedulerRandom,
                         testing::Values(Setting{"replay"}, Setting{"one_step", true, DecoderReplay::kTrim, true, 1},
                                         Setting{"drafts", true, DecoderReplay::kTrim, true, 2, 4, 32},
                                         Setting{"exact", false, DecoderReplay::kFull},
                                         Setting{"exact_drafts", false, DecoderReplay::kFull, true, 2, 3, 30},
                                         Setting{"snapshots_and_trim", false, DecoderReplay::kTrim},
                                         Setting{"halo", true, DecoderReplay::kHalo, false},
                                         Setting{"odd_window", true, DecoderReplay::kFull, true, 2, 1, 7, 5, 3}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace senko::engine
