// Errors a user can fix. A fault of our own is SENKO_CHECK (base/check.h).
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace senko {

enum class ErrorCode {
  kInvalidArgument,    // a flag, request field or configuration value is wrong
  kNotFound,           // a file, tensor or key does not exist
  kCorrupt,            // a file's bytes contradict its format
  kUnsupported,        // well-formed, but nothing here computes it
  kResourceExhausted,  // memory, disk, pages, slots
  kIo,                 // the operating system refused a read or write
  kNumerical,          // NaN or infinity where a finite number must be
  kOverloaded,         // too much is waiting, or shutting down: try again later
};

// Stable lower-case name, e.g. "invalid_argument".
std::string_view ErrorCodeName(ErrorCode code);

// `message` names the file, tensor, field, byte offset or flag at fault and says what to do.
// Thrown inside a room and caught at the thread's edge; never crosses a thread.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace senko
