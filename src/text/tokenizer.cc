#include "text/tokenizer.h"

#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "text/tokenizer_build.h"
#include "text/tokenizer_file.h"
#include "text/utf8_stream.h"

namespace senko::text {

struct Tokenizer::Impl {
  std::unique_ptr<CompiledTokenizer> data;
  std::string sha256;

  void EncodeWord(std::string_view word, std::vector<int32_t>* symbols, std::vector<int32_t>* ids) const;
  void EncodeText(std::string_view text, std::vector<int32_t>* ids) const;
};

// Merges one piece. Most words are tokens themselves; whether their merges lead there is remembered by token.
void Tokenizer::Impl::EncodeWord(std::string_view word, std::vector<int32_t>* symbols,
                                 std::vector<int32_t>* ids) const {
  enum : uint8_t { kUnknown, kYes, kNo };
  const auto token = data->word_id.find(word);
  const bool known = token != data->word_id.end();
  if (known) {
    const uint8_t whole =
        data->ignore_merges ? uint8_t{kYes} : data->whole[token->second].load(std::memory_order_relaxed);
    if (whole == kYes) {
      ids->push_back(token->second);
      return;
    }
  }
  symbols->clear();
  for (const char byte : word) symbols->push_back(data->byte_id[static_cast<unsigned char>(byte)]);
  MergeWord(*data->merges, symbols);
  if (known) {
    const bool whole = symbols->size() == 1 && symbols->front() == token->second;
    data->whole[token->second].store(whole ? kYes : kNo, std::memory_order_relaxed);
  }
  ids->insert(ids->end(), symbols->begin(), symbols->end());
}

// Cuts `text` by every stage in turn, each within the pieces of the one before, and merges the last pieces.
void Tokenizer::Impl::EncodeText(std::string_view text, std::vector<int32_t>* ids) const {
  if (text.empty()) return;
  std::vector<size_t> ends{text.size()}, next, local;
  for (const auto& stage : data->stages) {
    next.clear();
    size_t begin = 0;
    for (const size_t end : ends) {
      local.clear();
      stage->Split(text.substr(begin, end - begin), &local);
      for (const size_t offset : local) next.push_back(begin + offset);
      begin = end;
    }
    ends.swap(next);
  }
  std::vector<int32_t> symbols;
  size_t begin = 0;
  for (const size_t end : ends) {
    EncodeWord(text.substr(begin, end - begin), &symbols, ids);
    begin = end;
  }
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::FromFile(const std::filesystem::path& path) {
  const MappedFile file = MappedFile::Open(path);
  const auto bytes = file.bytes();
  return FromJson(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), path.string());
}

Tokenizer Tokenizer::FromJson(std::string_view json, std::string_view source) {
  auto impl = std::make_unique<Impl>();
  impl->data = CompileTokenizer(ParseTokenizerFile(json, source), source);
  impl->sha256 = Hex(Sha256(json));
  return Tokenizer(std::move(impl));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view bytes, AddedTokens added) const {
  if (bytes.size() > kMaxTextBytes) {
    throw Error(ErrorCode::kResourceExhausted,
                "a text of " + std::to_string(bytes.size()) + " bytes, the limit is " + std::to_string(kMaxTextBytes));
  }
  std::vector<int32_t> ids;
  if (added == AddedTokens::kNone) {
    impl_->EncodeText(bytes, &ids);
    return ids;
  }
  std::vector<Span> first, second;
  impl_->data->first_pass->Split(bytes, 0, bytes.size(), &first);
  for (const Span& span : first) {
    if (span.id >= 0) {
      second.push_back(span);
    } else {
      impl_->data->second_pass->Split(bytes, span.begin, span.end, &second);
    }
  }
  for (const Span& span : second) {
    if (span.id >= 0) {
      ids.push_back(span.id);
    } else {
      impl_->EncodeText(bytes.substr(span.begin, span.end - span.begin), &ids);
    }
  }
  return ids;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->data->bytes.size()); }
std::string_view Tokenizer::TokenBytes(int32_t id) const { return impl_->data->bytes.at(id); }
std::string_view Tokenizer::TokenSpelling(int32_t id) const { return impl_->data->spellings.at(id); }
bool Tokenizer::IsSpecial(int32_t id) const { return impl_->data->special.at(id) != 0; }
const std::string& Tokenizer::sha256() const { return impl_->sha256; }

std::optional<int32_t> Tokenizer::AddedTokenId(std::string_view spelling) const {
  const auto found = impl_->data->added_id.find(spelling);
  if (found == impl_->data->added_id.end()) return std::nullopt;
  return found->second;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  Utf8Stream stream;
  for (const int32_t id : ids) {
    if (!IsValid(id)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(vocab_size()));
    }
    if (!skip_special || !IsSpecial(id)) stream.Push(TokenBytes(id), &out);
  }
  stream.Finish(&out);
  return out;
}

}  // namespace senko::text
