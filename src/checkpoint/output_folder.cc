#include "checkpoint/output_folder.h"

#include <unistd.h>

#include <utility>

#include "base/error.h"

namespace senko::checkpoint {

namespace fs = std::filesystem;

OutputFolder::OutputFolder(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  for (fs::path at = path_; !at.empty() && fs::status(at, error).type() == fs::file_type::not_found;
       at = at.parent_path()) {
    made_.push_back(at);
  }
  fs::create_directories(path_, error);
  if (!error) return;
  Remove();  // of folders above, some may have been made
  throw Error(ErrorCode::kIo, path_.string() + ": cannot create the folder: " + error.message());
}

OutputFolder::~OutputFolder() {
  if (!keep_) Remove();
}

void OutputFolder::Add(const std::string& name) { files_.push_back(path_ / name); }

// Plain system calls: they cannot throw, rmdir removes nothing but an empty folder, and a failure here has
// nobody to tell beyond the error that is already on its way.
void OutputFolder::Remove() noexcept {
  for (const fs::path& file : files_) ::unlink(file.c_str());
  for (const fs::path& folder : made_) ::rmdir(folder.c_str());
}

}  // namespace senko::checkpoint
