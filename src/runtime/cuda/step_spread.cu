// A thread takes the i-th row of either pass, the i-th entry of either ratio, and so on; a warp then makes its 32 rows'
// rotary tables together.
#include <cuda_runtime.h>

#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/norm/rope_sm90.cuh"
#include "runtime/cuda/step_spread.h"

namespace senko::runtime {
namespace {

constexpr int kThreads = 128;

// The last span whose first row, entry, ... is at most `at`. Spans without any share their first with the next one.
template <int32_t StepSpan::*kFirst>
__device__ int FindSpan(const StepSpan* spans, int count, int32_t at) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (spans[middle].*kFirst <= at) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__device__ int64_t Clamp(int64_t v, int64_t low, int64_t high) { return v < low ? low : v > high ? high : v; }

__device__ int32_t KnownId(const SpreadParams& p, int32_t at) {
  const int32_t id = p.ids[at];
  return id >= 0 ? id : max(p.drawn_tokens[-1 - id], 0);
}

// As model::RowSet: a row always sees itself, also before its window's floor.
__device__ int64_t WindowBegin(int64_t position, int64_t window, int64_t floor) {
  return min(position, max(max(int64_t{0}, position - window + 1), floor));
}

// The warp's live rows of a rotary table, a pair a lane.
__device__ void Rope(int64_t position, bool live, int64_t row, const float* inv_freq, int64_t pairs, float* table) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned who = __ballot_sync(0xFFFFFFFFu, live);
  for (int r = 0; r < 32; ++r) {
    if ((who >> r & 1u) == 0) continue;
    const int64_t at = __shfl_sync(0xFFFFFFFFu, position, r);
    const int64_t to = row - lane + r;
    for (int64_t n = lane; n < pairs; n += 32) {
      reinterpret_cast<float2*>(table)[to * pairs + n] = ops::sm90::RopePair(at, inv_freq[n]);
    }
  }
}

template <int kRatio>
__device__ void Latent(const SpreadParams& p, int num_spans, int32_t count, const SpreadLatents& to, int64_t i) {
  const bool live = i < count && to.latents != nullptr;
  int64_t position = 0;
  if (live) {
    constexpr auto kFirst = kRatio == 2 ? &StepSpan::latent2 : &StepSpan::latent1;
    const int s = FindSpan<kFirst>(p.spans, num_spans, static_cast<int32_t>(i));
    const StepSpan& span = p.spans[s];
    ops::LatentRef latent;
    latent.sequence = s;
    latent.entry = max(span.begin, span.write_floor) / kRatio + (i - span.*kFirst);
    const int64_t last = latent.entry * kRatio + kRatio - 1;
    latent.row = span.encoder_row + (last - span.begin);
    latent.row_prev = kRatio == 2 && last > span.begin ? latent.row - 1 : -1;
    to.latents[i] = latent;
    position = latent.entry * kRatio;
  }
  if (to.latents != nullptr) Rope(position, live, i, p.inv_freq_compressed, p.rope_pairs, to.rope);
}

__global__ __launch_bounds__(kThreads) void SpreadKernel(const SpreadParams p) {
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  const StepCounts counts = *p.counts;
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;

  for (int64_t k = i; k < counts.ids; k += threads) p.known_ids[k] = KnownId(p, static_cast<int32_t>(k));
  for (int64_t s = i; s < counts.sequences; s += threads) {
    const StepSpan& span = p.spans[s];
    const int64_t kept = Clamp(span.keep_begin, span.begin, span.end);
    p.encoder.sequence_kv[s] = {p.pages + span.first_page, span.slot, span.begin, span.encoder_row};
    p.decoder.sequence_kv[s] = {p.pages + span.first_page, span.slot, kept, span.decoder_row};
    p.encoder.row_counts[s] = static_cast<int32_t>(span.end - span.begin);
    p.decoder.row_counts[s] = static_cast<int32_t>(span.end - kept);
    p.sequence_tokens[s] = p.known_ids + span.first_id;
    p.sequence_tokens_begin[s] = span.tokens_begin;
  }

  const bool encodes = i < counts.encoder_rows, decodes = i < counts.decoder_rows;
  int64_t position = 0;
  if (encodes) {
    const int s = FindSpan<&StepSpan::encoder_row>(p.spans, counts.sequences, static_cast<int32_t>(i));
    const StepSpan& span = p.spans[s];
    position = span.begin + (i - span.encoder_row);
    const int32_t token = KnownId(p, span.first_id + static_cast<int32_t>(position - span.tokens_begin));
    p.encoder.positions[i] = position;
    p.encoder.sequences[i] = s;
    p.encoder.window_begin[i] = WindowBegin(position, p.window, span.replay_start);
    p.encoder.is_image[i] = token == p.image_token;
    p.tokens[i] = token;
  }
  Rope(position, encodes, i, p.inv_freq_plain, p.rope_pairs, p.encoder.rope_plain);
  Rope(position, encodes, i, p.inv_freq_compressed, p.rope_pairs, p.encoder.rope_compressed);
  if (decodes) {
    const int s = FindSpan<&StepSpan::decoder_row>(p.spans, counts.sequences, static_cast<int32_t>(i));
    const StepSpan& span = p.spans[s];
    const int64_t kept = Clamp(span.keep_begin, span.begin, span.end);
    position = kept + (i - span.decoder_row);
    p.decoder.positions[i] = position;
    p.decoder.sequences[i] = s;
    p.decoder.window_begin[i] = WindowBegin(position, p.window, span.tail_start);
    p.seam_window_begin[i] = WindowBegin(position, p.window, span.replay_start);
    p.decoder.is_image[i] =
        KnownId(p, span.first_id + static_cast<int32_t>(position - span.tokens_begin)) == p.image_token;
    p.source_rows[i] = span.encoder_row + static_cast<int32_t>(position - span.begin);
  }
  Rope(position, decodes, i, p.inv_freq_plain, p.rope_pairs, p.decoder.rope_plain);
  Rope(position, decodes, i, p.inv_freq_compressed, p.rope_pairs, p.decoder.rope_compressed);
  Latent<1>(p, counts.sequences, counts.latents1, p.latents1, i);
  Latent<2>(p, counts.sequences, counts.latents2, p.latents2, i);
}

}  // namespace

void SpreadStep(const SpreadParams& p, cudaStream_t stream) {
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>((p.max_rows + kThreads - 1) / kThreads));
  launch.block = dim3(kThreads);
  launch.stream = stream;
  cuda::Start(launch, SpreadKernel, p);
}

}  // namespace senko::runtime
