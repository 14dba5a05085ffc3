// Experts over the dispatch lists, in four parallel loops: pack x, up and gate with SwiGLU, down, combine.
//
// A task is (expert, piece of its rows, block of outputs), so that a decode step streams every picked expert with all
// threads and a prefill step expands each block of weights once per piece. The shared expert is one more entry of the
// list. Large steps run `down` in waves of output columns: the (row, slot) outputs of a wave must wait for each other
// to be added in slot order, and they are the largest part of the scratch.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "numerics/row_quantise.h"
#include "ops/experts/experts.h"
#include "ops/experts/swiglu.h"
#include "ops/linear/linear_span.h"
#include "tensor/buffer.h"

namespace senko::ops {
namespace {

constexpr int64_t kPieceRows = 512;  // rows of one expert per task
constexpr int64_t kMaxOutputs = 96;  // outputs per task, at most SpanOutputs
constexpr int64_t kWaveCols = 1024;
constexpr int64_t kSmallPairs = 512;  // up to this many pairs, one wave

int64_t WaveCols(int64_t pairs, int64_t hidden) { return pairs <= kSmallPairs ? hidden : std::min(hidden, kWaveCols); }

// Rows of one expert, at most kPieceRows of them.
struct Piece {
  const ExpertWeights* weights = nullptr;
  int64_t begin = 0;  // first of its rows in the pointer lists
  int64_t rows = 0;
  bool routed = true;
};

PackFor PackedFor(const Piece& piece) { return piece.rows <= kSkinnyRows ? PackFor::kFewRows : PackFor::kManyRows; }

// Filled once per call by the calling thread; grows to the largest step and stays.
struct Plan {
  std::vector<Piece> pieces;
  std::vector<int64_t> up_tasks, down_tasks;  // first task of each piece, and the total
  // Routed pairs in dispatch order, then the shared expert's rows.
  std::vector<const float*> x, h_in;
  std::vector<float*> h, out;
};

// One thread's gate and up outputs.
struct Temp {
  Buffer<float> g{kPieceRows * kMaxOutputs}, u{kPieceRows * kMaxOutputs};
  std::vector<float*> g_rows, u_rows;
  Temp() {
    for (int64_t r = 0; r < kPieceRows; ++r) {
      g_rows.push_back(g.data() + r * kMaxOutputs);
      u_rows.push_back(u.data() + r * kMaxOutputs);
    }
  }
};

struct Scratch {
  float* x;           // [rows, PackedFloats(hidden)]
  float* h;           // [rows * topk, PackedFloats(inter)] in dispatch order
  float* shared_h;    // [rows, PackedFloats(shared_inter)]
  float* out;         // [rows * topk, wave] by pair
  float* shared_out;  // [rows, wave]
};

void AddPieces(Plan& plan, const ExpertWeights& e, int64_t begin, int64_t end, bool routed) {
  for (int64_t b = begin; b < end; b += kPieceRows) {
    plan.pieces.push_back({&e, b, std::min(kPieceRows, end - b), routed});
  }
}

void MakePlan(const ExpertsParams& p, const Scratch& s, int64_t wave, Plan& plan) {
  const int64_t pairs = p.rows * p.topk;
  plan.pieces.clear();
  for (int64_t e = 0; e < p.num_experts; ++e) {
    AddPieces(plan, p.experts[e], p.dispatch.expert_begin[e], p.dispatch.expert_begin[e + 1], true);
  }
  if (p.shared_inter > 0) AddPieces(plan, p.shared, pairs, pairs + p.rows, false);
  const int64_t entries = pairs + (p.shared_inter > 0 ? p.rows : 0);
  plan.x.resize(entries);
  plan.h_in.resize(entries);
  plan.h.resize(entries);
  plan.out.resize(entries);
  for (const Piece& piece : plan.pieces) {
    const bool packed = NeedsPacking(piece.weights->w1.format);
    for (int64_t i = piece.begin; i < piece.begin + piece.rows; ++i) {
      const int64_t pair = piece.routed ? p.dispatch.pairs[i] : i - pairs;
      const int64_t row = piece.routed ? pair / p.topk : pair;
      plan.x[i] = packed ? s.x + row * PackedFloats(p.hidden) : p.x + row * p.hidden;
      plan.h[i] = piece.routed ? s.h + i * PackedFloats(p.inter) : s.shared_h + row * PackedFloats(p.shared_inter);
      plan.h_in[i] = plan.h[i];
      plan.out[i] = piece.routed ? s.out + pair * wave : s.shared_out + row * wave;
    }
  }
}

// first[i]: tasks of the pieces before piece i, `outputs` of Outputs(piece) at a time.
template <typename Outputs>
void CountTasks(const Plan& plan, int64_t block, Outputs outputs, std::vector<int64_t>& first) {
  first.assign(1, 0);
  for (const Piece& piece : plan.pieces) first.push_back(first.back() + (outputs(piece) + block - 1) / block);
}

// Calls body(piece index, block index within it) for every task.
template <typename Body>
void ForTasks(const std::vector<int64_t>& first, ThreadPool& pool, const Body& body) {
  pool.ParallelFor(first.back(), 1, [&](int64_t begin, int64_t end, int) {
    int64_t i = std::upper_bound(first.begin(), first.end(), begin) - first.begin() - 1;
    for (int64_t task = begin; task < end; ++task) {
      while (task >= first[i + 1]) ++i;
      body(i, task - first[i]);
    }
  });
}

// Gate and up for outputs [begin, end) of a piece, SwiGLU, and the roundings in front of w2.
void UpTask(const ExpertsParams& p, const Plan& plan, const Piece& piece, int64_t begin, int64_t end) {
  thread_local Temp temp;
  LinearSpan span;
  span.rows = piece.rows;
  span.x = plan.x.data() + piece.begin;
  span.begin = span.y_first = begin;
  span.end = end;
  span.round_bf16 = p.round_bf16;
  span.weight = piece.weights->w1;
  span.y = temp.g_rows.data();
  RunSpan(span);
  span.weight = piece.weights->w3;
  span.y = temp.u_rows.data();
  RunSpan(span);
  const bool packed = NeedsPacking(piece.weights->w2.format);
  for (int64_t r = 0; r < piece.rows; ++r) {
    const int64_t i = piece.begin + r;
    const float weight = piece.routed ? p.route_weights[p.dispatch.pairs[i]] : 1.0f;
    float* y = packed ? temp.g_rows[r] : plan.h[i] + begin;
    SwigluRow(temp.g_rows[r], temp.u_rows[r], end - begin, p.swiglu_limit, weight, p.round_bf16, y);
    if (p.round_activations) numerics::QdqFp8Row(y, end - begin, y, true);
    if (packed) {
      for (int64_t k = begin; k < end; k += 32) {
        PackGroup(y + (k - begin), k, piece.weights->w2.in, PackedFor(piece), plan.h[i]);
      }
    }
  }
}

void Combine(const ExpertsParams& p, const Scratch& s, int64_t wave, int64_t col0, int64_t cols, ThreadPool& pool) {
  pool.ParallelFor(p.rows, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* y = p.y + r * p.hidden + col0;
      std::fill(y, y + cols, 0.0f);
      for (int64_t k = 0; k < p.topk; ++k) {
        const float* out = s.out + (r * p.topk + k) * wave;
        for (int64_t c = 0; c < cols; ++c) y[c] += out[c];
      }
      if (p.shared_inter > 0) {
        const float* out = s.shared_out + r * wave;
        for (int64_t c = 0; c < cols; ++c) y[c] += out[c];
      }
      if (p.round_bf16) numerics::RoundBf16Row(y, cols, y);
    }
  });
}

}  // namespace

int64_t ExpertsScratchFloats(int64_t rows, int64_t topk, int64_t hidden, int64_t inter, int64_t shared_inter) {
  const int64_t pairs = rows * topk;
  // Both bounds of the wave: a smaller step may need one wide wave.
  const int64_t small = std::min(pairs, kSmallPairs) * hidden;
  const int64_t out = std::max(pairs * WaveCols(pairs, hidden), small);
  const int64_t shared_out = shared_inter > 0 ? rows * hidden : 0;
  return rows * PackedFloats(hidden) + pairs * PackedFloats(inter) + rows * PackedFloats(shared_inter) + out +
         shared_out;
}

void ExpertsCpu(const ExpertsParams& p, ThreadPool& pool) {
  if (p.rows <= 0) return;
  SENKO_CHECK(p.scratch != nullptr && p.dispatch.expert_begin[p.num_experts] == p.rows * p.topk);
  const int64_t pairs = p.rows * p.topk, wave = WaveCols(pairs, p.hidden);
  Scratch s;
  s.x = p.scratch;
  s.h = s.x + p.rows * PackedFloats(p.hidden);
  s.shared_h = s.h + pairs * PackedFloats(p.inter);
  s.out = s.shared_h + p.rows * PackedFloats(p.shared_inter);
  s.shared_out = s.out + pairs * wave;
  thread_local Plan thread_plan;
  Plan& plan = thread_plan;
  MakePlan(p, s, wave, plan);

  bool pack = false;
  PackFor pack_for = PackFor::kManyRows;  // kFewRows if any expert is to have few
  int64_t most_rows = 0;
  for (const Piece& piece : plan.pieces) {
    pack = pack || NeedsPacking(piece.weights->w1.format) || NeedsPacking(piece.weights->w3.format);
    most_rows = std::max(most_rows, piece.rows);
    if (NeedsPacking(piece.weights->w1.format) && PackedFor(piece) == PackFor::kFewRows) pack_for = PackFor::kFewRows;
    SENKO_CHECK(piece.weights->w1.format == piece.weights->w3.format);
  }
  if (pack) {
    pool.ParallelFor(p.rows, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        PackRow(p.x + r * p.hidden, p.hidden, pack_for, s.x + r * PackedFloats(p.hidden));
      }
    });
  }

  const int64_t block = std::min(kMaxOutputs, SpanOutputs(most_rows));
  CountTasks(
      plan, block, [](const Piece& piece) { return piece.weights->w1.out; }, plan.up_tasks);
  ForTasks(plan.up_tasks, pool, [&](int64_t i, int64_t b) {
    const Piece& piece = plan.pieces[i];
    const int64_t inter = piece.weights->w1.out, begin = b * block, end = std::min(begin + block, inter);
    if (begin == 0 && NeedsPacking(piece.weights->w2.format)) {  // the lanes past the last column
      for (int64_t r = piece.begin; r < piece.begin + piece.rows; ++r) PackEnd(inter, PackedFor(piece), plan.h[r]);
    }
    UpTask(p, plan, piece, begin, end);
  });

  for (int64_t col0 = 0; col0 < p.hidden; col0 += wave) {
    const int64_t cols = std::min(wave, p.hidden - col0);
    CountTasks(
        plan, block, [&](const Piece&) { return cols; }, plan.down_tasks);
    ForTasks(plan.down_tasks, pool, [&](int64_t i, int64_t b) {
      const Piece& piece = plan.pieces[i];
      LinearSpan span;
      span.rows = piece.rows;
      span.x = plan.h_in.data() + piece.begin;
      span.weight = piece.weights->w2;
      span.begin = col0 + b * block;
      span.end = std::min(span.begin + block, col0 + cols);
      span.y = plan.out.data() + piece.begin;
      span.y_first = col0;
      span.round_bf16 = p.round_bf16;
      RunSpan(span);
    });
    Combine(p, s, wave, col0, cols, pool);
  }
}

}  // namespace senko::ops
