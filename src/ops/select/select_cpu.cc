// Streaming selection. The work of a row is a range of "units" (entries, or positions in its candidate list),
// cut into pieces when there are fewer rows than threads; the pieces' survivors are merged. How it is cut
// never shows.
#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "ops/select/order_key.h"
#include "ops/select/rank_sets.h"
#include "ops/select/running_topk.h"
#include "ops/select/select.h"

namespace senko::ops {
namespace {

constexpr int64_t kTileScores = 2048;      // scores made at a time
constexpr int64_t kMinPieceScores = 4096;  // below this a piece is not worth a thread

int64_t RankedBlocks(const SelectParams& p) { return p.candidates_out != nullptr ? p.candidate_blocks - 1 : 0; }

// Survivors of one piece.
struct Found {
  RunningTopK entries;
  RunningTopK blocks;  // candidate blocks other than the newest

  void Reset(const SelectParams& p) {
    entries.Reset(p.topk);
    blocks.Reset(RankedBlocks(p));
  }
};

// Reused from row to row and from call to call, so that nothing is allocated after the first.
Found& ThreadFound() {
  thread_local Found found;
  return found;
}

int64_t NumBlocks(const SelectParams& p, int64_t visible) {
  return (visible + p.candidate_block_size - 1) / p.candidate_block_size;
}

// Entries of candidate block `block` that the row sees.
int64_t BlockEntries(const SelectParams& p, int64_t block, int64_t visible) {
  return std::clamp<int64_t>(visible - block * p.candidate_block_size, 0, p.candidate_block_size);
}

int64_t Eligible(const SelectParams& p, int64_t row) {
  if (p.candidates == nullptr) return p.visible[row];
  int64_t eligible = 0;
  for (int32_t c = 0; c < p.candidate_count[row]; ++c) {
    eligible += BlockEntries(p, p.candidates[row * p.candidate_stride + c], p.visible[row]);
  }
  return eligible;
}

bool MustRankBlocks(const SelectParams& p, int64_t row) {
  return p.candidates_out != nullptr && NumBlocks(p, p.visible[row]) > p.candidate_blocks;
}

bool NeedsScores(const SelectParams& p, int64_t row) { return Eligible(p, row) > p.topk || MustRankBlocks(p, row); }

// Block maxima of consecutive tiles; a block may span tiles.
class BlockMaxima {
 public:
  // The newest block is pinned by the caller and not offered.
  BlockMaxima(int64_t block_size, int64_t newest, RunningTopK* to) : size_(block_size), newest_(newest), to_(to) {}

  void Add(const float* scores, int64_t first, int64_t count) {
    int64_t at = 0;
    while (at < count) {
      const int64_t block = (first + at) / size_;
      if (block != block_) Flush();
      if (block_ < 0 && (first + at) % size_ == 0 && AddWhole(scores + at, block, (count - at) / size_)) {
        at += (count - at) / size_ * size_;
        continue;
      }
      const int64_t end = std::min((block + 1) * size_ - first, count);
      float top = block == block_ ? top_ : scores[at];
      for (int64_t i = at; i < end; ++i) {
        if (scores[i] > top || top != top) top = scores[i];  // a NaN gives way to any number
      }
      block_ = block;
      top_ = top;
      at = end;
    }
  }

  void Flush() {
    if (block_ >= 0 && block_ != newest_) to_->Offer(&top_, 1, block_);
    block_ = -1;
  }

 private:
  // Whole blocks first_block .. first_block + blocks - 1. False, and nothing done, when there are none of
  // them or a score is NaN.
  bool AddWhole(const float* scores, int64_t first_block, int64_t blocks) {
    blocks = std::min(blocks, kTileScores);
    if (blocks == 0) return false;
    int any_nan = 0;
    for (int64_t i = 0; i < blocks * size_; ++i) any_nan |= scores[i] != scores[i];
    if (any_nan != 0) return false;
    float tops[kTileScores];
    for (int64_t b = 0; b < blocks; ++b) {
      float top = scores[b * size_];
      for (int64_t i = 1; i < size_; ++i) top = scores[b * size_ + i] > top ? scores[b * size_ + i] : top;
      tops[b] = top;
    }
    const bool has_newest = newest_ >= first_block && newest_ < first_block + blocks;  // the last one, if so
    to_->Offer(tops, has_newest ? newest_ - first_block : blocks, first_block);
    return true;
  }

  int64_t size_;
  int64_t newest_;
  RunningTopK* to_;
  int64_t block_ = -1;
  float top_ = 0;
};

// Entries [begin, end) of a row that is not restricted.
void ScanEntries(const SelectParams& p, int64_t row, int64_t begin, int64_t end, Found* found) {
  float scores[kTileScores];
  std::optional<BlockMaxima> maxima;
  if (MustRankBlocks(p, row)) {
    maxima.emplace(p.candidate_block_size, NumBlocks(p, p.visible[row]) - 1, &found->blocks);
  }
  for (int64_t first = begin; first < end; first += kTileScores) {
    const int64_t count = std::min(kTileScores, end - first);
    IndexScoreCpu(p.score, row, first, count, scores);
    found->entries.Offer(scores, count, first);
    if (maxima) maxima->Add(scores, first, count);
  }
  if (maxima) maxima->Flush();
}

// Candidate blocks [begin, end) of the row's list.
void ScanCandidates(const SelectParams& p, int64_t row, int64_t begin, int64_t end, Found* found) {
  float scores[kTileScores];
  int32_t list[kTileScores];
  int64_t count = 0;
  const auto flush = [&] {
    IndexScoreListCpu(p.score, row, list, count, scores);
    found->entries.Offer(scores, list, count);
    count = 0;
  };
  for (int64_t c = begin; c < end; ++c) {
    const int64_t block = p.candidates[row * p.candidate_stride + c];
    const int64_t first = block * p.candidate_block_size;
    for (int64_t i = 0; i < BlockEntries(p, block, p.visible[row]); ++i) {
      list[count++] = static_cast<int32_t>(first + i);
      if (count == kTileScores) flush();
    }
  }
  if (count > 0) flush();
}

// Ascending indices of `ranks`.
int32_t WriteIndices(std::span<const uint64_t> ranks, int32_t* out) {
  for (size_t i = 0; i < ranks.size(); ++i) out[i] = static_cast<int32_t>(RankIndex(ranks[i]));
  std::sort(out, out + ranks.size());
  return static_cast<int32_t>(ranks.size());
}

// `entries` counts only where some must be left out.
void WriteSelected(const SelectParams& p, int64_t row, std::span<const uint64_t> entries) {
  int32_t* out = p.selected + row * p.selected_stride;
  if (Eligible(p, row) > p.topk) {
    p.selected_count[row] = WriteIndices(entries, out);
    return;
  }
  int32_t count = 0;
  if (p.candidates == nullptr) {
    for (int64_t e = 0; e < p.visible[row]; ++e) out[count++] = static_cast<int32_t>(e);
  } else {
    for (int32_t c = 0; c < p.candidate_count[row]; ++c) {
      const int64_t block = p.candidates[row * p.candidate_stride + c];
      for (int64_t i = 0; i < BlockEntries(p, block, p.visible[row]); ++i) {
        out[count++] = static_cast<int32_t>(block * p.candidate_block_size + i);
      }
    }
  }
  p.selected_count[row] = count;
}

void WriteCandidates(const SelectParams& p, int64_t row, std::span<const uint64_t> ranked) {
  int32_t* out = p.candidates_out + row * p.candidate_stride;
  const int64_t blocks = NumBlocks(p, p.visible[row]);
  if (MustRankBlocks(p, row)) {
    int32_t count = WriteIndices(ranked, out);
    out[count++] = static_cast<int32_t>(blocks - 1);
    p.candidate_count_out[row] = count;
    return;
  }
  for (int64_t b = 0; b < blocks; ++b) out[b] = static_cast<int32_t>(b);
  p.candidate_count_out[row] = static_cast<int32_t>(blocks);
}

void Write(const SelectParams& p, int64_t row, std::span<const uint64_t> entries, std::span<const uint64_t> blocks) {
  WriteSelected(p, row, entries);
  if (p.candidates_out != nullptr) WriteCandidates(p, row, blocks);
}

int64_t Units(const SelectParams& p, int64_t row) {
  if (!NeedsScores(p, row)) return 0;
  return p.candidates != nullptr ? p.candidate_count[row] : p.visible[row];
}

Found& Scan(const SelectParams& p, int64_t row, int64_t begin, int64_t end) {
  Found& found = ThreadFound();
  found.Reset(p);
  if (begin >= end) return found;
  if (p.candidates != nullptr) {
    ScanCandidates(p, row, begin, end, &found);
  } else {
    ScanEntries(p, row, begin, end, &found);
  }
  return found;
}

// A part of one row's units; a row that needs no scores is one piece without units.
struct Piece {
  int64_t row, begin, end;
  int64_t first, count;  // of the row's pieces, which follow each other
};

// What a call over pieces keeps from one to the next. Owned by the calling thread.
struct Workspace {
  std::vector<Piece> pieces;
  RankSets entries, blocks;  // [pieces]
};

Workspace& CallerWorkspace() {
  thread_local Workspace workspace;
  return workspace;
}

void AddPieces(const SelectParams& p, int64_t row, int64_t pieces_wanted, std::vector<Piece>* pieces) {
  const bool restricted = p.candidates != nullptr;
  const int64_t units = Units(p, row);
  // Cuts fall on candidate blocks, so that a block's maximum is found in one piece.
  const int64_t align = p.candidates_out != nullptr ? p.candidate_block_size : 1;
  const int64_t least = restricted ? std::max<int64_t>(kMinPieceScores / p.candidate_block_size, 1) : kMinPieceScores;
  int64_t step = std::max((units + pieces_wanted - 1) / pieces_wanted, least);
  step = (step + align - 1) / align * align;
  const int64_t first = static_cast<int64_t>(pieces->size());
  const int64_t count = std::max<int64_t>((units + step - 1) / step, 1);
  for (int64_t i = 0; i < count; ++i) {
    pieces->push_back({row, i * step, std::min((i + 1) * step, units), first, count});
  }
}

// Few rows: each is cut, the pieces' survivors merge in pairs, so that the last merges are not one thread's
// work.
void SelectByPieces(const SelectParams& p, ThreadPool& pool) {
  Workspace& work = CallerWorkspace();
  const int64_t rows = p.score.rows.num_rows;
  int64_t most = 1;
  work.pieces.clear();
  for (int64_t row = 0; row < rows; ++row) {
    AddPieces(p, row, (4 * pool.size() + rows - 1) / rows, &work.pieces);
    most = std::max(most, work.pieces.back().count);
  }
  const auto count = static_cast<int64_t>(work.pieces.size());
  work.entries.Reset(count, p.topk);
  work.blocks.Reset(count, RankedBlocks(p));
  // std::ref: a loop body with many captures would be copied to the heap.
  const auto scan = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = work.pieces[static_cast<size_t>(i)];
      Found& found = Scan(p, piece.row, piece.begin, piece.end);
      work.entries.Assign(i, found.entries.Best());
      work.blocks.Assign(i, found.blocks.Best());
    }
  };
  pool.ParallelFor(count, 1, std::ref(scan));
  for (int64_t stride = 1; stride < most; stride *= 2) {
    const auto merge = [&](int64_t begin, int64_t end, int) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t i = task / 2;
        const Piece& piece = work.pieces[static_cast<size_t>(i)];
        const int64_t place = i - piece.first;
        if (place % (2 * stride) != 0 || place + stride >= piece.count) continue;
        (task % 2 == 0 ? work.entries : work.blocks).Merge(i, i + stride);
      }
    };
    pool.ParallelFor(2 * count, 1, std::ref(merge));
  }
  const auto write = [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = work.pieces[static_cast<size_t>(i)];
      if (piece.first == i) Write(p, piece.row, work.entries.Get(i), work.blocks.Get(i));
    }
  };
  pool.ParallelFor(count, 1, std::ref(write));
}

}  // namespace

void SelectCpu(const SelectParams& p, ThreadPool& pool) {
  const int64_t rows = p.score.rows.num_rows;
  SENKO_CHECK(p.topk > 0 && (p.candidates == nullptr || p.candidates_out == nullptr));
  SENKO_CHECK((p.candidates == nullptr && p.candidates_out == nullptr) || p.candidate_block_size > 0);
  SENKO_CHECK(p.candidates_out == nullptr || p.candidate_blocks > 0);
  if (pool.size() > 1 && rows < 4 * pool.size()) {
    SelectByPieces(p, pool);
    return;
  }
  pool.ParallelFor(rows, 1, [&p](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      Found& found = Scan(p, row, 0, Units(p, row));
      Write(p, row, found.entries.Best(), found.blocks.Best());
    }
  });
}

}  // namespace senko::ops
