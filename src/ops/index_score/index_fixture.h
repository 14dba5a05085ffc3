// For tests and benchmarks: index keys of a few sequences in shuffled pages, and the queries of a few rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "ops/index_score/index_score.h"

namespace senko::ops {

struct IndexShape {
  int64_t heads = 4;
  int64_t dim = 64;
  int64_t entries = 100;  // of every sequence
  int64_t sequences = 1;
  int64_t rows = 1;  // row r belongs to sequence r mod sequences
  int64_t entries_per_page = 32;
};

// Owns everything IndexScoreParams points to.
struct IndexFixture {
  std::vector<uint8_t> slab, q_values, q_scales;
  std::vector<float> weights;
  std::vector<std::vector<int32_t>> pages;
  std::vector<SequenceKv> sequence_kv;
  std::vector<int64_t> positions, window_begin;
  std::vector<int32_t> row_sequence;
  IndexScoreParams params;

  // Scale codes are drawn from [scale_low, scale_high].
  IndexFixture(const IndexShape& shape, uint64_t seed, int scale_low = 120, int scale_high = 130) {
    std::mt19937_64 random(seed);
    const auto bytes = [&](std::vector<uint8_t>& v, int64_t count, int low, int high) {
      v.resize(static_cast<size_t>(count));
      for (uint8_t& b : v)
        b = static_cast<uint8_t>(low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1)));
    };
    const int64_t blocks = shape.dim / 32;
    EntryView& view = params.entries;
    view.entries_per_page = shape.entries_per_page;
    view.key_value_bytes = shape.dim / 2;
    view.key_scale_bytes = blocks;
    view.key_value_offset = 256;
    view.key_scale_offset = view.key_value_offset + (shape.entries_per_page * view.key_value_bytes + 255) / 256 * 256;
    view.page_bytes = view.key_scale_offset + (shape.entries_per_page * view.key_scale_bytes + 255) / 256 * 256;

    const int64_t per_sequence = (shape.entries + shape.entries_per_page - 1) / shape.entries_per_page;
    const int64_t num_pages = std::max<int64_t>(per_sequence * shape.sequences, 1);
    bytes(slab, num_pages * view.page_bytes, 0, 255);
    for (int64_t page = 0; page < num_pages; ++page) {
      for (int64_t i = 0; i < shape.entries_per_page * blocks; ++i) {
        slab[static_cast<size_t>(page * view.page_bytes + view.key_scale_offset + i)] = static_cast<uint8_t>(
            scale_low + static_cast<int>(random() % static_cast<uint64_t>(scale_high - scale_low + 1)));
      }
    }
    view.slab = slab.data();
    std::vector<int32_t> order(static_cast<size_t>(num_pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (int64_t s = 0; s < shape.sequences; ++s) {
      pages.emplace_back(order.begin() + s * per_sequence, order.begin() + (s + 1) * per_sequence);
    }
    for (const auto& p : pages) sequence_kv.push_back({p.data(), nullptr, 0, 0});

    bytes(q_values, shape.rows * shape.heads * shape.dim / 2, 0, 255);
    bytes(q_scales, shape.rows * shape.heads * blocks, scale_low, scale_high);
    std::normal_distribution<float> normal;
    weights.resize(static_cast<size_t>(shape.rows * shape.heads));
    for (float& w : weights) w = normal(random);
    for (int64_t r = 0; r < shape.rows; ++r) {
      positions.push_back(shape.entries);
      window_begin.push_back(0);
      row_sequence.push_back(static_cast<int32_t>(r % shape.sequences));
    }
    params.rows = {shape.rows,          positions.data(),   row_sequence.data(),
                   window_begin.data(), sequence_kv.data(), shape.sequences};
    params.heads = shape.heads;
    params.dim = shape.dim;
    params.q_values = q_values.data();
    params.q_scales = q_scales.data();
    params.weights = weights.data();
  }
};

}  // namespace senko::ops
