#include "checkpoint/parrot.h"

#include <bit>
#include <cstring>
#include <memory>
#include <set>
#include <unordered_map>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "base/random.h"
#include "checkpoint/parrot_vocabulary.h"
#include "checkpoint/problem_list.h"
#include "checkpoint/random_weights.h"

namespace senko::checkpoint {
namespace {

constexpr size_t kMaxSteps = 32768;      // bounds the pairwise check of the vectors
constexpr size_t kMaxStepBytes = 65536;  // of one token

class ScriptReader {
 public:
  ScriptReader(const config::ModelConfig& config, std::string_view source)
      : config_(config),
        source_(source),
        vocabulary_(config),
        next_(static_cast<size_t>(config.vocab_size), config.eos_token_id),
        set_(next_.size(), false) {}

  ParrotPlan Read(const Json& root) {
    if (!root.is_array()) Fail("must be a list of scripts");
    if (root.empty()) Fail("holds no scripts; give at least one");
    for (size_t i = 0; i < root.size(); ++i) {
      at_ = "script " + std::to_string(i);
      ReadScript(root[i]);
    }
    return {next_, vocabulary_.TokenizerJson()};
  }

 private:
  [[noreturn]] void Fail(const std::string& what, ErrorCode code = ErrorCode::kInvalidArgument) const {
    throw Error(code, source_ + ": " + (at_.empty() ? "" : at_ + ": ") + what);
  }

  void ReadScript(const Json& script) {
    if (!script.is_object()) Fail("must be an object");
    for (const auto& [key, value] : script.items()) {
      if (key != "trigger" && key != "tokens" && key != "text" && key != "cut" && key != "end") {
        Fail("unknown key \"" + Printable(key) + "\"; known are trigger, tokens, text, cut, end");
      }
    }
    if (!script.contains("trigger") || !script["trigger"].is_string()) Fail("needs a \"trigger\" string");
    const std::string trigger = script["trigger"].get<std::string>();
    const auto trigger_id = vocabulary_.Control(trigger);
    if (!trigger_id) Fail("trigger \"" + Printable(trigger) + "\" is neither a control token nor a single byte");
    std::vector<int64_t> ids = {*trigger_id};
    for (const std::string& bytes : Steps(script, &ids)) ids.push_back(AddStep(bytes));
    if (ids.size() < 2) Fail("has no tokens");
    const std::string end =
        script.contains("end") && script["end"].is_string() ? script["end"].get<std::string>() : "eos";
    if (end != "eos" && end != "loop") Fail("end must be \"eos\" or \"loop\"");
    for (size_t i = 0; i + 1 < ids.size(); ++i) Link(ids[i], ids[i + 1]);
    Link(ids.back(), end == "eos" ? config_.eos_token_id : ids[1]);
  }

  // The pieces of "text" cut every "cut" bytes; with "tokens" the ids are appended directly.
  std::vector<std::string> Steps(const Json& script, std::vector<int64_t>* ids) {
    std::vector<std::string> steps;
    if (script.contains("text")) {
      if (script.contains("tokens") || !script["text"].is_string()) Fail("give either \"tokens\" or a \"text\" string");
      const std::string text = script["text"].get<std::string>();
      const bool cut_ok = script.contains("cut") && script["cut"].is_number_unsigned() && script["cut"] > 0;
      if (!cut_ok) Fail("\"text\" needs a positive \"cut\": the bytes per token");
      const size_t cut = std::min<size_t>(script["cut"].get<uint64_t>(), kMaxStepBytes);
      for (size_t at = 0; at < text.size(); at += cut) steps.push_back(text.substr(at, cut));
      return steps;
    }
    if (!script.contains("tokens") || !script["tokens"].is_array()) Fail("needs a \"tokens\" list");
    for (const Json& token : script["tokens"]) {
      if (token.is_object() && token.size() == 1 && token.contains("control") && token["control"].is_string()) {
        const std::string text = token["control"].get<std::string>();
        const auto id = vocabulary_.Control(text);
        if (!id) Fail("\"" + Printable(text) + "\" is not a control token");
        ids->push_back(*id);
      } else {
        ids->push_back(AddStep(Bytes(token)));
      }
    }
    return steps;
  }

  std::string Bytes(const Json& token) const {
    if (token.is_string()) return token.get<std::string>();
    const bool hex = token.is_object() && token.size() == 1 && token.contains("hex") && token["hex"].is_string();
    if (!hex) Fail("a token is a string, {\"hex\": \"f09f\"} or {\"control\": \"</think>\"}");
    const std::string digits = token["hex"].get<std::string>();
    std::string bytes;
    const auto digit = [&](char c) -> int {
      if (c >= '0' && c <= '9') return c - '0';
      if (c >= 'a' && c <= 'f') return c - 'a' + 10;
      if (c >= 'A' && c <= 'F') return c - 'A' + 10;
      Fail("\"" + Printable(digits) + "\" is not hexadecimal");
    };
    if (digits.size() % 2 != 0) Fail("\"" + Printable(digits) + "\" has an odd number of digits");
    for (size_t i = 0; i < digits.size(); i += 2)
      bytes.push_back(static_cast<char>(digit(digits[i]) * 16 + digit(digits[i + 1])));
    return bytes;
  }

  int64_t AddStep(const std::string& bytes) {
    if (bytes.empty() || bytes.size() > kMaxStepBytes)
      Fail("a token must have 1 to " + std::to_string(kMaxStepBytes) + " bytes");
    const int64_t id = ++steps_ <= kMaxSteps ? vocabulary_.AddStep(bytes) : -1;
    if (id < 0) {
      Fail("more steps than vocab_size = " + std::to_string(config_.vocab_size) + " leaves ids for (or than " +
               std::to_string(kMaxSteps) + "); use a configuration with a larger vocab_size",
           ErrorCode::kResourceExhausted);
    }
    return id;
  }

  void Link(int64_t from, int64_t to) {
    const size_t i = static_cast<size_t>(from);
    if (set_[i] && next_[i] != to) {
      Fail("token " + std::to_string(from) +
           " already leads elsewhere: a trigger or control token can stand only once");
    }
    next_[i] = to;
    set_[i] = true;
  }

  const config::ModelConfig& config_;
  std::string source_;
  ParrotVocabulary vocabulary_;
  std::vector<int64_t> next_;
  std::vector<bool> set_;
  std::string at_;
  size_t steps_ = 0;
};

// Sign vectors: bit c of a successor's words is the sign of channel c.
class SignVectors {
 public:
  SignVectors(const config::ModelConfig& config, const ParrotPlan& plan, uint64_t seed)
      : dim_(config.hidden_size), words_(static_cast<size_t>((dim_ + 63) / 64)) {
    const uint64_t key = NameKey(seed, "parrot");
    for (int64_t successor : std::set<int64_t>(plan.next.begin(), plan.next.end())) {
      row_of_.emplace(successor, bits_.size() / words_);
      for (size_t w = 0; w < words_; ++w) {
        const Philox draw = PhiloxDraw(key, static_cast<uint64_t>(successor), w);
        uint64_t word = draw.word[0] | (uint64_t{draw.word[1]} << 32);
        const int64_t used = dim_ - static_cast<int64_t>(w) * 64;
        if (used < 64) word &= (uint64_t{1} << used) - 1;
        bits_.push_back(word);
      }
    }
    CheckApart();
  }

  // Bits of the vector that stands for `successor`; nullptr: nothing leads there, its head row is zero.
  const uint64_t* Bits(int64_t successor) const {
    const auto it = row_of_.find(successor);
    return it == row_of_.end() ? nullptr : &bits_[it->second * words_];
  }

 private:
  // A dot product of two sign vectors is dim - 2 * (differing channels). The right logit is dim; every other
  // one must stay below half of it, far more than rounding or a temperature of 1 can bridge.
  void CheckApart() const {
    const size_t rows = bits_.size() / words_;
    for (size_t a = 0; a < rows; ++a) {
      for (size_t b = 0; b < a; ++b) {
        int64_t differing = 0;
        for (size_t w = 0; w < words_; ++w) differing += std::popcount(bits_[a * words_ + w] ^ bits_[b * words_ + w]);
        if (dim_ - 2 * differing > dim_ / 2) {
          throw Error(ErrorCode::kInvalidArgument,
                      "a parrot with " + std::to_string(rows) + " steps needs a larger hidden_size than " +
                          std::to_string(dim_) + ", or another seed: two of its token vectors are too close");
        }
      }
    }
  }

  int64_t dim_;
  size_t words_;
  std::unordered_map<int64_t, size_t> row_of_;
  std::vector<uint64_t> bits_;
};

void FillSigns(const SignVectors& vectors, const std::vector<int64_t>* next, int64_t dim, uint64_t offset,
               std::span<std::byte> out) {
  for (size_t at = 0; at < out.size();) {
    const int64_t element = static_cast<int64_t>((offset + at) / 2);
    const int64_t row = element / dim;
    const uint64_t* bits = vectors.Bits(next != nullptr ? (*next)[static_cast<size_t>(row)] : row);
    for (int64_t c = element % dim; c < dim && at < out.size(); ++c, at += 2) {
      const bool negative = bits != nullptr && ((bits[c / 64] >> (c % 64)) & 1) != 0;
      const uint16_t value = bits == nullptr ? 0 : negative ? 0xBF80 : 0x3F80;  // bf16 -1 and +1
      std::memcpy(&out[at], &value, 2);
    }
  }
}

void FillOnes(std::span<std::byte> out) {
  const uint16_t one = 0x3F80;
  for (size_t at = 0; at + 2 <= out.size(); at += 2) std::memcpy(&out[at], &one, 2);
}

// The projections through which a sublayer reaches the residual streams.
bool ReachesStreams(const std::string& name) {
  return name.ends_with("attn.wo_b.weight") || name.ends_with(".w2.weight") || name.ends_with("engram.wkv.weight");
}

}  // namespace

ParrotPlan PlanParrot(const config::ModelConfig& config, std::string_view script, std::string_view source) {
  const Json root = ParseJson(script, source);
  return ScriptReader(config, source).Read(root);
}

TensorFiller ParrotFiller(const config::ModelConfig& config, const ParrotPlan& plan, uint64_t seed) {
  SENKO_CHECK(static_cast<int64_t>(plan.next.size()) == config.vocab_size);
  const auto vectors = std::make_shared<const SignVectors>(config, plan, seed);
  const auto next = std::make_shared<const std::vector<int64_t>>(plan.next);
  const int64_t dim = config.hidden_size;
  return [=](const ExpectedTensor& tensor, uint64_t offset, std::span<std::byte> out) {
    const bool mixing = tensor.role == TensorRole::kMixFunction || tensor.role == TensorRole::kMixBase ||
                        tensor.role == TensorRole::kMixScale;
    if (tensor.name == "embed.weight") {
      FillSigns(*vectors, next.get(), dim, offset, out);
    } else if (tensor.name == "head.weight") {
      FillSigns(*vectors, nullptr, dim, offset, out);
    } else if (tensor.role == TensorRole::kNorm) {
      FillOnes(out);
    } else if (mixing || ReachesStreams(tensor.name)) {  // mixing 0: pre 1/2, post 1, C = 1/4 everywhere
      std::memset(out.data(), 0, out.size());
    } else {
      FillRandom(tensor, seed, offset, out);
    }
  };
}

}  // namespace senko::checkpoint
