// Any bytes from a client, cut anywhere, to a whole connection without its socket: answers and refusals are the same,
// word for word, whatever the cuts, and memory is bounded and given back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "server/session_rig.h"

namespace {

using senko::server::HttpOptions;
using senko::server::SessionRig;

HttpOptions SmallLimits() {
  HttpOptions options;
  options.max_header_bytes = 1024;
  options.max_header_count = 16;
  options.max_body_bytes = 2048;
  options.max_buffered_body_bytes = 4096;
  options.api_keys = {"k"};
  return options;
}

// Without what differs from one answer to the next: the time, and the ids of requests that brought none.
std::string Comparable(std::string text) {
  for (const std::string_view name : {"\r\nDate: ", "\r\nX-Request-Id: req-"}) {
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at)) {
      at += name.size();
      text.erase(at, text.find('\r', at) - at);
    }
  }
  return text;
}

std::string Answers(std::string_view bytes, size_t seed, bool cut) {
  SessionRig rig(SmallLimits());
  std::string out;
  while (!bytes.empty() && !rig.session->done()) {
    const size_t piece = cut ? std::min(bytes.size(), 1 + seed % 13) : bytes.size();
    seed = seed * 31 + 7;
    rig.Input(bytes.substr(0, piece));
    bytes.remove_prefix(piece);
    out += rig.Output();
    // An answer lets the next pipelined request in, which is answered in its turn.
    while (!rig.held.empty()) {
      const auto held = std::exchange(rig.held, {});
      for (const auto& exchange : held) {
        exchange->BeginEvents();
        exchange->Event("x");
        exchange->EndEvents();
      }
      out += rig.Output();
    }
  }
  rig.session->OnTime(rig.session->Deadline());
  out += rig.Output();
  rig.session->OnStop(rig.now);
  rig.session.reset();
  if (rig.gate->stats().buffered_answer_bytes != 0) std::abort();
  if (rig.gate->stats().buffered_body_bytes != 0 || rig.gate->stats().requests_in_flight != 0) std::abort();
  if (!out.empty() && !out.starts_with("HTTP/1.")) std::abort();
  return Comparable(std::move(out));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (Answers(text, data[0], true) != Answers(text, data[0], false)) std::abort();
  return 0;
}
