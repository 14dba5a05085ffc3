#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "text/splitter.h"

namespace senko::text {
namespace {

template <auto free>
struct Deleter {
  template <typename T>
  void operator()(T* pointer) const {
    free(pointer);
  }
};
using Code = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;

constexpr uint32_t kMatchLimit = 10'000'000;  // steps of one match without JIT
constexpr uint32_t kHeapLimitKib = 64 * 1024;

std::string Message(int code) {
  char buffer[256];
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof(buffer));
  return buffer;
}

class PcreSplitter : public Splitter {
 public:
  PcreSplitter(const std::string& pattern, std::string field) : field_(std::move(field)) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C, &error,
                              &offset, nullptr));
    if (code_ == nullptr) {
      throw Error(ErrorCode::kUnsupported,
                  field_ + ": the pattern does not compile at byte " + std::to_string(offset) + ": " + Message(error));
    }
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // without JIT the interpreter does the same, slower
    context_.reset(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(context_.get(), kMatchLimit);
    pcre2_set_heap_limit(context_.get(), kHeapLimitKib);
  }

  size_t Split(std::string_view piece, size_t from, size_t most, std::vector<size_t>* ends) const override {
    const MatchData data(pcre2_match_data_create(1, nullptr));
    size_t done = from;
    for (size_t at = from; at < piece.size();) {
      if (ends->size() >= most) return done;
      const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(piece.data()), piece.size(), at,
                                 PCRE2_NOTEMPTY, data.get(), context_.get());
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0) {
        throw Error(ErrorCode::kResourceExhausted, field_ + ": matching the text failed: " + Message(rc));
      }
      const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data.get());
      if (span[0] < done || span[1] <= span[0]) {  // \K in a lookaround can move the start anywhere
        throw Error(ErrorCode::kUnsupported, field_ + ": the pattern moves the start of its own match");
      }
      if (span[0] > done) ends->push_back(span[0]);
      ends->push_back(span[1]);
      done = at = span[1];
    }
    if (done < piece.size()) ends->push_back(piece.size());
    return piece.size();
  }

 private:
  std::string field_;
  Code code_;
  MatchContext context_;
};

}  // namespace

std::unique_ptr<Splitter> MakePcreSplitter(const std::string& pattern, const std::string& field) {
  return std::make_unique<PcreSplitter>(pattern, field);
}

}  // namespace senko::text
