// What `senko chat` is started with.
#pragma once

#include "cli/chat_client.h"

namespace senko::cli {

struct ChatOptions {
  ChatSettings settings;
};

// Reads messages from standard input until its end. Returns the process's exit code.
int RunChat(const ChatOptions& options);

}  // namespace senko::cli
