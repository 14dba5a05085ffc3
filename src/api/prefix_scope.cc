#include "api/prefix_scope.h"

#include "base/sha256.h"

namespace senko::api {

PrefixScope ReadPrefixScope(Fields* fields, const Incoming& incoming) {
  PrefixScope scope;
  scope.memory.api_key = incoming.http.api_key;
  if (auto salt = fields->String("cache_salt", kMaxSaltBytes)) {
    if (salt->empty()) fields->Fail("cache_salt", "must not be empty");
    scope.memory.cache_salt = std::move(*salt);
  }
  scope.salt = scope.memory.cache_salt;
  if (!incoming.http.api_key.empty() && !incoming.context->options().keys_share_prefixes) {
    scope.salt.insert(0, Hex(Sha256(incoming.http.api_key)) + ":");  // of one length, so no salt imitates it
  }
  return scope;
}

}  // namespace senko::api
