// What a person at a terminal sees: text that a model or a server wrote, and one line of progress on stderr, redrawn in
// place.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "base/progress.h"

namespace senko::cli {

// `text` (UTF-8, whole characters) without what a terminal would obey: control characters other than line breaks and
// tabs become their pictures (U+2400 and on; U+FFFD for those from U+0080).
std::string ForTerminal(std::string_view text);
// A stranger's text to `out`: as it is to a file or a pipe, for a terminal as above.
void Print(std::string_view text, std::FILE* out);
// "senko: " and `line`, which may quote a stranger, to standard error in the same way; as Say, it waits a moment at
// most.
void Tell(std::string_view line);

// Draws only when stderr is a terminal; otherwise an empty sink. Clears its line when done reaches total.
ProgressSink TerminalProgress();

}  // namespace senko::cli
