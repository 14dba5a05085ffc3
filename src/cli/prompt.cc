#include "cli/prompt.h"

#include "base/error.h"
#include "text/chat.h"

namespace senko::cli {

std::vector<int32_t> EncodePrompt(const text::Tokenizer& tokenizer, const std::string& text, bool chat, bool thinking) {
  if (!chat) return tokenizer.Encode(text, text::AddedTokens::kAll);
  text::Conversation conversation;
  conversation.thinking = thinking;
  text::Message message;
  message.content = text;
  conversation.messages.push_back(message);
  return text::RenderConversation(conversation, nullptr).Encode(tokenizer);
}

void RefuseImageTokens(std::span<const int32_t> prompt, const config::ModelConfig& config) {
  if (config.image_token_id < 0) return;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] == config.image_token_id) {
      throw Error(ErrorCode::kInvalidArgument, "prompt token " + std::to_string(i) + " is the image token " +
                                                   std::to_string(config.image_token_id) +
                                                   ", but the request carries no image");
    }
  }
}

}  // namespace senko::cli
