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
  // Takes the name away again, from whichever page has it; a page in use stays with its owners.
  void Remove(const PageHash& name);
  bool Contains(const PageHash& name) const { return pages_.contains(name); }

  int64_t size() const { return static_cast<int64_t>(pages_.size()); }

 private:
  PagePool& pool_;
  std::unordered_map<PageHash, int32_t, PageHashHash> pages_;
  std::vector<PageHash> names_;  // per page of the pool; meaningful for pages in the index
};

}  // namespace senko::cache
