// Which API key a request carries, without telling through the time taken how much of a guess was right.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "api/exchange.h"
#include "base/sha256.h"

namespace senko::server {

// Immutable, shared by all threads.
class ApiKeys {
 public:
  explicit ApiKeys(std::vector<std::string> keys);

  bool empty() const { return keys_.empty(); }
  size_t size() const { return keys_.size(); }
  const std::string& key(size_t index) const { return keys_[index]; }
  // Names a key in logs: the first 8 hexadecimal digits of its SHA-256.
  const std::string& short_hash(size_t index) const { return short_hashes_[index]; }

  static constexpr int kNone = -1;
  // The index of the key in `Authorization: Bearer` or `x-api-key`; kNone for no key, an unknown one, a header given
  // twice, or two headers that disagree.
  int Find(const api::HttpRequest& request) const;

 private:
  int FindKey(std::string_view presented) const;

  std::vector<std::string> keys_;
  std::vector<Sha256Digest> digests_;
  std::vector<std::string> short_hashes_;
};

}  // namespace senko::server
