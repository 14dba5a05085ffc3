// From a user's text to the prompt's token ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "text/tokenizer.h"

namespace senko::cli {

// chat: `text` is a user's message, so special-token text in it stays text. Otherwise `text` is a raw prompt in which
// special tokens are recognised.
std::vector<int32_t> EncodePrompt(const text::Tokenizer& tokenizer, const std::string& text, bool chat, bool thinking);

// An image token stands for pixels, and nothing here carries any. Errors: kInvalidArgument naming the position.
void RefuseImageTokens(std::span<const int32_t> prompt, const config::ModelConfig& config);

}  // namespace senko::cli
