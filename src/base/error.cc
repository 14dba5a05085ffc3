#include "base/error.h"

namespace senko {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kNumerical:
      return "numerical";
    case ErrorCode::kOverloaded:
      return "overloaded";
  }
  return "unknown";
}

}  // namespace senko
