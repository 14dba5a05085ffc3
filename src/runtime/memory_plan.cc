#include "runtime/memory_plan.h"

#include <algorithm>

#include "base/error.h"

namespace senko::runtime {
namespace {

std::string Bytes(int64_t bytes) { return std::to_string(bytes) + " bytes (" + std::to_string(bytes >> 20) + " MiB)"; }

// What the budget does reach.
std::string EnoughFor(int64_t slots, int64_t tokens) {
  std::string both;
  if (slots > 0) both = "--max-num-seqs " + std::to_string(slots) + " at this length";
  if (tokens > 0) {
    both +=
        (both.empty() ? "" : ", or for ") + ("--max-model-len " + std::to_string(tokens)) + " with this many sequences";
  }
  return both.empty() ? "it is not enough for one sequence of this length" : "it is enough for " + both;
}

}  // namespace

std::string MemoryPlan::ToString() const {
  return std::to_string(num_slots) + " slots in " + Bytes(slot_bytes) + " and " + std::to_string(num_pages) +
         " pages in " + Bytes(page_bytes) + ": sequences of up to " + std::to_string(max_model_len) + " tokens";
}

MemoryPlan PlanMemory(const config::PageLayout& pages, const config::SlotLayout& slots, const MemoryRequest& request) {
  const int64_t block = pages.block_size;
  if (request.max_model_len > request.max_positions) {
    throw Error(ErrorCode::kInvalidArgument, "--max-model-len " + std::to_string(request.max_model_len) +
                                                 ": the model's context is " + std::to_string(request.max_positions));
  }
  const int64_t wanted = request.max_model_len > 0 ? request.max_model_len : request.max_positions;
  const int64_t longest = (wanted + block - 1) / block;
  MemoryPlan plan;
  plan.num_slots = request.max_num_seqs;
  plan.slot_bytes = plan.num_slots * slots.slot_bytes;
  const int64_t budget = request.kv_cache_memory_bytes > 0 ? request.kv_cache_memory_bytes : request.default_bytes;
  if (pages.page_bytes == 0) {  // a model without global KV: pages only count
    plan.num_pages = plan.num_slots * longest;
    plan.max_model_len = wanted;
    if (plan.slot_bytes <= budget) return plan;
  }
  const int64_t left = budget - plan.slot_bytes;
  const int64_t fit = left > 0 && pages.page_bytes > 0 ? left / pages.page_bytes : 0;
  plan.num_pages = std::min(fit, plan.num_slots * longest);
  plan.page_bytes = plan.num_pages * pages.page_bytes;
  plan.max_model_len = std::min(wanted, plan.num_pages * block);
  const bool too_short = request.max_model_len > 0 ? plan.max_model_len < wanted : plan.num_pages == 0;
  if (!too_short) return plan;

  const int64_t slots_that_fit =
      slots.slot_bytes > 0 ? (budget - std::min(budget, longest * pages.page_bytes)) / slots.slot_bytes : 0;
  throw Error(ErrorCode::kResourceExhausted,
              (request.kv_cache_memory_bytes > 0 ? "--kv-cache-memory-bytes " : request.default_name + ", ") +
                  Bytes(budget) + ", must hold " + std::to_string(plan.num_slots) + " slots, " +
                  Bytes(plan.slot_bytes) + ", and pages for --max-model-len " + std::to_string(wanted) + ", " +
                  Bytes(longest * pages.page_bytes) + "; " + EnoughFor(slots_that_fit, plan.num_pages * block));
}

}  // namespace senko::runtime
