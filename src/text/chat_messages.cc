#include "text/chat_messages.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "text/special_tokens.h"

namespace senko::text {
namespace {

bool IsUserTurn(const Message& message) { return message.role == Role::kUser || message.role == Role::kTool; }

void SortToolResults(std::vector<Message>* messages) {
  std::unordered_map<std::string, size_t> call_order;
  for (size_t i = 0; i < messages->size();) {
    const Message& message = (*messages)[i];
    if (message.role == Role::kAssistant && !message.tool_calls.empty()) {
      call_order = {};  // clear() would go over the buckets of the largest turn so far
      for (const ToolCall& call : message.tool_calls) call_order.emplace(call.id, call_order.size());
    }
    std::vector<size_t> places;
    size_t end = i;
    for (; end < messages->size() && IsUserTurn((*messages)[end]); ++end) {
      if ((*messages)[end].tool_call_id) places.push_back(end);
    }
    if (places.size() > 1 && !call_order.empty()) {
      std::vector<Message> results;
      for (const size_t place : places) results.push_back(std::move((*messages)[place]));
      std::stable_sort(results.begin(), results.end(), [&](const Message& a, const Message& b) {
        const auto order = [&](const Message& m) {
          const auto found = call_order.find(*m.tool_call_id);
          return found == call_order.end() ? size_t{0} : found->second;
        };
        return order(a) < order(b);
      });
      for (size_t k = 0; k < places.size(); ++k) (*messages)[places[k]] = std::move(results[k]);
    }
    i = std::max(end, i + 1);
  }
}

}  // namespace

std::vector<Message> ArrangeMessages(const std::vector<Message>& messages) {
  std::vector<Message> arranged;
  for (const Message& message : messages) {
    Message* last = arranged.empty() ? nullptr : &arranged.back();
    if (last != nullptr && last->role == Role::kUser && message.role == Role::kUser && last->task.empty()) {
      last->content.append("\n\n").append(message.content);
      last->task = message.task;
    } else if (last == nullptr || last->role != Role::kLatestReminder || message.role != Role::kLatestReminder) {
      arranged.push_back(message);
    }
  }
  SortToolResults(&arranged);
  return arranged;
}

void CheckConversation(const Conversation& conversation) {
  const auto refuse = [](const std::string& field, const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, field + " " + why);
  };
  if (conversation.messages.empty()) refuse("messages", "must not be empty");
  if (conversation.effort < 1 || conversation.effort > 100) refuse("effort", "must be from 1 to 100");
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const Message& message = conversation.messages[i];
    const std::string field = "messages[" + std::to_string(i) + "]";
    const bool is_last = i + 1 == conversation.messages.size();
    if (message.role != Role::kAssistant) {
      if (!message.tool_calls.empty()) refuse(field + ".tool_calls", "belongs to an assistant message");
      if (!message.reasoning.empty()) refuse(field + ".reasoning", "belongs to an assistant message");
      if (message.prefix) refuse(field + ".prefix", "belongs to an assistant message");
    }
    if (message.prefix && !is_last) refuse(field + ".prefix", "is only possible in the last message");
    if (message.role != Role::kTool && message.tool_call_id)
      refuse(field + ".tool_call_id", "belongs to a tool message");
    if (message.role != Role::kSystem && !message.tools.empty())
      refuse(field + ".tools", "belongs to a system message");
    if (message.task.empty()) continue;
    if (std::find(std::begin(kTasks), std::end(kTasks), message.task) == std::end(kTasks)) {
      refuse(field + ".task", "must be one of action, query, authority, domain, title, read_url");
    }
    if (message.role == Role::kAssistant || message.role == Role::kTool) {
      refuse(field + ".task", "belongs to a user, system or latest_reminder message");
    }
    if (!is_last && conversation.messages[i + 1].role != Role::kAssistant) {
      refuse(field + ".task", "must be in the last message or followed by an assistant message");
    }
  }
}

}  // namespace senko::text
