#include "server/request_lines.h"

#include <utility>

namespace senko::server {

void RequestLines::OnHttp(const AccessRecord& record) {
  if (record.number == 0) return write_(AccessLine(record));
  Pair(record.number, {record, {}});
}

void RequestLines::OnApi(const api::RequestRecord& record) { Pair(record.number, {{}, record}); }

void RequestLines::Pair(uint64_t number, Halves half) {
  Halves line;
  {
    const std::lock_guard lock(mutex_);
    Halves& known = waiting_[number];
    if (half.http) known.http = std::move(half.http);
    if (half.api) known.api = std::move(half.api);
    if (known.http && known.api) {
      line = std::move(waiting_.extract(number).mapped());
    } else if (waiting_.size() > kMostWaiting) {
      line = std::move(waiting_.extract(waiting_.begin()).mapped());
    } else {
      return;
    }
  }
  Write(line);
}

void RequestLines::Write(const Halves& halves) const {
  if (halves.http) write_(AccessLine(*halves.http, halves.api ? &*halves.api : nullptr));
}

}  // namespace senko::server
