// The folder a run writes its files to: all of them or none.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace senko::checkpoint {

// Owned by one thread. Unless Keep is called, the destructor removes the added files and the folders that the
// constructor made, and nothing else: what was there before, or was put there by others, stays.
class OutputFolder {
 public:
  // Makes the folder, and those above it, where absent. Error kIo.
  explicit OutputFolder(std::filesystem::path path);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Says that this run has written `name`, complete; before that its writer answers for it.
  void Add(const std::string& name);
  void Keep() { keep_ = true; }

 private:
  void Remove() noexcept;

  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_, files_;  // folders made, innermost first; files added
  bool keep_ = false;
};

}  // namespace senko::checkpoint
