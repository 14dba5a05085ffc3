#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/json.h"
#include "bench/batch.h"
#include "bench/machine.h"
#include "bench/step_bytes.h"
#include "cli/bench_options.h"
#include "cli/run_context.h"
#include "cli/terminal.h"

namespace senko::cli {

int RunProfileStep(const ProfileStepOptions& options) {
  RunContext run = LoadForRun(options.run);
  const config::PageLayout& layout = run.loaded.model->page_layout();
  const int64_t context = options.context / layout.block_size * layout.block_size;
  if (context + options.rows > run.config().max_positions) {
    throw Error(ErrorCode::kInvalidArgument, std::to_string(context + options.rows) +
                                                 " tokens exceed the model's context of " +
                                                 std::to_string(run.config().max_positions));
  }
  if (options.batch * options.rows > run.most_rows) {
    throw Error(ErrorCode::kInvalidArgument, "--batch times --rows is above --max-num-batched-tokens");
  }
  const bench::Machine machine = bench::MeasureMachine(options.run.device, *run.pool);
  AllocateForRun(run, options.run,
                 bench::Batch::Pages(layout, options.batch, context, options.rows) * layout.block_size, options.batch,
                 std::min(run.most_rows, std::max(context, options.batch * options.rows)));
  bench::Batch batch(*run.executor, *run.slots, options.batch, context);
  batch.Step(options.rows);
  const runtime::StepProfile profile = run.executor->ProfileLastStep();
  const auto bytes = bench::StepBytes(*run.loaded.model, {options.batch, context, options.rows});
  // Of the limit; 0 where what an operator must move is not known.
  const auto fraction = [&](const runtime::OpTime& op) {
    const auto found = bytes.find(op.op);
    return found == bytes.end() ? 0 : found->second / op.seconds / machine.read_bytes_per_second;
  };
  const double layers = static_cast<double>(run.config().num_layers);
  const double launches_per_layer = static_cast<double>(profile.launches) / layers;
  if (options.json) {
    Json ops = Json::array();
    for (const runtime::OpTime& op : profile.ops) {
      Json one = {{"op", op.op}, {"calls", op.calls}, {"launches", op.launches}, {"seconds", op.seconds}};
      if (const auto found = bytes.find(op.op); found != bytes.end()) {
        one["bytes"] = found->second;
        one["fraction_of_limit"] = fraction(op);
      }
      ops.push_back(std::move(one));
    }
    Print(DumpJson({{"machine", bench::ToJson(machine)},
                    {"batch", options.batch},
                    {"context", context},
                    {"rows", options.rows},
                    {"step_seconds", profile.step_seconds},
                    {"serial_seconds", profile.serial_seconds},
                    {"launches", profile.launches},
                    {"launches_per_layer", launches_per_layer},
                    {"ops", ops}},
                   2) +
              "\n",
          stdout);
    return 0;
  }
  std::printf(
      "%s%lld sequences at %lld tokens, %lld rows each: %.3f ms a step; one operator after the other %.3f ms, %lld "
      "launches, %.1f a layer\n",
      bench::ToText(machine).c_str(), static_cast<long long>(options.batch), static_cast<long long>(context),
      static_cast<long long>(options.rows), profile.step_seconds * 1e3, profile.serial_seconds * 1e3,
      static_cast<long long>(profile.launches), launches_per_layer);
  std::printf("%-16s %6s %9s %10s %9s %7s %9s %7s\n", "operator", "calls", "launches", "ms", "us/call", "share", "MiB",
              "limit");
  std::vector<runtime::OpTime> ops = profile.ops;
  std::sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  for (const runtime::OpTime& op : ops) {
    std::printf("%-16s %6lld %9lld %10.3f %9.1f %6.1f%%", op.op.c_str(), static_cast<long long>(op.calls),
                static_cast<long long>(op.launches), op.seconds * 1e3, op.seconds * 1e6 / static_cast<double>(op.calls),
                100 * op.seconds / profile.serial_seconds);
    const auto found = bytes.find(op.op);
    if (found == bytes.end()) {
      std::printf(" %9s %7s\n", "-", "-");
    } else {
      std::printf(" %9.1f %6.1f%%\n", found->second / (1 << 20), 100 * fraction(op));
    }
  }
  return 0;
}

}  // namespace senko::cli
