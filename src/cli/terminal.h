// What a person at a terminal sees: one line of progress on stderr, redrawn in place.
#pragma once

#include "base/progress.h"

namespace senko::cli {

// Draws only when stderr is a terminal; otherwise an empty sink. Clears its line when done reaches total.
ProgressSink TerminalProgress();

}  // namespace senko::cli
