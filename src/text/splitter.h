// Pre-tokenizer stages: where a text is cut before byte pairs are merged. Internal to the room.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace senko::text {

// One `Split` stage with behaviour Isolated: every match is a piece, and so is every gap between matches.
// Thread-safe: const calls share nothing that changes.
class Splitter {
 public:
  virtual ~Splitter() = default;
  // Appends the end offsets (relative to `piece`, ascending, the last of all piece.size()) of sub-pieces, from the one
  // that begins at `from`, 0 or an end that was appended before, until `ends` holds about `most` of them: the pieces of
  // a long text never need to be there all at once. Returns the last end. An ill-formed byte is one character of no
  // class. Errors: kResourceExhausted (PCRE2 stages only).
  virtual size_t Split(std::string_view piece, size_t from, size_t most, std::vector<size_t>* ends) const = 0;
};

// A hand-written scanner, linear in the piece, when `pattern` is one of the three of the released tokenizer
// (model.md 7.1); nullptr for any other.
std::unique_ptr<Splitter> MakeKnownSplitter(std::string_view pattern);

// PCRE2 with JIT, for any pattern. Its Unicode tables are the installed library's, which may be older than
// those of the `tokenizers` package. `field` names the pattern in messages. Errors: kUnsupported when it does
// not compile.
std::unique_ptr<Splitter> MakePcreSplitter(const std::string& pattern, const std::string& field);

// The three patterns, for tests and benchmarks.
extern const std::string_view kNumberPattern;
extern const std::string_view kCjkPattern;
extern const std::string_view kWordPattern;

}  // namespace senko::text
