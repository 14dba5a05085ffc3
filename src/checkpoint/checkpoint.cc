#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/shard_index.h"

namespace senko::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr char kHeadline[] = "not a sound checkpoint";

bool HasSuffix(const fs::path& path, std::string_view suffix) { return path.filename().string().ends_with(suffix); }

std::vector<std::string> SafetensorsIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (HasSuffix(it->path(), ".safetensors")) names.push_back(it->path().filename().string());
  }
  if (error) throw Error(ErrorCode::kIo, folder.string() + ": cannot list the folder: " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

// What to open, decided from names alone.
struct Plan {
  fs::path folder;
  std::optional<ShardIndex> index;
  fs::path index_path;
  std::vector<std::string> files;
};

Plan PlanFor(const fs::path& path) {
  Plan plan;
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  plan.folder = folder ? path : path.parent_path();
  if (folder) {
    plan.index_path = path / kIndexName;
    if (!fs::exists(plan.index_path, ignored)) {
      plan.index_path.clear();
      for (const std::string& name : SafetensorsIn(path)) {
        if (name.starts_with("model")) plan.files.push_back(name);
      }
      if (plan.files.empty()) {
        throw Error(ErrorCode::kNotFound, path.string() + ": neither model.safetensors nor " + kIndexName);
      }
      if (plan.files.size() > 1) {
        throw Error(ErrorCode::kNotFound, path.string() + ": " + std::to_string(plan.files.size()) + " model files (" +
                                              plan.files[0] + ", " + plan.files[1] + ", ...) but no " + kIndexName +
                                              "; restore the index, or keep one file");
      }
    }
  } else if (HasSuffix(path, ".index.json")) {
    plan.index_path = path;
  } else {
    plan.files.push_back(path.filename().string());
  }
  if (!plan.index_path.empty()) {
    plan.index = ParseShardIndex(ReadTextFile(plan.index_path, kMaxIndexBytes), plan.index_path.string());
    std::set<std::string> files;
    for (const auto& [tensor, file] : plan.index->weight_map) files.insert(file);
    plan.files.assign(files.begin(), files.end());
  }
  return plan;
}

// Files in the folder that the checkpoint does not name: leftovers of another one, or copies of its tensors.
void CheckStrays(const Plan& plan, const std::vector<TensorRef>& tensors, ProblemList* problems) {
  const auto known = [&](const std::string& name) {
    const auto it = std::lower_bound(tensors.begin(), tensors.end(), name,
                                     [](const TensorRef& tensor, const std::string& key) { return tensor.name < key; });
    return it != tensors.end() && it->name == name;
  };
  for (const std::string& name : SafetensorsIn(plan.folder)) {
    if (std::binary_search(plan.files.begin(), plan.files.end(), name)) continue;
    if (plan.index && name.starts_with("model")) {
      problems->Add("files not listed in the index", name + ": remove it, or use the index that names it");
      continue;
    }
    try {
      ProblemList unused;
      const SafetensorsFile other = SafetensorsFile::Open(plan.folder / name, &unused);
      for (const HeaderEntry& entry : other.header().entries) {
        if (!known(entry.name)) continue;
        problems->Add("duplicated tensors", Printable(entry.name) + ": also in the unlisted file " + name);
      }
    } catch (const Error&) {  // not a file of this checkpoint, and unreadable: none of our business
    }
  }
}

void CheckIndex(const Plan& plan, const std::vector<TensorRef>& tensors, uint64_t total_bytes,
                const std::vector<SafetensorsFile>& files, const std::set<std::string>& unreadable,
                ProblemList* problems) {
  const auto file_name = [&](const TensorRef& t) {
    return files[static_cast<size_t>(t.file)].mapping().path().filename().string();
  };
  const auto& map = plan.index->weight_map;
  size_t at = 0;
  for (const auto& [name, file] : map) {
    for (; at < tensors.size() && tensors[at].name < name; ++at) {
      if (at > 0 && tensors[at].name == tensors[at - 1].name) continue;
      problems->Add("tensors not listed in the index", Printable(tensors[at].name) + " in " + file_name(tensors[at]));
    }
    bool found = false, right = false;
    std::string where;
    for (; at < tensors.size() && tensors[at].name == name; ++at) {
      found = true;
      right = right || file_name(tensors[at]) == file;
      where = file_name(tensors[at]);
    }
    if (!found && !unreadable.contains(file)) {
      problems->Add("tensors listed but absent", Printable(name) + ": the index names " + file);
    } else if (found && !right) {
      problems->Add("tensors in another file than listed",
                    Printable(name) + ": the index names " + file + ", it is in " + where);
    }
  }
  for (; at < tensors.size(); ++at) {
    if (at > 0 && tensors[at].name == tensors[at - 1].name) continue;
    problems->Add("tensors not listed in the index", Printable(tensors[at].name) + " in " + file_name(tensors[at]));
  }
  if (plan.index->total_size && unreadable.empty() && *plan.index->total_size != total_bytes) {
    problems->Add("wrong metadata", "total_size is " + std::to_string(*plan.index->total_size) + ", the tensors have " +
                                        std::to_string(total_bytes) + " bytes");
  }
}

}  // namespace

Checkpoint Checkpoint::Open(const fs::path& path) {
  const Plan plan = PlanFor(path);
  Checkpoint checkpoint;
  checkpoint.directory_ = plan.folder;
  ProblemList problems;
  std::set<std::string> unreadable;
  bool only_missing = true;
  for (const std::string& name : plan.files) {
    try {
      SafetensorsFile file = SafetensorsFile::Open(plan.folder / name, &problems);
      const int number = static_cast<int>(checkpoint.files_.size());
      for (const HeaderEntry& entry : file.header().entries) {
        checkpoint.tensors_.push_back({entry.name, entry.dtype, entry.shape, file.Bytes(entry), number});
        checkpoint.total_bytes_ += entry.end - entry.begin;
      }
      checkpoint.files_.push_back(std::move(file));
    } catch (const Error& error) {
      const bool missing = error.code() == ErrorCode::kNotFound;
      only_missing = only_missing && missing;
      unreadable.insert(name);
      problems.Add(missing ? "missing files" : "unreadable files",
                   missing ? (plan.folder / name).string() : error.what());
    }
  }
  auto& tensors = checkpoint.tensors_;
  std::sort(tensors.begin(), tensors.end(), [](const TensorRef& a, const TensorRef& b) {
    return std::pair(std::string_view(a.name), a.file) < std::pair(std::string_view(b.name), b.file);
  });
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].name != tensors[i - 1].name) continue;
    problems.Add("duplicated tensors", Printable(tensors[i].name) + ": in " +
                                           checkpoint.file_path(tensors[i - 1].file).filename().string() + " and " +
                                           checkpoint.file_path(tensors[i].file).filename().string());
  }
  if (plan.index) CheckIndex(plan, tensors, checkpoint.total_bytes_, checkpoint.files_, unreadable, &problems);
  if (plan.index || fs::is_directory(path)) CheckStrays(plan, tensors, &problems);
  const bool missing = only_missing && !unreadable.empty();
  problems.ThrowIfAny(missing ? ErrorCode::kNotFound : ErrorCode::kCorrupt, path.string(), kHeadline);
  return checkpoint;
}

const TensorRef* Checkpoint::Find(std::string_view name) const {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const TensorRef& tensor, std::string_view key) { return tensor.name < key; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

const TensorRef& Checkpoint::At(std::string_view name) const {
  const TensorRef* tensor = Find(name);
  if (tensor == nullptr) {
    throw Error(ErrorCode::kNotFound, directory_.string() + ": no tensor \"" + Printable(name) + "\"");
  }
  return *tensor;
}

const fs::path& Checkpoint::file_path(int file) const {
  SENKO_CHECK(file >= 0 && static_cast<size_t>(file) < files_.size());
  return files_[static_cast<size_t>(file)].mapping().path();
}

void Checkpoint::Advise(const TensorRef& tensor, AccessPattern pattern) const {
  const MappedFile& mapping = files_[static_cast<size_t>(tensor.file)].mapping();
  mapping.Advise(pattern, static_cast<size_t>(tensor.bytes.data() - mapping.bytes().data()), tensor.bytes.size());
}

}  // namespace senko::checkpoint
