#include "text/tokenizer_build.h"

#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "text/byte_alphabet.h"

namespace senko::text {
namespace {

using Names = std::unordered_map<std::string_view, int32_t>;

[[noreturn]] void Fail(std::string_view source, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, std::string(source) + ": " + what);
}

std::string Quoted(std::string_view spelling) {
  std::string quoted(1, '"');
  quoted.append(spelling.substr(0, 80)).push_back('"');
  return quoted;
}

// `spelling` without any of `marks`, removed one after the other as the file's decoder does.
std::string WithoutMarks(std::string spelling, const std::vector<std::string>& marks) {
  for (const std::string& mark : marks) {
    std::string kept;
    size_t done = 0;
    for (size_t at; (at = spelling.find(mark, done)) != std::string::npos; done = at + mark.size()) {
      kept.append(spelling, done, at - done);
    }
    if (done != 0) spelling = kept.append(spelling, done);
  }
  return spelling;
}

// Places every id's spelling. Ids are checked against the number of entries before anything is sized by them.
void PlaceIds(const TokenizerFile& file, std::string_view source, const Names& model, CompiledTokenizer* out) {
  size_t fresh = 0;
  for (const AddedToken& token : file.added) fresh += model.count(token.content) == 0;
  const size_t size = file.vocab.size() + fresh;
  out->spellings.resize(size);
  std::vector<bool> taken(size);
  const auto place = [&](int32_t id, const std::string& spelling, const std::string& field) {
    if (static_cast<size_t>(id) >= size) {
      Fail(source, field + ": id " + std::to_string(id) + " of " + Quoted(spelling) + ", but the file has only " +
                       std::to_string(size) + " tokens; ids must have no holes");
    }
    if (taken[id]) Fail(source, field + ": id " + std::to_string(id) + " is given to two tokens");
    taken[id] = true;
    out->spellings[id] = spelling;
  };
  for (const auto& [spelling, id] : file.vocab) place(id, spelling, "model.vocab");
  for (size_t i = 0; i < file.added.size(); ++i) {
    const AddedToken& token = file.added[i];
    const std::string field = "added_tokens[" + std::to_string(i) + "]";
    const auto known = model.find(token.content);
    if (known == model.end()) {
      place(token.id, token.content, field);
    } else if (known->second != token.id) {
      Fail(source, field + ".id is " + std::to_string(token.id) + ", but model.vocab has " + Quoted(token.content) +
                       " at " + std::to_string(known->second));
    }
  }
}

// Plain text must never yield an added token, so no merge may make one.
void CompileMerges(const TokenizerFile& file, std::string_view source, const Names& model, CompiledTokenizer* out) {
  std::unordered_set<std::string_view> added;
  for (const AddedToken& token : file.added) added.insert(token.content);
  out->merges = std::make_unique<MergeTable>(file.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < file.merges.size(); ++rank) {
    const auto& [left, right] = file.merges[rank];
    joined = left + right;
    const auto left_id = model.find(left), right_id = model.find(right), merged_id = model.find(joined);
    if (left_id == model.end() || right_id == model.end() || merged_id == model.end()) {
      Fail(source, "model.merges[" + std::to_string(rank) + "]: " + Quoted(left) + " + " + Quoted(right) +
                       ": a part or the result is not in model.vocab");
    }
    if (added.count(joined) != 0) {
      Fail(source, "model.merges[" + std::to_string(rank) + "] makes the added token " + Quoted(joined) +
                       ", so plain text could become a control token");
    }
    out->merges->Set(left_id->second, right_id->second, {static_cast<int32_t>(rank), merged_id->second});
  }
}

}  // namespace

std::unique_ptr<CompiledTokenizer> CompileTokenizer(TokenizerFile file, std::string_view source) {
  auto out = std::make_unique<CompiledTokenizer>();
  Names model;
  model.reserve(file.vocab.size());
  for (const auto& [spelling, id] : file.vocab) {
    if (!model.emplace(spelling, id).second) Fail(source, "model.vocab: " + Quoted(spelling) + " is there twice");
  }
  PlaceIds(file, source, model, out.get());
  CompileMerges(file, source, model, out.get());

  const size_t size = out->spellings.size();
  out->bytes.resize(size);
  for (size_t id = 0; id < size; ++id) {
    out->bytes[id] = BytesOfSpelling(WithoutMarks(out->spellings[id], file.decoder_marks));
  }
  for (const auto& [spelling, id] : file.vocab) {
    // A token that the decoder shortens stands for those bytes in output only; text is made of the others.
    const bool is_whole = IsSpelling(spelling) && WithoutMarks(spelling, file.decoder_marks) == spelling;
    if (is_whole) out->word_id.emplace(out->bytes[id], id);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char value = static_cast<char>(byte);
    const auto found = out->word_id.find(std::string_view(&value, 1));
    if (found == out->word_id.end()) {
      Fail(source, "model.vocab: no token for byte " + std::to_string(byte) + " (" +
                       Quoted(SpellBytes(std::string_view(&value, 1))) + ")");
    }
    out->byte_id[byte] = found->second;
  }

  out->special.resize(size);
  out->added = std::move(file.added);
  std::vector<const AddedToken*> first, second;
  for (const AddedToken& token : out->added) {
    if (!out->added_id.emplace(token.content, token.id).second) {
      Fail(source, "added_tokens: " + Quoted(token.content) + " is there twice");
    }
    out->special[token.id] = token.special;
    (token.normalized ? second : first).push_back(&token);
    out->longest_bytes = std::max(out->longest_bytes, token.content.size());
    if (token.lstrip || token.rstrip) out->longest_bytes = SIZE_MAX;
    if (out->bytes[token.id].size() > 1)
      out->word_id.erase(out->bytes[token.id]);  // not a word, even with ignore_merges
  }
  for (const std::string& bytes : out->bytes) out->longest_bytes = std::max(out->longest_bytes, bytes.size());
  out->first_pass = std::make_unique<AddedTokenMatcher>(std::move(first));
  out->second_pass = std::make_unique<AddedTokenMatcher>(std::move(second));

  if (file.split_patterns.size() > kMaxStages) {
    throw Error(ErrorCode::kUnsupported, std::string(source) + ": pre_tokenizer.pretokenizers has more than " +
                                             std::to_string(kMaxStages) + " patterns, the limit");
  }
  for (size_t i = 0; i < file.split_patterns.size(); ++i) {
    const std::string& pattern = file.split_patterns[i];
    const std::string field =
        std::string(source) + ": pre_tokenizer.pretokenizers[" + std::to_string(i) + "].pattern.Regex";
    auto stage = MakeKnownSplitter(pattern);
    out->stages.push_back(stage != nullptr ? std::move(stage) : MakePcreSplitter(pattern, field));
  }
  out->ignore_merges = file.ignore_merges;
  out->whole = std::vector<std::atomic<uint8_t>>(size);
  return out;
}

}  // namespace senko::text
