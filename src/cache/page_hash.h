// Names of cached content: a chain of SHA-256 over whole pages of token ids. Prompts come from strangers, so two
// different prefixes must never share a name, whatever is tried; a fast hash would allow that.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

namespace senko::cache {

// The name of a page's content and of everything before it.
struct PageHash {
  std::array<uint8_t, 32> bytes{};
  bool operator==(const PageHash&) const = default;
};

// The digest is uniform already.
struct PageHashHash {
  size_t operator()(const PageHash& hash) const {
    size_t value;
    std::memcpy(&value, hash.bytes.data(), sizeof(value));
    return value;
  }
};

// Not thread-safe.
class PageHasher {
 public:
  // `fingerprint` stands for the model, the KV format and the page size: whatever makes entries of equal ids different.
  explicit PageHasher(std::string_view fingerprint);
  ~PageHasher();

  // The name before the first page. Sequences with different salts have no name in common.
  PageHash Root(std::string_view salt);
  // The name after a page with these ids.
  PageHash Next(const PageHash& before, std::span<const int32_t> ids);

 private:
  struct Digest;
  std::unique_ptr<Digest> digest_;
  PageHash fingerprint_;
};

}  // namespace senko::cache
