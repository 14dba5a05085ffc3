// How a row's keys come into shared memory: their packed bytes by asynchronous copies, a block of keys ahead, from
// where they are expanded into a ring. By warps of their own.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/ptx.cuh"
#include "ops/attention/attention_keys_sm90.cuh"
#include "ops/attention/attention_shared_sm90.cuh"

namespace senko::ops::sm90 {

using namespace cuda;  // NOLINT: the instructions

// A warp's keys of a block: lane i % kKeysEach knows where key i lies.
struct WarpKeys {
  const uint8_t* at;  // any address that may be named, where there is no such key
  bool window;
  int live;  // keys that there are: the first ones
};

// A lane's two pieces of a key, 8 codes each, which have one scale: pieces 2 l and 2 l + 1. Half of the lanes take the
// odd one first, so that eight lanes that store together do not meet in a bank.
struct Pieces {
  uint2 codes[2];
  uint32_t scale;
};
__device__ inline uint32_t FirstPiece(uint32_t lane) { return 2 * lane + ((lane >> 2 ^ lane >> 4) & 1); }

template <bool kWindow>
__device__ inline Pieces LoadPieces(uint32_t codes, uint32_t scales, uint32_t lane, uint32_t first) {
  Pieces pieces;
  if constexpr (kWindow) {
    pieces.codes[0] = LoadShared8(codes + first * 8);
    pieces.codes[1] = LoadShared8(codes + (first ^ 1) * 8);
    pieces.scale = LoadShared1(scales + lane / 2);
  } else {
    pieces.codes[0].x = LoadShared4(codes + first * 4);
    pieces.codes[1].x = LoadShared4(codes + (first ^ 1) * 4);
    pieces.scale = LoadShared1(scales + lane);
  }
  return pieces;
}
template <bool kWindow>
__device__ inline void StorePieces(const Pieces& pieces, uint32_t at) {
  if constexpr (kWindow) {
    const uint32_t scale = WindowScale(pieces.scale);
    StoreShared(at, ExpandWindow(pieces.codes[0], scale));
    StoreShared(at ^ 16, ExpandWindow(pieces.codes[1], scale));
  } else {
    const uint32_t scale = EntryScale(pieces.scale);
    StoreShared(at, ExpandEntry(pieces.codes[0].x, scale));
    StoreShared(at ^ 16, ExpandEntry(pieces.codes[1].x, scale));
  }
}

__device__ inline const uint8_t* OfLane(const WarpKeys& keys, uint32_t lane) {
  return reinterpret_cast<const uint8_t*>(
      __shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(keys.at), static_cast<int>(lane)));
}

// A warp's room for packed keys, and their way there; zeros come for keys that there are not.
struct Packed {
  uint32_t codes, scales;  // addresses

  // Codes of keys i and i + 1.
  __device__ void FetchCodes(const WarpKeys& keys, uint32_t i, uint32_t lane) const {
    if (keys.window) {
#pragma unroll
      for (uint32_t k = i; k < i + 2; ++k) {
        const uint32_t at = lane * 16;
        CopyAsync16(codes + k * kCodesEach + at, OfLane(keys, k) + at, static_cast<int>(k) < keys.live);
      }
    } else {
      const uint32_t k = i + lane / 16, at = lane % 16 * 16;
      CopyAsync16(codes + k * kCodesEach + at, OfLane(keys, k) + at, static_cast<int>(k) < keys.live);
    }
  }
  // Scales of half of the keys.
  __device__ void FetchScales(const WarpKeys& keys, uint32_t half, uint32_t lane) const {
    const uint32_t pieces = keys.window ? 1 : 2, k = half * (kKeysEach / 2) + lane / pieces % (kKeysEach / 2);
    const uint8_t* from = OfLane(keys, k) + (keys.window ? kDim : kDim / 2 + lane % 2 * 16);
    if (lane >= kKeysEach / 2 * pieces) return;
    CopyAsync16(scales + k * kScalesEach + lane % pieces * 16, from, static_cast<int>(k) < keys.live);
  }
};

// Expands the warp's keys of a block, each out of its room, which the same key of the next block then gets. A pair is
// read while the one before it is computed.
template <bool kWindow>
__device__ inline void ExpandKeys(const WarpKeys& next, bool more, const Packed& packed, uint32_t tile, uint32_t lane) {
  const uint32_t first = FirstPiece(lane), column = lane / 4 * kSubtile + first % 8 * 16;
  const auto load = [&](uint32_t i) {
    return LoadPieces<kWindow>(packed.codes + i * kCodesEach, packed.scales + i * kScalesEach, lane, first);
  };
  // A half's scales come with its last codes, so that half a block's copies may be on the way and no more.
  constexpr int kOnTheWay = kKeysEach / 4 - 1;
  WaitForCopies<kOnTheWay>();
  __syncwarp();
  Pieces now[2] = {load(0), load(1)};
#pragma unroll 1
  for (uint32_t half = 0; half < 2; ++half) {
#pragma unroll 2
    for (uint32_t k = 0; k < kKeysEach / 2; k += 2) {
      const uint32_t i = half * (kKeysEach / 2) + k;
      Pieces later[2] = {};
      if (i + 2 < kKeysEach) WaitForCopies<kOnTheWay>();
      __syncwarp();
      if (i + 2 < kKeysEach) later[0] = load(i + 2), later[1] = load(i + 3);
      if (more) {
        packed.FetchCodes(next, i, lane);
        if (k + 2 == kKeysEach / 2) packed.FetchScales(next, half, lane);
      }
      CommitCopies();
      const uint32_t at = tile + i * 128 + (column ^ i % 8 * 16);
      StorePieces<kWindow>(now[0], at);
      StorePieces<kWindow>(now[1], (at + 128) ^ 16);
      now[0] = later[0], now[1] = later[1];
    }
  }
}

// The blocks of keys that a block of threads takes, in order: of its rows, or one of one row. All lanes of a warp have
// the same; the row's keys lie in shared memory, since registers are what producers lack.
template <Regime kRegime>
struct Cursor {
  static constexpr bool kSplit = (kRegime != Regime::kWhole);
  static constexpr int kBlocks = kBlocksOf<kRegime>;

  const AttentionSm90Params& p;
  RowKeys* keys;
  int row, block, last;
  bool more;

  __device__ Cursor(const AttentionSm90Params& params, RowKeys* shared_keys) : p(params), keys(shared_keys) {
    row = static_cast<int>(blockIdx.x);
    Enter();
  }
  __device__ void Next() {
    if (!more || ++block < last) return;
    row += static_cast<int>(gridDim.x);
    if (kSplit) {
      more = false;
    } else {
      Enter();
    }
  }

 private:
  __device__ void Enter() {
    more = row < *p.num_rows;
    if (!more) return;
    __syncwarp();
    if (threadIdx.x % 32 == 0) *keys = RowKeys(p, row);
    __syncwarp();
    block = kSplit ? static_cast<int>(blockIdx.y) * kBlocks : 0;
    last = kSplit ? min(block + kBlocks, keys->Blocks()) : keys->Blocks();
    more = block < last;
  }
};

// Where a warp's keys of the cursor's block lie: two loads, one after the other.
template <Regime kRegime>
__device__ inline WarpKeys FindKeys(const Cursor<kRegime>& cursor) {
  const RowKeys& keys = *cursor.keys;
  const AttentionSm90Params& p = cursor.p;
  const int window_blocks = keys.WindowBlocks();
  WarpKeys found{reinterpret_cast<const uint8_t*>(p.q), cursor.block < window_blocks, 0};
  const int first = (found.window ? cursor.block : cursor.block - window_blocks) * kKeys +
                    (static_cast<int>(threadIdx.x) - kConsumers) / 32 * kKeysEach;
  found.live = (found.window ? keys.num_window : keys.num_selected) - first;
  const int i = static_cast<int>(threadIdx.x) % kKeysEach;
  if (i < found.live) found.at = found.window ? keys.WindowKey(p, first + i) : keys.EntryKey(p, first + i);
  return found;
}

template <Regime kRegime>
__device__ inline void Produce(const AttentionSm90Params& p, uint32_t base, RowKeys* shared_keys) {
  const uint32_t lane = threadIdx.x % 32, warp = (threadIdx.x - kConsumers) / 32;
  const uint32_t full = base + kBarriersAt, empty = full + kStages * 8;
  const Packed packed{base + kRawAt + warp * kKeysEach * kCodesEach, base + kScalesAt + warp * kKeysEach * kScalesEach};
  Cursor<kRegime> cursor(p, shared_keys + warp);
  if (!cursor.more) return;
  WarpKeys next = FindKeys(cursor);
  packed.FetchScales(next, 0, lane);
  packed.FetchScales(next, 1, lane);
#pragma unroll 1
  for (uint32_t i = 0; i < kKeysEach; i += 2) {
    packed.FetchCodes(next, i, lane);
    CommitCopies();
  }
  bool window = next.window;
  const auto expand = [&](bool more, uint32_t slot) {
    const uint32_t tile = base + kKeysAt + slot * kTile + warp * kKeysEach * 128;
    if (window) {
      ExpandKeys<true>(next, more, packed, tile, lane);
    } else {
      ExpandKeys<false>(next, more, packed, tile, lane);
    }
    FenceAsyncProxy();
    __syncwarp();
    if (lane == 0) Arrive(full + slot * 8);
  };
  if constexpr (kRegime == Regime::kOne) {
    expand(false, 0);
  } else if constexpr (kRegime == Regime::kTwo) {
    cursor.Next();
    const bool two = cursor.more;
    if (two) next = FindKeys(cursor);
#pragma unroll 1
    for (uint32_t i = 0; i < (two ? 2 : 1); ++i) {
      expand(two && i == 0, i);
      window = next.window;
    }
  } else {
    for (uint32_t i = 0;; ++i) {
      cursor.Next();
      if (cursor.more) next = FindKeys(cursor);
      const uint32_t slot = i % kStages;
      WaitBarrier(empty + slot * 8, (i / kStages + 1) & 1);
      expand(cursor.more, slot);
      if (!cursor.more) break;
      window = next.window;
    }
  }
}

}  // namespace senko::ops::sm90
