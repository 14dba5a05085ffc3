// The truth: every score at once, a full sort.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "ops/select/select.h"

namespace senko::ops {
namespace {

struct Scored {
  float score;
  int32_t index;
};

// Whether a comes before b: higher score, NaN last, then the lower index.
bool Better(const Scored& a, const Scored& b) {
  if (std::isnan(a.score) != std::isnan(b.score)) return std::isnan(b.score);
  if (!std::isnan(a.score) && a.score != b.score) return a.score > b.score;
  return a.index < b.index;
}

// The count best, ascending by index.
int32_t Keep(std::vector<Scored> all, int64_t count, int32_t* out) {
  std::sort(all.begin(), all.end(), Better);
  all.resize(std::min(all.size(), static_cast<size_t>(count)));
  std::sort(all.begin(), all.end(), [](const Scored& a, const Scored& b) { return a.index < b.index; });
  for (size_t i = 0; i < all.size(); ++i) out[i] = all[i].index;
  return static_cast<int32_t>(all.size());
}

void Publish(const SelectParams& p, int64_t row, const std::vector<float>& scores) {
  const int64_t visible = static_cast<int64_t>(scores.size());
  std::vector<Scored> blocks;
  for (int64_t e = 0; e < visible; ++e) {
    const int32_t block = static_cast<int32_t>(e / p.candidate_block_size);
    const Scored one{scores[static_cast<size_t>(e)], block};
    if (e % p.candidate_block_size == 0) {
      blocks.push_back(one);
    } else if (Better(one, blocks.back())) {
      blocks.back() = one;
    }
  }
  int32_t* out = p.candidates_out + row * p.candidate_stride;
  int32_t count = 0;
  if (!blocks.empty()) {
    const int32_t newest = blocks.back().index;
    blocks.pop_back();
    count = Keep(blocks, p.candidate_blocks - 1, out);
    out[count++] = newest;
  }
  p.candidate_count_out[row] = count;
}

}  // namespace

void SelectReference(const SelectParams& p, ThreadPool&) {
  for (int64_t row = 0; row < p.score.rows.num_rows; ++row) {
    const int64_t visible = p.visible[row];
    std::vector<float> scores(static_cast<size_t>(visible));
    IndexScoreReference(p.score, row, 0, visible, scores.data());
    if (p.candidates_out != nullptr) Publish(p, row, scores);
    std::vector<Scored> eligible;
    if (p.candidates == nullptr) {
      for (int64_t e = 0; e < visible; ++e)
        eligible.push_back({scores[static_cast<size_t>(e)], static_cast<int32_t>(e)});
    } else {
      for (int32_t c = 0; c < p.candidate_count[row]; ++c) {
        const int64_t begin = p.candidates[row * p.candidate_stride + c] * p.candidate_block_size;
        for (int64_t e = begin; e < std::min(begin + p.candidate_block_size, visible); ++e) {
          eligible.push_back({scores[static_cast<size_t>(e)], static_cast<int32_t>(e)});
        }
      }
    }
    p.selected_count[row] = Keep(eligible, p.topk, p.selected + row * p.selected_stride);
  }
}

}  // namespace senko::ops
