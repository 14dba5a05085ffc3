#include "api/ids.h"

#include <random>

namespace senko::api {

std::string NewId(std::string_view prefix) {
  constexpr std::string_view kDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::random_device entropy;
  std::uniform_int_distribution<size_t> digit(0, kDigits.size() - 1);
  std::string id(prefix);
  for (int i = 0; i < 24; ++i) id.push_back(kDigits[digit(entropy)]);
  return id;
}

}  // namespace senko::api
