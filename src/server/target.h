// The target of a request line.
#pragma once

#include <string>
#include <string_view>

namespace senko::server {

// Splits "/v1/models/a%2Fb?x=1", or the same after "http://host", into the decoded path and the query as it is; "*" is
// a path of its own. False for anything else, for a bad escape, and for a control character or a byte past ASCII's.
bool SplitTarget(std::string_view target, std::string* path, std::string* query);

}  // namespace senko::server
