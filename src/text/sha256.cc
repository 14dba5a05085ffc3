#include "text/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace senko::text {

std::string Sha256Hex(std::string_view bytes) {
  unsigned char digest[32];
  unsigned int size = 0;
  SENKO_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) == 1 && size == 32);
  std::string hex;
  for (const unsigned char byte : digest) {
    hex.push_back("0123456789abcdef"[byte >> 4]);
    hex.push_back("0123456789abcdef"[byte & 15]);
  }
  return hex;
}

}  // namespace senko::text
