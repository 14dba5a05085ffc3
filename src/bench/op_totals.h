// The table of operators that a profiled run on the CPU leaves.
#pragma once

#include <string>

#include "base/json.h"
#include "runtime/profile.h"

namespace senko::bench {

// Most time first; nothing of an empty profile.
std::string ToText(const runtime::Profile& profile);
Json ToJson(const runtime::Profile& profile);

}  // namespace senko::bench
