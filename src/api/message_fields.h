// The messages of a chat completion.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/fields.h"
#include "text/chat.h"

namespace senko::api {

// A content field: null, a string, or a list of text parts whose `type` is one of `types`, joined with `separator`.
// Anything else that a part may be (pictures, sound, files) is refused by name.
std::string ReadContent(const Json* content, const std::string& path, std::string_view separator,
                        std::initializer_list<std::string_view> types);

// Errors: RequestError naming the message's field.
std::vector<text::Message> ReadChatMessages(const Json::array_t& list);

inline constexpr std::string_view kPartSeparator = "\n\n";  // between the parts of a user's message (model.md 7.2)

}  // namespace senko::api
