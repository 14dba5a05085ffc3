#include "checkpoint/text_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace senko::checkpoint {

void WriteTextFile(const std::filesystem::path& path, std::string_view text) {
  const std::filesystem::path partial = path.string() + ".partial";
  {
    std::ofstream file(partial, std::ios::binary | std::ios::trunc);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    file.flush();
    if (!file) {
      throw Error(ErrorCode::kIo, partial.string() + ": cannot write " + std::to_string(text.size()) +
                                      " bytes: " + std::strerror(errno));
    }
  }
  std::error_code error;
  std::filesystem::rename(partial, path, error);
  if (error) throw Error(ErrorCode::kIo, path.string() + ": cannot rename into place: " + error.message());
}

}  // namespace senko::checkpoint
