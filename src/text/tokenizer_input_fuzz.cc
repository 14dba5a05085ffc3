// Any bytes as a prompt: the ids' bytes are the bytes that went in, and plain text has no added token.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using senko::text::AddedTokens;
  using senko::text::Tokenizer;
  static const Tokenizer tokenizer = Tokenizer::FromFile(SENKO_SOURCE_DIR "/models/tiny/tokenizer.json");
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto added : {AddedTokens::kNone, AddedTokens::kAll}) {
    std::string bytes, streamed;
    senko::text::Detokenizer detokenizer(tokenizer, false);
    const auto ids = tokenizer.Encode(text, added);
    for (const int32_t id : ids) {
      bytes += tokenizer.TokenBytes(id);
      streamed += detokenizer.Push(id);
      if (added == AddedTokens::kNone && tokenizer.AddedTokenId(tokenizer.TokenSpelling(id))) std::abort();
    }
    streamed += detokenizer.Finish();
    if (bytes != text || streamed != tokenizer.Decode(ids, false)) std::abort();
  }
  return 0;
}
