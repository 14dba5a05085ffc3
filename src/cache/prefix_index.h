// Which page holds the global KV of which prefix.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/page_hash.h"
#include "cache/page_pool.h"

namespace senko::cache {

// Pages in the index are remembered by their pool, which gives them up (least recently used first) when it has no
// other. Single-threaded; the pool outlives it.
class PrefixIndex {
 public:
  explicit PrefixIndex(PagePool& pool);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // How many of a sequence's first pages (their names in order) are here, one after the other.
  int64_t Match(std::span<const PageHash> names) const;
  // References to the pages of `names`, all of which Match counted.
  std::vector<PageRef> Adopt(std::span<const PageHash> names);
  // The page's content is complete and will not change. False: another page has that name already, nothing happens.
  bool Insert(const PageHash& name, int32_t page);
  // Takes the name away again, if it is this page that has it.
  void Remove(const PageHash& name, int32_t page);
  // Forgets every page; those in use stay with their owners.
  void Clear();

  int64_t size() const { return static_cast<int64_t>(pages_.size()); }

 private:
  PagePool& pool_;
  std::unordered_map<PageHash, int32_t, PageHashHash> pages_;
  std::vector<PageHash> names_;  // per page of the pool; meaningful for pages in the index
};

}  // namespace senko::cache
