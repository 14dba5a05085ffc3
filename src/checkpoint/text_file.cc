#include "checkpoint/text_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace senko::checkpoint {

void CheckReplaceable(const std::filesystem::path& path) {
  std::error_code ignored;  // a path that cannot be examined cannot be written either: that error says more
  const std::filesystem::file_status status = std::filesystem::symlink_status(path, ignored);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return;
  throw Error(ErrorCode::kInvalidArgument,
              path.string() + ": exists and is not a regular file; give another path to write to");
}

void WriteTextFile(const std::filesystem::path& path, std::string_view text) {
  CheckReplaceable(path);
  const std::filesystem::path partial = path.string() + ".partial";
  std::ofstream file(partial, std::ios::binary | std::ios::trunc);
  const bool ours = file.is_open();  // what stands in the way of opening is somebody else's
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.flush();
  const int reason = errno;
  const bool sound = file.good();
  file.close();
  std::error_code error, ignored;
  if (!sound || !file) {
    if (ours) std::filesystem::remove(partial, ignored);
    throw Error(
        reason == ENOSPC || reason == EDQUOT || reason == EFBIG ? ErrorCode::kResourceExhausted : ErrorCode::kIo,
        partial.string() + ": cannot write " + std::to_string(text.size()) + " bytes: " + std::strerror(reason));
  }
  std::filesystem::rename(partial, path, error);
  if (error) {
    std::filesystem::remove(partial, ignored);
    throw Error(ErrorCode::kIo, path.string() + ": cannot rename into place: " + error.message());
  }
}

}  // namespace senko::checkpoint
