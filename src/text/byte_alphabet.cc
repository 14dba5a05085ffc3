#include "text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace senko::text {
namespace {

constexpr char32_t kLast = 0x144;  // 68 bytes have no printable Latin-1 character; they take U+0100 onwards

struct Alphabet {
  std::array<char32_t, 256> char_of{};
  std::array<int16_t, kLast> byte_of{};

  Alphabet() {
    byte_of.fill(-1);
    char32_t spare = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      char_of[byte] = printable ? byte : spare++;
      byte_of[char_of[byte]] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& TheAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

bool ToBytes(std::string_view spelling, std::string* out) {
  const Alphabet& alphabet = TheAlphabet();
  for (size_t at = 0; at < spelling.size();) {
    const CodePoint c = DecodeUtf8(spelling, at);
    if (c.value >= kLast || alphabet.byte_of[c.value] < 0) return false;
    out->push_back(static_cast<char>(alphabet.byte_of[c.value]));
    at += c.size_bytes;
  }
  return true;
}

}  // namespace

std::string SpellBytes(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) AppendUtf8(TheAlphabet().char_of[static_cast<unsigned char>(byte)], &out);
  return out;
}

std::string BytesOfSpelling(std::string_view spelling) {
  std::string out;
  return ToBytes(spelling, &out) ? out : std::string(spelling);
}

bool IsSpelling(std::string_view spelling) {
  std::string ignored;
  return ToBytes(spelling, &ignored);
}

}  // namespace senko::text
