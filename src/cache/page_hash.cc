#include "cache/page_hash.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace senko::cache {

struct PageHasher::Digest {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Digest() { EVP_MD_CTX_free(context); }

  PageHash Of(std::span<const uint8_t> first, std::span<const uint8_t> second) {
    PageHash hash;
    SENKO_CHECK(EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1);
    SENKO_CHECK(EVP_DigestUpdate(context, first.data(), first.size()) == 1);
    SENKO_CHECK(EVP_DigestUpdate(context, second.data(), second.size()) == 1);
    SENKO_CHECK(EVP_DigestFinal_ex(context, hash.bytes.data(), nullptr) == 1);
    return hash;
  }
};

namespace {

std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

PageHasher::PageHasher(std::string_view fingerprint) : digest_(std::make_unique<Digest>()) {
  SENKO_CHECK(digest_->context != nullptr);
  fingerprint_ = digest_->Of(Bytes("senko prefix"), Bytes(fingerprint));
}

PageHasher::~PageHasher() = default;

PageHash PageHasher::Root(std::string_view salt) {
  // The salt's own digest has a fixed length, so no salt can run into what follows it.
  const PageHash salted = digest_->Of(Bytes("senko salt"), Bytes(salt));
  return digest_->Of(fingerprint_.bytes, salted.bytes);
}

PageHash PageHasher::Next(const PageHash& before, std::span<const int32_t> ids) {
  return digest_->Of(before.bytes, {reinterpret_cast<const uint8_t*>(ids.data()), ids.size_bytes()});
}

}  // namespace senko::cache
