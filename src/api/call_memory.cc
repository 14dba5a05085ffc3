#include "api/call_memory.h"

#include <algorithm>

#include "base/json.h"
#include "text/special_tokens.h"

namespace senko::api {
namespace {

constexpr size_t kEntryOverheadBytes = 256;  // nodes, headers, the map's bucket

// Recursion is bounded by the depth that ParseJson lets through.
bool Same(const Json& a, const Json& b) {
  if (a.is_object() && b.is_object()) {
    if (a.size() != b.size()) return false;
    const auto sorted = [](const Json& object) {
      std::vector<const std::pair<const std::string, Json>*> members;
      for (const auto& member : object.get_ref<const Json::object_t&>()) members.push_back(&member);
      std::sort(members.begin(), members.end(), [](auto* x, auto* y) { return x->first < y->first; });
      return members;
    };
    const auto left = sorted(a), right = sorted(b);
    for (size_t i = 0; i < left.size(); ++i) {
      if (left[i]->first != right[i]->first || !Same(left[i]->second, right[i]->second)) return false;
    }
    return true;
  }
  if (a.is_array() && b.is_array()) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (!Same(a[i], b[i])) return false;
    }
    return true;
  }
  return a == b;
}

bool SameTurn(const RememberedTurn& turn, const text::Message& message) {
  if (message.tool_calls.size() != turn.calls.size() || message.content != turn.content) return false;
  if (!message.reasoning.empty() && message.reasoning != turn.reasoning) return false;
  for (size_t i = 0; i < turn.calls.size(); ++i) {
    const text::ToolCall& call = message.tool_calls[i];
    if (call.id != turn.calls[i].id || call.name != turn.calls[i].name) return false;
    if (!SameJson(call.arguments, turn.calls[i].arguments)) return false;
  }
  return true;
}

size_t BytesOf(const RememberedTurn& turn, const std::string& key) {
  size_t bytes = kEntryOverheadBytes + 2 * key.size() + turn.ids.size() * sizeof(int32_t) + turn.reasoning.size() +
                 turn.content.size();
  for (const CallRecord& call : turn.calls) {
    bytes += sizeof(call) + call.id.size() + call.name.size() + call.arguments.size();
  }
  return bytes;
}

}  // namespace

bool SameJson(const std::string& a, const std::string& b) {
  if (a == b) return true;
  try {
    return Same(ParseJson(a, "arguments"), ParseJson(b, "arguments"));
  } catch (const Error&) {
    return false;
  }
}

bool MayBeRepeated(std::span<const int32_t> ids, const text::Tokenizer& tokenizer, const EngineLimits& limits) {
  std::vector<int32_t> barred = {limits.eos_token, limits.image_token};
  for (const std::string_view spelling : {text::kBos, text::kEos, text::kSystemToken, text::kUserToken,
                                          text::kAssistantToken, text::kLatestReminderToken, text::kThinkOpen}) {
    if (const auto id = tokenizer.AddedTokenId(spelling)) barred.push_back(*id);
  }
  for (const std::string_view task : text::kTasks) {
    if (const auto id = tokenizer.AddedTokenId("<｜" + std::string(task) + "｜>")) barred.push_back(*id);
  }
  return std::none_of(ids.begin(), ids.end(), [&](int32_t id) {
    return id < 0 || id >= limits.vocab_size || std::find(barred.begin(), barred.end(), id) != barred.end();
  });
}

// Lengths first, so that no salt can imitate another key's.
std::string CallMemory::Key(const MemoryScope& scope, const std::string& call_id) {
  return std::to_string(scope.api_key.size()) + ":" + std::to_string(scope.cache_salt.size()) + ":" + scope.api_key +
         scope.cache_salt + call_id;
}

void CallMemory::Drop(std::list<Entry>::iterator entry) {
  bytes_ -= entry->bytes;
  by_key_.erase(entry->key);
  entries_.erase(entry);
}

void CallMemory::Remember(const MemoryScope& scope, RememberedTurn turn) {
  if (turn.calls.empty()) return;
  Entry entry;
  entry.key = Key(scope, turn.calls[0].id);
  entry.bytes = BytesOf(turn, entry.key);
  entry.turn = std::make_shared<const RememberedTurn>(std::move(turn));
  if (entry.bytes > max_bytes_) return;
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(entry.key); found != by_key_.end()) Drop(found->second);
  while (bytes_ + entry.bytes > max_bytes_) Drop(std::prev(entries_.end()));
  bytes_ += entry.bytes;
  entries_.push_front(std::move(entry));
  by_key_.emplace(entries_.front().key, entries_.begin());
}

void CallMemory::Recall(const MemoryScope& scope, text::Message* message) {
  if (message->tool_calls.empty() || message->tool_calls[0].id.empty()) return;
  std::shared_ptr<const RememberedTurn> turn;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_key_.find(Key(scope, message->tool_calls[0].id));
    if (found == by_key_.end()) return;
    entries_.splice(entries_.begin(), entries_, found->second);
    turn = found->second->turn;
  }
  if (!SameTurn(*turn, *message)) return;
  message->sampled_ids = turn->ids;
  message->sampled_thinking = turn->thinking;
}

size_t CallMemory::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

size_t CallMemory::turns() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace senko::api
