// Who shares what is remembered of earlier requests: cached prefixes and turns that called tools.
#pragma once

#include <string>

#include "api/call_memory.h"
#include "api/context.h"
#include "api/fields.h"

namespace senko::api {

inline constexpr size_t kMaxSaltBytes = 1024;

// cache_salt, the same in every route: absent or not empty. `salt`, for GenerationRequest::cache_salt, holds what was
// asked for and, unless the server is told otherwise, the key that the request was let in with: `cached_tokens` would
// tell one key's holder what another has lately sent. A key is there by its hash.
struct PrefixScope {
  MemoryScope memory;
  std::string salt;
};
PrefixScope ReadPrefixScope(Fields* fields, const Incoming& incoming);

}  // namespace senko::api
