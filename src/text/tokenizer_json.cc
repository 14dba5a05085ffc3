#include "text/tokenizer_json.h"

#include <limits>
#include <utility>

#include "base/error.h"

namespace senko::text {
namespace {

class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(std::string_view source, TokenizerFile* lists, Json* rest) : source_(source), lists_(lists), rest_(rest) {}

  bool null() override { return Scalar(nullptr); }
  bool boolean(bool value) override { return Scalar(value); }
  bool number_float(number_float_t value, const string_t&) override { return Scalar(value); }
  bool binary(binary_t&) override { return false; }
  bool number_integer(number_integer_t value) override {
    if (mode_ == Mode::kVocab) Fail("model.vocab: a negative id");
    return Scalar(value);
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (mode_ != Mode::kVocab) return Scalar(value);
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<int32_t>::max() - 1)) {
      Fail("model.vocab: id " + std::to_string(value) + " is too large");
    }
    lists_->vocab.emplace_back(std::move(key_), static_cast<int32_t>(value));
    return true;
  }
  bool string(string_t& value) override {
    if (mode_ == Mode::kMerges) {
      AddMerge(value);
      return true;
    }
    if (mode_ == Mode::kMergePair) {
      pair_.push_back(std::move(value));
      if (pair_.size() > 2) Fail(MergeName() + " has more than two parts");
      return true;
    }
    return Scalar(std::move(value));
  }
  bool key(string_t& value) override {
    key_ = std::move(value);
    if (mode_ != Mode::kRest) return true;
    if (stack_.back()->contains(key_)) Fail("duplicate key \"" + key_.substr(0, 200) + "\"");
    if (stack_.back()->size() >= kMaxKeys) Fail("an object with more than " + std::to_string(kMaxKeys) + " fields");
    return true;
  }
  bool start_object(std::size_t) override {
    if (mode_ != Mode::kRest) Fail("an object where model." + Where() + " has none");
    if (InModel() && key_ == "vocab") {
      if (!lists_->vocab.empty()) Fail("model.vocab is there twice");
      mode_ = Mode::kVocab;
      return true;
    }
    Push(Json::object());
    return true;
  }
  bool end_object() override {
    if (mode_ == Mode::kVocab) {
      mode_ = Mode::kRest;
      return true;
    }
    if (InModel()) model_ = nullptr;
    stack_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override {
    if (mode_ == Mode::kMerges) {
      mode_ = Mode::kMergePair;
      pair_.clear();
      return true;
    }
    if (mode_ != Mode::kRest) Fail("an array where model." + Where() + " has none");
    if (InModel() && key_ == "merges") {
      if (!lists_->merges.empty()) Fail("model.merges is there twice");
      mode_ = Mode::kMerges;
      return true;
    }
    Push(Json::array());
    return true;
  }
  bool end_array() override {
    if (mode_ == Mode::kMergePair) {
      if (pair_.size() != 2) Fail(MergeName() + " does not have two parts");
      lists_->merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      mode_ = Mode::kMerges;
    } else if (mode_ == Mode::kMerges) {
      mode_ = Mode::kRest;
    } else {
      stack_.pop_back();
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    Fail("invalid JSON at byte " + std::to_string(position) + ": " + std::string(error.what()).substr(0, 300));
  }

 private:
  enum class Mode { kRest, kVocab, kMerges, kMergePair };
  static constexpr size_t kMaxDepth = 16;
  static constexpr size_t kMaxKeys = 256;  // looking for duplicates takes time in the square of this

  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(ErrorCode::kCorrupt, std::string(source_) + ": " + what);
  }
  std::string Where() const { return mode_ == Mode::kVocab ? "vocab" : "merges"; }
  std::string MergeName() const { return "model.merges[" + std::to_string(lists_->merges.size()) + "]"; }
  bool InModel() const { return stack_.size() == 2 && stack_[1] == model_; }

  void AddMerge(const std::string& line) {
    const size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
      Fail(MergeName() + " is not two parts with one space between");
    }
    lists_->merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }

  bool Scalar(Json value) {
    if (mode_ != Mode::kRest) Fail("a value of the wrong type in model." + Where());
    Place(std::move(value));
    return true;
  }
  Json* Place(Json value) {
    if (stack_.empty()) {
      *rest_ = std::move(value);
      return rest_;
    }
    Json& parent = *stack_.back();
    if (parent.is_array()) return &parent.emplace_back(std::move(value));
    Json& slot = parent[key_];
    slot = std::move(value);
    return &slot;
  }
  void Push(Json value) {
    if (stack_.size() >= kMaxDepth) Fail("JSON nested deeper than " + std::to_string(kMaxDepth));
    const bool is_model = stack_.size() == 1 && stack_[0]->is_object() && key_ == "model";
    // A container on the stack is always the last element of its parent, so growing the parent never moves it
    // while it is in use.
    Json* placed = Place(std::move(value));
    stack_.push_back(placed);
    if (is_model) model_ = placed;
  }

  std::string_view source_;
  TokenizerFile* lists_;
  Json* rest_;
  Mode mode_ = Mode::kRest;
  std::vector<Json*> stack_;
  const Json* model_ = nullptr;
  std::string key_;
  std::vector<std::string> pair_;
};

}  // namespace

void ReadTokenizerJson(std::string_view json, std::string_view source, TokenizerFile* lists, Json* rest) {
  if (json.size() > kMaxTokenizerBytes) {
    throw Error(ErrorCode::kResourceExhausted, std::string(source) + ": " + std::to_string(json.size()) +
                                                   " bytes, the limit is " + std::to_string(kMaxTokenizerBytes));
  }
  Reader reader(source, lists, rest);
  Json::sax_parse(json.begin(), json.end(), &reader);
}

}  // namespace senko::text
