#include "text/utf8_stream.h"

#include "text/utf8.h"

namespace senko::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

void Utf8Stream::PushByte(char byte, std::string* out) {
  const auto value = static_cast<unsigned char>(byte);
  if (!held_.empty()) {
    const auto lead = static_cast<unsigned char>(held_[0]);
    const bool fits = held_.size() == 1 ? ValidSecondByte(lead, value) : (value & 0xC0) == 0x80;
    if (fits) {
      held_.push_back(byte);
      if (held_.size() == SequenceBytes(lead)) {
        out->append(held_);
        held_.clear();
      }
      return;
    }
    out->append(kReplacement);
    held_.clear();
  }
  const uint32_t size = SequenceBytes(value);
  if (size == 1) {
    out->push_back(byte);
  } else if (size == 0) {
    out->append(kReplacement);
  } else {
    held_.push_back(byte);
  }
}

void Utf8Stream::Push(std::string_view bytes, std::string* out) {
  for (const char byte : bytes) PushByte(byte, out);
}

void Utf8Stream::Finish(std::string* out) {
  if (!held_.empty()) out->append(kReplacement);
  held_.clear();
}

}  // namespace senko::text
