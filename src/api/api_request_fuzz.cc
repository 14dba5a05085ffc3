// Any bytes as any route's body: one answer, never our own fault, errors small and JSON.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "api/fake_engine.h"
#include "api/routes.h"
#include "api/test_tokenizer.h"

namespace senko::api {
namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

class CheckedExchange : public Exchange {
 public:
  void Reply(int status, std::string_view, std::string body,
             std::vector<std::pair<std::string, std::string>>) override {
    const std::lock_guard lock(mutex_);
    Require(!begun_ && !done_);
    Require(status == 200 || status == 400 || status == 404);
    Require(status == 200 || body.size() < 4096);
    Require(ParseJson(body, "answer").is_object());
    Finish();
  }
  void BeginEvents() override {
    const std::lock_guard lock(mutex_);
    Require(!begun_ && !done_);
    begun_ = true;
  }
  void Event(std::string data, std::string_view) override {
    const std::lock_guard lock(mutex_);
    Require(begun_ && !done_);
    Require(data == "[DONE]" || ParseJson(data, "event").is_object());
    Require(data.find('\n') == std::string::npos);
  }
  void EndEvents() override {
    const std::lock_guard lock(mutex_);
    Require(begun_ && !done_);
    Finish();
  }
  bool gone() const override { return false; }
  void OnGone(std::function<void()>) override {}
  void Wait() {
    std::unique_lock lock(mutex_);
    Require(changed_.wait_for(lock, std::chrono::seconds(10), [&] { return done_; }));
  }

 private:
  void Finish() {
    done_ = true;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool begun_ = false, done_ = false;
};

struct World {
  text::Tokenizer tokenizer = ScriptTokenizer({"why</think>", "one ", "\n\n<｜DSML｜ calls>\n<｜DSML｜ inv",
                                               "oke name=\"f\">\n<", "/｜DSML｜ invoke>\n</｜DSML｜ calls>"});
  text::ToolsPrompt tools_prompt = text::ToolsPrompt::FromTemplate(kTestToolsTemplate, "test");
  FakeEngine engine{Limits()};
  ApiContext context{engine, tokenizer, &tools_prompt, Options()};
  std::vector<Route> routes = MakeRoutes(context);

  World() {
    engine.script = [](const GenerationRequest&, int) {
      FakeScript script;
      for (int32_t i = 0; i < 5; ++i) script.tokens.push_back(kFirstStep + i);
      return script;
    };
  }
  ~World() { engine.Shutdown(); }
  EngineLimits Limits() const {
    EngineLimits limits;
    limits.vocab_size = tokenizer.vocab_size();
    limits.max_model_len = 4096;
    limits.eos_token = kTestEos;
    return limits;
  }
  static ApiOptions Options() {
    ApiOptions options;
    options.model_names = {"m"};
    options.output_threads = 1;
    options.request_threads = 1;
    return options;
  }
};

}  // namespace
}  // namespace senko::api

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace senko::api;
  static World& world = *new World;
  if (size == 0) return 0;
  const Route& route = world.routes[data[0] % world.routes.size()];
  HttpRequest request;
  request.method = route.method;
  request.path = route.path;
  request.body.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (route.path == "/v1/models/") request.path += request.body;
  const auto exchange = std::make_shared<CheckedExchange>();
  route.handler(std::move(request), exchange);
  exchange->Wait();
  return 0;
}
