// How much of what is allocated, decided before anything is.
#pragma once

#include <cstdint>
#include <string>

#include "config/kv_layout.h"

namespace senko::runtime {

struct MemoryRequest {
  int64_t kv_cache_memory_bytes = 0;  // pages and slots; 0: default_bytes, or less if less can be used
  int64_t max_model_len = 0;          // 0: the model's, or what fits
  int64_t max_num_seqs = 0;
  int64_t max_positions = 0;  // the model's
  int64_t default_bytes = 0;
  std::string default_name = "a quarter of the free memory";
};

struct MemoryPlan {
  int64_t num_slots = 0;
  int64_t num_pages = 0;
  int64_t max_model_len = 0;
  int64_t slot_bytes = 0;  // of all slots
  int64_t page_bytes = 0;  // of all pages

  // One line for a person.
  std::string ToString() const;
};

// Slots for max_num_seqs, the rest pages, never more than all sequences at their longest can use. Errors:
// kResourceExhausted with the sums and the largest setting that fits; kInvalidArgument for a --max-model-len above the
// model's.
MemoryPlan PlanMemory(const config::PageLayout& pages, const config::SlotLayout& slots, const MemoryRequest& request);

}  // namespace senko::runtime
