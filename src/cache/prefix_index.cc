#include "cache/prefix_index.h"

#include "base/check.h"

namespace senko::cache {

PrefixIndex::PrefixIndex(PagePool& pool) : pool_(pool), names_(static_cast<size_t>(pool.num_pages())) {
  pool_.OnForgotten([this](int32_t page) { pages_.erase(names_[static_cast<size_t>(page)]); });
}

int64_t PrefixIndex::Match(std::span<const PageHash> names) const {
  int64_t count = 0;
  for (const PageHash& name : names) {
    if (!pages_.contains(name)) break;
    ++count;
  }
  return count;
}

std::vector<PageRef> PrefixIndex::Adopt(std::span<const PageHash> names) {
  std::vector<PageRef> pages;
  pages.reserve(names.size());
  for (const PageHash& name : names) {
    const auto found = pages_.find(name);
    SENKO_CHECK(found != pages_.end());
    pages.push_back(pool_.Adopt(found->second));
  }
  return pages;
}

bool PrefixIndex::Insert(const PageHash& name, int32_t page) {
  if (!pages_.emplace(name, page).second) return false;
  names_[static_cast<size_t>(page)] = name;
  pool_.Remember(page);
  return true;
}

void PrefixIndex::Remove(const PageHash& name) {
  const auto found = pages_.find(name);
  if (found == pages_.end()) return;
  const int32_t page = found->second;
  pages_.erase(found);
  pool_.Forget(page);
}

}  // namespace senko::cache
