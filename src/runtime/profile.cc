#include "runtime/profile.h"

#include <chrono>

namespace senko::runtime {
namespace {

struct Work {
  double flops = 0;
  double bytes = 0;
};

Work LinearWork(int64_t rows, const ops::WeightView& w) {
  return {2.0 * static_cast<double>(rows) * static_cast<double>(w.out) * static_cast<double>(w.in),
          static_cast<double>(w.bytes())};
}

Work operator+(Work a, Work b) { return {a.flops + b.flops, a.bytes + b.bytes}; }

Work ExpertWork(int64_t rows, const ops::ExpertWeights& e) {
  return LinearWork(rows, e.w1) + LinearWork(rows, e.w3) + LinearWork(rows, e.w2);
}

Work WorkOf(const ops::LinearParams& p) { return LinearWork(p.rows, p.weight); }
Work WorkOf(const ops::MhcMixParams& p) { return LinearWork(p.rows, p.fn); }
Work WorkOf(const ops::RouterParams& p) { return LinearWork(p.rows, p.gate); }
Work WorkOf(const ops::LogitsParams& p) { return LinearWork(p.rows, p.head); }
Work WorkOf(const ops::OutputProjParams& p) {
  // Each of wo_a's rows meets one group's slice of every row.
  return LinearWork(p.rows, p.wo_a) + LinearWork(p.rows, p.wo_b);
}
Work WorkOf(const ops::ExpertsParams& p) {
  Work work = p.shared_inter > 0 ? ExpertWork(p.rows, p.shared) : Work{};
  for (int64_t e = 0; e < p.num_experts; ++e) {
    const int64_t rows = p.dispatch.expert_begin[e + 1] - p.dispatch.expert_begin[e];
    if (rows > 0) work = work + ExpertWork(rows, p.experts[e]);
  }
  return work;
}
Work WorkOf(const ops::AttentionParams& p) {
  int64_t keys = 0;
  for (int64_t r = 0; r < p.rows.num_rows; ++r) {
    keys += p.rows.positions[r] - p.rows.window_begin[r] + 1;
    if (p.selected != nullptr) keys += p.selected_count[r];
  }
  return {4.0 * static_cast<double>(keys * p.heads * p.dim), 0};
}
template <typename P>
Work WorkOf(const P&) {
  return {};
}

class Clock {
 public:
  Clock(Profile* profile, const char* name, Work work)
      : totals_(profile->ops[name]), work_(work), start_(std::chrono::steady_clock::now()) {}
  ~Clock() {
    totals_.calls += 1;
    totals_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    totals_.flops += work_.flops;
    totals_.bytes += work_.bytes;
  }

 private:
  OpTotals& totals_;
  Work work_;
  std::chrono::steady_clock::time_point start_;
};

template <typename P>
void Wrap(std::function<void(const P&, ThreadPool&)>& op, const char* name, Profile* profile) {
  op = [inner = op, name, profile](const P& p, ThreadPool& pool) {
    Clock clock(profile, name, WorkOf(p));
    inner(p, pool);
  };
}

}  // namespace

ops::OpTable ProfiledOps(const ops::OpTable& table, Profile* profile) {
  ops::OpTable t = table;
  Wrap(t.linear, "linear", profile);
  Wrap(t.rms_norm, "rms_norm", profile);
  Wrap(t.mhc_mix, "mhc_mix", profile);
  Wrap(t.mhc_collapse, "mhc_collapse", profile);
  Wrap(t.mhc_expand, "mhc_expand", profile);
  Wrap(t.window_write, "window_write", profile);
  Wrap(t.compress, "compress", profile);
  Wrap(t.entry_write, "entry_write", profile);
  Wrap(t.key_write, "key_write", profile);
  Wrap(t.attention, "attention", profile);
  Wrap(t.index_query, "index_query", profile);
  Wrap(t.select, "select", profile);
  Wrap(t.router, "router", profile);
  Wrap(t.experts, "experts", profile);
  Wrap(t.output_proj, "output_proj", profile);
  Wrap(t.engram_gather, "engram_gather", profile);
  Wrap(t.engram_inject, "engram_inject", profile);
  t.round_activations = [inner = table.round_activations, profile](const float* x, float* y, int64_t rows, int64_t cols,
                                                                   ThreadPool& pool) {
    Clock clock(profile, "round_activations", {});
    inner(x, y, rows, cols, pool);
  };
  t.logits = [inner = table.logits, profile](const ops::LogitsParams& p, uint8_t* finite, ThreadPool& pool) {
    Clock clock(profile, "logits", WorkOf(p));
    inner(p, finite, pool);
  };
  return t;
}

}  // namespace senko::runtime
