// Operators that read KV: attention, and scoring with selection, over one sequence of the released dimensions.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "bench/op_cases.h"
#include "bench/random_weights.h"
#include "numerics/packed_rows.h"
#include "ops/attention/attention.h"
#include "ops/select/select.h"

namespace senko::bench {
namespace {

constexpr int64_t kBlock = 128, kWindow = 128, kDim = 512, kRope = 64, kHeads = 64, kTop = 512;
constexpr int64_t kIndexHeads = 32, kIndexDim = 128;

// Pages of a ratio-1 source filled with random codes, one sequence at position `context - 1`.
struct Sequence {
  Sequence(int64_t context, int64_t rows_) : rows(rows_) {
    view.entries_per_page = kBlock;
    view.entry_stride = numerics::EntryStride(kDim);
    view.key_value_bytes = numerics::IndexKeyValueBytes(kIndexDim);
    view.key_scale_bytes = numerics::IndexKeyScaleBytes(kIndexDim);
    view.key_value_offset = kBlock * view.entry_stride;
    view.key_scale_offset = view.key_value_offset + kBlock * view.key_value_bytes;
    view.page_bytes = view.key_scale_offset + kBlock * view.key_scale_bytes;
    const int64_t num_pages = (context + kBlock - 1) / kBlock;
    slab = Buffer<uint8_t>(static_cast<size_t>(num_pages * view.page_bytes));
    for (size_t i = 0; i + 16 <= slab.size(); i += 16) std::memcpy(slab.data() + i, PhiloxDraw(2, i, 0).word, 16);
    for (int64_t p = 0; p < num_pages; ++p) {
      uint8_t* page = slab.data() + p * view.page_bytes;
      for (int64_t e = 0; e < kBlock; ++e) std::memset(page + e * view.entry_stride + kDim / 2, 0x30, kDim / 16);
      std::memset(page + view.key_scale_offset, 126, static_cast<size_t>(kBlock * view.key_scale_bytes));
      pages.push_back(static_cast<int32_t>(p));
    }
    view.slab = slab.data();
    stride = numerics::WindowRowStride(kDim);
    ring_rows = kWindow + 16;
    slot = Buffer<uint8_t>(static_cast<size_t>(ring_rows * stride));
    staging = Buffer<uint8_t>(static_cast<size_t>(rows * stride));
    for (auto* b : {&slot, &staging}) {
      for (size_t i = 0; i < b->size(); ++i) (*b)[i] = static_cast<uint8_t>(PhiloxDraw(3, i, 0).word[0] & 0xBF);
      for (size_t r = 0; r * static_cast<size_t>(stride) < b->size(); ++r) {
        std::memset(b->data() + r * static_cast<size_t>(stride) + kDim, 120, kDim / 32);
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      positions.push_back(context - rows + r);
      window_begin.push_back(std::max<int64_t>(0, positions.back() - kWindow + 1));
      sequences.push_back(0);
      visible.push_back(positions.back() + 1);
    }
    kv = {pages.data(), slot.data(), context - rows, 0};
  }
  ops::RowBatch batch() const { return {rows, positions.data(), sequences.data(), window_begin.data(), &kv, 1}; }

  int64_t rows, stride = 0, ring_rows = 0;
  ops::EntryView view;
  Buffer<uint8_t> slab, slot, staging;
  std::vector<int32_t> pages, sequences;
  std::vector<int64_t> positions, window_begin, visible;
  ops::SequenceKv kv;
};

OpCase AttentionCase(int64_t rows) {
  constexpr int64_t context = 32768;
  const double keys = static_cast<double>(rows * (kWindow + kTop));
  OpCase op{"attention 64x512, 128 + 512 keys rows=" + std::to_string(rows),
            static_cast<double>(rows) *
                static_cast<double>(kTop * numerics::EntryStride(kDim) + kWindow * numerics::WindowRowStride(kDim)),
            4.0 * keys * static_cast<double>(kHeads * kDim),
            {}};
  op.prepare = [=](ThreadPool& pool) -> std::function<void()> {
    auto s = std::make_shared<Sequence>(context, rows);
    auto q = std::make_shared<Buffer<float>>(RandomFloats(rows * kHeads * kDim, 11));
    auto rope = std::make_shared<Buffer<float>>(RandomFloats(rows * kRope, 12));
    auto sink = std::make_shared<Buffer<float>>(RandomFloats(kHeads, 13));
    auto out = std::make_shared<Buffer<float>>(static_cast<size_t>(rows * kHeads * kDim));
    auto selected = std::make_shared<std::vector<int32_t>>();
    auto counts = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(rows), static_cast<int32_t>(kTop));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < kTop; ++k) {
        const int64_t span = (context - rows) / kTop;
        selected->push_back(static_cast<int32_t>(k * span + (r * 37) % span));
      }
    }
    return [=, &pool] {
      ops::AttentionParams p;
      p.rows = s->batch();
      p.heads = kHeads;
      p.dim = kDim;
      p.rope_dim = kRope;
      p.q = q->data();
      p.rope = rope->data();
      p.sink = sink->data();
      p.scale = 0.0441941738f;
      p.round_bf16 = true;
      p.window = {0, s->ring_rows, s->stride, s->staging.data()};
      p.selected = selected->data();
      p.selected_count = counts->data();
      p.selected_stride = kTop;
      p.entries = s->view;
      p.out = out->data();
      ops::AttentionCpu(p, pool);
    };
  };
  return op;
}

OpCase SelectCase(int64_t context, int64_t rows) {
  const double keys = static_cast<double>(context * rows);
  OpCase op{"index + select 32x128, context " + std::to_string(context) + " rows=" + std::to_string(rows),
            static_cast<double>(context) * 68.0,
            2.0 * keys * static_cast<double>(kIndexHeads * kIndexDim),
            {}};
  op.prepare = [=](ThreadPool& pool) -> std::function<void()> {
    auto s = std::make_shared<Sequence>(context, rows);
    auto values = std::make_shared<Buffer<uint8_t>>(static_cast<size_t>(rows * kIndexHeads * kIndexDim / 2));
    for (size_t i = 0; i < values->size(); ++i) (*values)[i] = static_cast<uint8_t>(PhiloxDraw(4, i, 0).word[0]);
    auto scales = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(rows * kIndexHeads * kIndexDim / 32), 126);
    auto weights = std::make_shared<Buffer<float>>(RandomFloats(rows * kIndexHeads, 14));
    auto selected = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(rows * kTop));
    auto counts = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(rows));
    return [=, &pool] {
      ops::SelectParams p;
      p.score = {s->batch(), kIndexHeads, kIndexDim, values->data(), scales->data(), weights->data(), s->view};
      p.topk = kTop;
      p.visible = s->visible.data();
      p.selected = selected->data();
      p.selected_count = counts->data();
      p.selected_stride = kTop;
      ops::SelectCpu(p, pool);
    };
  };
  return op;
}

}  // namespace

std::vector<OpCase> AttentionCases() {
  std::vector<OpCase> cases;
  for (int64_t rows : {1, 8, 256}) cases.push_back(AttentionCase(rows));
  cases.push_back(SelectCase(131072, 1));
  cases.push_back(SelectCase(1048576, 1));
  cases.push_back(SelectCase(32768, 64));
  return cases;
}

}  // namespace senko::bench
