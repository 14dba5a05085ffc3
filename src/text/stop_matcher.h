// Stop strings over streamed text, whatever the token cuts.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace senko::text {

// Text that may be the beginning of a stop string is held back; the stop string itself is never released. The
// earliest occurrence wins, among those starting at one place the first in the list.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
    std::erase(stops_, std::string());
  }

  // Text that is certain to come before any stop. Nothing more comes once stopped().
  std::string Push(std::string_view piece) {
    if (stopped_) return {};
    held_.append(piece);
    size_t at = std::string::npos;
    for (const std::string& stop : stops_) at = std::min(at, held_.find(stop));
    if (at != std::string::npos) {
      stopped_ = true;
      std::string out = held_.substr(0, at);
      held_.clear();
      return out;
    }
    size_t keep = 0;
    for (const std::string& stop : stops_) {
      for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
        if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
      }
    }
    std::string out = held_.substr(0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
    return out;
  }

  // The end of the text: what was held back after all.
  std::string Finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace senko::text
