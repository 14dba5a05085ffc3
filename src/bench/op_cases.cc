#include "bench/op_cases.h"

#include <algorithm>

#include "bench/random_weights.h"
#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "ops/logits/logits.h"
#include "ops/mhc/mhc.h"
#include "ops/output_proj/output_proj.h"
#include "ops/router/router.h"

namespace senko::bench {
namespace {

using ops::WeightFormat;

constexpr int64_t kHidden = 5120, kInter = 2304, kExperts = 64, kTopk = 6;
constexpr int64_t kColdBytes = int64_t{1} << 30;

std::string Rows(const std::string& name, int64_t rows) { return name + " rows=" + std::to_string(rows); }

OpCase LinearCase(const std::string& name, WeightFormat format, int64_t out, int64_t in, int64_t rows) {
  ops::WeightView shape;
  shape.format = format;
  shape.out = out;
  shape.in = in;
  OpCase op{
      Rows("linear " + name, rows), static_cast<double>(shape.bytes()), 2.0 * static_cast<double>(rows * out * in), {}};
  op.prepare = [=](ThreadPool& pool) -> std::function<void()> {
    auto weights = std::make_shared<WeightPool>(format, out, in, rows > 64 ? 0 : kColdBytes);
    auto x = std::make_shared<Buffer<float>>(RandomFloats(rows * in, 3));
    auto y = std::make_shared<Buffer<float>>(static_cast<size_t>(rows * out));
    return [=, &pool] { ops::LinearCpu({rows, x->data(), in, weights->Next(), y->data(), out, true}, pool); };
  };
  return op;
}

OpCase OutputProjCase(int64_t rows) {
  constexpr int64_t groups = 8, rank = 1024, slice = 4096;
  ops::WeightView a{WeightFormat::kFp8, groups * rank, slice, nullptr, nullptr};
  ops::WeightView b{WeightFormat::kFp8, kHidden, groups * rank, nullptr, nullptr};
  OpCase op{Rows("output_proj", rows),
            static_cast<double>(a.bytes() + b.bytes()),
            2.0 * static_cast<double>(rows) * static_cast<double>(a.out * a.in + b.out * b.in),
            {}};
  op.prepare = [=](ThreadPool& pool) -> std::function<void()> {
    const int64_t cold = rows > 64 ? 0 : kColdBytes / 2;
    auto wo_a = std::make_shared<WeightPool>(a.format, a.out, a.in, cold);
    auto wo_b = std::make_shared<WeightPool>(b.format, b.out, b.in, cold);
    auto o = std::make_shared<Buffer<float>>(RandomFloats(rows * groups * slice, 4));
    auto u = std::make_shared<Buffer<float>>(static_cast<size_t>(rows * groups * rank));
    auto y = std::make_shared<Buffer<float>>(static_cast<size_t>(rows * kHidden));
    return [=, &pool] {
      ops::OutputProjCpu({rows, groups, o->data(), wo_a->Next(), wo_b->Next(), u->data(), y->data(), true, true}, pool);
    };
  };
  return op;
}

struct ExpertData {
  WeightPool w13{WeightFormat::kFp4, kInter, kHidden, 2 * kExperts*(kInter* kHidden / 2 + kInter * kHidden / 32)};
  WeightPool w2{WeightFormat::kFp4, kHidden, kInter, kExperts*(kInter* kHidden / 2 + kInter * kHidden / 32)};
  WeightPool s13{WeightFormat::kFp8, kInter, kHidden, 2 * (kInter * kHidden + kInter * kHidden / 1024)};
  WeightPool s2{WeightFormat::kFp8, kHidden, kInter, 0};
  std::vector<ops::ExpertWeights> experts;
  Buffer<float> x, route_weights, scratch, y;
  std::vector<int32_t> ids, expert_begin, pairs;
  uint64_t turn = 0;
};

OpCase ExpertsCase(int64_t rows) {
  const double expert_bytes = 3.0 * static_cast<double>(kInter * kHidden) * (17.0 / 32.0);
  const double shared_bytes = 3.0 * static_cast<double>(kInter * kHidden);
  const double active = static_cast<double>(std::min<int64_t>(rows * kTopk, kExperts));
  OpCase op{Rows("experts top-6 of 64 + shared", rows),
            active * expert_bytes + shared_bytes,
            2.0 * static_cast<double>(rows * (kTopk + 1)) * 3.0 * static_cast<double>(kInter * kHidden),
            {}};
  op.prepare = [=](ThreadPool& pool) -> std::function<void()> {
    auto d = std::make_shared<ExpertData>();
    for (size_t e = 0; e < kExperts; ++e) {
      d->experts.push_back({d->w13.views()[2 * e], d->w13.views()[2 * e + 1], d->w2.views()[e]});
    }
    d->x = RandomFloats(rows * kHidden, 5);
    d->route_weights = RandomFloats(rows * kTopk, 6);
    d->scratch = Buffer<float>(static_cast<size_t>(ops::ExpertsScratchFloats(rows, kTopk, kHidden, kInter, kInter)));
    d->y = Buffer<float>(static_cast<size_t>(rows * kHidden));
    d->ids.resize(static_cast<size_t>(rows * kTopk));
    d->expert_begin.resize(kExperts + 1);
    d->pairs.resize(d->ids.size());
    return [=, &pool] {
      // Six distinct experts per row, others every time, so that one row's weights come from memory.
      for (int64_t r = 0; r < rows; ++r) {
        const uint64_t first = PhiloxDraw(7, d->turn, static_cast<uint64_t>(r)).word[0];
        for (int64_t k = 0; k < kTopk; ++k) {
          d->ids[static_cast<size_t>(r * kTopk + k)] =
              static_cast<int32_t>((first + static_cast<uint64_t>(k) * 11) % static_cast<uint64_t>(kExperts));
        }
      }
      ++d->turn;
      ops::ExpertsParams p;
      p.rows = rows;
      p.hidden = kHidden;
      p.inter = kInter;
      p.shared_inter = kInter;
      p.num_experts = kExperts;
      p.topk = kTopk;
      p.x = d->x.data();
      p.experts = d->experts.data();
      p.shared = {d->s13.views()[0], d->s13.views()[1], d->s2.views()[0]};
      p.route_weights = d->route_weights.data();
      p.dispatch = {d->expert_begin.data(), d->pairs.data()};
      ops::MakeDispatchLists(d->ids.data(), rows, kTopk, kExperts, p.dispatch);
      p.swiglu_limit = 10;
      p.round_bf16 = true;
      p.round_activations = true;
      p.scratch = d->scratch.data();
      p.y = d->y.data();
      ops::ExpertsCpu(p, pool);
    };
  };
  return op;
}

OpCase MhcMixCase(int64_t rows) {
  constexpr int64_t streams = 4, mixes = (2 + streams) * streams;
  ops::WeightView shape{WeightFormat::kF32, mixes, streams * kHidden, nullptr, nullptr};
  OpCase op{Rows("mhc_mix", rows),
            static_cast<double>(shape.bytes()),
            2.0 * static_cast<double>(rows * shape.out * shape.in),
            {}};
  op.prepare = [=](ThreadPool& pool) -> std::function<void()> {
    auto fn = std::make_shared<WeightPool>(shape.format, shape.out, shape.in, rows > 64 ? 0 : kColdBytes);
    auto x = std::make_shared<Buffer<float>>(RandomFloats(rows * streams * kHidden, 8));
    auto base = std::make_shared<Buffer<float>>(RandomFloats(mixes, 9));
    auto out = std::make_shared<Buffer<float>>(static_cast<size_t>(rows * (mixes + mixes)));
    return [=, &pool] {
      ops::MhcMixParams p;
      p.rows = rows;
      p.streams = streams;
      p.hidden = kHidden;
      p.x = x->data();
      p.fn = fn->Next();
      p.base = base->data();
      p.scale = base->data();
      p.rms_eps = 1e-20f;
      p.hc_eps = 1e-6f;
      p.sinkhorn_iters = 20;
      p.mixes = out->data();
      p.pre = out->data() + rows * mixes;
      p.post = p.pre + rows * streams;
      p.comb = p.post + rows * streams;
      ops::MhcMixCpu(p, pool);
    };
  };
  return op;
}

OpCase LogitsCase(int64_t rows) {
  constexpr int64_t vocab = 129280;
  OpCase op{Rows("logits", rows),
            2.0 * static_cast<double>(vocab * kHidden),
            2.0 * static_cast<double>(rows * vocab * kHidden),
            {}};
  op.prepare = [=](ThreadPool& pool) -> std::function<void()> {
    auto head = std::make_shared<WeightPool>(WeightFormat::kBf16, vocab, kHidden, 0);
    auto x = std::make_shared<Buffer<float>>(RandomFloats(rows * kHidden, 10));
    auto y = std::make_shared<Buffer<float>>(static_cast<size_t>(rows * vocab));
    auto finite = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(rows));
    return [=, &pool] { ops::LogitsCpu({rows, x->data(), head->Next(), y->data()}, finite->data(), pool); };
  };
  return op;
}

}  // namespace

std::vector<OpCase> AttentionCases();  // op_cases_kv.cc

std::vector<OpCase> OpCases() {
  std::vector<OpCase> cases;
  for (int64_t rows : {1, 8, 2048}) {
    cases.push_back(LinearCase("fp8 wq_a 1280x5120", WeightFormat::kFp8, 1280, kHidden, rows));
    cases.push_back(LinearCase("fp8 wq_b 32768x1280", WeightFormat::kFp8, 32768, 1280, rows));
    cases.push_back(LinearCase("fp4 w1 2304x5120", WeightFormat::kFp4, kInter, kHidden, rows));
    cases.push_back(LinearCase("fp4 w2 5120x2304", WeightFormat::kFp4, kHidden, kInter, rows));
    cases.push_back(LinearCase("bf16 gate 384x5120", WeightFormat::kBf16, 384, kHidden, rows));
    cases.push_back(OutputProjCase(std::min<int64_t>(rows, 512)));
    cases.push_back(ExpertsCase(std::min<int64_t>(rows, 512)));
    cases.push_back(MhcMixCase(rows));
  }
  cases.push_back(LogitsCase(1));
  for (OpCase& op : AttentionCases()) cases.push_back(std::move(op));
  return cases;
}

}  // namespace senko::bench
