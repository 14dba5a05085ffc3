// The tokenizer: bytes <-> token ids (model.md 7.1).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace senko::text {

// Which added tokens ("<｜User｜>") are recognised by their spelling.
enum class AddedTokens {
  kNone,  // none: what a user wrote stays text
  kAll,   // all: templates, raw prompts, comparison with the `tokenizers` package
};

inline constexpr size_t kMaxTextBytes = size_t{1} << 30;  // of one Encode call

inline constexpr size_t kBytesUnasked = size_t{64} << 10;  // of text between two calls of EncodeLimits::stop

// How far a long text is encoded. Where Encode stops early its ids begin the text's, which has more.
struct EncodeLimits {
  size_t max_ids = SIZE_MAX;   // it stops soon after there are more
  std::function<bool()> stop;  // asked every few milliseconds; true: nobody wants the ids any more. May be empty
};

// Immutable after loading; every const call may run on any thread at the same time.
class Tokenizer {
 public:
  // Loads tokenizer.json: byte-level BPE, `Split` pre-tokenizers, no normalisation. Whatever could change an
  // id and is not understood is refused, naming file and field. Errors: kNotFound, kIo, kCorrupt,
  // kUnsupported, kResourceExhausted.
  static Tokenizer FromFile(const std::filesystem::path& path);
  // The same from memory; `source` names it in messages.
  static Tokenizer FromJson(std::string_view json, std::string_view source);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Any bytes, in time linear in their number (but for a logarithm). Ids are those of the `tokenizers`
  // package for well-formed UTF-8. An ill-formed byte counts as one character of no class (as an unassigned
  // code point does) and is encoded as its byte token, so the bytes of the ids are always the bytes that went
  // in. Errors: kResourceExhausted for more than kMaxTextBytes, and from a Split pattern other than the
  // released ones.
  std::vector<int32_t> Encode(std::string_view bytes, AddedTokens added, const EncodeLimits& limits = {}) const;
  // No text of so many bytes has fewer ids than this: known without reading it.
  size_t LeastIds(size_t bytes) const;

  // Ids are 0 .. vocab_size() - 1 without holes, added tokens included.
  int32_t vocab_size() const;
  bool IsValid(int64_t id) const { return id >= 0 && id < vocab_size(); }
  // The bytes that an id stands for, possibly a part of a character. Owned by the tokenizer.
  std::string_view TokenBytes(int32_t id) const;
  // The id's entry in the vocabulary file ("Ġthe"). Owned by the tokenizer.
  std::string_view TokenSpelling(int32_t id) const;
  // Whether the id is an added token with the `special` flag.
  bool IsSpecial(int32_t id) const;
  // The id of the added token with exactly this spelling.
  std::optional<int32_t> AddedTokenId(std::string_view spelling) const;

  // The ids' bytes joined; ill-formed sequences become U+FFFD, as in Detokenizer.
  // Errors: kInvalidArgument for an id outside the vocabulary.
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const;

  // Lower-case hexadecimal SHA-256 of the file's bytes.
  const std::string& sha256() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace senko::text
