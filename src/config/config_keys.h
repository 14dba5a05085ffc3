// The closed list of configuration keys, in both spellings (model.md 1.2), mapped to one canonical name.
#pragma once

#include <string>
#include <string_view>

namespace senko::config {

// Which JSON object a key stands in.
enum class Section { kTop, kText, kVision, kRope, kQuantization };

struct KeyMeaning {
  enum Kind { kUnknown, kIgnored, kValue, kSection } kind = kUnknown;
  std::string_view canonical;       // kValue: the released name, e.g. "text.hidden_size"
  Section section = Section::kTop;  // kSection: what the nested object is
};

// kIgnored keys are metadata or training settings that cannot change what the model computes. In
// Section::kTop the keys of the inference spelling and of a text configuration without its wrapper are known
// too.
KeyMeaning LookUpKey(Section section, std::string_view key);

}  // namespace senko::config
