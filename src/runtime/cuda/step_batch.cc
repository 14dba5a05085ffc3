#include "runtime/cuda/step_batch.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "cuda/check.h"

namespace senko::runtime {
namespace {

size_t Rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

SpreadRows TakeRows(DeviceArena& arena, const StepBatchLimits& limits, int64_t pairs) {
  const auto rows = static_cast<size_t>(limits.max_rows), sequences = static_cast<size_t>(limits.max_sequences);
  SpreadRows r;
  r.positions = arena.Take<int64_t>(rows);
  r.sequences = arena.Take<int32_t>(rows);
  r.window_begin = arena.Take<int64_t>(rows);
  r.is_image = arena.Take<uint8_t>(rows);
  r.sequence_kv = arena.Take<ops::SequenceKv>(sequences);
  r.row_counts = arena.Take<int32_t>(sequences);
  r.rope_plain = arena.Take<float>(rows * static_cast<size_t>(pairs) * 2);
  r.rope_compressed = arena.Take<float>(rows * static_cast<size_t>(pairs) * 2);
  return r;
}

DeviceRows View(const SpreadRows& r, const int32_t* count, bool images) {
  DeviceRows view;
  view.count = count;
  view.batch.positions = r.positions;
  view.batch.sequences = r.sequences;
  view.batch.window_begin = r.window_begin;
  view.batch.sequence_kv = r.sequence_kv;
  view.row_counts = r.row_counts;
  view.rope_plain = r.rope_plain;
  view.rope_compressed = r.rope_compressed;
  view.is_image = images ? r.is_image : nullptr;
  return view;
}

// Entries that rows [begin, end) complete at or above the write floor.
int64_t Completed(const model::SequenceInput& s, int64_t ratio) {
  return std::max<int64_t>(s.end / ratio - std::max(s.begin, s.write_floor) / ratio, 0);
}

}  // namespace

StepBatch::StepBatch(const model::Model& model, const StepBatchLimits& limits, const float* inv_freq_plain,
                     const float* inv_freq_compressed, DeviceArena& arena)
    : limits_(limits) {
  const config::ModelConfig& config = model.config();
  const int64_t pairs = config.rope_dim / 2;
  block_size_ = model.page_layout().block_size;
  look_back_ = config.engram.layers.empty() ? 0 : config.engram.max_ngram - 1;
  const auto rows = static_cast<size_t>(limits.max_rows), sequences = static_cast<size_t>(limits.max_sequences);
  const size_t ids = rows + sequences * static_cast<size_t>(look_back_);
  spans_at_ = Rounded(sizeof(StepCounts));
  drawn_at_ = spans_at_ + Rounded(sequences * sizeof(StepSpan));
  draws_at_ = drawn_at_ + Rounded(static_cast<size_t>(limits.max_drawn_rows) * sizeof(int32_t));
  ids_at_ = draws_at_ + Rounded(static_cast<size_t>(limits.max_draws) * sizeof(ops::SampleJobSm90));
  block_bytes_ = ids_at_ + Rounded((ids + static_cast<size_t>(limits.max_pages)) * sizeof(int32_t));
  block_ = arena.Take<uint8_t>(block_bytes_);
  device_counts_ = reinterpret_cast<const StepCounts*>(block_);
  drawn_rows_ = reinterpret_cast<const int32_t*>(block_ + drawn_at_);
  draws_ = reinterpret_cast<const ops::SampleJobSm90*>(block_ + draws_at_);

  spread_.max_sequences = limits.max_sequences;
  spread_.counts = device_counts_;
  spread_.spans = reinterpret_cast<const StepSpan*>(block_ + spans_at_);
  spread_.ids = reinterpret_cast<const int32_t*>(block_ + ids_at_);
  spread_.pages = spread_.ids;  // offsets of pages count from the ids on
  spread_.window = config.window;
  spread_.image_token = config.image_token_id >= 0 ? static_cast<int32_t>(config.image_token_id) : -1;
  spread_.rope_pairs = pairs;
  spread_.inv_freq_plain = inv_freq_plain;
  spread_.inv_freq_compressed = inv_freq_compressed;
  spread_.encoder = TakeRows(arena, limits, pairs);
  spread_.decoder = TakeRows(arena, limits, pairs);
  spread_.seam_window_begin = arena.Take<int64_t>(rows);
  spread_.tokens = arena.Take<int32_t>(rows);
  spread_.source_rows = arena.Take<int32_t>(rows);
  for (const int ratio : {1, 2}) {
    const bool any = std::any_of(config.kv_sources.begin(), config.kv_sources.end(),
                                 [&](int64_t layer) { return config.ratios[static_cast<size_t>(layer)] == ratio; });
    SpreadLatents& latents = ratio == 2 ? spread_.latents2 : spread_.latents1;
    if (!any) continue;
    latents.latents = arena.Take<ops::LatentRef>(rows);
    latents.rope = arena.Take<float>(rows * static_cast<size_t>(pairs) * 2);
  }
  spread_.known_ids = arena.Take<int32_t>(ids);
  spread_.sequence_tokens = arena.Take<const int32_t*>(sequences);
  spread_.sequence_tokens_begin = arena.Take<int64_t>(sequences);
  identity_ = arena.Take<int32_t>(rows + 1);

  const bool images = config.image_token_id >= 0;
  encoder_ = View(spread_.encoder, &device_counts_->encoder_rows, images);
  decoder_ = View(spread_.decoder, &device_counts_->decoder_rows, images);
  seam_ = decoder_;
  seam_.batch.window_begin = spread_.seam_window_begin;
  seam_.batch.sequence_kv = spread_.encoder.sequence_kv;
  seam_.row_counts = spread_.encoder.row_counts;
  latents1_ = {&device_counts_->latents1, spread_.latents1.latents, spread_.latents1.rope};
  latents2_ = {&device_counts_->latents2, spread_.latents2.latents, spread_.latents2.rope};
  kept_positions_.reserve(rows);
  if (block_ == nullptr) return;

  std::vector<int32_t> identity(rows + 1);
  std::iota(identity.begin(), identity.end(), 0);
  SENKO_CUDA(cudaMemcpy(identity_, identity.data(), identity.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
  for (int i = 0; i < 2; ++i) {
    SENKO_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&pinned_[i]), block_bytes_, cudaHostAllocDefault));
    SENKO_CUDA(cudaEventCreateWithFlags(&copied_[i], cudaEventDisableTiming));
  }
}

StepBatch::~StepBatch() {
  for (int i = 0; i < 2; ++i) {
    if (copied_[i] != nullptr) cudaEventDestroy(copied_[i]);
    cudaFreeHost(pinned_[i]);
  }
}

void StepBatch::Send(std::span<const model::SequenceInput> sequences, std::span<const int64_t> drawn_rows,
                     std::span<const ops::SampleJobSm90> draws, cudaStream_t stream) {
  SENKO_CHECK(static_cast<int64_t>(sequences.size()) <= limits_.max_sequences);
  uint8_t* pinned = pinned_[next_];
  SENKO_CUDA(cudaEventSynchronize(copied_[next_]));
  counts_ = {};
  kept_positions_.clear();
  auto* spans = reinterpret_cast<StepSpan*>(pinned + spans_at_);
  auto* words = reinterpret_cast<int32_t*>(pinned + ids_at_);
  int64_t rows = 0, kept_rows = 0, latents1 = 0, latents2 = 0, ids = 0;
  for (const model::SequenceInput& s : sequences) {
    StepSpan& span = spans[counts_.sequences++];
    SENKO_CHECK(0 <= s.begin && s.begin <= s.end && s.end - s.begin <= limits_.max_rows - rows);
    const int64_t first = std::max({s.tokens_begin, s.begin - look_back_, int64_t{0}});
    const int64_t kept = std::clamp(s.keep_begin, s.begin, s.end);
    span = {s.begin,
            s.end,
            first,
            s.replay_start,
            s.write_floor,
            s.keep_begin,
            s.tail_start,
            s.slot,
            static_cast<int32_t>(ids),
            0,
            static_cast<int32_t>(rows),
            static_cast<int32_t>(kept_rows),
            static_cast<int32_t>(latents1),
            static_cast<int32_t>(latents2)};
    std::copy(s.tokens + (first - s.tokens_begin), s.tokens + (s.end - s.tokens_begin), words + ids);
    ids += s.end - first;
    rows += s.end - s.begin;
    kept_rows += s.end - kept;
    latents1 += Completed(s, 1);
    latents2 += Completed(s, 2);
    for (int64_t p = kept; p < s.end; ++p) kept_positions_.push_back(p);
  }
  int64_t at = ids;
  for (size_t i = 0; i < sequences.size(); ++i) {
    spans[i].first_page = static_cast<int32_t>(at);
    const int64_t pages = (sequences[i].end + block_size_ - 1) / block_size_;
    SENKO_CHECK(at - ids + pages <= limits_.max_pages);
    std::copy(sequences[i].pages, sequences[i].pages + pages, words + at);
    at += pages;
  }
  SENKO_CHECK(static_cast<int64_t>(drawn_rows.size()) <= limits_.max_drawn_rows);
  SENKO_CHECK(static_cast<int64_t>(draws.size()) <= limits_.max_draws);
  auto* drawn = reinterpret_cast<int32_t*>(pinned + drawn_at_);
  for (const int64_t row : drawn_rows) {
    SENKO_CHECK(row >= 0 && row < kept_rows);
    drawn[counts_.drawn_rows++] = static_cast<int32_t>(row);
  }
  std::copy(draws.begin(), draws.end(), reinterpret_cast<ops::SampleJobSm90*>(pinned + draws_at_));
  counts_.draws = static_cast<int32_t>(draws.size());
  counts_.encoder_rows = static_cast<int32_t>(rows);
  counts_.decoder_rows = static_cast<int32_t>(kept_rows);
  counts_.latents1 = static_cast<int32_t>(latents1);
  counts_.latents2 = static_cast<int32_t>(latents2);
  counts_.ids = static_cast<int32_t>(ids);
  std::memcpy(pinned, &counts_, sizeof(counts_));
  SENKO_CUDA(cudaMemcpyAsync(block_, pinned, ids_at_ + static_cast<size_t>(at) * sizeof(int32_t),
                             cudaMemcpyHostToDevice, stream));
  SENKO_CUDA(cudaEventRecord(copied_[next_], stream));
  next_ = 1 - next_;
}

void StepBatch::Spread(int64_t max_rows, cudaStream_t stream) const {
  SpreadParams p = spread_;
  p.max_rows = max_rows;
  SpreadStep(p, stream);
}

}  // namespace senko::runtime
