#include "text/detokenizer.h"

#include "base/error.h"

namespace senko::text {

std::string Detokenizer::Push(int32_t id) {
  if (!tokenizer_->IsValid(id)) {
    throw Error(ErrorCode::kInvalidArgument, "token id " + std::to_string(id) + " is outside the vocabulary of " +
                                                 std::to_string(tokenizer_->vocab_size()));
  }
  std::string out;
  if (!skip_special_ || !tokenizer_->IsSpecial(id)) stream_.Push(tokenizer_->TokenBytes(id), &out);
  return out;
}

std::string Detokenizer::Finish() {
  std::string out;
  stream_.Finish(&out);
  return out;
}

}  // namespace senko::text
