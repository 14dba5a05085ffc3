// The fast index queries and scores: keys are expanded once per tile and meet every head while in the cache.
#include <algorithm>

#include "base/check.h"
#include "numerics/packed_rows.h"
#include "numerics/row_quantise.h"
#include "ops/index_score/index_score.h"
#include "ops/index_score/score_tile.h"
#include "ops/norm/norm.h"
#include "tensor/buffer.h"

namespace senko::ops {
namespace {

// Where keys of one sequence lie; finds the page of an entry without a division when pages hold a power of
// two.
class KeyFinder {
 public:
  KeyFinder(const EntryView& view, const SequenceKv& sequence) : view_(view), pages_(sequence.pages) {
    const uint64_t per_page = static_cast<uint64_t>(view.entries_per_page);
    if ((per_page & (per_page - 1)) == 0) shift_ = __builtin_ctzll(per_page);
  }

  KeyRef operator()(int64_t entry) const {
    const int64_t page = shift_ >= 0 ? entry >> shift_ : entry / view_.entries_per_page;
    const int64_t in_page = entry - page * view_.entries_per_page;
    const uint8_t* base = view_.slab + int64_t{pages_[page]} * view_.page_bytes;
    return {base + view_.key_value_offset + in_page * view_.key_value_bytes,
            base + view_.key_scale_offset + in_page * view_.key_scale_bytes};
  }

  // Keys first .. first + kTileKeys - 1; false when they do not lie in one page.
  bool Tile(int64_t first, KeyRef* to) const {
    const int64_t in_page = shift_ >= 0 ? first & (view_.entries_per_page - 1) : first % view_.entries_per_page;
    if (in_page + kTileKeys > view_.entries_per_page) return false;
    KeyRef key = (*this)(first);
    for (int64_t k = 0; k < kTileKeys; ++k) {
      to[k] = key;
      key.values += view_.key_value_bytes;
      key.scales += view_.key_scale_bytes;
    }
    return true;
  }

 private:
  const EntryView& view_;
  const int32_t* pages_;
  int shift_ = -1;
};

// Scores of count keys; entry(i) names key i. kInOrder: entry(i) = entry(0) + i.
template <bool kInOrder, typename EntryAt>
void ScoreKeys(const IndexScoreParams& p, int64_t row, int64_t count, EntryAt entry, float* out) {
  if (count <= 0) return;
  SENKO_CHECK(p.dim % kScoreBlock == 0 && p.heads > 0);
  const ScoreKernel kernel = ChooseScoreKernel();
  const int64_t blocks = p.dim / kScoreBlock;
  thread_local Buffer<uint8_t> memory;  // the expanded query, then the kernel's scratch; every part 64-byte aligned
  const int64_t small = numerics::RoundUp(p.heads * blocks * 4, 64);
  const int64_t bytes = p.heads * p.dim + 2 * small + TileScratchBytes(blocks);
  if (static_cast<int64_t>(memory.size()) < bytes) memory = Buffer<uint8_t>(static_cast<size_t>(bytes));
  uint8_t* const scratch = memory.data();
  uint8_t* const bias = scratch + TileScratchBytes(blocks);
  uint8_t* const scales = bias + small;
  uint8_t* const values = scales + small;
  const ScoreQuery query{p.heads,
                         blocks,
                         reinterpret_cast<int8_t*>(values),
                         reinterpret_cast<int32_t*>(bias),
                         reinterpret_cast<float*>(scales),
                         p.weights + row * p.heads};
  kernel.prepare(p.q_values + row * p.heads * (p.dim / 2), p.q_scales + row * p.heads * blocks, query);

  const KeyFinder find(p.entries, p.rows.sequence_kv[p.rows.sequences[row]]);
  KeyRef keys[2][kTileKeys];  // this tile's and the next one's
  const auto fill = [&](int64_t begin, KeyRef* to) {
    if (kInOrder && begin + kTileKeys <= count && find.Tile(entry(begin), to)) {
      for (int64_t k = 0; k < kTileKeys; ++k) __builtin_prefetch(to[k].values);
      __builtin_prefetch(to[0].scales);
      __builtin_prefetch(to[kTileKeys - 1].scales);
      return;
    }
    for (int64_t k = 0; k < kTileKeys; ++k) {
      to[k] = find(entry(std::min(begin + k, count - 1)));  // a short tile repeats its last key
      __builtin_prefetch(to[k].values);
      if (k % 8 == 0) __builtin_prefetch(to[k].scales);
    }
  };
  fill(0, keys[0]);
  for (int64_t begin = 0; begin < count; begin += kTileKeys) {
    const int64_t turn = begin / kTileKeys % 2;
    if (begin + kTileKeys < count) fill(begin + kTileKeys, keys[1 - turn]);
    if (count - begin >= kTileKeys) {
      kernel.tile(query, keys[turn], scratch, out + begin);
    } else {
      float scores[kTileKeys];
      kernel.tile(query, keys[turn], scratch, scores);
      std::copy(scores, scores + (count - begin), out + begin);
    }
  }
}

// A head of the calling thread's; it grows to the largest once.
float* ThreadHead(int64_t dim) {
  thread_local Buffer<float> head;
  if (static_cast<int64_t>(head.size()) < dim) head = Buffer<float>(static_cast<size_t>(dim));
  return head.data();
}

}  // namespace

void IndexQueryCpu(const IndexQueryParams& p, ThreadPool& pool) {
  SENKO_CHECK(p.dim % kScoreBlock == 0 && p.rope_dim <= p.dim && p.rope_dim % 2 == 0);
  pool.ParallelFor(p.rows * p.heads, 32, [&](int64_t begin, int64_t end, int) {
    float* const head = ThreadHead(p.dim);
    for (int64_t i = begin; i < end; ++i) {
      if (p.round_bf16) {
        numerics::RoundBf16Row(p.q + i * p.dim, p.dim, head);
      } else {
        std::copy(p.q + i * p.dim, p.q + (i + 1) * p.dim, head);
      }
      RopeRotate(head + (p.dim - p.rope_dim), p.rope + i / p.heads * p.rope_dim, p.rope_dim / 2,
                 /*inverse=*/false, p.round_bf16);
      numerics::QuantiseFp4Row(head, p.dim, p.values + i * p.dim / 2, p.scales + i * (p.dim / kScoreBlock));
    }
  });
}

void IndexScoreCpu(const IndexScoreParams& p, int64_t row, int64_t begin, int64_t count, float* out) {
  ScoreKeys<true>(
      p, row, count, [begin](int64_t i) { return begin + i; }, out);
}

void IndexScoreListCpu(const IndexScoreParams& p, int64_t row, const int32_t* list, int64_t count, float* out) {
  ScoreKeys<false>(
      p, row, count, [list](int64_t i) { return int64_t{list[i]}; }, out);
}

}  // namespace senko::ops
