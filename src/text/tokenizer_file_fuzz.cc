// Any bytes as a tokenizer.json: refused with senko::Error, or a tokenizer that encodes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = senko::text::Tokenizer::FromJson(text, "fuzz");
    tokenizer.Encode("The lamp: 123 <|x|>\xFF\n", senko::text::AddedTokens::kAll);
  } catch (const senko::Error&) {
  }
  return 0;
}
