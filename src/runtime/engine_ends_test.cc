// How requests of the engine end before their time: refused, cancelled, stopped, failed. Nothing of them is left, and
// nobody beside them notices.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "runtime/engine_test_client.h"
#include "runtime/load.h"

namespace senko::runtime {
namespace {

// A request that bars every token fails in its first draw, with a row of it already on the way in the next step. Its
// history has a hole there, which nobody else may notice.
TEST(EngineEnds, AFailedDrawEndsItsRequestOnly) {
  EngineOptions options = TestEngineOptions("mini10");
  const auto engine = LoadEngine(options);
  const GenerationRequest ordinary = Ask(60, 1, 40, engine->limits());
  const auto alone = Submit(*engine, ordinary);
  alone->Wait();
  ASSERT_EQ(alone->tokens[0].size(), 40u);
  for (const bool looks_back : {false, true}) {
    const auto beside = Submit(*engine, ordinary);
    beside->WaitForTokens(2);
    GenerationRequest hopeless = Ask(5, 2, 20, engine->limits());
    hopeless.sampling.min_tokens = 1;
    for (int32_t v = 0; v < engine->limits().vocab_size; ++v) hopeless.sampling.bad_words.push_back({v});
    if (looks_back) hopeless.sampling.presence_penalty = 0.5f;
    const auto failed = Submit(*engine, hopeless);
    failed->Wait();
    EXPECT_EQ(failed->finish[0], FinishReason::kError);
    EXPECT_NE(failed->error.find("bad_words"), std::string::npos) << failed->error;
    beside->Wait();
    EXPECT_EQ(beside->finish[0], FinishReason::kLength) << beside->error;
    EXPECT_EQ(beside->Ids(), alone->Ids());
  }
}

TEST(EngineEnds, StopsCancelsAndShutdownGiveEverythingBack) {
  EngineOptions options = TestEngineOptions("mini10");
  const auto engine = LoadEngine(options);
  std::vector<std::shared_ptr<Collector>> sinks;
  std::vector<uint64_t> ids;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    sinks.push_back(std::make_shared<Collector>(1));
    ids.push_back(engine->Submit(Ask(60, seed, 300, engine->limits()), sinks.back()));
  }
  sinks[0]->WaitForTokens(3);
  engine->Stop(ids[0], 0);
  engine->Cancel(ids[1]);
  engine->Cancel(ids[19]);  // still waiting
  engine->Cancel(999);
  engine->Stop(999, 3);
  sinks[0]->Wait();
  EXPECT_EQ(sinks[0]->finish[0], FinishReason::kStop);
  sinks[1]->Wait();
  sinks[19]->Wait();
  EXPECT_EQ(sinks[19]->finish[0], FinishReason::kCancelled);
  EXPECT_TRUE(sinks[19]->tokens[0].empty());
  for (size_t i = 2; i < 19; ++i) engine->Cancel(ids[i]);
  for (const auto& sink : sinks) sink->Wait();
  for (int n = 0; n < 30000 && engine->stats().slots_in_use > 0; ++n)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(engine->stats().slots_in_use, 0);
  EXPECT_EQ(engine->stats().pages_in_use, 0);
  EXPECT_EQ(engine->stats().running + engine->stats().waiting, 0);

  const auto last = Submit(*engine, Ask(60, 50, 300, engine->limits()));
  last->WaitForTokens(1);
  engine->Shutdown();
  last->Wait();
  EXPECT_EQ(last->finish[0], FinishReason::kCancelled);
  EXPECT_THROW(Submit(*engine, Ask(60, 50, 300, engine->limits())), Error);
}

TEST(EngineEnds, RefusesByNameAndGoesOn) {
  EngineOptions options = TestEngineOptions("mini10");
  options.max_num_waiting = 4;
  options.max_num_seqs = 1;
  const auto engine = LoadEngine(options);
  const EngineLimits& limits = engine->limits();
  auto refused = [&](const std::function<void(GenerationRequest&)>& change, const std::string& field) {
    GenerationRequest request = Ask(10, 1, 5, limits);
    change(request);
    try {
      Submit(*engine, request);
      FAIL() << field;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), testing::HasSubstr(field));
    }
  };
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const auto vocab = static_cast<int32_t>(limits.vocab_size);
  refused([](auto& r) { r.prompt.clear(); }, "prompt");
  refused([&](auto& r) { r.prompt[3] = vocab; }, "prompt[3]");
  refused([&](auto& r) { r.prompt[3] = -1; }, "prompt[3]");
  refused([&](auto& r) { r.prompt[3] = limits.image_token; }, "image");
  refused([&](auto& r) { r.prompt.assign(static_cast<size_t>(limits.max_model_len), 3); }, "prompt");
  refused([](auto& r) { r.n = 0; }, "n:");
  refused([](auto& r) { r.n = kMaxChoices + 1; }, "n:");
  refused([](auto& r) { r.sampling.max_tokens = 0; }, "max_tokens");
  refused([](auto& r) { r.sampling.min_tokens = 6; }, "min_tokens");
  for (const float bad : {nan, inf, -1.0f}) {
    refused([&](auto& r) { r.sampling.temperature = bad; }, "temperature");
    refused([&](auto& r) { r.sampling.top_p = bad; }, "top_p");
    refused([&](auto& r) { r.sampling.min_p = bad; }, "min_p");
    refused([&](auto& r) { r.sampling.repetition_penalty = bad; }, "repetition_penalty");
  }
  for (const float bad : {nan, inf, -2.5f, 2.5f}) {
    refused([&](auto& r) { r.sampling.presence_penalty = bad; }, "presence_penalty");
    refused([&](auto& r) { r.sampling.frequency_penalty = bad; }, "frequency_penalty");
  }
  refused([](auto& r) { r.sampling.top_k = -2; }, "top_k");
  refused([&](auto& r) { r.sampling.logit_bias = {{vocab, 1.0f}}; }, "logit_bias");
  refused([&](auto& r) { r.sampling.logit_bias = {{1, inf}}; }, "logit_bias");
  refused([&](auto& r) { r.sampling.stop_token_ids = {vocab}; }, "stop_token_ids");
  refused([](auto& r) { r.sampling.bad_words = {{}}; }, "bad_words");
  refused([](auto& r) { r.sampling.logprobs = kMaxLogprobs + 1; }, "logprobs");

  const auto running = Submit(*engine, Ask(10, 1, 200, limits));
  running->WaitForTokens(1);
  std::vector<std::shared_ptr<Collector>> waiting;
  int overloaded = 0;
  for (int i = 0; i < 8; ++i) {
    try {
      waiting.push_back(Submit(*engine, Ask(10, 2, 1, limits)));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOverloaded);
      ++overloaded;
    }
  }
  EXPECT_GE(overloaded, 3);
  for (const auto& sink : waiting) sink->Wait();
  running->Wait();
}

// From many threads at once, again and again: as many wait as may, whatever the engine's thread has taken over by then,
// and a request is one however many choices it has.
TEST(EngineEnds, ExactlySoManyWait) {
  constexpr int kMost = 60, kThreads = 4, kEach = 60;
  EngineOptions options = TestEngineOptions("mini10");
  options.max_num_waiting = kMost;
  options.max_num_seqs = 1;
  const auto engine = LoadEngine(options);
  const EngineLimits& limits = engine->limits();
  for (int round = 0; round < 5; ++round) {
    auto blocker = std::make_shared<Collector>();
    const uint64_t blocking = engine->Submit(Ask(10, 1, limits.max_model_len - 10, limits), blocker);
    blocker->WaitForTokens(1);
    std::mutex mutex;
    std::vector<std::pair<uint64_t, std::shared_ptr<Collector>>> in;
    std::atomic<int> refused = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) {
          GenerationRequest request = Ask(10, 2, 1, limits);
          request.n = t == 0 ? 1 : kMaxChoices;  // many take the engine's thread long to take over
          auto sink = std::make_shared<Collector>(request.n);
          try {
            const uint64_t id = engine->Submit(request, sink);
            const std::lock_guard lock(mutex);
            in.emplace_back(id, sink);
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kOverloaded);
            ++refused;
          }
          std::this_thread::yield();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_FALSE(blocker->finish[0]) << "the blocker ended; the count says nothing";
    EXPECT_EQ(in.size(), static_cast<size_t>(kMost));
    EXPECT_EQ(refused, kThreads * kEach - kMost);
    EXPECT_EQ(engine->stats().waiting, kMost);
    // One that leaves without having run makes room for one.
    engine->Cancel(in[0].first);
    in[0].second->Wait();
    for (int n = 0; n < 1000 && engine->stats().waiting == kMost; ++n) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    in.emplace_back(0, Submit(*engine, Ask(10, 2, 1, limits)));
    EXPECT_THROW(Submit(*engine, Ask(10, 2, 1, limits)), Error);
    for (const auto& [id, sink] : in) engine->Cancel(id);
    engine->Cancel(blocking);
    for (const auto& [id, sink] : in) sink->Wait();
    EXPECT_EQ(engine->stats().waiting, 0);
  }
}

// A copy of the model whose last norm overflows, so that no logit is finite.
std::filesystem::path SpoiltModel(const std::string& config) {
  const std::filesystem::path from = TestModel(config), to = from.string() + "_spoilt";
  std::filesystem::remove_all(to);
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  std::fstream file(to / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string header(size, ' ');
  file.read(header.data(), static_cast<std::streamsize>(size));
  const Json tensors = ParseJson(header, "header");
  for (const auto& [name, tensor] : tensors.items()) {
    if (name != "norm.weight" && name != "model.norm.weight") continue;
    const auto begin = tensor.at("data_offsets")[0].get<uint64_t>(), end = tensor.at("data_offsets")[1].get<uint64_t>();
    file.seekp(static_cast<std::streamoff>(sizeof size + size + begin));
    file << std::string(end - begin, '\x7F');  // about 3.4e38, in bf16 and in float
    EXPECT_TRUE(file.flush().good());
    return to;
  }
  ADD_FAILURE() << "no last norm in " << header.substr(0, 1000);
  return to;
}

// A prompt that cannot be computed ends all of its choices, and each is told why.
TEST(EngineEnds, EveryChoiceOfAFailedPromptHasItsReason) {
  EngineOptions options = TestEngineOptions("mini10");
  options.model = SpoiltModel("mini10").string();
  const auto engine = LoadEngine(options);
  GenerationRequest request = Ask(150, 1, 5, engine->limits());  // the first step of three draws nothing
  request.n = 3;
  request.sampling.prompt_logprobs = 0;
  const auto failed = Submit(*engine, request);
  failed->Wait();
  for (int choice = 0; choice < request.n; ++choice) {
    EXPECT_EQ(failed->finish[static_cast<size_t>(choice)], FinishReason::kError);
    EXPECT_FALSE(failed->errors[static_cast<size_t>(choice)].empty()) << choice;
  }
  EXPECT_FALSE(failed->request_fault);
}

// What nobody could answer is told apart from what went wrong here.
TEST(EngineEnds, ARequestThatBarsEveryTokenIsAtFault) {
  const auto engine = LoadEngine(TestEngineOptions("mini10"));
  GenerationRequest request = Ask(20, 1, 5, engine->limits());
  request.sampling.min_tokens = 1;
  for (int32_t id = 0; id < engine->limits().vocab_size; ++id) request.sampling.stop_token_ids.push_back(id);
  const auto failed = Submit(*engine, request);
  failed->Wait();
  EXPECT_EQ(failed->finish[0], FinishReason::kError);
  EXPECT_TRUE(failed->request_fault);
  EXPECT_NE(failed->errors[0].find("stop_token_ids"), std::string::npos) << failed->errors[0];
}

class Faulty : public Collector {
 public:
  void OnOutput(OutputChunk) override { throw std::logic_error("a fault of our own"); }
};

// With nobody who reads what it says.
void EndByAFault() {
  ::alarm(100);
  int ends[2];
  if (::pipe(ends) != 0 || ::fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0) std::_Exit(2);
  const std::string page(4096, 'x');
  while (::write(ends[1], page.data(), page.size()) > 0) {
  }
  ::fcntl(ends[1], F_SETFL, 0);
  ::dup2(ends[1], STDERR_FILENO);
  const auto engine = LoadEngine(TestEngineOptions("mini10"));
  const auto sink = std::make_shared<Faulty>();
  engine->Submit(Ask(10, 1, 5, engine->limits()), sink);
  for (;;) ::pause();
}

// A fault of our own ends the process, and its message does not keep it.
TEST(EngineEndsDeathTest, AFaultIsTheEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(EndByAFault(), testing::ExitedWithCode(1), "");
}

// A long prompt in pieces beside short ones, cancelled at random: nothing is left and nobody is disturbed.
TEST(EngineEnds, RandomClientsLeaveNothing) {
  EngineOptions options = TestEngineOptions("mini10");
  const auto engine = LoadEngine(options);
  std::mt19937 random(3);
  std::vector<std::pair<uint64_t, std::shared_ptr<Collector>>> open;
  for (int n = 0; n < 60; ++n) {
    GenerationRequest request = Ask(1 + static_cast<int64_t>(random() % 200), random() % 4,
                                    1 + static_cast<int64_t>(random() % 30), engine->limits());
    request.n = random() % 5 == 0 ? 3 : 1;
    auto sink = std::make_shared<Collector>(request.n);
    open.emplace_back(engine->Submit(request, sink), sink);
    if (random() % 3 == 0) engine->Cancel(open[random() % open.size()].first);
    if (random() % 7 == 0) open[random() % open.size()].second->Wait();
  }
  for (auto& [id, sink] : open) sink->Wait();
  for (int n = 0; n < 30000 && engine->stats().slots_in_use > 0; ++n)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.slots_in_use, 0);
  EXPECT_EQ(stats.pages_in_use, 0);
  EXPECT_EQ(stats.encoder_rows, stats.decoder_rows + stats.trimmed_rows);
}

}  // namespace
}  // namespace senko::runtime
