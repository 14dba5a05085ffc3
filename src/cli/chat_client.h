// A conversation with a server that speaks /v1/chat/completions.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace senko::cli {

struct ChatSettings {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string model;  // empty: the first the server names
  std::string system;
  bool thinking = true;
  double temperature = 1.0;
  int64_t max_tokens = 0;  // 0: what the context leaves
};

struct ChatUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
};

// Pieces of the answer as they come; either is empty.
using OnPiece = std::function<void(std::string_view reasoning, std::string_view content)>;

// One conversation. Errors: kIo when the server cannot be reached or answers with an error, with its words.
class ChatClient {
 public:
  explicit ChatClient(ChatSettings settings);

  ChatSettings& settings() { return settings_; }
  const std::string& model() const { return model_; }
  const ChatUsage& usage() const { return usage_; }  // of the last answer

  // Sends `text` and streams the answer. While `stop` is set the answer is given up; what came so far stays in the
  // conversation. Returns the finish reason, "stopped" if it was given up. On an error `text` is taken back.
  std::string Say(const std::string& text, const std::atomic<bool>& stop, const OnPiece& on_piece);
  void Forget() { messages_.clear(); }
  // The conversation as JSON messages.
  const Json& messages() const { return messages_; }

 private:
  ChatSettings settings_;
  std::string model_;
  Json messages_ = Json::array();
  ChatUsage usage_;
};

}  // namespace senko::cli
