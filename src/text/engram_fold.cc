#include "text/engram_fold.h"

#include <utf8proc.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "text/engram_fold_table.h"
#include "text/unicode_class.h"
#include "text/utf8.h"

namespace senko::text {
namespace {

// Which code points change at all is a measured table, so an installed utf8proc newer than the package's
// tables changes nothing; what they become is utf8proc's decomposition, which Unicode promises never to
// change, but for a short list.
struct FoldTable {
  struct Range {
    char32_t begin, end;
  };
  std::vector<Range> ranges;
  std::unordered_map<char32_t, char32_t> exceptions;

  FoldTable() {
    char32_t at = 0;
    for (size_t i = 0; i < std::size(kFoldRanges); i += 2) {
      at += kFoldRanges[i];
      const char32_t end = at + kFoldRanges[i + 1];
      if (end != at) ranges.push_back({at, end});
      at = end;
    }
    for (const auto& [from, to] : kFoldExceptions) exceptions.emplace(from, to);
  }
  bool Changes(char32_t c) const {
    const auto after = std::upper_bound(ranges.begin(), ranges.end(), c,
                                        [](char32_t value, const Range& range) { return value < range.begin; });
    return after != ranges.begin() && c < std::prev(after)->end;
  }
};

bool IsMark(utf8proc_int32_t c) {
  const utf8proc_category_t category = utf8proc_category(c);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

bool IsBlank(char32_t c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool IsStripped(char32_t c) { return (ClassOf(c) & kSpace) != 0; }

}  // namespace

void FoldCodePoint(char32_t code_point, std::u32string* out) {
  static const FoldTable table;
  if (!table.Changes(code_point)) {
    out->push_back(code_point);
    return;
  }
  if (const auto exception = table.exceptions.find(code_point); exception != table.exceptions.end()) {
    if (exception->second != 0) out->push_back(exception->second);
    return;
  }
  utf8proc_int32_t parts[32];  // the longest decomposition has 18
  int boundary = 0;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE);
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), parts, 32, options, &boundary);
  SENKO_CHECK(count >= 0 && count <= 32);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    if (!IsMark(parts[i])) out->push_back(static_cast<char32_t>(utf8proc_tolower(parts[i])));
  }
}

std::string EngramFold(std::string_view text) {
  std::u32string folded;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeUtf8(text, at);
    SENKO_CHECK(c.value != kInvalidCodePoint);
    FoldCodePoint(c.value, &folded);
    at += c.size_bytes;
  }
  std::u32string spaced;
  for (size_t i = 0; i < folded.size(); ++i) {
    if (!IsBlank(folded[i])) {
      spaced.push_back(folded[i]);
    } else if (i == 0 || !IsBlank(folded[i - 1])) {
      spaced.push_back(' ');
    }
  }
  size_t begin = 0, end = spaced.size();
  if (spaced != U" ") {
    while (begin < end && IsStripped(spaced[begin])) ++begin;
    while (end > begin && IsStripped(spaced[end - 1])) --end;
  }
  std::string out;
  for (size_t i = begin; i < end; ++i) {
    // The chain protects a lone space as U+E000 and turns that back at the end, so a U+E000 of the text
    // becomes a space.
    AppendUtf8(spaced[i] == 0xE000 ? U' ' : spaced[i], &out);
  }
  return out;
}

}  // namespace senko::text
