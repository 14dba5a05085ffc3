// What was sampled for turns that call tools, by the id of their first call.
//
// A client sends a call back as name and arguments. Rendered again, the same call may have other tokens than those the
// model sampled, and every cached page behind it would be lost. So the sampled ids are kept, and put in place of the
// turn when it comes back unchanged.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "api/answer.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace senko::api {

// Who may be given a memory back: turns of another key or salt do not exist.
struct MemoryScope {
  std::string api_key;
  std::string cache_salt;
};

struct RememberedTurn {
  std::vector<int32_t> ids;  // behind the turn's header, without EOS
  bool thinking = false;     // that header was <think>
  std::string reasoning, content;
  std::vector<CallRecord> calls;
};

// Thread-safe. The least recently used turns go when `max_bytes` are reached.
class CallMemory {
 public:
  explicit CallMemory(size_t max_bytes) : max_bytes_(max_bytes) {}

  // A turn with calls.
  void Remember(const MemoryScope& scope, RememberedTurn turn);

  // Fills in message.sampled_ids if this assistant message is a remembered turn: the same calls by id, name and meaning
  // of the arguments (JSON, whatever the order of keys), the same content, and the same reasoning or none. A client
  // that sends no reasoning back gets the turn with its reasoning.
  void Recall(const MemoryScope& scope, text::Message* message);

  size_t bytes() const;
  size_t turns() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const RememberedTurn> turn;
    size_t bytes = 0;
  };
  static std::string Key(const MemoryScope& scope, const std::string& call_id);
  void Drop(std::list<Entry>::iterator entry);

  mutable std::mutex mutex_;
  size_t max_bytes_;
  size_t bytes_ = 0;
  std::list<Entry> entries_;  // the most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
};

// Whether a sampled turn may stand in a prompt as it is: it holds no control token but those of calls and of the end of
// reasoning, which the parser has read. (A turn marker that the model made up is text when it is rendered.)
bool MayBeRepeated(std::span<const int32_t> ids, const text::Tokenizer& tokenizer, const EngineLimits& limits);

// Whether two texts are the same JSON value; texts that are no JSON must be equal.
bool SameJson(const std::string& a, const std::string& b);

}  // namespace senko::api
