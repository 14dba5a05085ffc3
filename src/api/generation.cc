#include "api/generation.h"

#include <mutex>
#include <variant>

namespace senko::api {
namespace {

using Clock = std::chrono::steady_clock;

// What the engine's thread delivers.
struct Scheduled {
  int prompt;
  RequestUsage usage;
};
struct PromptTokens {
  int prompt;
  std::vector<TokenOutput> tokens;
};
struct Output {
  int prompt;
  OutputChunk chunk;
};
struct Delivery {
  Clock::time_point at;
  std::variant<Scheduled, PromptTokens, Output> what;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(std::shared_ptr<Incoming> incoming, AnswerPlan plan)
      : incoming_(std::move(incoming)),
        context_(*incoming_->context),
        plan_(std::move(plan)),
        per_prompt_(plan_.requests[0].n) {
    answer_.id = plan_.id;
    answer_.model = context_.options().model_names[0];
    answer_.created = UnixSeconds();
    const size_t count = plan_.requests.size() * static_cast<size_t>(per_prompt_);
    answer_.choices.resize(count);
    answer_.prompt_logprobs.resize(plan_.requests.size());
    choices_.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      choices_.push_back({ChoiceText(context_.tokenizer(), plan_.text, plan_.turn ? &*plan_.turn : nullptr), {}});
    }
    for (const GenerationRequest& request : plan_.requests) {
      answer_.usage.prompt_tokens += static_cast<int64_t>(request.prompt.size());
    }
    prompts_unscheduled_ = plan_.requests.size();
    choices_running_ = count;
  }

  void Start();

  // The engine's thread.
  void Deliver(std::variant<Scheduled, PromptTokens, Output> what) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    inbox_.push_back({Clock::now(), std::move(what)});
    if (posted_) return;
    posted_ = true;
    context_.output_workers().PostQuietly([self = shared_from_this()] { self->Run(); });
  }
  void WakeWorkers() { context_.output_workers().Wake(); }

  // Any thread.
  void Cancel() {
    std::vector<uint64_t> handles;
    {
      const std::lock_guard lock(mutex_);
      handles = handles_;
    }
    for (const uint64_t handle : handles) context_.engine().Cancel(handle);
  }

 private:
  struct Choice {
    ChoiceText text;
    std::optional<Clock::time_point> last;  // when tokens came
  };

  void Post() {
    context_.output_workers().Post([self = shared_from_this()] { self->Run(); });
  }
  void Run();
  bool TakesMore();
  void Handle(const Scheduled& what, Clock::time_point at);
  void Handle(PromptTokens& what, Clock::time_point at);
  void Handle(const Output& what, Clock::time_point at);
  void BeginIfReady(bool must);
  void EndChoice(size_t index);
  void RememberCalls(size_t index);
  void Fail(ErrorCode code, std::string_view message);
  void TellFailure(ErrorCode code, std::string_view message);
  void FailQuietly(std::string_view message) noexcept;
  void Close(int status, std::string_view finish, std::string_view error = {});

  const std::shared_ptr<Incoming> incoming_;
  ApiContext& context_;
  AnswerPlan plan_;
  const int per_prompt_;

  // Of the worker that has it; handed from one to the next under the mutex.
  Answer answer_;
  std::vector<Choice> choices_;
  std::vector<Piece> pieces_;  // scratch
  size_t prompts_unscheduled_ = 0;
  size_t choices_running_ = 0;
  bool begun_ = false;  // the writer knows the prompt's usage
  bool finished_ = false;
  double queue_s_ = -1, first_token_s_ = -1;

  std::mutex mutex_;
  std::vector<Delivery> inbox_;
  std::vector<uint64_t> handles_;
  bool posted_ = true;   // with a worker, or not yet let go by Start
  bool closed_ = false;  // nothing more is taken in
};

// What the engine holds of a request.
class PromptSink : public OutputSink {
 public:
  PromptSink(std::shared_ptr<Generation> generation, int prompt)
      : generation_(std::move(generation)), prompt_(prompt) {}
  void OnScheduled(const RequestUsage& usage, bool resumed) override {
    if (!resumed) generation_->Deliver(Scheduled{prompt_, usage});
  }
  void OnPromptLogprobs(std::vector<TokenOutput> prompt) override {
    generation_->Deliver(PromptTokens{prompt_, std::move(prompt)});
  }
  void OnOutput(OutputChunk chunk) override { generation_->Deliver(Output{prompt_, std::move(chunk)}); }
  void OnStepDelivered() override { generation_->WakeWorkers(); }

 private:
  std::shared_ptr<Generation> generation_;
  int prompt_;
};

void Generation::Start() {
  std::vector<uint64_t> handles;
  try {
    for (size_t i = 0; i < plan_.requests.size(); ++i) {
      handles.push_back(context_.engine().Submit(
          std::move(plan_.requests[i]), std::make_shared<PromptSink>(shared_from_this(), static_cast<int>(i))));
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      inbox_.clear();
    }
    for (const uint64_t handle : handles) context_.engine().Cancel(handle);
    throw;
  }
  {
    const std::lock_guard lock(mutex_);
    handles_ = std::move(handles);
  }
  // Headers at once: what fails from here on is told inside the stream.
  if (plan_.stream) incoming_->exchange->BeginEvents();
  incoming_->exchange->OnGone([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Cancel();
  });
  {
    const std::lock_guard lock(mutex_);
    posted_ = !inbox_.empty();  // mostly the engine has not said anything yet
    if (!posted_) return;
  }
  Post();
}

void Generation::Run() {
  std::vector<Delivery> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(inbox_);
  }
  try {
    if (!finished_ && incoming_->exchange->gone()) {
      Cancel();
      Close(499, "cancelled");
    }
    for (Delivery& delivery : work) {
      if (finished_) break;
      std::visit([&](auto& what) { Handle(what, delivery.at); }, delivery.what);
    }
  } catch (const std::exception& error) {
    FailQuietly(error.what());
  }
  if (!TakesMore()) return;
  try {
    Post();  // behind the others that wait
  } catch (const std::exception& error) {
    FailQuietly(error.what());
    TakesMore();
  }
}

// Whether more has come meanwhile, which this worker still has to post.
bool Generation::TakesMore() {
  const std::lock_guard lock(mutex_);
  if (finished_) {
    closed_ = true;
    inbox_.clear();
  }
  posted_ = !inbox_.empty();
  return posted_;
}

void Generation::Handle(const Scheduled& what, Clock::time_point at) {
  if (queue_s_ < 0) {
    queue_s_ = std::chrono::duration<double>(at - incoming_->arrived).count();
    if (context_.metrics() != nullptr) context_.metrics()->OnScheduled(queue_s_);
  }
  answer_.usage.cached_tokens += what.usage.cached_tokens;
  if (prompts_unscheduled_ > 0) --prompts_unscheduled_;
  BeginIfReady(false);
}

void Generation::Handle(PromptTokens& what, Clock::time_point) {
  answer_.prompt_logprobs[static_cast<size_t>(what.prompt)] = std::move(what.tokens);
}

void Generation::BeginIfReady(bool must) {
  if (begun_ || (prompts_unscheduled_ > 0 && !must)) return;
  begun_ = true;
  plan_.writer->Scheduled(answer_);
}

void Generation::Handle(const Output& what, Clock::time_point at) {
  const OutputChunk& chunk = what.chunk;
  const size_t index =
      static_cast<size_t>(what.prompt) * static_cast<size_t>(per_prompt_) + static_cast<size_t>(chunk.choice);
  Choice& choice = choices_.at(index);
  if (choice.text.ended()) return;  // whatever became of the rows that ran ahead of a stop string
  if (chunk.finish == FinishReason::kError) {
    return Fail(chunk.request_fault ? ErrorCode::kInvalidArgument : ErrorCode::kNumerical, chunk.error);
  }
  if (chunk.finish == FinishReason::kCancelled) {
    return Fail(ErrorCode::kOverloaded, "the server is shutting down");
  }
  BeginIfReady(true);
  const int64_t before = choice.text.tokens();
  const int64_t reasoned = choice.text.reasoning_tokens();
  pieces_.clear();
  const bool stop = choice.text.Push(chunk, context_.limits().eos_token, &pieces_);
  const int64_t tokens = choice.text.tokens() - before;
  answer_.usage.completion_tokens += tokens;
  answer_.usage.reasoning_tokens += choice.text.reasoning_tokens() - reasoned;
  if (tokens > 0) {
    if (first_token_s_ < 0) {
      first_token_s_ = std::chrono::duration<double>(at - incoming_->arrived).count();
      if (context_.metrics() != nullptr) context_.metrics()->OnFirstToken(first_token_s_);
    }
    if (choice.last && context_.metrics() != nullptr) {
      context_.metrics()->OnTokens(tokens, std::chrono::duration<double>(at - *choice.last).count());
    }
    choice.last = at;
  }
  if (stop) {
    uint64_t handle = 0;
    {
      const std::lock_guard lock(mutex_);
      handle = handles_[static_cast<size_t>(what.prompt)];
    }
    context_.engine().Stop(handle, chunk.choice);
  }
  if (!pieces_.empty()) {
    Record(pieces_, plan_.call_prefix, !plan_.stream, &answer_.choices[index]);
    plan_.writer->Pieces(answer_, static_cast<int>(index), pieces_);
  }
  if (choice.text.ended()) EndChoice(index);
}

void Generation::EndChoice(size_t index) {
  const ChoiceText& text = choices_[index].text;
  ChoiceRecord& record = answer_.choices[index];
  record.ending = text.ending();
  record.stop = text.stop();
  record.stop_token = text.stop_token();
  if (text.has_whole_calls()) RememberCalls(index);  // before the client can send it back
  plan_.writer->ChoiceEnded(answer_, static_cast<int>(index));
  if (--choices_running_ > 0) return;
  plan_.writer->Done(answer_);
  Close(200, EndingName(*answer_.choices[0].ending));
}

void Generation::RememberCalls(size_t index) {
  if (!plan_.memory) return;
  RememberedTurn turn;
  turn.ids = plan_.memory->opened_ids;
  const std::vector<int32_t>& sampled = choices_[index].text.ids();
  turn.ids.insert(turn.ids.end(), sampled.begin(), sampled.end());
  if (!MayBeRepeated(turn.ids, context_.tokenizer(), context_.limits())) return;
  const ChoiceRecord& record = answer_.choices[index];
  turn.thinking = plan_.memory->thinking;
  turn.reasoning = record.reasoning;
  turn.content = record.content;
  turn.calls = record.calls;
  context_.call_memory().Remember(plan_.memory->scope, std::move(turn));
}

void Generation::Fail(ErrorCode code, std::string_view message) {
  Cancel();
  TellFailure(code, message);
}

void Generation::TellFailure(ErrorCode code, std::string_view message) {
  const ErrorReply reply = DescribeFailure(code, message, incoming_->style);
  plan_.writer->Failed(answer_, reply);
  Close(plan_.stream ? 200 : reply.status, "error", message);
}

// After a fault of our own, whatever state the writer is in. Each step is tried, even where the one before it throws;
// what throws again, as when memory has run out, leaves the exchange to its last owner, who answers 500.
void Generation::FailQuietly(std::string_view message) noexcept {
  const auto attempt = [](const auto& step) {
    try {
      step();
    } catch (const std::exception&) {
    }
  };
  attempt([&] { Cancel(); });
  if (finished_) return;
  attempt([&] { TellFailure(ErrorCode::kNumerical, message); });
  if (!finished_) attempt([&] { Close(500, "error", message); });
}

void Generation::Close(int status, std::string_view finish, std::string_view error) {
  finished_ = true;
  if (const int refused = incoming_->exchange->refused(); refused != 0) {  // whatever was said, this was sent
    status = plan_.stream ? 200 : refused;
    finish = "error";
    error = "there was no room to keep the answer for its client (--max-buffered-answer-bytes)";
  }
  RequestRecord record;
  record.submitted = true;
  record.status = status;
  record.stream = plan_.stream;
  record.finish = finish;
  record.error = error;
  record.choices = static_cast<int>(answer_.choices.size());
  record.prompt_tokens = answer_.usage.prompt_tokens;
  record.cached_tokens = answer_.usage.cached_tokens;
  record.completion_tokens = answer_.usage.completion_tokens;
  record.reasoning_tokens = answer_.usage.reasoning_tokens;
  record.queue_s = queue_s_;
  record.first_token_s = first_token_s_;
  context_.Report(*incoming_, std::move(record));
}

}  // namespace

void StartGeneration(std::shared_ptr<Incoming> incoming, AnswerPlan plan) {
  std::string().swap(incoming->http.body);  // a long prompt's text, read by now, would wait for the answer's end
  std::make_shared<Generation>(std::move(incoming), std::move(plan))->Start();
}

}  // namespace senko::api
