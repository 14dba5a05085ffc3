#include "base/user_cache.h"

#include <pwd.h>
#include <unistd.h>

#include <vector>

namespace senko {

std::filesystem::path UserCacheFolder() {
  passwd entry;
  passwd* found = nullptr;
  std::vector<char> buffer(16384);
  if (getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return {};
  if (found->pw_dir == nullptr || found->pw_dir[0] != '/') return {};
  return std::filesystem::path(found->pw_dir) / ".cache" / "senko";
}

}  // namespace senko
