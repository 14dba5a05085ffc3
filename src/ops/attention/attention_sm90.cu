// Attention of 64 heads of 512 on wgmma. Some warps bring a row's keys: their packed bytes come by asynchronous copies,
// a block ahead, and go as bf16 into a ring of shared memory. Two warpgroups multiply: each scores all heads and keys
// of a block, so that its weights stay in its registers, and weighs half of the channels. A block of threads takes a
// row after the other, keys of the next on the way while the last is finished.
//
// What bounds it: the tensor cores would need 3,072 clocks a block of keys (scores are done twice), expansion about
// 1,100 issue slots of each of the four schedulers, joining and weights about as many.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/attention/attention_keys_sm90.cuh"
#include "ops/attention/attention_plain_sm90.h"
#include "ops/attention/attention_sm90.h"
#include "ops/linear/wgmma.cuh"

namespace senko::ops {
namespace {

using namespace cuda;  // NOLINT: the instructions
using namespace sm90;  // NOLINT: the products

constexpr int kHeads = 64, kDim = 512, kStages = 2;
constexpr int kConsumers = 256, kMostProducers = 8;  // threads; warps
constexpr int kSubtile = 8192;                       // 64 rows of 64 columns, swizzled
constexpr int kTile = kDim / 64 * kSubtile;          // 64 rows of 512 columns
constexpr int kWindowBytes = kDim + kDim / 32, kEntryBytes = kDim / 2 + kDim / 16;
constexpr int kMaxRope = 64;
constexpr int kQueryAt = 0, kKeysAt = kTile, kRawAt = kKeysAt + kStages * kTile;
constexpr int kRopeAt = kRawAt + kKeys * kWindowBytes;
constexpr int kRowsAt = kRopeAt + kMaxRope * 4;  // a RowKeys of each producer
constexpr int kBarriersAt = kRowsAt + kMostProducers * static_cast<int>(sizeof(RowKeys));
constexpr int kSharedBytes = kBarriersAt + kStages * 16 + 1024;
static_assert(kSharedBytes <= 227 * 1024);
constexpr int kPart = 32, kParts = kDim / 2 / kPart;  // channels that are weighed at once
constexpr float kLog2e = 1.4426950408889634f;
constexpr int kStateFloats = kHeads * (kDim + 2);  // of a block: its products, maxima and sums

// Who takes a row's blocks of keys: one block of threads after the other; each another one, which leave their states
// for a kernel that joins them; or each another one, which join them as a cluster.
enum class Regime { kWhole, kApart, kTogether };

// Producers are the warps behind the consumers' eight: where there is one block to wait for, it comes sooner from more.
template <Regime kRegime>
struct Shape {
  static constexpr bool kSplit = kRegime != Regime::kWhole;
  static constexpr int kProducers = kSplit ? 8 : 4, kKeysEach = kKeys / kProducers;  // warps, and their keys of a block
  static constexpr int kThreads = kConsumers + kProducers * 32;
  static constexpr int kProducerRegisters = kSplit ? 40 : 56, kConsumerRegisters = kSplit ? 216 : 224;
  static_assert(kProducers <= kMostProducers && kKeysEach % 4 == 0);
};

// In a cluster a block of threads leaves its state in its shared memory, when its keys and queries are done with; heads
// lie apart so that a warp's writes do not meet in a bank.
constexpr int kStateStride = kDim + 8, kMostTogether = 16;
constexpr int kMaximaAt = kRawAt, kSumsAt = kMaximaAt + kHeads * 4, kFactorsAt = kSumsAt + kHeads * 4;
constexpr int kJoinsAt = kFactorsAt + kHeads * 4;  // float2 [blocks][heads]
static_assert(kHeads * kStateStride * 4 <= kRawAt && kJoinsAt + kMostTogether * kHeads * 8 <= kRopeAt);

struct Args {
  AttentionSm90Params p;
  int blocks;  // of a row, at most: 0 takes them all
};

// Byte offset of 16-byte piece `piece` of row `row` in a tile.
__device__ uint32_t PieceAt(int row, int piece) {
  return static_cast<uint32_t>(piece / 8 * kSubtile + row * 128 + (piece % 8 ^ row % 8) * 16);
}
__device__ void StoreShared(uint32_t at, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ uint4 LoadShared16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
__device__ uint2 LoadShared8(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}
__device__ uint32_t LoadShared4(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
__device__ uint32_t LoadShared1(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}

// ---- producers: keys ----

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
__device__ uint32_t FirstPiece(uint32_t lane) { return 2 * lane + ((lane >> 2 ^ lane >> 4) & 1); }

template <bool kWindow>
__device__ Pieces LoadPieces(uint32_t raw, uint32_t lane, uint32_t first) {
  Pieces pieces;
  if constexpr (kWindow) {
    pieces.codes[0] = LoadShared8(raw + first * 8);
    pieces.codes[1] = LoadShared8(raw + (first ^ 1) * 8);
    pieces.scale = LoadShared1(raw + kDim + lane / 2);
  } else {
    pieces.codes[0].x = LoadShared4(raw + first * 4);
    pieces.codes[1].x = LoadShared4(raw + (first ^ 1) * 4);
    pieces.scale = LoadShared1(raw + kDim / 2 + lane);
  }
  return pieces;
}
template <bool kWindow>
__device__ void StorePieces(const Pieces& pieces, uint32_t at) {
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

// Bytes of key `i` of the warp into its slot, zeros if there is none.
__device__ void FetchKey(const WarpKeys& keys, int i, uint32_t raw, uint32_t lane) {
  const auto at =
      reinterpret_cast<const uint8_t*>(__shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(keys.at), i));
  const bool really = i < keys.live;
  if (keys.window || lane < kEntryBytes / 16) CopyAsync16(raw + lane * 16, at + lane * 16, really);
  if (keys.window && lane == 0) CopyAsync16(raw + 512, at + 512, really);
}

// Expands keys [from, to) of the warp, each out of its slot, which the same key of the next block then gets.
template <bool kWindow, int kKeysEach, int kFrom, int kTo>
__device__ void ExpandKeys(const WarpKeys& next, bool more, uint32_t raw, uint32_t tile, uint32_t lane) {
  const uint32_t first = FirstPiece(lane), column = lane / 4 * kSubtile + first % 8 * 16;
#pragma unroll
  for (int i = kFrom; i < kTo; i += 2) {
    const uint32_t slot = raw + static_cast<uint32_t>(i * kWindowBytes);
    WaitForCopies<kKeysEach / 2 - 1>();
    __syncwarp();
    const Pieces a = LoadPieces<kWindow>(slot, lane, first), b = LoadPieces<kWindow>(slot + kWindowBytes, lane, first);
    __syncwarp();
    if (more) {
      FetchKey(next, i, slot, lane);
      FetchKey(next, i + 1, slot + kWindowBytes, lane);
    }
    CommitCopies();
    StorePieces<kWindow>(a, tile + i * 128 + (column ^ i % 8 * 16));
    StorePieces<kWindow>(b, tile + (i + 1) * 128 + (column ^ (i + 1) % 8 * 16));
  }
}

// The blocks of keys that a block of threads takes, in order: of its rows, or one of one row. All lanes of a warp have
// the same; the row's keys lie in shared memory, since registers are what producers lack.
template <Regime kRegime>
struct Cursor {
  static constexpr bool kSplit = Shape<kRegime>::kSplit;
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
    block = kSplit ? static_cast<int>(blockIdx.y) : 0;
    last = kSplit ? block + 1 : keys->Blocks();
    if (kSplit) more = block < keys->Blocks();
  }
};

// Finds a warp's keys of the cursor's block in three steps, each of which reads what the one before brought.
template <Regime kRegime>
struct Finder {
  static constexpr int kKeysEach = Shape<kRegime>::kKeysEach;

  WarpKeys found;
  uint32_t entry, page;

  __device__ void Begin(const Cursor<kRegime>& cursor, int lane) {
    if (!cursor.more) return;
    const RowKeys& keys = *cursor.keys;
    const int window_blocks = keys.WindowBlocks();
    found.window = cursor.block < window_blocks;
    const int first = (found.window ? cursor.block : cursor.block - window_blocks) * kKeys +
                      (static_cast<int>(threadIdx.x) - kConsumers) / 32 * kKeysEach;
    found.live = (found.window ? keys.num_window : keys.num_selected) - first;
    found.at = reinterpret_cast<const uint8_t*>(cursor.p.q);
    const int i = lane % kKeysEach;
    if (i >= found.live) return;
    if (found.window) {
      found.at = keys.WindowKey(cursor.p, first + i);
    } else {
      entry = static_cast<uint32_t>(keys.selected[first + i]);
    }
  }
  __device__ void Continue(const Cursor<kRegime>& cursor, int lane) {
    if (!cursor.more || found.window || lane % kKeysEach >= found.live) return;
    page = static_cast<uint32_t>(
        cursor.keys->sequence.pages[entry / static_cast<uint32_t>(cursor.p.entries.entries_per_page)]);
  }
  __device__ WarpKeys End(const Cursor<kRegime>& cursor, int lane) {
    if (cursor.more && !found.window && lane % kKeysEach < found.live) found.at = RowKeys::At(cursor.p, page, entry);
    return found;
  }
};

template <Regime kRegime>
__device__ void Produce(const AttentionSm90Params& p, uint32_t base, RowKeys* shared_keys) {
  constexpr int kKeysEach = Shape<kRegime>::kKeysEach;
  const uint32_t lane = threadIdx.x % 32, warp = (threadIdx.x - kConsumers) / 32;
  const uint32_t full = base + kBarriersAt, empty = full + kStages * 8;
  const uint32_t raw = base + kRawAt + warp * kKeysEach * kWindowBytes;
  Cursor<kRegime> cursor(p, shared_keys + warp);
  if (!cursor.more) return;
  Finder<kRegime> finder{};
  const auto find = [&] {
    finder.Begin(cursor, static_cast<int>(lane));
    finder.Continue(cursor, static_cast<int>(lane));
    return finder.End(cursor, static_cast<int>(lane));
  };
  WarpKeys next = find();
  bool window = next.window;
#pragma unroll
  for (int i = 0; i < kKeysEach; i += 2) {
    FetchKey(next, i, raw + static_cast<uint32_t>(i * kWindowBytes), lane);
    FetchKey(next, i + 1, raw + static_cast<uint32_t>((i + 1) * kWindowBytes), lane);
    CommitCopies();
  }
  const auto expand = [&](auto from, auto to, const WarpKeys& keys, bool more, uint32_t tile) {
    if (window) {
      ExpandKeys<true, kKeysEach, from.value, to.value>(keys, more, raw, tile, lane);
    } else {
      ExpandKeys<false, kKeysEach, from.value, to.value>(keys, more, raw, tile, lane);
    }
  };
  const std::integral_constant<int, 0> begin;
  const std::integral_constant<int, kKeysEach / 2> half;
  const std::integral_constant<int, kKeysEach> end;
  const auto tell = [&](uint32_t barrier) {
    FenceAsyncProxy();
    __syncwarp();
    if (lane == 0) Arrive(barrier);
  };
  if constexpr (Shape<kRegime>::kSplit) {
    expand(begin, end, next, false, base + kKeysAt + warp * kKeysEach * 128);
    tell(full);
    return;
  }
  cursor.Next();
  bool more = cursor.more;
  next = find();
  for (uint32_t i = 0;; ++i) {
    // The next block's keys are known and are fetched; where those of the one after it lie is found meanwhile.
    if (more) cursor.Next();
    finder.Begin(cursor, static_cast<int>(lane));
    const uint32_t slot = i % kStages;
    WaitBarrier(empty + slot * 8, (i / kStages + 1) & 1);
    const uint32_t tile = base + kKeysAt + slot * kTile + warp * kKeysEach * 128;
    expand(begin, half, next, more, tile);
    finder.Continue(cursor, static_cast<int>(lane));
    expand(half, end, next, more, tile);
    tell(full + slot * 8);
    if (!more) break;
    window = next.window;
    next = finder.End(cursor, static_cast<int>(lane));
    more = cursor.more;
  }
}

// ---- consumers: queries, scores, weights, outputs ----

__device__ void ConsumersSync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
__device__ int Consumer() { return static_cast<int>(threadIdx.x); }

// Keeps what is made of a value once a row from being kept in registers over all of its blocks.
__device__ int Afresh(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The row's queries, heads beyond p.heads zero, and its rotation, on the way.
__device__ void FetchQueries(const AttentionSm90Params& p, int64_t row, uint32_t base) {
  const int thread = Afresh(Consumer()), piece = thread % (kDim / 8);
#pragma unroll 4
  for (int i = 0; i < kHeads * (kDim / 8) / kConsumers; ++i) {
    const int head = thread / (kDim / 8) + i * (kConsumers / (kDim / 8));
    const bool really = head < p.heads;
    CopyAsync16(base + kQueryAt + PieceAt(head, piece), p.q + (row * p.heads + (really ? head : 0)) * kDim + piece * 8,
                really);
  }
  if (thread < p.rope_dim / 4) {
    const auto i = static_cast<uint32_t>(thread);
    CopyAsync16(base + kRopeAt + i * 16, p.rope + row * p.rope_dim + i * 4, true);
  }
  CommitCopies();
}
// Rotates them when they have come, and lets the products read them.
__device__ void FinishQueries(const AttentionSm90Params& p, uint32_t base) {
  WaitForCopies<0>();
  ConsumersSync();
  const int pieces = static_cast<int>(p.rope_dim) / 8, tail = kDim / 8 - pieces;
  for (int i = Consumer(); i < kHeads * pieces; i += kConsumers) {
    const uint32_t at = base + kQueryAt + PieceAt(i / pieces, tail + i % pieces);
    const uint32_t rope = base + kRopeAt + static_cast<uint32_t>(i % pieces * 32);
    uint4 codes = LoadShared16(at);
    const uint4 turns[2] = {LoadShared16(rope), LoadShared16(rope + 16)};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t& word = (&codes.x)[k];
      const uint4& turn = turns[k / 2];
      const float a = __uint_as_float(word << 16), b = __uint_as_float(word & 0xFFFF0000u);
      const float cosine = __uint_as_float(k % 2 == 0 ? turn.x : turn.z),
                  sine = __uint_as_float(k % 2 == 0 ? turn.y : turn.w);
      const __nv_bfloat162 two = __floats2bfloat162_rn(__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)),
                                                       __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine)));
      word = *reinterpret_cast<const uint32_t*>(&two);
    }
    StoreShared(at, codes);
  }
  FenceAsyncProxy();
  ConsumersSync();
}

// clang-format off
// 64 heads x 64 keys x 16 channels, both operands from shared memory.
__device__ inline void ScoreStep(float (&s)[32], uint64_t q, uint64_t k, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0;\n}"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]), "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15]), "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19]), "+f"(s[20]), "+f"(s[21]), "+f"(s[22]), "+f"(s[23]), "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]), "+f"(s[28]), "+f"(s[29]), "+f"(s[30]), "+f"(s[31])
      : "l"(q), "l"(k), "r"(add));
}
// 64 heads x 32 channels x 16 keys: weights from registers; values are columns of rows of keys.
__device__ inline void WeighStep(float (&o)[16], const uint32_t (&w)[4], uint64_t v, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 1;\n}"
      : "+f"(o[0]), "+f"(o[1]), "+f"(o[2]), "+f"(o[3]), "+f"(o[4]), "+f"(o[5]), "+f"(o[6]), "+f"(o[7]), "+f"(o[8]), "+f"(o[9]), "+f"(o[10]), "+f"(o[11]), "+f"(o[12]), "+f"(o[13]), "+f"(o[14]), "+f"(o[15])
      : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v), "r"(add));
}
// clang-format on

// What a thread holds of a block or of all so far: heads g and g + 8 of its warp's 16; of its warpgroup's 256 channels,
// in each of the parts, element 4 j + 2 h + i is head g + 8 h, channel 8 j + 2 t + i.
struct Head2 {
  float v[2];
};

// A block's scores: element 4 j + 2 h + i is head g + 8 h, key 8 j + 2 t + i.
__device__ void Score(uint32_t base, uint32_t tile, float (&s)[kKeys / 2]) {
  const uint64_t queries = SwizzledRows(base + kQueryAt), keys = SwizzledRows(tile);
  WgmmaFenceRegisters(s);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const auto at = static_cast<uint64_t>((step / 4 * kSubtile + step % 4 * 32) / 16);
    ScoreStep(s, queries + at, keys + at, step > 0);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  WgmmaFenceRegisters(s);
}

// 2^x as exp2f has it, but zero below 2^-126: a quarter of the instructions.
__device__ float PowerOf2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// Scores times a positive scale become weights, operand A of the products; maximum and sum (in powers of two) of the
// thread's two heads.
__device__ void Weights(float scale, int keys, float (&s)[kKeys / 2], uint32_t (&weights)[kKeys / 16][4],
                        Head2* maximum, Head2* sum) {
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
  float top[2] = {-INFINITY, -INFINITY};
  if (keys < kKeys) {
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      if (first + i / 4 * 8 + i % 2 >= keys) s[i] = -INFINITY;
    }
  }
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);  // a NaN survives in its weight
  float total[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = fmaxf(top[h], __shfl_xor_sync(0xFFFFFFFFu, top[h], 1));
    top[h] = fmaxf(top[h], __shfl_xor_sync(0xFFFFFFFFu, top[h], 2));
    top[h] = __fmul_rn(top[h], scale);
  }
#pragma unroll
  for (int i = 0; i < kKeys / 2; i += 2) {
    const int h = i / 2 % 2;
    const float a = PowerOf2(__fmaf_rn(s[i], scale, -top[h])), b = PowerOf2(__fmaf_rn(s[i + 1], scale, -top[h]));
    total[h] = __fadd_rn(total[h], __fadd_rn(a, b));
    const __nv_bfloat162 two = __floats2bfloat162_rn(a, b);
    weights[i / 8][i / 2 % 4] = *reinterpret_cast<const uint32_t*>(&two);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    total[h] = __fadd_rn(total[h], __shfl_xor_sync(0xFFFFFFFFu, total[h], 1));
    total[h] = __fadd_rn(total[h], __shfl_xor_sync(0xFFFFFFFFu, total[h], 2));
    maximum->v[h] = top[h], sum->v[h] = total[h];
  }
}

// Starts the block's products of part `part` of the warpgroup's channels, which begin at `values`.
__device__ void StartPart(const uint32_t (&weights)[kKeys / 16][4], uint64_t values, int part, float (&o)[kPart / 2]) {
  WgmmaFenceRegisters(o);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    const int at = part * kPart / 64 * kSubtile + part * kPart % 64 * 2 + step * 16 * 128;
    WeighStep(o, weights[step], values + static_cast<uint64_t>(at / 16), step > 0);
  }
  WgmmaCommit();
}

// One weight of what was and of what comes, when the maxima differ.
__device__ float Decay(float from, float to) { return from == -INFINITY ? 0.0f : PowerOf2(from - to); }
__device__ float Join(float old, float old_weight, float fresh, float fresh_weight) {
  return __fmaf_rn(fresh, fresh_weight, __fmul_rn(old, old_weight));
}

// Channels c and c + 1 of a head: weighed, rounded, rotated back if they are of the tail, rounded and stored.
__device__ void StorePair(const AttentionSm90Params& p, int64_t row, int head, int channel, float a, float b,
                          float factor) {
  a = __bfloat162float(__float2bfloat16_rn(__fmul_rn(a, factor)));
  b = __bfloat162float(__float2bfloat16_rn(__fmul_rn(b, factor)));
  const int tail = static_cast<int>(kDim - p.rope_dim);
  if (channel >= tail) {
    const float cosine = p.rope[row * p.rope_dim + channel - tail],
                sine = -p.rope[row * p.rope_dim + channel - tail + 1];
    const float real = __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine));
    b = __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine));
    a = real;
  }
  *reinterpret_cast<__nv_bfloat162*>(p.out + (row * p.heads + head) * kDim + channel) = __floats2bfloat162_rn(a, b);
}

// What the sum of a head's products is multiplied with; the values were kKeyScale of themselves.
__device__ float OutputFactor(const AttentionSm90Params& p, int head, float sum, float maximum) {
  return __fdiv_rn(1 / kKeyScale, __fadd_rn(sum, exp2f(__fsub_rn(__fmul_rn(p.sink[head], kLog2e), maximum))));
}

// Puts a row's blocks together, of which each block of threads of the cluster holds one, as AttentionKernel does with
// those that it takes alone: each joins an equal share of the outputs. All consumers.
__device__ void JoinTogether(const AttentionSm90Params& p, uint8_t* shared, int64_t row, int blocks) {
  auto* joins = reinterpret_cast<float2*>(shared + kJoinsAt);
  auto* factors = reinterpret_cast<float*>(shared + kFactorsAt);
  ClusterArrive();
  ClusterWait();
  const int thread = Consumer();
  if (thread < kHeads) {
    float maxima[kMostTogether], sums[kMostTogether];
#pragma unroll
    for (int i = 0; i < kMostTogether; ++i) {
      if (i >= blocks) break;
      maxima[i] = *InBlock(reinterpret_cast<float*>(shared + kMaximaAt) + thread, i);
      sums[i] = *InBlock(reinterpret_cast<float*>(shared + kSumsAt) + thread, i);
    }
    float maximum = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < kMostTogether; ++i) {
      if (i >= blocks) break;
      const float next = fmaxf(maximum, maxima[i]);
      const float old_weight = Decay(maximum, next), fresh_weight = Decay(maxima[i], next);
      sum = Join(sum, old_weight, sums[i], fresh_weight);
      maximum = next;
      joins[i * kHeads + thread] = make_float2(old_weight, fresh_weight);
    }
    factors[thread] = thread < p.heads ? OutputFactor(p, thread, sum, maximum) : 0;
  }
  ConsumersSync();
  constexpr int kFours = kDim / 4, kAtOnce = 5;
  for (int i = static_cast<int>(blockIdx.y) * kConsumers + thread; i < p.heads * kFours;
       i += static_cast<int>(gridDim.y) * kConsumers) {
    const int head = i / kFours, channel = i % kFours * 4;
    float* state = reinterpret_cast<float*>(shared) + head * kStateStride + channel;
    float o[4] = {};
    for (int from = 0; from < blocks; from += kAtOnce) {
      float4 fresh[kAtOnce];
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) {
        if (from + b < blocks) fresh[b] = *reinterpret_cast<const float4*>(InBlock(state, from + b));
      }
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) {
        if (from + b >= blocks) break;
        const float2 join = joins[(from + b) * kHeads + head];
#pragma unroll
        for (int k = 0; k < 4; ++k) o[k] = Join(o[k], join.x, (&fresh[b].x)[k], join.y);
      }
    }
    StorePair(p, row, head, channel, o[0], o[1], factors[head]);
    StorePair(p, row, head, channel + 2, o[2], o[3], factors[head]);
  }
  __syncwarp();
  ClusterArrive();  // until all have read this block's state
  ClusterWait();
}

template <Regime kRegime>
__device__ void Consume(const Args& args, uint8_t* shared, uint32_t base) {
  constexpr bool kSplit = Shape<kRegime>::kSplit;
  const AttentionSm90Params& p = args.p;
  const uint32_t full = base + kBarriersAt, empty = full + kStages * 8;
  const int rows = *p.num_rows;
  int row = static_cast<int>(blockIdx.x);
  if (row >= rows) return;
  FetchQueries(p, row, base);
  RowCounts counts(p, row);
  const int lane = static_cast<int>(threadIdx.x) % 32, head = Consumer() % 128 / 32 * 16 + lane / 4;
  const int group = __shfl_sync(0xFFFFFFFFu, Consumer() / 128, 0);
  const float scale = __fmul_rn(__fmul_rn(p.scale, kLog2e), 1 / kKeyScale);
  const int first = kSplit ? static_cast<int>(blockIdx.y) : 0;
  if (kSplit && first >= counts.Blocks()) {
    WaitForCopies<0>();
    if (kRegime == Regime::kTogether) JoinTogether(p, shared, row, counts.Blocks());
    return;
  }
  for (uint32_t i = 0; row < rows; row += static_cast<int>(gridDim.x)) {
    FinishQueries(p, base);
    float o[kParts][kPart / 2];
#pragma unroll
    for (auto& part : o) {
#pragma unroll
      for (float& v : part) v = 0;
    }
    Head2 maximum{{-INFINITY, -INFINITY}}, sum{{0, 0}};
    const int last = kSplit ? first + 1 : counts.Blocks();
    for (int block = first; block < last; ++block, ++i) {
      const uint32_t slot = i % kStages, tile = base + kKeysAt + slot * kTile;
      const int left = counts.KeysFrom(block);
      WaitBarrier(full + slot * 8, i / kStages & 1);
      uint32_t weights[kKeys / 16][4];
      Head2 fresh, fresh_sum;
      {
        float s[kKeys / 2] = {};
        Score(base, tile, s);
        const int next = row + static_cast<int>(gridDim.x);
        if (!kSplit && block + 1 == last && next < rows) {  // the queries are done with
          ConsumersSync();
          FetchQueries(p, next, base);
          counts = RowCounts(p, next);
        }
        Weights(scale, left, s, weights, &fresh, &fresh_sum);
      }
      float old_weight[2], fresh_weight[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float next = fmaxf(maximum.v[h], fresh.v[h]);
        old_weight[h] = Decay(maximum.v[h], next);
        fresh_weight[h] = Decay(fresh.v[h], next);
        sum.v[h] = Join(sum.v[h], old_weight[h], fresh_sum.v[h], fresh_weight[h]);
        maximum.v[h] = next;
      }
      const uint64_t values = SwizzledRows(tile + static_cast<uint32_t>(group * 4 * kSubtile));
      float products[2][kPart / 2] = {};
      StartPart(weights, values, 0, products[0]);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (part + 1 < kParts) {
#pragma unroll
          for (float& v : products[(part + 1) % 2]) v = 0;
          StartPart(weights, values, part + 1, products[(part + 1) % 2]);
          WgmmaWait<1>();
        } else {
          WgmmaWait<0>();
        }
        WgmmaFenceRegisters(products[part % 2]);
#pragma unroll
        for (int k = 0; k < kPart / 2; ++k) {
          const int h = k / 2 % 2;
          o[part][k] = Join(o[part][k], old_weight[h], products[part % 2][k], fresh_weight[h]);
        }
      }
      __syncwarp();
      if (lane == 0) Arrive(empty + slot * 8);
    }
    if constexpr (kRegime == Regime::kTogether) {
      ConsumersSync();
      auto* state = reinterpret_cast<float*>(shared);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int k = 0; k < kPart / 2; k += 2) {
          const int channel = group * 256 + part * kPart + k / 4 * 8 + lane % 4 * 2;
          *reinterpret_cast<float2*>(state + (head + k / 2 % 2 * 8) * kStateStride + channel) =
              make_float2(o[part][k], o[part][k + 1]);
        }
      }
      if (group == 0 && lane % 4 == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          reinterpret_cast<float*>(shared + kMaximaAt)[head + 8 * h] = maximum.v[h];
          reinterpret_cast<float*>(shared + kSumsAt)[head + 8 * h] = sum.v[h];
        }
      }
      JoinTogether(p, shared, row, counts.Blocks());
      return;
    } else if constexpr (kRegime == Regime::kApart) {
      float* state = p.scratch + (int64_t{row} * args.blocks + first) * kStateFloats;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int k = 0; k < kPart / 2; k += 2) {
          const int channel = group * 256 + part * kPart + k / 4 * 8 + lane % 4 * 2;
          *reinterpret_cast<float2*>(state + (head + k / 2 % 2 * 8) * kDim + channel) =
              make_float2(o[part][k], o[part][k + 1]);
        }
      }
      if (group == 0 && lane % 4 == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          state[kHeads * kDim + head + 8 * h] = maximum.v[h];
          state[kHeads * (kDim + 1) + head + 8 * h] = sum.v[h];
        }
      }
      return;
    } else {
      const int pair = Afresh(lane % 4 * 2);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (head + 8 * h >= p.heads) continue;
        const float factor = OutputFactor(p, head + 8 * h, sum.v[h], maximum.v[h]);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
#pragma unroll
          for (int k = 0; k < kPart / 2; k += 4) {
            const int channel = group * 256 + part * kPart + k / 4 * 8 + pair;
            StorePair(p, row, head + 8 * h, channel, o[part][k + 2 * h], o[part][k + 2 * h + 1], factor);
          }
        }
      }
    }
  }
}

template <Regime kRegime>
__global__ __launch_bounds__(Shape<kRegime>::kThreads, 1) void AttentionKernel(const __grid_constant__ Args args) {
  extern __shared__ uint8_t shared[];
  const uint32_t base = (SharedAddress(shared) + 1023) / 1024 * 1024;
  const uint32_t full = base + kBarriersAt, empty = full + kStages * 8;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i) {
      InitBarrier(full + i * 8, Shape<kRegime>::kProducers);
      InitBarrier(empty + i * 8, kConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  WaitForPrevious();
  if (kRegime != Regime::kWhole) LetNextBegin();
  uint8_t* aligned = shared + (base - SharedAddress(shared));
  if (threadIdx.x < kConsumers) {
    GrowRegisters<Shape<kRegime>::kConsumerRegisters>();
    Consume<kRegime>(args, aligned, base);
  } else {
    ShrinkRegisters<Shape<kRegime>::kProducerRegisters>();
    Produce<kRegime>(args.p, base, reinterpret_cast<RowKeys*>(aligned + kRowsAt));
    if (kRegime == Regime::kWhole) LetNextBegin();
  }
}

// Puts a row's blocks together as AttentionKernel does: a block of threads takes a head. All that could be needed is
// asked for before how much of it is there is known.
__global__ __launch_bounds__(kDim / 2) void JoinKernel(const __grid_constant__ Args args) {
  constexpr int kAtOnce = 10;
  const AttentionSm90Params& p = args.p;
  const int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y), channel = static_cast<int>(threadIdx.x) * 2;
  const float* state = p.scratch + row * args.blocks * kStateFloats;
  WaitForPrevious();
  float maximum = -INFINITY, sum = 0, a = 0, b = 0;
  int blocks = 0;
  for (int first = 0; first < args.blocks; first += kAtOnce) {
    float2 fresh[kAtOnce];
    float fresh_maximum[kAtOnce], fresh_sum[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= args.blocks) break;
      const float* of_block = state + (first + i) * kStateFloats;
      fresh[i] = *reinterpret_cast<const float2*>(of_block + head * kDim + channel);
      fresh_maximum[i] = of_block[kHeads * kDim + head], fresh_sum[i] = of_block[kHeads * (kDim + 1) + head];
    }
    if (first == 0) {
      if (row >= *p.num_rows) return;
      blocks = RowCounts(p, row).Blocks();
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= blocks) break;
      const float next = fmaxf(maximum, fresh_maximum[i]);
      const float old_weight = Decay(maximum, next), fresh_weight = Decay(fresh_maximum[i], next);
      sum = Join(sum, old_weight, fresh_sum[i], fresh_weight);
      a = Join(a, old_weight, fresh[i].x, fresh_weight);
      b = Join(b, old_weight, fresh[i].y, fresh_weight);
      maximum = next;
    }
  }
  LetNextBegin();
  StorePair(p, row, head, channel, a, b, OutputFactor(p, head, sum, maximum));
}

int MaxBlocks(int64_t max_window, int64_t selected_stride) {
  return static_cast<int>((max_window + kKeys - 1) / kKeys + (selected_stride + kKeys - 1) / kKeys);
}

// Of this thread's GPU.
int64_t Multiprocessors() {
  int device = 0, count = 0;
  SENKO_CUDA(cudaGetDevice(&device));
  SENKO_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

// A cluster lies within one of the regions of the GPU, which have this many multiprocessors or a few more.
constexpr int64_t kRegions = 6;

// Clusters of up to 16 blocks, which not every GPU of a kind need have.
template <auto kKernel>
void AllowLargeClusters() {
  SENKO_CUDA(cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
}

template <Regime kRegime>
void LaunchAttention(const Args& args, dim3 grid, unsigned together, cudaStream_t stream) {
  const AttentionSm90Params& p = args.p;
  SENKO_CHECK(p.heads >= 1 && p.heads <= kHeads && p.dim == kDim && p.rope_dim % 8 == 0 && p.rope_dim <= kMaxRope);
  SENKO_CHECK(p.window.row_stride % 16 == 0 && p.entries.entry_stride % 16 == 0);
  AllowSharedBytes<AttentionKernel<kRegime>>(kSharedBytes);
  Launch launch;
  launch.grid = grid;
  launch.block = dim3(Shape<kRegime>::kThreads);
  launch.cluster = dim3(1, together);
  launch.shared_bytes = kSharedBytes;
  launch.stream = stream;
  Start(launch, AttentionKernel<kRegime>, args);
}

}  // namespace

size_t AttentionScratchFloats(int64_t max_window, int64_t selected_stride) {
  return static_cast<size_t>(kAttentionSplitRows * MaxBlocks(max_window, selected_stride) * kStateFloats);
}

void AttentionWholeSm90(const AttentionSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(p.max_rows, Multiprocessors()));
  LaunchAttention<Regime::kWhole>(Args{p, 0}, dim3(blocks), 1, stream);
}

void AttentionSm90(const AttentionSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  if (p.dim != kDim) return AttentionPlainSm90(p, stream);
  if (p.max_rows > kAttentionSplitRows) return AttentionWholeSm90(p, stream);
  SENKO_CHECK(p.scratch != nullptr);
  const Args args{p, MaxBlocks(p.max_window, p.selected != nullptr ? p.selected_stride : 0)};
  const dim3 grid(static_cast<unsigned>(p.max_rows), static_cast<unsigned>(args.blocks));
  if (args.blocks <= kMostTogether && p.max_rows <= kRegions * (kMostTogether / args.blocks)) {
    AllowLargeClusters<AttentionKernel<Regime::kTogether>>();
    return LaunchAttention<Regime::kTogether>(args, grid, grid.y, stream);
  }
  LaunchAttention<Regime::kApart>(args, grid, 1, stream);
  Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_rows), static_cast<unsigned>(p.heads));
  launch.block = dim3(kDim / 2);
  launch.stream = stream;
  Start(launch, JoinKernel, args);
}

}  // namespace senko::ops
