// Scanners for the released tokenizer's three patterns. Each states the regular expression that it replaces;
// splitter_test.cc holds them against PCRE2.
#include "text/splitter.h"
#include "text/unicode_class.h"
#include "text/utf8.h"

namespace senko::text {

const std::string_view kNumberPattern = "\\p{N}{1,3}";
const std::string_view kCjkPattern = "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+";
const std::string_view kWordPattern =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+"
    "|\\s+(?!\\S)"
    "|\\s+";

namespace {

struct Char {
  char32_t value;
  uint32_t size_bytes;
  uint8_t bits;
  bool Is(unsigned classes) const { return (bits & classes) != 0; }
  bool IsNewline() const { return value == '\r' || value == '\n'; }
};

Char CharAt(std::string_view piece, size_t at) {
  const CodePoint c = DecodeUtf8(piece, at);
  return {c.value, c.size_bytes, ClassOf(c.value)};
}

// End of the longest run of characters of `classes` from `at`.
size_t RunEnd(std::string_view piece, size_t at, unsigned classes) {
  while (at < piece.size()) {
    const Char c = CharAt(piece, at);
    if (!c.Is(classes)) break;
    at += c.size_bytes;
  }
  return at;
}

// Cuts `piece` at every match. `match(piece, at)` returns the end of the match that starts at `at`, or `at`
// for none.
template <typename Match>
size_t Isolate(std::string_view piece, size_t at, size_t most, Match match, std::vector<size_t>* ends) {
  bool gap = false;
  while (at < piece.size() && (gap || ends->size() < most)) {
    const size_t end = match(piece, at);
    if (end == at) {
      gap = true;
      at += DecodeUtf8(piece, at).size_bytes;
      continue;
    }
    if (gap) ends->push_back(at);
    gap = false;
    ends->push_back(end);
    at = end;
  }
  if (gap) ends->push_back(piece.size());
  return at;
}

// \p{N}{1,3}
size_t MatchNumber(std::string_view piece, size_t at) {
  for (int i = 0; i < 3 && at < piece.size(); ++i) {
    const Char c = CharAt(piece, at);
    if (!c.Is(kNumber)) break;
    at += c.size_bytes;
  }
  return at;
}

// [U+4E00-U+9FA5 U+3040-U+309F U+30A0-U+30FF]+
size_t MatchCjk(std::string_view piece, size_t at) {
  while (at < piece.size()) {
    const CodePoint c = DecodeUtf8(piece, at);
    if (!((c.value >= 0x4E00 && c.value <= 0x9FA5) || (c.value >= 0x3040 && c.value <= 0x30FF))) break;
    at += c.size_bytes;
  }
  return at;
}

bool IsAsciiPunctuation(char32_t c) {
  return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) || (c >= 0x7B && c <= 0x7E);
}

size_t AsciiLettersEnd(std::string_view piece, size_t at) {
  while (at < piece.size() && ((piece[at] | 0x20) >= 'a' && (piece[at] | 0x20) <= 'z')) ++at;
  return at;
}

// The three white-space alternatives: up to the last line break of the run if it has one, else all of the run
// at the end of the piece, else the run without its last character, which the next match may take, else that
// one character.
size_t MatchSpace(std::string_view piece, size_t at) {
  size_t end = at, last = at, after_newline = at;
  while (end < piece.size()) {
    const Char c = CharAt(piece, end);
    if (!c.Is(kSpace)) break;
    last = end;
    end += c.size_bytes;
    if (c.IsNewline()) after_newline = end;
  }
  if (after_newline != at) return after_newline;
  return end == piece.size() || last == at ? end : last;
}

size_t MatchWord(std::string_view piece, size_t at) {
  const Char c = CharAt(piece, at);
  const size_t next = at + c.size_bytes;
  if (IsAsciiPunctuation(c.value)) {
    const size_t end = AsciiLettersEnd(piece, next);
    if (end != next) return end;
  }
  if (c.Is(kLetter | kMark)) return RunEnd(piece, next, kLetter | kMark);
  if (!c.IsNewline() && !c.Is(kPunctuation | kSymbol)) {
    const size_t end = RunEnd(piece, next, kLetter | kMark);
    if (end != next) return end;
  }
  const size_t symbols = c.value == ' ' ? next : at;
  size_t end = RunEnd(piece, symbols, kPunctuation | kSymbol);
  if (end != symbols) {
    while (end < piece.size() && (piece[end] == '\r' || piece[end] == '\n')) ++end;
    return end;
  }
  return c.Is(kSpace) ? MatchSpace(piece, at) : at;
}

template <size_t (*match)(std::string_view, size_t)>
class Scanner : public Splitter {
 public:
  size_t Split(std::string_view piece, size_t from, size_t most, std::vector<size_t>* ends) const override {
    return Isolate(piece, from, most, match, ends);
  }
};

}  // namespace

std::unique_ptr<Splitter> MakeKnownSplitter(std::string_view pattern) {
  if (pattern == kNumberPattern) return std::make_unique<Scanner<MatchNumber>>();
  if (pattern == kCjkPattern) return std::make_unique<Scanner<MatchCjk>>();
  if (pattern == kWordPattern) return std::make_unique<Scanner<MatchWord>>();
  return nullptr;
}

}  // namespace senko::text
