// Where a handler's threads meet the connection that sends what they say. Knows no socket.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "api/exchange.h"
#include "server/ledger.h"
#include "server/response.h"

namespace senko::server {

// Rung from any thread when an answer has something to send; the connection's thread then calls Session::OnRing soon.
class Bell {
 public:
  virtual ~Bell() = default;
  virtual void Ring() noexcept = 0;
};

// Of one answer: this much may wait whatever all others hold. It is kept where the ledger has no room, and an answer of
// which no more is left needs no place among the requests in flight. A step of 128 choices says about 36 kB.
inline constexpr size_t kAlwaysBytes = size_t{64} << 10;

// Thread-safe. Rings once for everything that is queued until the next Take: a burst of events costs one wake-up and
// leaves in one write.
class Answer {
 public:
  // What an answer may hold of what is everybody's.
  struct Share {
    std::shared_ptr<Ledger> ledger;  // of answers' bytes
    std::shared_ptr<void> place;     // leaves with the last batch, or goes when the client has gone
    Held body;                       // the request's; goes when the answer has ended or the client has gone
  };
  // `path` is the request's; errors made here are in its API's style.
  Answer(std::string path, std::shared_ptr<Bell> bell, size_t max_unsent_bytes, Share share);

  // ---- the handler's side: api::Exchange, which says what each does -------------------------------------------------
  // What is said is counted until it has been sent; what is taken in one batch, until all of that has. Up to
  // kAlwaysBytes always have room, so a whole answer of no more, and a stream of which no more waits at any time.
  // Beyond them, where the ledger has no room, a whole answer becomes a 503 (or 400: it never could have any) and a
  // stream is cut: its client is `gone`. See refused.
  void Reply(int status, std::string_view content_type, std::string body, Headers headers);
  void BeginEvents();
  void Event(std::string_view data, std::string_view name);
  void EndEvents();
  bool gone() const;
  void OnGone(std::function<void()> callback);
  int refused() const;
  // Nobody is left who could answer: a 500, or a stream that is cut off.
  void Abandon() noexcept;

  // ---- the connection's side ----------------------------------------------------------------------------------------
  struct Batch {
    bool begins = false;  // with the first batch: status, content_type and headers are set
    bool events = false;  // the body's length is not known
    int status = 0;
    std::string content_type;
    Headers headers;
    std::string data;
    bool ends = false;
    bool broken = false;          // abandoned within a stream
    bool refused = false;         // a 503 in place of what had no room
    bool cut = false;             // with the end of a stream for which there was no room: an error is its last event
    Held held;                    // the bytes of `data`
    std::shared_ptr<void> place;  // with the end; to be let go of before the end can be read
  };
  enum class Taken { kNothing, kBatch, kOverflow };
  // Moves what is queued into `batch`, when the batch before it has been sent. kOverflow: there was no room and too
  // much is being sent for an error behind it to be kept always; or the client reads too slowly: an event came when
  // more than max_unsent_bytes waited already, of each event no more than a 128th of that counted. The large ones
  // repeat what a request holds and come in bursts, one or two for each choice, however fast the client reads: created
  // and in_progress with their instructions, an echoed prompt's logprobs. How much they are is limited where requests
  // are read, as it is for an answer in one piece; what comes at the engine's pace is small.
  Taken Take(Batch* batch);
  // The client has gone: runs the callback of OnGone on this thread. Not after the answer's end.
  void MarkGone();
  bool overflowed() const;
  // Nothing is said to the bell any more.
  void Detach();

 private:
  enum class State { kPending, kEvents, kEnded };
  bool Hold(size_t bytes);
  void Overflow();
  void CutOff();
  void Queued(std::unique_lock<std::mutex> lock);

  const std::string path_;
  const size_t max_unsent_bytes_;

  mutable std::mutex mutex_;
  std::shared_ptr<Bell> bell_;
  Share share_;
  State state_ = State::kPending;
  Batch queue_;
  size_t queue_counts_ = 0;  // of the queue, towards the limit
  size_t taken_counts_ = 0;  // of the batch that is being sent
  int64_t taken_bytes_ = 0;  // all of it
  bool rung_ = false;
  bool gone_ = false;
  bool overflowed_ = false;
  bool cut_ = false;
  int refused_ = 0;
  std::function<void()> on_gone_;
};

// What a handler holds. The last one to let go abandons the answer.
std::shared_ptr<api::Exchange> MakeExchange(std::shared_ptr<Answer> answer);

}  // namespace senko::server
