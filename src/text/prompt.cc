#include "text/prompt.h"

#include "base/error.h"

namespace senko::text {

void Prompt::Text(std::string_view text) {
  if (text.empty()) return;
  if (!segments_.empty() && !segments_.back().is_control && segments_.back().ids.empty()) {
    segments_.back().text.append(text);
  } else {
    segments_.push_back({false, std::string(text), {}});
  }
}

void Prompt::Control(std::string_view spelling) { segments_.push_back({true, std::string(spelling), {}}); }

void Prompt::Ids(std::vector<int32_t> ids, std::string_view text) {
  if (!ids.empty()) segments_.push_back({false, std::string(text), std::move(ids)});
}

void Prompt::Append(const Prompt& other) {
  for (const Segment& segment : other.segments_) {
    if (!segment.ids.empty()) {
      Ids(segment.ids, segment.text);
    } else if (segment.is_control) {
      Control(segment.text);
    } else {
      Text(segment.text);
    }
  }
}

std::string Prompt::ToString() const {
  std::string out;
  for (const Segment& segment : segments_) out += segment.text;
  return out;
}

size_t Prompt::LeastIds(const Tokenizer& tokenizer) const {
  size_t least = 0;
  for (const Segment& segment : segments_) {
    least += !segment.ids.empty() ? segment.ids.size()
             : segment.is_control ? 1
                                  : tokenizer.LeastIds(segment.text.size());
  }
  return least;
}

std::vector<int32_t> Prompt::Encode(const Tokenizer& tokenizer, const EncodeLimits& limits) const {
  std::vector<int32_t> ids;
  EncodeLimits rest = limits;
  size_t unasked = 0;
  for (const Segment& segment : segments_) {
    if (ids.size() > limits.max_ids) break;
    // A text asks for itself if it is long; many short ones do not.
    if ((unasked += segment.text.size() + 1) >= kBytesUnasked) {
      unasked = 0;
      if (limits.stop && limits.stop()) break;
    }
    if (!segment.ids.empty()) {
      ids.insert(ids.end(), segment.ids.begin(), segment.ids.end());
      continue;
    }
    if (!segment.is_control) {
      rest.max_ids = limits.max_ids - ids.size();
      const std::vector<int32_t> text = tokenizer.Encode(segment.text, AddedTokens::kNone, rest);
      ids.insert(ids.end(), text.begin(), text.end());
      continue;
    }
    const auto id = tokenizer.AddedTokenId(segment.text);
    if (!id) {
      throw Error(ErrorCode::kUnsupported,
                  "the tokenizer has no control token " + segment.text + ", which this conversation needs");
    }
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace senko::text
