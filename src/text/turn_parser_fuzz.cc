// Any bytes as a model's turn, cut anywhere: the same result as in one piece, and every call's arguments are
// JSON.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/turn_parser.h"

namespace {

using senko::text::TurnEvent;
using senko::text::TurnParser;
using senko::text::TurnStart;

std::string Joined(const std::vector<TurnEvent>& events) {
  std::string out, arguments;
  auto last = TurnEvent::Kind::kToolCallEnd;
  for (const TurnEvent& event : events) {
    if (event.kind != last) out += "\xFF" + std::to_string(static_cast<int>(event.kind));
    last = event.kind;
    out += event.text;
    if (event.kind == TurnEvent::Kind::kToolCallBegin) arguments.clear();
    if (event.kind == TurnEvent::Kind::kToolArguments) arguments += event.text;
    if (event.kind == TurnEvent::Kind::kToolCallEnd && !senko::Json::accept(arguments)) std::abort();
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto start = static_cast<TurnStart>(data[0] % 3);
  size_t seed = data[1];
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  std::vector<TurnEvent> whole, cut;
  TurnParser one(start), many(start);
  one.Feed(text, &whole);
  one.Finish(&whole);
  for (size_t at = 0; at < text.size();) {
    const size_t piece = std::min(text.size() - at, 1 + seed % 11);
    seed = seed * 31 + 7;
    many.Feed(text.substr(at, piece), &cut);
    at += piece;
  }
  many.Finish(&cut);
  if (Joined(whole) != Joined(cut) || one.malformed() != many.malformed()) std::abort();
  return 0;
}
