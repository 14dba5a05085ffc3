#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode_class.h"
#include "text/utf8.h"

namespace senko::text {
namespace {

// The code point that ends at `end` (> 0).
CodePoint Before(std::string_view text, size_t end) {
  for (size_t size = 1; size <= 4 && size <= end; ++size) {
    const CodePoint c = DecodeUtf8(text.substr(0, end), end - size);
    if (c.value != kInvalidCodePoint && c.size_bytes == size) return c;
  }
  return {};
}

bool IsWord(CodePoint c) { return (ClassOf(c.value) & kWord) != 0; }
bool IsSpace(CodePoint c) { return (ClassOf(c.value) & kSpace) != 0; }

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<const AddedToken*> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(), [](const auto* a, const auto* b) { return a->content < b->content; });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    auto& [first, last] = by_first_[static_cast<unsigned char>(tokens_[i]->content[0])];
    if (last == 0) first = i;
    last = i + 1;
  }
}

const AddedToken* AddedTokenMatcher::LongestAt(std::string_view text, size_t at) const {
  auto [first, last] = by_first_[static_cast<unsigned char>(text[at])];
  const AddedToken* longest = nullptr;
  const auto byte = [](const AddedToken* token, size_t i) { return static_cast<unsigned char>(token->content[i]); };
  for (size_t length = 1; first < last; ++length) {
    // Every token in [first, last) begins with text[at, at + length). The one that ends there sorts first.
    if (tokens_[first]->content.size() == length) longest = tokens_[first++];
    if (first == last || at + length == text.size()) break;
    const auto want = static_cast<unsigned char>(text[at + length]);
    const auto begin = tokens_.begin() + static_cast<ptrdiff_t>(first);
    const auto end = tokens_.begin() + static_cast<ptrdiff_t>(last);
    const auto low = std::partition_point(begin, end, [&](const auto* t) { return byte(t, length) < want; });
    const auto high = std::partition_point(low, end, [&](const auto* t) { return byte(t, length) == want; });
    first = static_cast<size_t>(low - tokens_.begin());
    last = static_cast<size_t>(high - tokens_.begin());
  }
  return longest;
}

void AddedTokenMatcher::Split(std::string_view whole, size_t begin, size_t end, size_t most,
                              std::vector<Span>* spans) const {
  const std::string_view text = whole.substr(begin, end - begin);
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (spans->size() > most) return;
    const AddedToken* token = LongestAt(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t start = at, stop = at + token->content.size();
    at = stop;
    if (token->single_word) {
      if (start > 0 && IsWord(Before(text, start))) continue;
      if (stop < text.size() && IsWord(DecodeUtf8(text, stop))) continue;
    }
    if (token->lstrip) {
      while (start > done) {
        const CodePoint c = Before(text, start);
        if (!IsSpace(c)) break;
        start -= c.size_bytes;
      }
      start = std::max(start, done);
    }
    if (token->rstrip) {
      while (stop < text.size() && IsSpace(DecodeUtf8(text, stop))) stop += DecodeUtf8(text, stop).size_bytes;
    }
    if (start > done) spans->push_back({begin + done, begin + start, -1});
    spans->push_back({begin + start, begin + stop, token->id});
    done = stop;
  }
  if (done < text.size()) spans->push_back({begin + done, end, -1});
}

}  // namespace senko::text
