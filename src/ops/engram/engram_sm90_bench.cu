// Time per call of Engram's operators of sm_90a in a graph. Gathering reads 24 rows of 256 + 8 bytes a token out of a
// table of 16 GiB in host memory, other tokens in each call; injecting streams that are not in the L2 cache.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cuda/bench_device.cuh"
#include "cuda/device_buffer.h"
#include "cuda/mapped_buffer.h"
#include "ops/engram/engram_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::FillRandom;
using cuda::MappedBuffer;
using cuda::ToDevice;

constexpr int64_t kDim = 256, kTableRows = (int64_t{16} << 30) / kDim, kVocab = int64_t{1} << 17, kHidden = 5120;
constexpr int32_t kHeads = 8, kMaxNgram = 4;

EngramHashSm90 Hash() {
  EngramHashSm90 hash;
  hash.max_ngram = kMaxNgram;
  hash.heads = kHeads;
  const uint64_t multipliers[] = {76632096046245, 4839876093313, 35959672319349, 73987337458391};
  std::copy_n(multipliers, kMaxNgram, hash.multipliers);
  const int64_t each = kTableRows / hash.slots();
  for (int64_t s = 0; s < hash.slots(); ++s) {
    hash.primes[s] = static_cast<uint64_t>(each - 1 - s * 2);
    hash.offsets[s] = s * each;
  }
  return hash;
}

void Gather(const MappedBuffer<uint8_t>& values, const MappedBuffer<uint8_t>& scales, int64_t tokens, int32_t blocks,
            cudaStream_t stream) {
  const int copies = static_cast<int>(std::clamp<int64_t>(200000 / tokens, 8, 400));
  DeviceBuffer<int32_t> ids(static_cast<size_t>(copies * tokens)), map(static_cast<size_t>(kVocab));
  FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(ids.data()), ids.size(), static_cast<uint32_t>(kVocab - 1), 0);
  FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(map.data()), map.size(), 0xFFFF, 0);
  std::vector<int64_t> at(ids.size());
  for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<int64_t>(i);
  const DeviceBuffer<int64_t> positions = ToDevice(at), begins = ToDevice(std::vector<int64_t>{0});
  const DeviceBuffer<int32_t> sequences = ToDevice(std::vector<int32_t>(ids.size(), 0)),
                              count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(tokens)});
  const DeviceBuffer<const int32_t*> pointers = ToDevice(std::vector<const int32_t*>{ids.data()});
  EngramGatherSm90Params p;
  p.hash = Hash();
  const DeviceBuffer<__nv_bfloat16> out(static_cast<size_t>(tokens * p.hash.slots() * kDim));
  p.rows = count.data();
  p.max_rows = tokens;
  p.sequences = sequences.data();
  p.tokens = pointers.data();
  p.tokens_begin = begins.data();
  p.token_map = map.data();
  p.vocab = kVocab;
  p.values = values.device();
  p.scales = scales.device();
  p.table_rows = kTableRows;
  p.dim = kDim;
  p.out = out.data();
  p.max_blocks = blocks;
  const int64_t rows = tokens * p.hash.slots();
  const double t = cuda::SecondsPerCall(stream, std::max(3.6e-6, static_cast<double>(rows) / 40e6), [&](int i) {
    p.positions = positions.data() + i % copies * tokens;
    EngramGatherSm90(p, stream);
  });
  std::printf("gather %5lld tokens (%6lld rows) on %3d blocks  %9.2f us  %6.1f million rows/s  %5.1f GB/s\n",
              static_cast<long long>(tokens), static_cast<long long>(rows), blocks, t * 1e6,
              static_cast<double>(rows) / t * 1e-6, static_cast<double>(rows * (kDim + kDim / 32)) / t * 1e-9);
}

void Inject(int64_t rows, cudaStream_t stream) {
  const int64_t row_bytes = (5 + 4) * kHidden * 2;
  const int copies = static_cast<int>(std::clamp<int64_t>((int64_t{256} << 20) / (rows * row_bytes) + 1, 2, 200));
  const DeviceBuffer<__nv_bfloat16> kv(static_cast<size_t>(copies * rows * 5 * kHidden)),
      streams(static_cast<size_t>(copies * rows * 4 * kHidden));
  const DeviceBuffer<float> weight(static_cast<size_t>(4 * kHidden));
  FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(kv.data()), kv.bytes() / 4, 0x80FF80FFu, 0x3F003F00u);
  FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(streams.data()), streams.bytes() / 4, 0x80FF80FFu, 0x3F003F00u);
  FillRandom<<<64, 256>>>(reinterpret_cast<uint32_t*>(weight.data()), weight.size(), 0x80FFFFFFu, 0x3F000000u);
  const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(rows)});
  EngramInjectSm90Params p;
  p.rows = count.data();
  p.max_rows = rows;
  p.hidden = kHidden;
  p.q_weight = weight.data();
  p.k_weight = weight.data();
  p.rms_eps = 1e-20f;
  const double bytes = static_cast<double>(rows * (5 + 4 + 4) * kHidden * 2);
  const double floor = bytes / cuda::kBytesPerSecond;
  const double t = cuda::SecondsPerCall(stream, std::max(floor, 2e-6), [&](int i) {
    p.kv = kv.data() + i % copies * rows * 5 * kHidden;
    p.streams = streams.data() + i % copies * rows * 4 * kHidden;
    EngramInjectSm90(p, stream);
  });
  std::printf("inject %5lld rows  %9.2f us  %5.2f TB/s  %5.1f%% of the limit\n", static_cast<long long>(rows), t * 1e6,
              bytes / t * 1e-12, floor / t * 100);
}

void All() {
  cudaStream_t stream;
  SENKO_CUDA(cudaStreamCreate(&stream));
  for (const int64_t rows : {1, 64, 8192}) Inject(rows, stream);
  const MappedBuffer<uint8_t> values(static_cast<size_t>(kTableRows * kDim)),
      scales(static_cast<size_t>(kTableRows * kDim / 32));
  FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(values.device()), values.bytes() / 4, 0xBFBFBFBFu, 0);
  FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(scales.device()), scales.bytes() / 4, 0x07070707u, 0x78787878u);
  SENKO_CUDA(cudaDeviceSynchronize());
  for (const int64_t tokens : {1, 8, 64, 3072, 8192}) {
    for (const int32_t blocks : {4, 8, 16}) Gather(values, scales, tokens, blocks, stream);
  }
  SENKO_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace senko::ops

int main() { return senko::cuda::MainOnDevice(senko::ops::All); }
