#include "server/answer.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "server/error_body.h"

namespace senko::server {
namespace {

constexpr size_t kBurst = 128;  // events, whatever their size, that a client need not have read; one for each choice

constexpr std::string_view kNoRoom =
    "answers that their clients have not read yet take all the memory there is for them";

}  // namespace

Answer::Answer(std::string path, std::shared_ptr<Bell> bell, size_t max_unsent_bytes, Share share)
    : path_(std::move(path)), max_unsent_bytes_(max_unsent_bytes), bell_(std::move(bell)), share_(std::move(share)) {
  queue_.held = Held(share_.ledger);
}

// Under the lock. Counts bytes that are about to be queued.
bool Answer::Hold(size_t bytes) {
  const auto more = static_cast<int64_t>(bytes);
  if (taken_bytes_ + queue_.held.bytes() + more > static_cast<int64_t>(kAlwaysBytes)) return queue_.held.Take(more);
  queue_.held.Force(more);
  return true;
}

// Rings, outside the lock, unless the connection already knows.
void Answer::Queued(std::unique_lock<std::mutex> lock) {
  std::shared_ptr<void> place;
  Held body;
  if (state_ == State::kEnded || overflowed_ || cut_) {
    body = std::move(share_.body);
    (overflowed_ ? place : queue_.place) = std::move(share_.place);
  }
  std::shared_ptr<Bell> bell;
  if (!rung_) bell = bell_;
  rung_ = true;
  lock.unlock();
  place.reset();
  body.Clear();
  if (bell) bell->Ring();
}

void Answer::Reply(int status, std::string_view content_type, std::string body, Headers headers) {
  std::unique_lock lock(mutex_);
  if (state_ != State::kPending || gone_) return;
  queue_.content_type = content_type;
  if (!Hold(body.size())) {
    const bool ever = static_cast<int64_t>(body.size()) <= share_.ledger->limit();
    const std::string too_large = "the answer has " + std::to_string(body.size()) +
                                  " bytes, more than --max-buffered-answer-bytes of this server, " +
                                  std::to_string(share_.ledger->limit()) + ": ask for less, or for a stream";
    status = ever ? 503 : 400;
    body = HttpErrorBody(path_, status, ever ? kNoRoom : too_large, ever ? "overloaded" : "answer_too_large");
    queue_.content_type = "application/json";
    headers.clear();
    if (ever) headers.emplace_back("Retry-After", "1");
    queue_.refused = ever;
    refused_ = status;
    queue_.held.Force(static_cast<int64_t>(body.size()));
  }
  state_ = State::kEnded;
  queue_.begins = queue_.ends = true;
  queue_.status = status;
  queue_.headers = std::move(headers);
  queue_.data = std::move(body);
  Queued(std::move(lock));
}

void Answer::BeginEvents() {
  std::unique_lock lock(mutex_);
  if (state_ != State::kPending || gone_) return;
  queue_.content_type = "text/event-stream; charset=utf-8";
  // The second one keeps nginx from holding events back.
  queue_.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  state_ = State::kEvents;
  queue_.begins = queue_.events = true;
  queue_.status = 200;
  Queued(std::move(lock));
}

void Answer::Event(std::string_view data, std::string_view name) {
  std::unique_lock lock(mutex_);
  if (state_ != State::kEvents || gone_ || overflowed_ || cut_) return;
  const size_t bytes = (name.empty() ? 0 : 8 + name.size()) + 8 + data.size();
  if (queue_counts_ + taken_counts_ > max_unsent_bytes_) {
    Overflow();
  } else if (!Hold(bytes)) {
    CutOff();
  } else {
    queue_.data.reserve(queue_.data.size() + bytes);  // all of the event or nothing
    if (!name.empty()) queue_.data.append("event: ").append(name).append("\n");
    queue_.data.append("data: ").append(data).append("\n\n");
    queue_counts_ += std::min(bytes, max_unsent_bytes_ / kBurst);
  }
  Queued(std::move(lock));
}

// Under the lock. Nothing more can be sent.
void Answer::Overflow() {
  overflowed_ = true;
  rung_ = false;
  queue_.data = {};
  queue_.held.Clear();
}

// Under the lock. For want of room: an error takes the place of what is queued, if with it no more waits than always
// may.
void Answer::CutOff() {
  std::string last = HttpErrorEvents(path_, 503, kNoRoom, "overloaded");
  const auto bytes = static_cast<int64_t>(last.size());
  refused_ = 503;
  if (taken_bytes_ + bytes > static_cast<int64_t>(kAlwaysBytes)) return Overflow();
  queue_.held.Clear();
  queue_.held.Force(bytes);
  queue_.data = std::move(last);
  queue_.ends = queue_.cut = cut_ = true;
}

void Answer::EndEvents() {
  std::unique_lock lock(mutex_);
  if (state_ != State::kEvents || gone_ || overflowed_ || cut_) return;
  state_ = State::kEnded;
  queue_.ends = true;
  Queued(std::move(lock));
}

void Answer::Abandon() noexcept {
  std::unique_lock lock(mutex_);
  if (state_ == State::kPending) {
    lock.unlock();
    try {
      return Reply(500, "application/json", HttpErrorBody(path_, 500, "internal error", "internal_error"), {});
    } catch (const std::exception&) {  // no memory: as a stream that is cut off before its head
    }
    lock.lock();
  }
  if (state_ == State::kEnded || gone_ || overflowed_ || cut_) return;
  state_ = State::kEnded;
  queue_.ends = queue_.broken = true;
  Queued(std::move(lock));
}

bool Answer::gone() const {
  const std::lock_guard lock(mutex_);
  return gone_ || overflowed_ || cut_;
}

int Answer::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

bool Answer::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflowed_;
}

void Answer::OnGone(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kEnded) return;
    if (!gone_) {
      on_gone_ = std::move(callback);
      return;
    }
  }
  callback();
}

Answer::Taken Answer::Take(Batch* batch) {
  const std::lock_guard lock(mutex_);
  rung_ = false;
  taken_counts_ = 0;
  taken_bytes_ = 0;
  if (overflowed_) return Taken::kOverflow;
  if (!(queue_.begins || queue_.ends || !queue_.data.empty())) return Taken::kNothing;
  // The old batch's memory is used again for what is queued next.
  std::swap(*batch, queue_);
  const bool events = batch->events;
  queue_.begins = queue_.ends = queue_.broken = queue_.refused = queue_.cut = false;
  queue_.events = events;
  queue_.data.clear();
  queue_.headers.clear();
  queue_.held = Held(share_.ledger);
  queue_.place.reset();
  taken_bytes_ = batch->held.bytes();
  taken_counts_ = std::exchange(queue_counts_, 0);
  return Taken::kBatch;
}

void Answer::MarkGone() {
  std::function<void()> callback;
  std::shared_ptr<void> place, queued_place;
  Held body;
  {
    const std::lock_guard lock(mutex_);
    bell_.reset();
    // Nobody takes it any more, the end of the answer neither.
    queue_.data = {};
    queue_.held.Clear();
    queued_place = std::move(queue_.place);
    if (gone_ || state_ == State::kEnded) return;
    gone_ = true;
    callback = std::move(on_gone_);
    on_gone_ = nullptr;
    place = std::move(share_.place);
    body = std::move(share_.body);
  }
  place.reset();
  body.Clear();
  if (callback) callback();
}

void Answer::Detach() {
  std::shared_ptr<Bell> bell;  // destroyed without the lock
  std::function<void()> callback;
  const std::lock_guard lock(mutex_);
  bell = std::move(bell_);
  callback = std::move(on_gone_);
}

namespace {

class AnswerExchange final : public api::Exchange {
 public:
  explicit AnswerExchange(std::shared_ptr<Answer> answer) : answer_(std::move(answer)) {}
  ~AnswerExchange() override { answer_->Abandon(); }
  AnswerExchange(const AnswerExchange&) = delete;
  AnswerExchange& operator=(const AnswerExchange&) = delete;
  AnswerExchange(AnswerExchange&&) = delete;
  AnswerExchange& operator=(AnswerExchange&&) = delete;

  void Reply(int status, std::string_view content_type, std::string body, Headers headers) override {
    answer_->Reply(status, content_type, std::move(body), std::move(headers));
  }
  void BeginEvents() override { answer_->BeginEvents(); }
  void Event(std::string data, std::string_view name) override { answer_->Event(data, name); }
  void EndEvents() override { answer_->EndEvents(); }
  bool gone() const override { return answer_->gone(); }
  void OnGone(std::function<void()> callback) override { answer_->OnGone(std::move(callback)); }
  int refused() const override { return answer_->refused(); }

 private:
  const std::shared_ptr<Answer> answer_;
};

}  // namespace

std::shared_ptr<api::Exchange> MakeExchange(std::shared_ptr<Answer> answer) {
  return std::make_shared<AnswerExchange>(std::move(answer));
}

}  // namespace senko::server
