// Bytes in, whole code points out.
#pragma once

#include <string>
#include <string_view>

namespace senko::text {

// Turns a stream of bytes into well-formed UTF-8, whatever the cuts: what comes out, joined, depends only on
// what went in, joined. Every maximal prefix of a sequence that cannot be completed becomes one U+FFFD
// (Unicode 3.9, as Rust's and Python's replacement decoders do). At most 3 bytes are held back.
class Utf8Stream {
 public:
  // Appends to `out` every code point that `bytes` completes.
  void Push(std::string_view bytes, std::string* out);
  // The end: a sequence that was begun and not completed becomes U+FFFD. Afterwards the stream is empty
  // again.
  void Finish(std::string* out);
  bool holding() const { return !held_.empty(); }

 private:
  void PushByte(char byte, std::string* out);

  std::string held_;  // a proper prefix of one sequence
};

}  // namespace senko::text
