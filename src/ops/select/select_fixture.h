// For tests and benchmarks: a selection with its output arrays.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/index_score/index_fixture.h"
#include "ops/select/select.h"

namespace senko::ops {

inline constexpr int32_t kUnwritten = -77;

struct SelectFixture {
  IndexFixture index;
  std::vector<int64_t> visible;
  std::vector<int32_t> selected, selected_count, candidates_out, candidate_count_out;
  SelectParams params;

  SelectFixture(const IndexShape& shape, uint64_t seed, int64_t topk)
      : index(shape, seed), visible(static_cast<size_t>(shape.rows), shape.entries) {
    params.score = index.params;
    params.topk = topk;
    params.visible = visible.data();
    params.selected_stride = topk;
    selected.assign(static_cast<size_t>(shape.rows * topk), kUnwritten);
    selected_count.assign(static_cast<size_t>(shape.rows), kUnwritten);
    params.selected = selected.data();
    params.selected_count = selected_count.data();
  }

  void Publish(int64_t blocks, int64_t block_size) {
    params.candidate_blocks = params.candidate_stride = blocks;
    params.candidate_block_size = block_size;
    candidates_out.assign(visible.size() * static_cast<size_t>(blocks), kUnwritten);
    candidate_count_out.assign(visible.size(), kUnwritten);
    params.candidates_out = candidates_out.data();
    params.candidate_count_out = candidate_count_out.data();
  }

  // Restricts to what was published before.
  void RestrictToPublished() {
    params.candidates = candidates_out.data();
    params.candidate_count = candidate_count_out.data();
    params.candidates_out = params.candidate_count_out = nullptr;
  }

  // Draws every key nibble from {0, 0.5, -0.5, 1} with equal scales, so that many scores tie. levels: 1 .. 4.
  void Coarsen(uint64_t seed, int levels) {
    static constexpr uint8_t kCodes[4] = {0, 1, 9, 2};
    std::mt19937_64 random(seed);
    const EntryView& view = params.score.entries;
    const int64_t pages = static_cast<int64_t>(index.slab.size()) / view.page_bytes;
    for (int64_t page = 0; page < pages; ++page) {
      uint8_t* base = index.slab.data() + page * view.page_bytes;
      for (int64_t i = 0; i < view.entries_per_page; ++i) {
        const uint8_t code = kCodes[random() % static_cast<uint64_t>(levels)];
        std::fill_n(base + view.key_value_offset + i * view.key_value_bytes, view.key_value_bytes,
                    static_cast<uint8_t>(code | (code << 4)));
        std::fill_n(base + view.key_scale_offset + i * view.key_scale_bytes, view.key_scale_bytes, uint8_t{127});
      }
    }
  }

  std::vector<int32_t> Selected(int64_t row) const {
    return Row(selected, params.selected_stride, selected_count, row);
  }
  std::vector<int32_t> Candidates(int64_t row) const {
    return Row(candidates_out, params.candidate_stride, candidate_count_out, row);
  }

 private:
  static std::vector<int32_t> Row(const std::vector<int32_t>& all, int64_t stride, const std::vector<int32_t>& counts,
                                  int64_t row) {
    const auto begin = all.begin() + row * stride;
    return {begin, begin + counts[static_cast<size_t>(row)]};
  }
};

}  // namespace senko::ops
