// What the scheduler knows of a request. Texts, sampling and clients are others' business.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace senko::engine {

// A prompt is a list of items; text tokens are the only kind so far (images will carry a content hash and row flags).
struct Prompt {
  std::vector<int32_t> ids;
  int64_t size() const { return static_cast<int64_t>(ids.size()); }
};

struct Request {
  uint64_t id = 0;
  Prompt prompt;
  int32_t choices = 1;
  int32_t priority = 0;  // lower runs earlier
  std::string cache_salt;
  int64_t max_tokens = 1;            // of each choice
  int64_t min_tokens = 0;            // tokens that end nothing
  std::vector<int32_t> stop_tokens;  // EOS among them unless it is ignored
  bool prompt_logits = false;        // every prompt row's logits: no hit is adopted and nothing is trimmed
};

// Sequence ids name a request's choice.
inline constexpr int kChoiceBits = 8;
inline constexpr uint64_t SequenceId(uint64_t request, int64_t choice) {
  return request << kChoiceBits | static_cast<uint64_t>(choice);
}
inline constexpr uint64_t RequestOf(uint64_t sequence) { return sequence >> kChoiceBits; }
inline constexpr int32_t ChoiceOf(uint64_t sequence) {
  return static_cast<int32_t>(sequence & ((uint64_t{1} << kChoiceBits) - 1));
}

enum class Finish { kNone, kStop, kLength, kCancelled, kNumerical, kNothingToDraw };

// What Advance reports, in order.
struct Event {
  enum class Kind { kScheduled, kToken, kFinished } kind = Kind::kToken;
  uint64_t sequence = 0;
  int32_t token = -1;             // kToken; kFinished: the stop token that ended it
  int64_t sample = -1;            // kToken: its index in the step's samples
  Finish finish = Finish::kNone;  // kFinished
  int64_t cached_tokens = 0;      // kScheduled: hit length
  bool resumed = false;           // kScheduled: after a preemption
};

}  // namespace senko::engine
