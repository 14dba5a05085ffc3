// The spellings of the control tokens that the chat encoding uses (model.md 7.1), and the DSML tags (7.4).
#pragma once

#include <string_view>

namespace senko::text {

inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kSystemToken = "<｜System｜>";
inline constexpr std::string_view kUserToken = "<｜User｜>";
inline constexpr std::string_view kAssistantToken = "<｜Assistant｜>";
inline constexpr std::string_view kLatestReminderToken = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";
inline constexpr std::string_view kDsml = "｜DSML｜";

// The only control tokens that an assistant's recorded text may carry: marks of places in an image.
inline constexpr std::string_view kGroundingTokens[] = {"<｜ref｜>",     "<｜/ref｜>",    "<｜box｜>",
                                                        "<｜/box｜>",    "<｜point｜>",   "<｜/point｜>",
                                                        "<｜polygon｜>", "<｜/polygon｜>"};

inline constexpr std::string_view kTasks[] = {"action", "query", "authority", "domain", "title", "read_url"};

// Tag names begin with a space.
inline constexpr std::string_view kCallsTag = " calls";
inline constexpr std::string_view kInvokeTag = " invoke";
inline constexpr std::string_view kParameterTag = " parameter";

}  // namespace senko::text
