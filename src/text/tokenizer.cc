#include "text/tokenizer.h"

#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "text/tokenizer_build.h"
#include "text/tokenizer_file.h"
#include "text/utf8_stream.h"

namespace senko::text {

namespace {

constexpr size_t kSlicePieces = 4096;  // cut at once

// One Encode call. Cuts its text by every stage in turn, each within the pieces of the one before, and merges the last
// pieces as they come, so that what is held beside the ids does not grow with the text.
class Encoding {
 public:
  Encoding(const CompiledTokenizer& data, const EncodeLimits& limits, std::vector<int32_t>* ids)
      : data_(data), limits_(limits), ids_(ids), ends_(data.stages.size()) {}

  void Added(int32_t id) {
    ids_->push_back(id);
    Look(1);
  }
  void Text(std::string_view text) {
    if (!text.empty()) Cut(0, text);
  }
  bool stopped() const { return stopped_; }

 private:
  // As deep as there are stages.
  void Cut(size_t stage, std::string_view piece) {
    if (stage == data_.stages.size()) return Word(piece);
    std::vector<size_t>& ends = ends_[stage];
    for (size_t from = 0; from < piece.size();) {
      ends.clear();
      data_.stages[stage]->Split(piece, from, kSlicePieces, &ends);
      for (const size_t end : ends) {
        Cut(stage + 1, piece.substr(from, end - from));
        if (stopped_) return;
        from = end;
      }
    }
  }

  // Merges one piece. Most words are tokens themselves; whether their merges lead there is remembered by token.
  void Word(std::string_view word) {
    enum : uint8_t { kUnknown, kYes, kNo };
    Look(word.size());
    if (stopped_) return;
    const auto token = data_.word_id.find(word);
    const bool known = token != data_.word_id.end();
    if (known) {
      const uint8_t whole =
          data_.ignore_merges ? uint8_t{kYes} : data_.whole[token->second].load(std::memory_order_relaxed);
      if (whole == kYes) {
        ids_->push_back(token->second);
        return;
      }
    }
    symbols_.clear();
    for (const char byte : word) symbols_.push_back(data_.byte_id[static_cast<unsigned char>(byte)]);
    if (!MergeWord(*data_.merges, &symbols_, limits_.stop)) {
      stopped_ = true;
      return;
    }
    if (known) {
      const bool whole = symbols_.size() == 1 && symbols_.front() == token->second;
      data_.whole[token->second].store(whole ? kYes : kNo, std::memory_order_relaxed);
    }
    ids_->insert(ids_->end(), symbols_.begin(), symbols_.end());
  }

  // Before `bytes` more are encoded: whether anybody wants them.
  void Look(size_t bytes) {
    if (ids_->size() > limits_.max_ids) stopped_ = true;
    unasked_ += bytes;
    if (unasked_ < kBytesUnasked) return;
    unasked_ = 0;
    if (limits_.stop && limits_.stop()) stopped_ = true;
  }

  const CompiledTokenizer& data_;
  const EncodeLimits& limits_;
  std::vector<int32_t>* ids_;
  std::vector<std::vector<size_t>> ends_;  // of each stage
  std::vector<int32_t> symbols_;
  size_t unasked_ = 0;
  bool stopped_ = false;
};

}  // namespace

struct Tokenizer::Impl {
  std::unique_ptr<CompiledTokenizer> data;
  std::string sha256;
};

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

std::vector<int32_t> Tokenizer::Encode(std::string_view bytes, AddedTokens added, const EncodeLimits& limits) const {
  if (bytes.size() > kMaxTextBytes) {
    throw Error(ErrorCode::kResourceExhausted,
                "a text of " + std::to_string(bytes.size()) + " bytes, the limit is " + std::to_string(kMaxTextBytes));
  }
  std::vector<int32_t> ids;
  Encoding encoding(*impl_->data, limits, &ids);
  if (added == AddedTokens::kNone) {
    encoding.Text(bytes);
    return ids;
  }
  // Every span is at least one id.
  std::vector<Span> first, second;
  impl_->data->first_pass->Split(bytes, 0, bytes.size(), limits.max_ids, &first);
  for (const Span& span : first) {
    if (span.id >= 0) {
      second.push_back(span);
    } else {
      impl_->data->second_pass->Split(bytes, span.begin, span.end, limits.max_ids, &second);
    }
  }
  for (const Span& span : second) {
    if (span.id >= 0) {
      encoding.Added(span.id);
    } else {
      encoding.Text(bytes.substr(span.begin, span.end - span.begin));
    }
    if (encoding.stopped()) break;
  }
  return ids;
}

size_t Tokenizer::LeastIds(size_t bytes) const {
  return bytes / impl_->data->longest_bytes + (bytes % impl_->data->longest_bytes != 0);
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
