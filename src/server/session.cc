#include "server/session.h"

#include <sys/random.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <utility>

#include "base/check.h"
#include "server/error_body.h"

namespace senko::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLingerTime{2000};             // without a byte from the client
constexpr milliseconds kLongestLinger{30'000};        // with bytes
constexpr milliseconds kOverLimitTime{1000};          // a connection too many has this long to ask for /health
constexpr size_t kReadAheadBytes = size_t{16} << 10;  // kept of what a client sends while it is being answered
constexpr uint64_t kDiscardBytes = 64 << 10;          // a refused request's body up to this is read, not cut off
constexpr size_t kProgressBytes = 64 << 10;           // within timeout_send, or everything
// Times timeout_send: within that all that is sent at once. With 30 s a whole answer is taken within 8 minutes, or its
// connection ends: no longer than that a few slow readers can keep the others from what all answers share.
constexpr size_t kMostProgress = 16;
constexpr size_t kRecordedBytes = 256;  // of method and path: a record may wait for its other half

std::string RequestId(std::string_view given) {
  const bool fine = !given.empty() && given.size() <= 128 &&
                    std::all_of(given.begin(), given.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (fine) return std::string(given);
  std::array<unsigned char, 16> random;
  SENKO_CHECK(getrandom(random.data(), random.size(), 0) == static_cast<ssize_t>(random.size()));
  std::string id = "req-";
  for (const unsigned char byte : random) {
    id.push_back("0123456789abcdef"[byte >> 4]);
    id.push_back("0123456789abcdef"[byte & 15]);
  }
  return id;
}

// Tells HTTP from anything else, as TLS, by its first byte; the parser looks at nothing before the head is complete.
bool IsMethodStart(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

bool IsContinue(std::string_view expect) {
  constexpr std::string_view kContinue = "100-continue";
  return std::equal(expect.begin(), expect.end(), kContinue.begin(), kContinue.end(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a | 0x20 : a) == b; });
}

std::string_view CodeOf(int status) {
  switch (status) {
    case 408:
      return "request_timeout";
    case 413:
      return "request_too_large";
    case 431:
      return "headers_too_large";
    case 503:
      return "overloaded";
    default:
      return "bad_request";
  }
}

// An exception ends at this thread's edge.
void RunHandler(const api::Route& route, api::HttpRequest request, const std::shared_ptr<api::Exchange>& exchange) {
  const api::ErrorStyle style = StyleOfPath(request.path);
  try {
    route.handler(std::move(request), exchange);
  } catch (const std::exception& error) {
    api::ReplyError(*exchange, api::DescribeError(error, style), style);
  }
}

}  // namespace

Session::Session(std::shared_ptr<Gate> gate, std::weak_ptr<Bell> bell, bool over_limit, TimePoint now)
    : gate_(std::move(gate)),
      options_(gate_->options()),
      bell_(std::move(bell)),
      over_limit_(over_limit),
      state_since_(now),
      request_since_(now),
      body_(gate_->bodies()) {}

Session::~Session() {
  try {
    if (answer_) answer_->MarkGone();
  } catch (const std::exception&) {  // of a callback
  }
}

// ---- input ----------------------------------------------------------------------------------------------------------

size_t Session::InputRoom() const {
  if (client_ended_ || state_ == State::kDone) return 0;
  if (state_ != State::kAnswer) return SIZE_MAX;
  return kReadAheadBytes - std::min(kReadAheadBytes, input_.size());
}

void Session::OnInput(std::string_view bytes, TimePoint now) {
  switch (state_) {
    case State::kDone:
      return;
    case State::kAnswer:
      input_.append(bytes);
      return;
    case State::kLinger:
      discarded_ += bytes.size();
      last_input_ = now;
      if (discarded_ > static_cast<uint64_t>(options_.max_body_bytes) + kDiscardBytes) state_ = State::kDone;
      return;
    default:
      break;
  }
  if (!input_.empty()) {
    input_.append(bytes);
    ParseKept(now);
  } else {
    const size_t used = Parse(bytes, now);
    input_.assign(bytes.substr(used));
  }
  if (state_ == State::kLinger || state_ == State::kDone) input_ = {};
}

void Session::ParseKept(TimePoint now) {
  const size_t used = Parse(input_, now);
  input_.erase(0, used);
}

// Goes on until a request is complete, which is then answered, or the bytes are used up. Returns how many were.
size_t Session::Parse(std::string_view bytes, TimePoint now) {
  size_t at = 0;
  while (at < bytes.size() && (state_ == State::kHead || state_ == State::kBody || state_ == State::kDiscard)) {
    if (!parser_) {
      at = std::min(bytes.find_first_not_of("\r\n", at), bytes.size());  // empty lines before a request are no fault
      if (at == bytes.size()) break;
      parser_ = std::make_unique<RequestParser>(options_);
      record_ = {};
      request_since_ = now;
      if (!IsMethodStart(bytes[at])) {
        Fail(400, "this is not an HTTP/1.1 request head", now);
        break;
      }
    }
    size_t used = 0;
    const auto progress = parser_->Feed(bytes.substr(at), &used);
    at += used;
    if (state_ == State::kBody && !CountBody()) {
      Fail(503, "too many bytes of requests wait here", now);
      break;
    }
    if (progress == RequestParser::Progress::kMore) break;
    if (progress == RequestParser::Progress::kBad) {
      Fail(parser_->fault().status, parser_->fault().message, now);
    } else if (progress == RequestParser::Progress::kHead) {
      OnHead(now);
    } else if (state_ == State::kDiscard) {
      parser_.reset();
      state_ = State::kHead;
      state_since_ = now;
    } else {
      Dispatch(now);
    }
  }
  return at;
}

bool Session::CountBody() { return body_.Take(static_cast<int64_t>(parser_->body_bytes()) - body_.bytes()); }

void Session::OnHead(TimePoint now) {
  ++gate_->requests;
  api::HttpRequest& request = parser_->request();
  request.id = RequestId(request.Header("x-request-id"));
  record_.id = request.id;
  record_.method = request.method.substr(0, kRecordedBytes);
  record_.path = request.path.substr(0, kRecordedBytes);
  http_1_0_ = parser_->http_1_0();
  keep_alive_ = parser_->keep_alive() && !over_limit_;
  head_only_ = request.method == "HEAD";

  verdict_ = gate_->Judge(request, over_limit_, now);
  record_.key_hash = verdict_.key_hash;
  common_headers_ = std::move(verdict_.common);
  common_headers_.emplace_back("X-Request-Id", request.id);

  const std::string_view expect = request.Header("expect");
  const uint64_t length = parser_->content_length().value_or(0);
  if (!verdict_.pass) {
    const bool short_body = !parser_->chunked() && length <= kDiscardBytes && expect.empty();
    if (!parser_->complete() && !short_body) keep_alive_ = false;
    parser_->DiscardBody();
    AnswerNow(std::move(verdict_), now);
  } else if (!expect.empty() && !IsContinue(expect)) {
    Fail(417, "the only expectation known here is 100-continue", now);
  } else if (length > static_cast<uint64_t>(options_.max_body_bytes)) {
    Fail(413, "the request's body is larger than " + std::to_string(options_.max_body_bytes) + " bytes", now);
  } else if (parser_->complete()) {
    Dispatch(now);
  } else {
    state_ = State::kBody;
    state_since_ = now;
    if (!expect.empty() && !http_1_0_) Send("HTTP/1.1 100 Continue\r\n\r\n", "", now);
  }
}

void Session::OnEnd(TimePoint now) {
  client_ended_ = true;
  if (state_ == State::kAnswer) {
    if (!HasOutput()) Fill(now);  // it may have been answered a moment ago
    if (state_ == State::kAnswer && !answer_ends_) Abort(now);
  } else {
    if (state_ == State::kBody) {
      ++gate_->clients_gone;
      Log(now, true);
    }
    state_ = State::kDone;
  }
}

void Session::OnError(TimePoint now) {
  client_ended_ = true;
  if (state_ == State::kAnswer) {
    Abort(now);
  } else {
    state_ = State::kDone;
  }
}

// ---- answers --------------------------------------------------------------------------------------------------------

void Session::Dispatch(TimePoint now) {
  Gate::Admission admission = gate_->Admit();
  busy_ = std::move(admission.busy);
  if (!admission.place) {
    AnswerNow(gate_->RefuseForNow(parser_->request().path), now);
    return;
  }
  state_ = State::kAnswer;
  answer_ends_ = events_ = false;
  answer_ = std::make_shared<Answer>(record_.path, bell_.lock(), static_cast<size_t>(options_.max_unsent_bytes),
                                     Answer::Share{gate_->answers(), std::move(admission.place), std::move(body_)});
  body_ = Held(gate_->bodies());
  api::HttpRequest request = std::move(parser_->request());
  request.api_key = std::move(verdict_.key);
  request.number = record_.number = ++gate_->handled;
  if (head_only_) request.method = "GET";
  RunHandler(*verdict_.route, std::move(request), MakeExchange(answer_));
  Fill(now);
}

std::string Session::MakeHead(int status, std::string_view type, std::optional<uint64_t> length, const Headers& extra) {
  if (gate_->draining()) keep_alive_ = false;
  if (!length && http_1_0_) keep_alive_ = false;
  record_.status = status;
  ResponseHead head;
  head.status = status;
  head.content_type = type;
  head.content_length = length;
  head.http_1_0 = http_1_0_;
  head.keep_alive = keep_alive_;
  return FormatHead(head, common_headers_, extra);
}

void Session::AnswerNow(Verdict verdict, TimePoint now) {
  if (verdict.close) keep_alive_ = false;
  state_ = State::kAnswer;
  answer_ends_ = true;
  events_ = false;
  std::string head = MakeHead(verdict.status, verdict.content_type, verdict.body.size(), verdict.headers);
  batch_.data = head_only_ ? std::string() : std::move(verdict.body);
  batch_.held = Held(gate_->answers());
  batch_.held.Force(static_cast<int64_t>(batch_.data.size()));
  Send(std::move(head), "", now);
}

// The conversation cannot go on after this answer.
void Session::Fail(int status, std::string_view message, TimePoint now) {
  keep_alive_ = false;
  api::HttpRequest& request = parser_->request();
  request.body = {};
  body_.Clear();
  if (record_.id.empty()) {
    ++gate_->requests;
    http_1_0_ = head_only_ = false;
    request.id = record_.id = RequestId("");
    record_.method = request.method.substr(0, kRecordedBytes);
    record_.path = request.path.substr(0, kRecordedBytes);
    common_headers_ = {{"X-Request-Id", request.id}};
  }
  Verdict verdict = Gate::Refuse(request.path, status, message, CodeOf(status));
  if (status == 503) {
    ++gate_->refused;
    verdict.headers.emplace_back("Retry-After", "1");
  }
  AnswerNow(std::move(verdict), now);
}

void Session::OnRing(TimePoint now) {
  if (state_ != State::kAnswer || !answer_) return;
  if (!HasOutput()) {
    Fill(now);
  } else if (answer_->overflowed()) {
    Abort(now);
  }
}

// Takes what the handler has said meanwhile, as one piece.
void Session::Fill(TimePoint now) {
  if (!answer_ || answer_ends_ || HasOutput()) return;
  const auto taken = answer_->Take(&batch_);
  if (taken == Answer::Taken::kNothing) return;
  if (taken == Answer::Taken::kOverflow || (batch_.broken && !batch_.begins)) {
    Abort(now);
    return;
  }
  if (batch_.broken) {
    AnswerNow(Gate::Refuse(record_.path, 500, "internal error", "internal_error"), now);
    return;
  }
  if (batch_.refused) ++gate_->refused;
  std::string head;
  if (batch_.begins) {
    events_ = batch_.events;
    std::optional<uint64_t> length;
    if (!events_) length = batch_.data.size();
    head = MakeHead(batch_.status, batch_.content_type, length, batch_.headers);
  }
  answer_ends_ = batch_.ends;
  if (head_only_) {
    batch_.data.clear();
    answer_ends_ = true;
  }
  if (head_only_ || batch_.cut) answer_->MarkGone();
  std::string_view tail;
  if (events_ && !http_1_0_ && !head_only_) tail = answer_ends_ ? "0\r\n\r\n" : "";
  Send(std::move(head), tail, now);
  if (!HasOutput() && answer_ends_) FinishAnswer(now);
}

// Makes batch_.data, framed as a chunk where the body is chunked, the output after `head`.
void Session::Send(std::string head, std::string_view tail, TimePoint now) {
  if (HasOutput()) head.insert(0, output_head_, output_sent_);  // 100 Continue has not left yet; it had no data
  output_tail_ = tail;
  if (events_ && !http_1_0_ && !batch_.data.empty()) {
    std::array<char, 20> size;
    const auto end = std::to_chars(size.data(), size.data() + size.size(), batch_.data.size(), 16).ptr;
    head.append(size.data(), end).append("\r\n");
    output_tail_ = tail.empty() ? "\r\n" : "\r\n0\r\n\r\n";
  }
  output_head_ = std::move(head);
  output_size_ = output_head_.size() + batch_.data.size() + output_tail_.size();
  output_sent_ = 0;
  progress_since_ = now;
  progress_bytes_ = 0;
  FreePlace();
}

// Whoever reads the end of an answer finds its place free; a large one keeps it until the end is near.
void Session::FreePlace() {
  if (output_size_ - output_sent_ <= kAlwaysBytes) batch_.place.reset();
}

Session::Pieces Session::Output() const {
  Pieces pieces{};
  const std::array<std::string_view, 3> all = {output_head_, batch_.data, output_tail_};
  size_t skip = output_sent_, room = output_size_ - output_sent_;
  if (batch_.place) room -= kAlwaysBytes;
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t here = std::min(skip, all[i].size());
    pieces[i] = all[i].substr(here, room);
    skip -= here;
    room -= pieces[i].size();
  }
  return pieces;
}

void Session::Wrote(size_t bytes, TimePoint now) {
  output_sent_ += bytes;
  record_.bytes += bytes;
  progress_bytes_ += bytes;
  last_output_ = now;
  if (output_sent_ < output_size_) {
    FreePlace();
    if (progress_bytes_ >= std::max(kProgressBytes, (output_size_ + kMostProgress - 1) / kMostProgress)) {
      progress_since_ = now;
      progress_bytes_ = 0;
    }
    return;
  }
  output_size_ = output_sent_ = 0;
  output_head_.clear();
  output_tail_ = {};
  if (batch_.data.capacity() > kProgressBytes) batch_.data = {};
  batch_.data.clear();
  batch_.held.Clear();
  batch_.place.reset();
  if (state_ != State::kAnswer) return;  // that was 100 Continue
  if (answer_ends_) {
    FinishAnswer(now);
  } else {
    Fill(now);
  }
}

void Session::FinishAnswer(TimePoint now) {
  record_.no_room = answer_ && answer_->refused() != 0;
  Log(now, false);
  if (answer_) answer_->Detach();
  answer_.reset();
  busy_.reset();
  body_.Clear();
  first_request_ = false;
  state_since_ = now;
  if (client_ended_) {
    state_ = State::kDone;
  } else if (!keep_alive_ || gate_->draining()) {
    state_ = State::kLinger;
    last_input_ = now;
  } else if (!parser_->complete()) {
    state_ = State::kDiscard;
  } else {
    parser_.reset();
    state_ = State::kHead;
  }
  if (state_ == State::kHead || state_ == State::kDiscard) {
    ParseKept(now);
  } else {
    parser_.reset();
    input_ = {};
  }
}

// The client has gone, or is treated so; that its stream was cut for want of room is not its doing.
void Session::Abort(TimePoint now) {
  if (answer_) answer_->MarkGone();
  record_.no_room = answer_ && answer_->refused() != 0;
  const bool gone = !(record_.no_room && events_);
  if (gone) ++gate_->clients_gone;
  Log(now, gone);
  answer_.reset();
  busy_.reset();
  output_size_ = output_sent_ = 0;
  batch_ = {};
  state_ = State::kDone;
  reset_ = true;
}

void Session::Log(TimePoint now, bool gone) {
  if (!gate_->hooks().access_log) return;
  if (gone && record_.status == 0) record_.status = 499;
  record_.gone = gone;
  record_.seconds = std::chrono::duration<double>(now - request_since_).count();
  gate_->hooks().access_log(record_);
}

// ---- time -----------------------------------------------------------------------------------------------------------

Session::TimePoint Session::Deadline() const {
  switch (state_) {
    case State::kHead: {
      if (over_limit_) return state_since_ + std::min(kOverLimitTime, options_.timeout_header);
      if (parser_) return request_since_ + options_.timeout_header;
      return state_since_ + (first_request_ ? options_.timeout_header : options_.timeout_keep_alive);
    }
    case State::kBody:
    case State::kDiscard:
      return state_since_ + options_.timeout_body;
    case State::kAnswer:
      if (HasOutput()) return progress_since_ + options_.timeout_send;
      if (events_ && !answer_ends_) return last_output_ + options_.sse_keepalive;
      return TimePoint::max();
    case State::kLinger:
      return std::min(last_input_ + kLingerTime, state_since_ + kLongestLinger);
    case State::kDone:
      break;
  }
  return TimePoint::max();
}

void Session::OnTime(TimePoint now) {
  if (now < Deadline()) return;
  switch (state_) {
    case State::kHead:
      if (parser_ || over_limit_) {
        if (!parser_) parser_ = std::make_unique<RequestParser>(options_);
        if (over_limit_) {
          Fail(503, "too many connections", now);
        } else {
          Fail(408, "the request's head did not come in time", now);
        }
      } else {
        state_ = State::kDone;
      }
      return;
    case State::kBody:
      Fail(408, "the request's body did not come in time", now);
      return;
    case State::kAnswer:
      if (HasOutput()) {
        Abort(now);
      } else {
        batch_.data = ": keepalive\n\n";
        Send("", "", now);
      }
      return;
    default:
      state_ = State::kDone;
  }
}

void Session::OnStop(TimePoint now) {
  if (state_ == State::kAnswer) {
    Abort(now);
  } else {
    state_ = State::kDone;
  }
}

}  // namespace senko::server
