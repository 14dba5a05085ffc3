// Attention of 64 heads of 512 on wgmma. A warpgroup gathers keys, expands them to bf16 and puts them into a ring of
// shared memory; two multiply: each scores half of a block's keys for all heads, then weighs half of the channels.
#include <cuda_runtime.h>

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

constexpr int kHeads = 64, kDim = 512, kThreads = 384, kStages = 2;
constexpr int kSubtile = 8192;               // 64 rows of 64 columns, swizzled
constexpr int kTile = kDim / 64 * kSubtile;  // 64 rows of 512 columns
constexpr int kQueryAt = 0, kKeysAt = kTile, kWeightsAt = kKeysAt + kStages * kTile;
constexpr int kMaximaAt = kWeightsAt + kSubtile;  // float [2][64], then sums likewise
constexpr int kBarriersAt = kMaximaAt + 4 * kHeads * 4;
constexpr int kSharedBytes = kBarriersAt + kStages * 16 + 1024;
constexpr float kLog2e = 1.4426950408889634f;
constexpr int kStateFloats = kHeads * (kDim + 2);  // of a block: its products, maxima and sums

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

// Two threads a key, half of its channels each.
__device__ void BringKeys(const AttentionSm90Params& p, const RowKeys& keys, int block, uint32_t tile) {
  const int thread = static_cast<int>(threadIdx.x), row = thread / 2, half = thread % 2;
  const int window_blocks = keys.WindowBlocks();
  const bool window = block < window_blocks;
  const int k = (window ? block : block - window_blocks) * kKeys + row;
  if (k >= (window ? keys.num_window : keys.num_selected)) {
    for (int piece = half * 32; piece < half * 32 + 32; ++piece)
      StoreShared(tile + PieceAt(row, piece), uint4{0, 0, 0, 0});
    return;
  }
  if (window) {
    const uint8_t* at = keys.WindowKey(p, k);
    const uint2 scales = *reinterpret_cast<const uint2*>(at + kDim + half * 8);
    const uint4* codes = reinterpret_cast<const uint4*>(at + half * 256);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint4 sixteen[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) sixteen[i] = codes[part * 8 + i];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int block32 = part * 4 + i / 2;
        const uint32_t scale = (block32 < 4 ? scales.x : scales.y) >> (8 * (block32 % 4)) & 255u;
        const int piece = half * 32 + part * 16 + i * 2;
        StoreShared(tile + PieceAt(row, piece), ExpandWindow(uint2{sixteen[i].x, sixteen[i].y}, scale));
        StoreShared(tile + PieceAt(row, piece + 1), ExpandWindow(uint2{sixteen[i].z, sixteen[i].w}, scale));
      }
    }
  } else {
    const uint8_t* at = keys.EntryKey(p, k);
    const uint4 scales = *reinterpret_cast<const uint4*>(at + kDim / 2 + half * 16);
    const uint4* codes = reinterpret_cast<const uint4*>(at + half * 128);
    uint4 thirty_two[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) thirty_two[i] = codes[i];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {  // eight codes each, two to a scale
        const int block16 = i * 2 + w / 2;
        const uint32_t scale = (&scales.x)[block16 / 4] >> (8 * (block16 % 4)) & 255u;
        StoreShared(tile + PieceAt(row, half * 32 + i * 4 + w), ExpandEntry((&thirty_two[i].x)[w], scale));
      }
    }
  }
}

// All threads: the row's queries, rotated, heads beyond p.heads zero.
__device__ void BringQueries(const AttentionSm90Params& p, int64_t row, uint32_t tile) {
  const int tail = static_cast<int>(kDim - p.rope_dim) / 8;  // pieces before the rotated ones
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * (kDim / 8); i += kThreads) {
    const int head = i / (kDim / 8), piece = i % (kDim / 8);
    uint4 codes{0, 0, 0, 0};
    if (head < p.heads) {
      codes = *reinterpret_cast<const uint4*>(p.q + (row * p.heads + head) * kDim + piece * 8);
      if (piece >= tail) {
        const float* rope = p.rope + row * p.rope_dim + (piece - tail) * 8;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          uint32_t& word = (&codes.x)[k];
          const float a = __uint_as_float(word << 16), b = __uint_as_float(word & 0xFFFF0000u);
          const float cosine = rope[2 * k], sine = rope[2 * k + 1];
          const __nv_bfloat162 two = __floats2bfloat162_rn(__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)),
                                                           __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine)));
          word = *reinterpret_cast<const uint32_t*>(&two);
        }
      }
    }
    StoreShared(tile + PieceAt(head, piece), codes);
  }
}

// 64 heads x 32 keys x 16 channels, both operands from shared memory.
__device__ inline void ScoreStep(float (&s)[16], uint64_t q, uint64_t k, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, 0, 0;\n}"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]), "+f"(s[8]),
        "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15])
      : "l"(q), "l"(k), "r"(add));
}
// 64 heads x 64 channels x 16 keys; the values are columns of rows of keys.
__device__ inline void WeighStep(float (&o)[32], uint64_t w, uint64_t v, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 1;\n}"
      : "+f"(o[0]), "+f"(o[1]), "+f"(o[2]), "+f"(o[3]), "+f"(o[4]), "+f"(o[5]), "+f"(o[6]), "+f"(o[7]), "+f"(o[8]),
        "+f"(o[9]), "+f"(o[10]), "+f"(o[11]), "+f"(o[12]), "+f"(o[13]), "+f"(o[14]), "+f"(o[15]), "+f"(o[16]),
        "+f"(o[17]), "+f"(o[18]), "+f"(o[19]), "+f"(o[20]), "+f"(o[21]), "+f"(o[22]), "+f"(o[23]), "+f"(o[24]),
        "+f"(o[25]), "+f"(o[26]), "+f"(o[27]), "+f"(o[28]), "+f"(o[29]), "+f"(o[30]), "+f"(o[31])
      : "l"(w), "l"(v), "r"(add));
}

__device__ void ConsumersSync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// What a thread holds of a block or of all so far: heads g and g + 8 of its warp's 16; of its warpgroup's 256 channels,
// in each of four subtiles, element 4 j + 2 h + i is head g + 8 h, channel 8 j + 2 t + i.
struct Head2 {
  float v[2];
};

// A block's scores become weights in shared memory; maximum and sum (in powers of two) of the thread's two heads.
__device__ void Score(const AttentionSm90Params& p, uint32_t base, uint32_t tile, int keys, float* maxima,
                      Head2* maximum, Head2* sum) {
  const int consumer = static_cast<int>(threadIdx.x) / 128 - 1;
  const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
  float s[16] = {};
  WgmmaFenceRegisters(s);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const auto at = static_cast<uint32_t>(step / 4 * kSubtile + step % 4 * 32);
    ScoreStep(s, SwizzledRows(base + kQueryAt + at),
              SwizzledRows(tile + at + static_cast<uint32_t>(consumer * 32 * 128)), step > 0);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  WgmmaFenceRegisters(s);
  const float scale = __fmul_rn(p.scale, kLog2e);
  const int head = warp * 16 + lane / 4;
  float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int key = consumer * 32 + i / 4 * 8 + lane % 4 * 2 + i % 2;
    s[i] = key < keys ? __fmul_rn(s[i], scale) : -INFINITY;
    top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);  // a NaN survives in its weight
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = fmaxf(top[h], __shfl_xor_sync(0xFFFFFFFFu, top[h], 1));
    top[h] = fmaxf(top[h], __shfl_xor_sync(0xFFFFFFFFu, top[h], 2));
    if (lane % 4 == 0) maxima[consumer * kHeads + head + 8 * h] = top[h];
  }
  ConsumersSync();
  float total[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) maximum->v[h] = fmaxf(maxima[head + 8 * h], maxima[kHeads + head + 8 * h]);
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    const int h = i / 2 % 2;
    const float a = exp2f(s[i] - maximum->v[h]), b = exp2f(s[i + 1] - maximum->v[h]);
    total[h] = __fadd_rn(total[h], __fadd_rn(a, b));
    const __nv_bfloat162 two = __floats2bfloat162_rn(a, b);
    const int row = head + 8 * h, piece = consumer * 4 + i / 4;
    asm volatile(
        "st.shared.u32 [%0], %1;" ::"r"(base + kWeightsAt + PieceAt(row, piece) + static_cast<uint32_t>(lane % 4 * 4)),
        "r"(*reinterpret_cast<const uint32_t*>(&two))
        : "memory");
  }
  float* sums = maxima + 2 * kHeads;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    total[h] = __fadd_rn(total[h], __shfl_xor_sync(0xFFFFFFFFu, total[h], 1));
    total[h] = __fadd_rn(total[h], __shfl_xor_sync(0xFFFFFFFFu, total[h], 2));
    if (lane % 4 == 0) sums[consumer * kHeads + head + 8 * h] = total[h];
  }
  FenceAsyncProxy();
  ConsumersSync();
#pragma unroll
  for (int h = 0; h < 2; ++h) sum->v[h] = __fadd_rn(sums[head + 8 * h], sums[kHeads + head + 8 * h]);
}

// The block's products of subtile `part` of the thread's warpgroup's channels.
__device__ void Weigh(uint32_t base, uint32_t tile, int part, float (&o)[32]) {
  const int consumer = static_cast<int>(threadIdx.x) / 128 - 1;
  WgmmaFenceRegisters(o);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    WeighStep(o, SwizzledRows(base + kWeightsAt + static_cast<uint32_t>(step * 32)),
              SwizzledRows(tile + static_cast<uint32_t>((consumer * 4 + part) * kSubtile + step * 16 * 128)), step > 0);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  WgmmaFenceRegisters(o);
}

// One weight of what was and of what comes, when the maxima differ.
__device__ float Decay(float from, float to) { return from == -INFINITY ? 0.0f : exp2f(from - to); }
__device__ float Join(float old, float old_weight, float fresh, float fresh_weight) {
  return __fmaf_rn(fresh, fresh_weight, __fmul_rn(old, old_weight));
}

// Channels c and c + 1 of a head: divided, rounded, rotated back if they are of the tail, rounded and stored.
__device__ void StorePair(const AttentionSm90Params& p, int64_t row, int head, int channel, float a, float b,
                          float denominator) {
  a = __bfloat162float(__float2bfloat16_rn(__fdiv_rn(a, denominator)));
  b = __bfloat162float(__float2bfloat16_rn(__fdiv_rn(b, denominator)));
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

__device__ float Denominator(const AttentionSm90Params& p, int head, float sum, float maximum) {
  return __fadd_rn(sum, exp2f(__fsub_rn(__fmul_rn(p.sink[head], kLog2e), maximum)));
}

template <bool kSplit>
__global__ __launch_bounds__(kThreads, 1) void AttentionKernel(const Args args) {
  extern __shared__ uint8_t shared[];
  const AttentionSm90Params& p = args.p;
  const uint32_t base = (SharedAddress(shared) + 1023) / 1024 * 1024;
  const uint32_t full = base + kBarriersAt, empty = full + kStages * 8;
  auto* maxima = reinterpret_cast<float*>(shared + (base - SharedAddress(shared)) + kMaximaAt);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i) {
      InitBarrier(full + i * 8, 128);
      InitBarrier(empty + i * 8, 256);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  if (row >= *p.num_rows) return;
  const RowKeys keys(p, row);
  const int blocks = keys.Blocks();
  const int first = kSplit ? static_cast<int>(blockIdx.y) : 0, last = kSplit ? first + 1 : blocks;
  if (first >= blocks) return;
  BringQueries(p, row, base + kQueryAt);
  FenceAsyncProxy();
  __syncthreads();
  if (threadIdx.x < 128) {
    ShrinkRegisters<72>();
    for (int block = first; block < last; ++block) {
      const auto slot = static_cast<uint32_t>((block - first) % kStages);
      WaitBarrier(empty + slot * 8, static_cast<uint32_t>((block - first) / kStages + 1) & 1);
      BringKeys(p, keys, block, base + kKeysAt + slot * kTile);
      FenceAsyncProxy();
      Arrive(full + slot * 8);
    }
    LetNextBegin();
  } else {
    GrowRegisters<216>();
    const int consumer = static_cast<int>(threadIdx.x) / 128 - 1;
    const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
    const int head = warp * 16 + lane / 4;
    float o[4][32];
#pragma unroll
    for (auto& part : o) {
#pragma unroll
      for (float& v : part) v = 0;
    }
    Head2 maximum{{-INFINITY, -INFINITY}}, sum{{0, 0}};
    const int window_blocks = keys.WindowBlocks();
    for (int block = first; block < last; ++block) {
      const auto slot = static_cast<uint32_t>((block - first) % kStages);
      const uint32_t tile = base + kKeysAt + slot * kTile;
      const int left =
          block < window_blocks ? keys.num_window - block * kKeys : keys.num_selected - (block - window_blocks) * kKeys;
      WaitBarrier(full + slot * 8, static_cast<uint32_t>((block - first) / kStages) & 1);
      Head2 fresh, fresh_sum;
      Score(p, base, tile, min(left, kKeys), maxima, &fresh, &fresh_sum);
      float old_weight[2], fresh_weight[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float next = fmaxf(maximum.v[h], fresh.v[h]);
        old_weight[h] = Decay(maximum.v[h], next);
        fresh_weight[h] = Decay(fresh.v[h], next);
        sum.v[h] = Join(sum.v[h], old_weight[h], fresh_sum.v[h], fresh_weight[h]);
        maximum.v[h] = next;
      }
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        float products[32] = {};
        Weigh(base, tile, part, products);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          const int h = i / 2 % 2;
          o[part][i] = Join(o[part][i], old_weight[h], products[i], fresh_weight[h]);
        }
      }
      Arrive(empty + slot * 8);
    }
    if constexpr (kSplit) {
      float* state = p.scratch + (row * args.blocks + first) * kStateFloats;
#pragma unroll
      for (int part = 0; part < 4; ++part) {
#pragma unroll
        for (int i = 0; i < 32; i += 2) {
          const int channel = (consumer * 4 + part) * 64 + i / 4 * 8 + lane % 4 * 2;
          *reinterpret_cast<float2*>(state + (head + i / 2 % 2 * 8) * kDim + channel) =
              make_float2(o[part][i], o[part][i + 1]);
        }
      }
      if (consumer == 0 && lane % 4 == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          state[kHeads * kDim + head + 8 * h] = maximum.v[h];
          state[kHeads * (kDim + 1) + head + 8 * h] = sum.v[h];
        }
      }
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (head + 8 * h >= p.heads) continue;
        const float denominator = Denominator(p, head + 8 * h, sum.v[h], maximum.v[h]);
#pragma unroll
        for (int part = 0; part < 4; ++part) {
#pragma unroll
          for (int i = 0; i < 32; i += 4) {
            const int channel = (consumer * 4 + part) * 64 + i / 4 * 8 + lane % 4 * 2;
            StorePair(p, row, head + 8 * h, channel, o[part][i + 2 * h], o[part][i + 2 * h + 1], denominator);
          }
        }
      }
    }
  }
}

// Puts a row's blocks together as AttentionKernel does: a block of threads takes a head.
__global__ __launch_bounds__(kDim / 2) void JoinKernel(const Args args) {
  const AttentionSm90Params& p = args.p;
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  if (row >= *p.num_rows) return;
  const int head = static_cast<int>(blockIdx.y), channel = static_cast<int>(threadIdx.x) * 2;
  const int blocks = RowKeys(p, row).Blocks();
  const float* state = p.scratch + row * args.blocks * kStateFloats;
  float maximum = -INFINITY, sum = 0, a = 0, b = 0;
  for (int block = 0; block < blocks; ++block, state += kStateFloats) {
    const float2 fresh = *reinterpret_cast<const float2*>(state + head * kDim + channel);
    const float fresh_maximum = state[kHeads * kDim + head], fresh_sum = state[kHeads * (kDim + 1) + head];
    const float next = fmaxf(maximum, fresh_maximum);
    const float old_weight = Decay(maximum, next), fresh_weight = Decay(fresh_maximum, next);
    sum = Join(sum, old_weight, fresh_sum, fresh_weight);
    a = Join(a, old_weight, fresh.x, fresh_weight);
    b = Join(b, old_weight, fresh.y, fresh_weight);
    maximum = next;
  }
  LetNextBegin();
  StorePair(p, row, head, channel, a, b, Denominator(p, head, sum, maximum));
}

int MaxBlocks(int64_t max_window, int64_t selected_stride) {
  return static_cast<int>((max_window + kKeys - 1) / kKeys + (selected_stride + kKeys - 1) / kKeys);
}

template <bool kSplit>
void LaunchAttention(const Args& args, unsigned blocks, cudaStream_t stream) {
  AllowSharedBytes<AttentionKernel<kSplit>>(kSharedBytes);
  Launch launch;
  launch.grid = dim3(static_cast<unsigned>(args.p.max_rows), blocks);
  launch.block = dim3(kThreads);
  launch.shared_bytes = kSharedBytes;
  launch.stream = stream;
  Start(launch, AttentionKernel<kSplit>, args);
}

}  // namespace

size_t AttentionScratchFloats(int64_t max_window, int64_t selected_stride) {
  return static_cast<size_t>(kAttentionSplitRows * MaxBlocks(max_window, selected_stride) * kStateFloats);
}

void AttentionWholeSm90(const AttentionSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  SENKO_CHECK(p.heads >= 1 && p.heads <= kHeads && p.dim == kDim && p.rope_dim % 8 == 0);
  LaunchAttention<false>(Args{p, 0}, 1, stream);
}

void AttentionSm90(const AttentionSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  if (p.dim != kDim) return AttentionPlainSm90(p, stream);
  if (p.max_rows > kAttentionSplitRows) return AttentionWholeSm90(p, stream);
  SENKO_CHECK(p.heads >= 1 && p.heads <= kHeads && p.rope_dim % 8 == 0 && p.scratch != nullptr);
  const Args args{p, MaxBlocks(p.max_window, p.selected != nullptr ? p.selected_stride : 0)};
  LaunchAttention<true>(args, static_cast<unsigned>(args.blocks), stream);
  Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_rows), static_cast<unsigned>(p.heads));
  launch.block = dim3(kDim / 2);
  launch.stream = stream;
  Start(launch, JoinKernel, args);
}

}  // namespace senko::ops
