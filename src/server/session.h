// One connection's conversation, without its socket: bytes, ends and the time go in, bytes and deadlines come out. So
// every limit and timeout can be tested to the millisecond, and fuzzed.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/answer.h"
#include "server/gate.h"
#include "server/request_parser.h"

namespace senko::server {

// Used by one thread, the connection's; only the Bell is rung by others.
class Session {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `bell` is usually the owner of this session. `over_limit`: see Gate::Judge.
  Session(std::shared_ptr<Gate> gate, std::weak_ptr<Bell> bell, bool over_limit, TimePoint now);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // ---- what happened ------------------------------------------------------------------------------------------------
  void OnInput(std::string_view bytes, TimePoint now);
  void OnEnd(TimePoint now);    // the client sends no more; while an answer is made, that it has gone
  void OnError(TimePoint now);  // the connection is broken
  void OnRing(TimePoint now);
  void OnTime(TimePoint now);  // at deadline() or at any other time
  void OnStop(TimePoint now);  // the server stops

  // ---- what to do ---------------------------------------------------------------------------------------------------
  // Bytes to send, in order; empty pieces are skipped. They stay until Wrote says how many have gone.
  using Pieces = std::array<std::string_view, 4>;
  Pieces Output() const;
  bool HasOutput() const { return output_size_ > 0; }
  void Wrote(size_t bytes, TimePoint now);
  // Bytes that OnInput may be given. 0: leave them in the socket, so that a client that sends ahead is held up by it.
  size_t InputRoom() const;
  TimePoint Deadline() const;
  // Nothing is sent any more: tell the client so, read and drop what it still sends, and wait for it to close. Closing
  // at once could take the answer away from a client that is still sending.
  bool lingering() const { return state_ == State::kLinger; }
  bool done() const { return state_ == State::kDone; }
  // Done in such a way that the peer should see a reset and the system keep no unsent bytes.
  bool reset() const { return reset_; }

 private:
  enum class State {
    kHead,     // waits for a request, or has a part of its head
    kBody,     // its body is coming
    kAnswer,   // is being answered; what comes meanwhile is kept, up to a limit
    kDiscard,  // answered before its body came, which is read and dropped
    kLinger,
    kDone,
  };

  size_t Parse(std::string_view bytes, TimePoint now);
  void ParseKept(TimePoint now);
  void OnHead(TimePoint now);
  bool CountBody();
  void FreePlace();
  void Dispatch(TimePoint now);
  void AnswerNow(Verdict verdict, TimePoint now);
  void Fail(int status, std::string_view message, TimePoint now);
  void Fill(TimePoint now);
  void Send(std::string head, std::string_view tail, TimePoint now);
  void FinishAnswer(TimePoint now);
  void Abort(TimePoint now);
  void Log(TimePoint now, bool gone);
  std::string MakeHead(int status, std::string_view type, std::optional<uint64_t> length, const Headers& extra);

  const std::shared_ptr<Gate> gate_;
  const HttpOptions& options_;
  const std::weak_ptr<Bell> bell_;
  const bool over_limit_;

  State state_ = State::kHead;
  bool reset_ = false;
  bool first_request_ = true;
  bool client_ended_ = false;
  TimePoint state_since_;
  std::string input_;       // not yet parsed
  TimePoint last_input_;    // while lingering
  uint64_t discarded_ = 0;  // bytes, while lingering

  // The request at hand.
  std::unique_ptr<RequestParser> parser_;
  Headers common_headers_;
  AccessRecord record_;
  TimePoint request_since_;
  bool keep_alive_ = false;
  bool http_1_0_ = false;
  bool head_only_ = false;
  Verdict verdict_;
  Held body_;
  std::shared_ptr<void> busy_;

  // Its answer.
  std::shared_ptr<Answer> answer_;
  bool events_ = false;  // the body is chunked, or ends with the connection
  bool answer_ends_ = false;

  // Being sent: head, data, tail.
  Answer::Batch batch_;
  std::string output_head_;
  std::string_view output_tail_;
  size_t output_size_ = 0;
  size_t output_sent_ = 0;
  TimePoint progress_since_;  // of sending
  size_t progress_bytes_ = 0;
  TimePoint last_output_;
};

}  // namespace senko::server
