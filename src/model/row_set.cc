#include "model/row_set.h"

#include <algorithm>

#include "base/check.h"
#include "ops/norm/norm.h"

namespace senko::model {
namespace {

template <typename T>
size_t Held(const std::vector<T>& v) {
  return v.capacity() * sizeof(T);
}

}  // namespace

RowSet::RowSet(int64_t max_rows, int64_t max_sequences, int64_t rope_pairs)
    : max_rows_(max_rows),
      rope_plain_(static_cast<size_t>(max_rows * rope_pairs * 2)),
      rope_compressed_(static_cast<size_t>(max_rows * rope_pairs * 2)) {
  const size_t rows = static_cast<size_t>(max_rows);
  for (auto* v : {&positions_, &window_begin_, &seam_window_begin_, &source_rows_}) v->reserve(rows);
  for (auto* v : {&tokens_, &sequences_}) v->reserve(rows);
  is_image_.reserve(rows);
  row_counts_.reserve(static_cast<size_t>(max_sequences));
  sequence_kv_.reserve(static_cast<size_t>(max_sequences));
}

int64_t RowSet::bytes() const {
  size_t total = rope_plain_.bytes() + rope_compressed_.bytes() + Held(is_image_) + Held(sequence_kv_);
  for (const auto* v : {&positions_, &window_begin_, &seam_window_begin_, &source_rows_, &row_counts_}) {
    total += Held(*v);
  }
  for (const auto* v : {&tokens_, &sequences_}) total += Held(*v);
  return static_cast<int64_t>(total);
}

void RowSet::Clear() {
  for (auto* v : {&positions_, &window_begin_, &seam_window_begin_, &source_rows_, &row_counts_}) v->clear();
  for (auto* v : {&tokens_, &sequences_}) v->clear();
  is_image_.clear();
  any_image_ = false;
  sequence_kv_.clear();
}

void RowSet::Add(const SequenceInput& s, int32_t sequence, int64_t begin, int64_t window_floor, int64_t window,
                 int64_t image_token, int64_t source_row) {
  SENKO_CHECK(0 <= s.begin && s.begin <= begin && begin <= s.end);
  SENKO_CHECK(size() + (s.end - begin) <= max_rows_);
  sequence_kv_.push_back({s.pages, s.slot, begin, size()});
  row_counts_.push_back(s.end - begin);
  for (int64_t p = begin; p < s.end; ++p) {
    positions_.push_back(p);
    const int32_t token = s.tokens[p - s.tokens_begin];
    tokens_.push_back(token);
    sequences_.push_back(sequence);
    // A row always sees itself, also before its window's floor.
    window_begin_.push_back(std::min(p, std::max({int64_t{0}, p - window + 1, window_floor})));
    seam_window_begin_.push_back(std::min(p, std::max({int64_t{0}, p - window + 1, s.replay_start})));
    const bool image = image_token >= 0 && token == image_token;
    is_image_.push_back(image);
    any_image_ = any_image_ || image;
    source_rows_.push_back(source_row + (p - s.begin));
  }
}

void RowSet::BuildEncoder(std::span<const SequenceInput> sequences, int64_t window, int64_t image_token) {
  Clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SequenceInput& s = sequences[i];
    Add(s, static_cast<int32_t>(i), s.begin, s.replay_start, window, image_token, size());
  }
}

void RowSet::BuildDecoder(std::span<const SequenceInput> sequences, int64_t window, int64_t image_token) {
  Clear();
  int64_t source_row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SequenceInput& s = sequences[i];
    Add(s, static_cast<int32_t>(i), std::clamp(s.keep_begin, s.begin, s.end), s.tail_start, window, image_token,
        source_row);
    source_row += s.end - s.begin;
  }
}

void RowSet::BuildRope(std::span<const float> inv_freq_plain, std::span<const float> inv_freq_compressed) {
  const int64_t pairs = static_cast<int64_t>(inv_freq_plain.size());
  ops::RopeTable(positions(), size(), inv_freq_plain.data(), pairs, rope_plain_.data());
  ops::RopeTable(positions(), size(), inv_freq_compressed.data(), pairs, rope_compressed_.data());
}

ops::RowBatch RowSet::batch() const {
  return {size(),
          positions_.data(),
          sequences_.data(),
          window_begin_.data(),
          sequence_kv_.data(),
          static_cast<int64_t>(sequence_kv_.size())};
}

ops::RowBatch RowSet::SeamBatch(const RowSet& encoder) const {
  ops::RowBatch b = batch();
  b.window_begin = seam_window_begin_.data();
  b.sequence_kv = encoder.sequence_kv_.data();
  return b;
}

LatentSet::LatentSet(int ratio, int64_t max_rows, int64_t rope_pairs)
    : ratio_(ratio), rope_(static_cast<size_t>(max_rows * rope_pairs * 2)) {
  latents_.reserve(static_cast<size_t>(max_rows));
  positions_.reserve(static_cast<size_t>(max_rows));
}

int64_t LatentSet::bytes() const { return static_cast<int64_t>(Held(latents_) + Held(positions_) + rope_.bytes()); }

void LatentSet::Build(std::span<const SequenceInput> sequences, const RowSet& encoder,
                      std::span<const float> inv_freq) {
  latents_.clear();
  positions_.clear();
  if (rope_.size() == 0) return;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const SequenceInput& s = sequences[i];
    const int64_t row0 = encoder.sequence_kv()[i].staging_begin;
    for (int64_t p = std::max(s.begin, s.write_floor); p < s.end; ++p) {
      if ((p + 1) % ratio_ != 0) continue;
      ops::LatentRef latent;
      latent.sequence = static_cast<int32_t>(i);
      latent.entry = (p + 1) / ratio_ - 1;
      latent.row = row0 + (p - s.begin);
      latent.row_prev = ratio_ == 2 && p > s.begin ? latent.row - 1 : -1;
      latents_.push_back(latent);
      positions_.push_back(latent.entry * ratio_);
    }
  }
  ops::RopeTable(positions_.data(), size(), inv_freq.data(), static_cast<int64_t>(inv_freq.size()), rope_.data());
}

}  // namespace senko::model
