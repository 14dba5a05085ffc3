// Operators that write, score and read KV. Sequences of released pages: entries of 288 bytes, index keys of 68, pages
// as far apart as those of all sources together.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "bench/gpu_data.h"
#include "bench/gpu_op_cases.h"
#include "ops/attention/attention_sm90.h"
#include "ops/kv_write/kv_write_sm90.h"
#include "ops/select/select_sm90.h"

namespace senko::bench {
namespace {

constexpr int64_t kHeads = 64, kDim = 512, kRope = 64, kWindow = 128, kRingRows = 144, kRowStride = 528;
constexpr int64_t kTopk = 512, kIndexHeads = 32, kIndexDim = 128, kBlocks = 2048, kBlockSize = 8, kQueryRank = 1280;
constexpr int64_t kPageEntries = 128, kPageBytes = 890 * kPageEntries, kEntryBytes = 288, kKeyBytes = 68;
constexpr uint32_t kNoNan = 0xBFBFBFBFu;  // of e4m3's codes

// `rows` rows of one sequence's prompt, the last at context - 1, or of sequences of their own, each there.
struct Batch {
  GpuData data;
  int64_t sequences;
  std::vector<ops::SequenceKv> kv;  // all rows' windows lie in the rings
  int32_t* count;
  ops::RowBatch rows;
  ops::EntryView entries;
  int32_t *row_counts, *num_sequences;
  float* rope;

  Batch(int64_t num_rows, int64_t context, bool prompt) : sequences(prompt ? 1 : num_rows) {
    const int64_t pages = (context + kPageEntries - 1) / kPageEntries, bytes = sequences * pages * kPageBytes;
    entries.slab = data.Random<uint8_t>(bytes, 0x3F3F3F3Fu, 0);  // entries' scales are e4m3, up to 1.9
    entries.page_bytes = kPageBytes;
    entries.entries_per_page = kPageEntries;
    entries.entry_stride = kEntryBytes;
    entries.key_value_offset = kPageEntries * kEntryBytes;
    entries.key_value_bytes = kIndexDim / 2;
    entries.key_scale_offset = entries.key_value_offset + kPageEntries * kIndexDim / 2;
    entries.key_scale_bytes = kIndexDim / 32;
    const auto scales = static_cast<size_t>(entries.key_scale_offset);
    SENKO_CUDA(cudaMemset2D(entries.slab + scales, kPageBytes, 0x7E, kPageEntries * entries.key_scale_bytes,
                            static_cast<size_t>(sequences * pages)));
    std::vector<int32_t> order(static_cast<size_t>(sequences * pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    const int32_t* table = data.Upload(order);
    auto* slots = data.Random<uint8_t>(sequences * kSlotBytes, kNoNan, 0);
    for (int64_t s = 0; s < sequences; ++s) {  // a window row's scales lie behind its codes
      SENKO_CUDA(
          cudaMemset2D(slots + s * kSlotBytes + kDim, kRowStride, 0x78, kRowStride - kDim, kPending / kRowStride));
    }
    for (int64_t s = 0; s < sequences; ++s) kv.push_back({table + s * pages, slots + s * kSlotBytes, INT64_MAX, s});
    std::vector<int64_t> positions, begins;
    std::vector<int32_t> of;
    for (int64_t r = 0; r < num_rows; ++r) {
      positions.push_back(prompt ? context - num_rows + r : context - 1);
      begins.push_back(std::max<int64_t>(positions.back() - kWindow + 1, 0));
      of.push_back(prompt ? 0 : static_cast<int32_t>(r));
    }
    count = data.Number(num_rows);
    rows = {num_rows, data.Upload(positions), data.Upload(of), data.Upload(begins), data.Upload(kv), sequences};
    row_counts = data.Upload(std::vector<int32_t>(kv.size(), prompt ? static_cast<int32_t>(num_rows) : 1));
    num_sequences = data.Number(sequences);
    rope = data.Floats(num_rows * kRope);
  }
  static constexpr int64_t kLayers = 20, kPending = kLayers * kRingRows * kRowStride;
  static constexpr int64_t kSlotBytes = kPending + 16 * 2 * kDim * 4;
};

GpuOpCase Attention(int64_t rows) {
  constexpr int64_t kContext = 8192;
  GpuOpCase op;
  op.name = fmt::format("attention 64x512, 128 + 512 keys rows={}", rows);
  // A prompt's rows share their keys.
  const double keys = rows > 64 ? static_cast<double>((kWindow + rows) * kRowStride + kContext * kEntryBytes)
                                : static_cast<double>(rows * (kWindow * kRowStride + kTopk * kEntryBytes));
  op.bytes = keys + 4.0 * static_cast<double>(rows * kHeads * kDim);
  op.flops = 2.0 * static_cast<double>(rows * kHeads * (kWindow + kTopk) * 2 * kDim);
  constexpr int64_t kSplitRows = 20;
  if (rows <= kSplitRows) op.baseline = "a row's keys unsplit";
  op.prepare = [=]() -> GpuWorks {
    auto b = std::make_shared<Batch>(rows, 2 * kContext, rows > 64);
    std::vector<int32_t> selected;
    std::mt19937 random(2);
    for (int64_t i = 0; i < rows * kTopk; ++i) {
      constexpr int64_t kEach = kContext / kTopk;
      selected.push_back(static_cast<int32_t>(i % kTopk * kEach + static_cast<int64_t>(random() % kEach)));
    }
    ops::AttentionSm90Params p;
    p.num_rows = b->count;
    p.max_rows = rows;
    p.rows = b->rows;
    p.heads = kHeads;
    p.dim = kDim;
    p.rope_dim = kRope;
    p.max_window = kWindow;
    p.q = b->data.Rows(rows * kHeads * kDim);
    p.rope = b->rope;
    p.sink = b->data.Floats(kHeads);
    p.scale = 0.0441941738f;
    p.window = {0, kRingRows, kRowStride, b->data.Zeros<uint8_t>(kRowStride)};
    p.selected = b->data.Upload(selected);
    p.selected_count = b->data.Upload(std::vector<int32_t>(static_cast<size_t>(rows), kTopk));
    p.selected_stride = kTopk;
    p.entries = b->entries;
    p.out = b->data.Zeros<__nv_bfloat16>(rows * kHeads * kDim);
    return {[b, p](cudaStream_t stream) { ops::AttentionSm90(p, stream); },
            [b, p](cudaStream_t stream) { ops::AttentionWholeSm90(p, stream); }};
  };
  return op;
}

enum class Kind { kDense, kPublishing, kRestricted };

GpuOpCase Select(Kind kind, int64_t context, int64_t rows) {
  const bool prompt = rows > 64;
  const char* const names[] = {"", ", publishing candidates", ", inside candidates"};
  double pairs = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t visible = prompt ? context - rows + r + 1 : context;
    pairs += static_cast<double>(kind == Kind::kRestricted ? std::min(visible, kBlocks * kBlockSize) : visible);
  }
  GpuOpCase op;
  op.name = fmt::format("select 512 of {}{} rows={}", context, names[static_cast<int>(kind)], rows);
  op.bytes = kKeyBytes * (prompt && kind != Kind::kRestricted ? static_cast<double>(context) : pairs);
  op.flops = 2.0 * pairs * kIndexHeads * kIndexDim;
  op.rate = 2;
  op.prepare = [=]() -> GpuWorks {
    auto b = std::make_shared<Batch>(rows, context, prompt);
    ops::SelectSm90Params p;
    p.num_rows = b->count;
    p.max_rows = rows;
    p.rows = b->rows;
    p.heads = kIndexHeads;
    p.dim = kIndexDim;
    p.q_values = b->data.Random<uint8_t>(rows * kIndexHeads * kIndexDim / 2, ~0u, 0);
    p.q_scales = b->data.Random<uint8_t>(rows * kIndexHeads * kIndexDim / 32, 0x01010101u, 0x7E7E7E7Eu);
    p.weights = b->data.Random<float>(rows * kIndexHeads, 0x807FFFFFu, 0x3C000000u);
    p.entries = b->entries;
    p.topk = kTopk;
    p.candidate_blocks = p.candidate_stride = kBlocks;
    p.candidate_block_size = kBlockSize;
    if (kind == Kind::kRestricted) {
      std::vector<int32_t> candidates;
      const int64_t spread = context / kBlockSize / kBlocks;  // the last block is the newest
      for (int64_t i = 0; i < rows * kBlocks; ++i) {
        candidates.push_back(static_cast<int32_t>((i % kBlocks + 1) * spread - 1));
      }
      p.candidates = b->data.Upload(candidates);
      p.candidate_count = b->data.Upload(std::vector<int32_t>(static_cast<size_t>(rows), kBlocks));
    }
    if (kind == Kind::kPublishing) {
      p.candidates_out = b->data.Zeros<int32_t>(rows * kBlocks);
      p.candidate_count_out = b->data.Zeros<int32_t>(rows);
    }
    p.selected = b->data.Zeros<int32_t>(rows * kTopk);
    p.selected_count = b->data.Zeros<int32_t>(rows);
    p.selected_stride = kTopk;
    p.scratch_bytes = ops::SelectScratchBytes(rows, context, kTopk, kBlocks);
    p.scratch = b->data.Zeros<uint8_t>(static_cast<int64_t>(p.scratch_bytes));
    return {[b, p](cudaStream_t stream) { ops::SelectSm90(p, stream); }, nullptr};
  };
  return op;
}

GpuOpCase IndexQuery(int64_t rows) {
  constexpr int64_t kWidth = kIndexHeads * kIndexDim;
  GpuOpCase op;
  op.name = fmt::format("index_query 32x128 rows={}", rows);
  op.bytes = static_cast<double>(rows * (2 * kWidth + kWidth / 2 + kWidth / 32 + 6 * kIndexHeads + 4 * kRope));
  op.baseline = "copy";
  op.prepare = [=]() -> GpuWorks {
    auto data = std::make_shared<GpuData>();
    ops::IndexQuerySm90Params p;
    p.rows = data->Number(rows);
    p.max_rows = rows;
    p.heads = kIndexHeads;
    p.dim = kIndexDim;
    p.rope_dim = kRope;
    p.q = data->Rows(rows * kWidth);
    p.rope = data->Floats(rows * kRope);
    p.w = data->Rows(rows * kIndexHeads);
    p.weight_scale = 0.015625f;
    p.values = data->Zeros<uint8_t>(rows * kWidth / 2);
    p.scales = data->Zeros<uint8_t>(rows * kWidth / 32);
    p.weights = data->Zeros<float>(rows * kIndexHeads);
    return {[data, p](cudaStream_t stream) { ops::IndexQuerySm90(p, stream); }, CopyOf(data, op.bytes)};
  };
  return op;
}

GpuOpCase LatentNorms(int64_t rows) {
  GpuOpCase op;
  op.name = fmt::format("latent_norms 1280 + 512 rows={}", rows);
  op.bytes = static_cast<double>(rows * (2 * (2 * kQueryRank + kDim) + kRowStride + 4 * kRope));
  op.baseline = "copy";
  op.prepare = [=]() -> GpuWorks {
    auto data = std::make_shared<GpuData>();
    ops::LatentNormsSm90Params p;
    p.rows = data->Number(rows);
    p.max_rows = rows;
    p.latents = data->Rows(rows * (kQueryRank + kDim));
    p.q_dim = kQueryRank;
    p.q_weight = data->Floats(kQueryRank);
    p.q = data->Zeros<__nv_bfloat16>(rows * kQueryRank);
    p.dim = kDim;
    p.rope_dim = kRope;
    p.kv_weight = data->Floats(kDim);
    p.rms_eps = 1e-20f;
    p.rope = data->Floats(rows * kRope);
    p.row_stride = kRowStride;
    p.staging = data->Zeros<uint8_t>(rows * kRowStride);
    return {[data, p](cudaStream_t stream) { ops::LatentNormsSm90(p, stream); }, CopyOf(data, op.bytes)};
  };
  return op;
}

// Of pairs: each row of its own sequence completes an entry whose first token is pending, or a prompt's every second.
GpuOpCase Compress(int64_t rows) {
  const bool prompt = rows > 64;
  const int64_t count = prompt ? rows / 2 : rows;
  GpuOpCase op;
  op.name = fmt::format("compress pairs of 512 rows={}", rows);
  op.bytes = static_cast<double>(count * kDim * (2 * 2 * 4 + 2));
  op.baseline = "copy";
  op.prepare = [=]() -> GpuWorks {
    auto b = std::make_shared<Batch>(rows, 8192, prompt);
    std::vector<ops::LatentRef> latents;
    for (int64_t i = 0; i < count; ++i) {
      if (prompt) latents.push_back({0, i, 2 * i + 1, 2 * i});
      if (!prompt) latents.push_back({static_cast<int32_t>(i), 4095, i, -1});
    }
    ops::CompressSm90Params p;
    p.count = b->data.Number(count);
    p.max_count = count;
    p.latents = b->data.Upload(latents);
    p.ratio = 2;
    p.dim = kDim;
    p.cz = b->data.Floats(rows * 2 * kDim);
    p.sequences = b->rows.sequence_kv;
    p.pending_offset = Batch::kPending;
    p.pending_rows = 16;
    p.norm_weight = b->data.Floats(kDim);
    p.rms_eps = 1e-20f;
    p.out = b->data.Zeros<__nv_bfloat16>(count * kDim);
    return {[b, p](cudaStream_t stream) { ops::CompressSm90(p, stream); },
            CopyOf(std::shared_ptr<GpuData>(b, &b->data), op.bytes)};
  };
  return op;
}

GpuOpCase EntryWrite(int64_t rows) {
  const bool prompt = rows > 64;
  GpuOpCase op;
  op.name = fmt::format("entry_write 512 + 128 rows={}", rows);
  op.bytes = static_cast<double>(rows * (2 * (kDim + kIndexDim) + kEntryBytes + kKeyBytes + 4 * kRope));
  op.baseline = "copy";
  op.prepare = [=]() -> GpuWorks {
    auto b = std::make_shared<Batch>(rows, 8192, prompt);
    std::vector<ops::LatentRef> latents;
    for (int64_t i = 0; i < rows; ++i) {
      latents.push_back({prompt ? 0 : static_cast<int32_t>(i), prompt ? i : 8191, i, -1});
    }
    ops::EntryWriteSm90Params p;
    p.count = b->count;
    p.max_count = rows;
    p.latents = b->data.Upload(latents);
    p.dim = kDim;
    p.index_dim = kIndexDim;
    p.rope_dim = kRope;
    p.latent = b->data.Rows(rows * kDim);
    p.k = b->data.Rows(rows * kIndexDim);
    p.k_norm = b->data.Floats(kIndexDim);
    p.rms_eps = 1e-20f;
    p.rope = b->rope;
    p.sequences = b->rows.sequence_kv;
    p.entries = b->entries;
    return {[b, p](cudaStream_t stream) { ops::EntryWriteSm90(p, stream); },
            CopyOf(std::shared_ptr<GpuData>(b, &b->data), op.bytes)};
  };
  return op;
}

// Of a prompt only what a ring holds is kept.
GpuOpCase WindowCommit(int64_t rows) {
  const bool prompt = rows > 64;
  constexpr int64_t kLayers = Batch::kLayers;
  GpuOpCase op;
  op.name = fmt::format("window_commit {} layers rows={}", kLayers, rows);
  op.bytes = static_cast<double>(2 * kLayers * (prompt ? std::min(rows, kRingRows) : rows) * kRowStride);
  op.baseline = "copy";
  op.prepare = [=]() -> GpuWorks {
    auto b = std::make_shared<Batch>(rows, 8192, prompt);
    std::vector<ops::SequenceKv> kv = b->kv;
    for (ops::SequenceKv& s : kv) s.first_new = prompt ? 0 : 8191;
    ops::WindowCommitSm90Params p;
    p.num_sequences = b->num_sequences;
    p.max_sequences = b->sequences;
    p.sequences = b->data.Upload(kv);
    p.row_counts = b->row_counts;
    p.ring_stride = kRingRows * kRowStride;
    p.ring_rows = kRingRows;
    p.row_stride = kRowStride;
    p.staging = b->data.Random<uint8_t>(kLayers * rows * kRowStride, kNoNan, 0);
    p.staging_stride = rows * kRowStride;
    p.num_layers = kLayers;
    return {[b, p](cudaStream_t stream) { ops::WindowCommitSm90(p, stream); },
            CopyOf(std::shared_ptr<GpuData>(b, &b->data), op.bytes)};
  };
  return op;
}

}  // namespace

void AddKvCases(std::vector<GpuOpCase>& cases);
void AddKvCases(std::vector<GpuOpCase>& cases) {
  for (const int64_t rows : {1, 8, 64, 8192}) {
    cases.push_back(Attention(rows));
    cases.push_back(IndexQuery(rows));
    cases.push_back(LatentNorms(rows));
    cases.push_back(Compress(rows));
    cases.push_back(EntryWrite(rows));
    cases.push_back(WindowCommit(rows));
  }
  for (const int64_t rows : {1, 8, 64}) {
    for (const int64_t context : {8 << 10, 64 << 10}) cases.push_back(Select(Kind::kDense, context, rows));
    cases.push_back(Select(Kind::kPublishing, 64 << 10, rows));
    cases.push_back(Select(Kind::kRestricted, 64 << 10, rows));
  }
  cases.push_back(Select(Kind::kDense, 1 << 20, 1));
  cases.push_back(Select(Kind::kPublishing, 1 << 20, 1));
  cases.push_back(Select(Kind::kRestricted, 1 << 20, 1));
  cases.push_back(Select(Kind::kDense, 8 << 10, 8192));
  cases.push_back(Select(Kind::kDense, 128 << 10, 8192));
}

}  // namespace senko::bench
