// Server-sent events out of bytes as they arrive.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace senko::cli {

// Calls back with each event's data. Comments, other fields and event names are passed over. Not thread-safe.
class SseReader {
 public:
  explicit SseReader(std::function<void(std::string_view data)> on_data) : on_data_(std::move(on_data)) {}

  void Feed(std::string_view bytes) {
    pending_.append(bytes);
    size_t begin = 0;
    for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      std::string_view line(pending_.data() + begin, end - begin);
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      Line(line);
    }
    pending_.erase(0, begin);
  }

 private:
  void Line(std::string_view line) {
    if (line.empty()) {
      if (has_data_) on_data_(data_);
      has_data_ = false;
      data_.clear();
    } else if (line.substr(0, 5) == "data:") {
      line.remove_prefix(5);
      if (!line.empty() && line.front() == ' ') line.remove_prefix(1);
      if (has_data_) data_ += '\n';
      data_ += line;
      has_data_ = true;
    }
  }

  std::function<void(std::string_view)> on_data_;
  std::string pending_;
  std::string data_;
  bool has_data_ = false;
};

}  // namespace senko::cli
