// A SAX reader for tokenizer.json. Internal to the room.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer_file.h"

namespace senko::text {

// Splits the document into model.vocab and model.merges, which are large and go into flat lists, and
// everything else, which is small and goes into `rest` (objects keep their order; duplicate keys are
// refused). Errors: kCorrupt with the byte offset for bad syntax, or naming the entry of the wrong shape.
void ReadTokenizerJson(std::string_view json, std::string_view source, TokenizerFile* lists, Json* rest);

}  // namespace senko::text
