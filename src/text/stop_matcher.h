// Stop strings over streamed text, whatever the token cuts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace senko::text {

// The text ends before the stop string that is complete first, and before the longest of those complete at one place:
// what comes out depends on the text alone, not on how it is cut. Text that may be the beginning of a stop string is
// held back; the stop string itself is never released. Time is linear in the text for every stop string.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) {
    for (std::string& stop : stops) {
      if (!stop.empty()) patterns_.emplace_back(std::move(stop));
    }
  }

  // Text that is certain to come before any stop. Nothing more comes once stopped().
  std::string Push(std::string_view piece) {
    if (stopped_) return {};
    if (patterns_.empty()) return std::string(piece);
    const size_t before = held_.size();
    held_.append(piece);
    size_t keep = 0;
    for (size_t i = 0; i < piece.size(); ++i) {
      const Pattern* complete = nullptr;
      keep = 0;
      for (Pattern& pattern : patterns_) {
        pattern.Advance(piece[i]);
        if (pattern.matched == pattern.text.size()) {
          if (complete == nullptr || complete->text.size() < pattern.text.size()) complete = &pattern;
        }
        keep = std::max(keep, pattern.matched);
      }
      if (complete != nullptr) {
        stopped_ = true;
        stop_ = complete->text;
        return std::exchange(held_, {}).substr(0, before + i + 1 - stop_.size());
      }
    }
    if (piece.empty()) return {};
    std::string out = held_.substr(0, held_.size() - keep);
    held_.erase(0, out.size());
    return out;
  }

  // The end of the text: what was held back after all.
  std::string Finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }
  bool stopped() const { return stopped_; }
  const std::string& stop() const { return stop_; }  // which one, once stopped

 private:
  // One stop string's automaton (Knuth, Morris, Pratt).
  struct Pattern {
    explicit Pattern(std::string stop) : text(std::move(stop)), shorter(text.size()) {
      for (size_t i = 1, n = 0; i < text.size(); ++i) {
        while (n > 0 && text[i] != text[n]) n = shorter[n - 1];
        if (text[i] == text[n]) ++n;
        shorter[i] = n;
      }
    }
    void Advance(char byte) {
      while (matched > 0 && text[matched] != byte) matched = shorter[matched - 1];
      if (text[matched] == byte) ++matched;
    }
    std::string text;
    std::vector<size_t> shorter;  // of a prefix: the longest proper one that ends it
    size_t matched = 0;           // bytes of `text` that the text so far ends with
  };

  std::vector<Pattern> patterns_;
  std::string held_;  // at least as long as every pattern's `matched`
  std::string stop_;
  bool stopped_ = false;
};

}  // namespace senko::text
