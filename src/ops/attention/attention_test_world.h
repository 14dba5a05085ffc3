// Random sequences with their rings, staging rows and pages, for the attention tests. A latent is a function
// of (seed, sequence, position), so the same row can be met in any batch; every byte no row may read is
// poison.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/packed_rows.h"
#include "numerics/quantise.h"
#include "ops/attention/attention.h"
#include "ops/norm/norm.h"

namespace senko::ops::testing {

struct Shape {
  int64_t heads, dim, rope_dim, window;
  int64_t topk;  // 0: a window-only layer
};

struct RowSpec {
  int32_t sequence;
  int64_t position;
  int64_t window_begin;
  std::vector<int32_t> selected;
};

// What a step sees: rows, and per sequence the first position that lies in staging.
struct WorldSpec {
  Shape shape;
  std::vector<RowSpec> rows;
  std::vector<int64_t> first_new;
  uint32_t seed = 1;
  uint8_t poison = 0xFF;  // 0xFF and 0x7F are NaN codes and NaN or 1.0 scales
  bool round_bf16 = false;
  int64_t ring_rows = 0;  // 0: window + 3 rounded up to 16
};

inline std::vector<float> RandomFloats(int64_t count, float spread, uint32_t a, uint32_t b, uint32_t c) {
  std::seed_seq seed{a, b, c};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

class World {
 public:
  explicit World(const WorldSpec& spec) : spec_(spec) {
    const Shape& s = spec_.shape;
    ring_rows_ = spec_.ring_rows > 0 ? spec_.ring_rows : numerics::RoundUp(s.window + 3, 16);
    row_stride_ = numerics::WindowRowStride(s.dim);
    entry_stride_ = numerics::EntryStride(s.dim);
    page_bytes_ = numerics::RoundUp(kEntryOffset + kEntriesPerPage * entry_stride_, 256);
    LayOutSequences();
    LayOutRows();
  }

  AttentionParams Params() {
    const Shape& s = spec_.shape;
    AttentionParams p;
    p.rows = {num_rows(),           positions_.data(), sequences_.data(),
              window_begin_.data(), kv_.data(),        static_cast<int64_t>(kv_.size())};
    p.heads = s.heads;
    p.dim = s.dim;
    p.rope_dim = s.rope_dim;
    p.q = q_.data();
    p.rope = rope_.data();
    p.sink = sink_.data();
    p.scale = 1.0f / std::sqrt(static_cast<float>(s.dim));
    p.round_bf16 = spec_.round_bf16;
    p.window = {kRingOffset, ring_rows_, row_stride_, staging_.data()};
    if (s.topk > 0) {
      p.selected = selected_.data();
      p.selected_count = selected_count_.data();
      p.selected_stride = s.topk;
      p.entries.slab = slab_.data();
      p.entries.page_bytes = page_bytes_;
      p.entries.entries_per_page = kEntriesPerPage;
      p.entries.entry_offset = kEntryOffset;
      p.entries.entry_stride = entry_stride_;
    }
    p.out = out_.data();
    return p;
  }

  // Runs an implementation over NaN-filled outputs.
  std::vector<float> Run(void (*op)(const AttentionParams&, ThreadPool&), int threads = 2) {
    out_.assign(q_.size(), std::nanf(""));
    ThreadPool pool(threads);
    op(Params(), pool);
    return out_;
  }

  // The key of a window position or entry before packing; what the packed bytes stand for is quantised from
  // it.
  std::vector<float> Latent(int32_t sequence, int64_t index, bool entry) const {
    return RandomFloats(spec_.shape.dim, 1.0f, spec_.seed, static_cast<uint32_t>(sequence),
                        static_cast<uint32_t>(2 * index + (entry ? 1 : 0)));
  }

  // What the sequences' pointers point into.
  const std::vector<SequenceKv>& sequences_kv() const { return kv_; }
  const std::vector<std::vector<uint8_t>>& slots() const { return slots_; }
  const std::vector<std::vector<int32_t>>& page_lists() const { return page_lists_; }
  const std::vector<uint8_t>& staging() const { return staging_; }
  const std::vector<uint8_t>& slab() const { return slab_; }

  int64_t num_rows() const { return static_cast<int64_t>(spec_.rows.size()); }
  std::vector<float>& q() { return q_; }
  const std::vector<float>& rope() const { return rope_; }
  const std::vector<float>& sink() const { return sink_; }

 private:
  static constexpr int64_t kRingOffset = 256;
  static constexpr int64_t kEntriesPerPage = 8;
  static constexpr int64_t kEntryOffset = 512;

  void PackWindow(int32_t sequence, int64_t position, uint8_t* row) const {
    const std::vector<float> x = Latent(sequence, position, false);
    for (int64_t d = 0; d < spec_.shape.dim; d += 32) {
      numerics::QuantiseFp8(x.data() + d, row + d, row + spec_.shape.dim + d / 32);
    }
  }
  void PackEntry(int32_t sequence, int64_t entry, uint8_t* row) const {
    const std::vector<float> x = Latent(sequence, entry, true);
    for (int64_t d = 0; d < spec_.shape.dim; d += 16) {
      numerics::QuantiseFp4Block16(x.data() + d, row + d / 2, row + (spec_.shape.dim + d / 8) / 2);
    }
  }

  void LayOutSequences() {
    const auto count = static_cast<int64_t>(spec_.first_new.size());
    std::vector<int64_t> last(spec_.first_new.size(), -1), first(spec_.first_new.size(), INT64_MAX);
    std::vector<int64_t> entries(spec_.first_new.size(), 0);
    for (const RowSpec& row : spec_.rows) {
      const auto s = static_cast<size_t>(row.sequence);
      last[s] = std::max(last[s], row.position);
      first[s] = std::min(first[s], row.window_begin);
      for (int32_t e : row.selected) entries[s] = std::max<int64_t>(entries[s], e + 1);
    }
    int64_t staging_rows = 3, pages = 2;  // a few rows and pages belong to nobody
    kv_.resize(spec_.first_new.size());
    slots_.resize(spec_.first_new.size());
    page_lists_.resize(spec_.first_new.size());
    for (int64_t s = 0; s < count; ++s) {
      const auto i = static_cast<size_t>(s);
      kv_[i].first_new = spec_.first_new[i];
      kv_[i].staging_begin = staging_rows;
      staging_rows += std::max<int64_t>(0, last[i] + 1 - spec_.first_new[i]) + 1;
      const int64_t needed = (entries[i] + kEntriesPerPage - 1) / kEntriesPerPage;
      for (int64_t k = 0; k < needed; ++k) page_lists_[i].push_back(static_cast<int32_t>(pages + needed - 1 - k));
      pages += needed;
      slots_[i].assign(static_cast<size_t>(kRingOffset + ring_rows_ * row_stride_), spec_.poison);
      kv_[i].slot = slots_[i].data();
      kv_[i].pages = page_lists_[i].data();
    }
    staging_.assign(static_cast<size_t>(staging_rows * row_stride_), spec_.poison);
    slab_.assign(static_cast<size_t>(pages * page_bytes_), spec_.poison);
    for (int64_t s = 0; s < count; ++s) {
      const auto i = static_cast<size_t>(s);
      for (int64_t position = first[i]; position <= last[i]; ++position) {
        if (position >= kv_[i].first_new) {
          const int64_t row = kv_[i].staging_begin + position - kv_[i].first_new;
          PackWindow(static_cast<int32_t>(s), position, staging_.data() + row * row_stride_);
        } else {
          PackWindow(static_cast<int32_t>(s), position,
                     slots_[i].data() + kRingOffset + position % ring_rows_ * row_stride_);
        }
      }
    }
    for (const RowSpec& row : spec_.rows) {
      for (int32_t e : row.selected) {
        const int64_t page = page_lists_[static_cast<size_t>(row.sequence)][static_cast<size_t>(e / kEntriesPerPage)];
        PackEntry(row.sequence, e,
                  slab_.data() + page * page_bytes_ + kEntryOffset + e % kEntriesPerPage * entry_stride_);
      }
    }
  }

  void LayOutRows() {
    const Shape& s = spec_.shape;
    sink_ = RandomFloats(s.heads, 2.0f, spec_.seed, 7, 7);
    selected_.assign(static_cast<size_t>(num_rows() * s.topk), INT32_MIN);
    for (const RowSpec& row : spec_.rows) {
      const auto r = positions_.size();
      positions_.push_back(row.position);
      sequences_.push_back(row.sequence);
      window_begin_.push_back(row.window_begin);
      selected_count_.push_back(static_cast<int32_t>(row.selected.size()));
      std::copy(row.selected.begin(), row.selected.end(), selected_.begin() + static_cast<int64_t>(r) * s.topk);
      std::vector<float> q = RandomFloats(s.heads * s.dim, 1.5f, spec_.seed + 1000, static_cast<uint32_t>(row.sequence),
                                          static_cast<uint32_t>(row.position));
      if (spec_.round_bf16) {
        for (float& v : q) v = numerics::Bf16ToFloat(numerics::FloatToBf16(v));
      }
      q_.insert(q_.end(), q.begin(), q.end());
    }
    RopeSpec rope;
    rope.rope_dim = std::max<int64_t>(2, s.rope_dim);
    rope.base = 10000;
    const auto inv_freq = RopeInvFreq(rope);
    rope_.resize(static_cast<size_t>(num_rows() * s.rope_dim));
    RopeTable(positions_.data(), num_rows(), inv_freq.data(), s.rope_dim / 2, rope_.data());
  }

  WorldSpec spec_;
  int64_t ring_rows_ = 0, row_stride_ = 0, entry_stride_ = 0, page_bytes_ = 0;
  std::vector<SequenceKv> kv_;
  std::vector<std::vector<uint8_t>> slots_;
  std::vector<std::vector<int32_t>> page_lists_;
  std::vector<uint8_t> staging_, slab_;
  std::vector<int64_t> positions_, window_begin_;
  std::vector<int32_t> sequences_, selected_, selected_count_;
  std::vector<float> q_, rope_, sink_, out_;
};

// `count` rows of one sequence from `begin` on, with the ordinary window and random ascending selections.
inline std::vector<RowSpec> Rows(const Shape& s, int32_t sequence, int64_t begin, int64_t count, uint32_t seed) {
  std::mt19937 random(seed + static_cast<uint32_t>(sequence));
  std::vector<RowSpec> rows;
  for (int64_t i = begin; i < begin + count; ++i) {
    RowSpec row{sequence, i, std::max<int64_t>(0, i - s.window + 1), {}};
    std::vector<int32_t> visible(static_cast<size_t>(s.topk > 0 ? i + 1 : 0));
    for (size_t e = 0; e < visible.size(); ++e) visible[e] = static_cast<int32_t>(e);
    std::shuffle(visible.begin(), visible.end(), random);
    visible.resize(std::min<size_t>(visible.size(), static_cast<size_t>(s.topk)));
    std::sort(visible.begin(), visible.end());
    row.selected = visible;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace senko::ops::testing
