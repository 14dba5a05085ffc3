// Putting a conversation's messages into the shape that the template renders. Internal to the room.
#pragma once

#include <vector>

#include "text/chat.h"

namespace senko::text {

// Joins consecutive user messages with a blank line, drops a latest reminder right behind another, and sorts
// tool results: within each run of user messages and tool results, the results with an id take the results'
// places in the order of the calls of the last assistant message that made any (an unknown id counts as the
// first call).
std::vector<Message> ArrangeMessages(const std::vector<Message>& messages);

// Errors: kInvalidArgument naming the field at fault.
void CheckConversation(const Conversation& conversation);

}  // namespace senko::text
