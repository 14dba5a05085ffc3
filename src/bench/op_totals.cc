#include "bench/op_totals.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace senko::bench {

std::string ToText(const runtime::Profile& profile) {
  if (profile.ops.empty()) return "";
  double total = 0;
  for (const auto& entry : profile.ops) total += entry.second.seconds;
  std::vector<std::pair<std::string, runtime::OpTotals>> ops(profile.ops.begin(), profile.ops.end());
  std::sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  std::string text =
      fmt::format("{:<18} {:>7} {:>10} {:>6} {:>9} {:>9}\n", "operator", "calls", "ms", "share", "GFLOP/s", "GB/s");
  for (const auto& [name, op] : ops) {
    text += fmt::format("{:<18} {:>7} {:>10.2f} {:>5.1f}% {:>9.1f} {:>9.2f}\n", name, op.calls, op.seconds * 1e3,
                        100 * op.seconds / total, op.flops / op.seconds / 1e9, op.bytes / op.seconds / 1e9);
  }
  return text;
}

Json ToJson(const runtime::Profile& profile) {
  Json json = Json::object();
  for (const auto& [name, op] : profile.ops) {
    json[name] = {{"calls", op.calls}, {"seconds", op.seconds}, {"flops", op.flops}, {"bytes", op.bytes}};
  }
  return json;
}

}  // namespace senko::bench
