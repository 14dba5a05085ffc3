#include "server/api_keys.h"

#include <openssl/crypto.h>

#include <optional>
#include <span>
#include <utility>

#include "base/sha256.h"

namespace senko::server {
namespace {

// The key in "Bearer <key>"; the scheme is case-insensitive, one or more spaces follow it.
std::optional<std::string_view> BearerKey(std::string_view value) {
  constexpr std::string_view kScheme = "bearer";
  if (value.size() <= kScheme.size() || value[kScheme.size()] != ' ') return std::nullopt;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if ((value[i] | 0x20) != kScheme[i]) return std::nullopt;
  }
  value.remove_prefix(kScheme.size());
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  return value;
}

}  // namespace

ApiKeys::ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {
  for (const std::string& key : keys_) {
    digests_.push_back(Sha256(key));
    short_hashes_.push_back(Hex(std::span(digests_.back()).first(4)));
  }
}

// Compares digests, all of them and each to its end: neither a key's length nor its place in the list shows.
int ApiKeys::FindKey(std::string_view presented) const {
  const Sha256Digest digest = Sha256(presented);
  int found = kNone;
  for (size_t i = 0; i < digests_.size(); ++i) {
    if (CRYPTO_memcmp(digest.data(), digests_[i].data(), digest.size()) == 0) found = static_cast<int>(i);
  }
  return found;
}

int ApiKeys::Find(const api::HttpRequest& request) const {
  std::optional<std::string_view> authorization, x_api_key;
  for (const auto& [name, value] : request.headers) {
    if (name == "authorization") {
      if (authorization) return kNone;
      authorization = value;
    } else if (name == "x-api-key") {
      if (x_api_key) return kNone;
      x_api_key = value;
    }
  }
  int found = kNone;
  if (authorization) {
    const auto key = BearerKey(*authorization);
    if (!key) return kNone;
    found = FindKey(*key);
    if (found == kNone) return kNone;
  }
  if (x_api_key) {
    const int other = FindKey(*x_api_key);
    if (other == kNone || (authorization && other != found)) return kNone;
    found = other;
  }
  return found;
}

}  // namespace senko::server
