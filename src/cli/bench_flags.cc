#include "cli/bench_flags.h"

#include <CLI/CLI.hpp>

#include "base/thread_count.h"
#include "cli/run_flags.h"
#include "cli/whole_number.h"

namespace senko::cli {
namespace {

void AddTarget(CLI::App& c, BenchTarget& o) {
  c.add_option("--model", o.run.model, "Checkpoint folder; without it the bundled model");
  c.add_option("--config", o.config, "Make a random model of this configuration (kept in the cache folder)");
  c.add_flag("--json", o.json, "One JSON object instead of a table");
  AddRunFlags(c, o.run);
}

void AddRepeats(CLI::App& c, int& repeats, const char* help) {
  c.add_option("--repeats", repeats, help)->check(Whole(1, 1000))->capture_default_str();
}

CLI::Option* AddList(CLI::App& c, const char* flag, std::vector<int64_t>& values, int64_t least, int64_t most,
                     const char* help) {
  return c.add_option(flag, values, help)->delimiter(',')->check(Whole(least, most))->capture_default_str();
}

void AddDecode(CLI::App& bench, BenchOptions& all) {
  CLI::App* c = bench.add_subcommand("decode", "Steps of sequences that share one prompt");
  BenchDecodeOptions& o = all.decode;
  AddTarget(*c, o.target);
  AddList(*c, "--batch", o.batch, 1, 4096, "Sequences; with several, one after the other");
  AddList(*c, "--context", o.context, 0, kMaxTokens, "Tokens of each before the first step: whole pages");
  c->add_option("--rows", o.rows, "Rows of each in a step: 1, or more to verify drafts")
      ->check(Whole(1, 4096))
      ->capture_default_str();
  c->add_option("--decode-tokens", o.decode_tokens, "Steps; the median counts")
      ->check(Whole(1, 1 << 20))
      ->capture_default_str();
  c->callback([&all] { all.chosen = [](const BenchOptions& b) { return RunBenchDecode(b.decode); }; });
}

void AddPrefill(CLI::App& bench, BenchOptions& all) {
  CLI::App* c = bench.add_subcommand("prefill", "One prompt on the CPU, by operator");
  BenchPrefillOptions& o = all.prefill;
  AddTarget(*c, o.target);
  c->add_option("--prompt-tokens", o.prompt_tokens, "Length of the random prompt")
      ->check(Whole(1, kMaxTokens))
      ->capture_default_str();
  AddRepeats(*c, o.repeats, "Runs; the median counts");
  c->callback([&all] { all.chosen = [](const BenchOptions& b) { return RunBenchPrefill(b.prefill); }; });
}

void AddTtft(CLI::App& bench, BenchOptions& all) {
  CLI::App* c = bench.add_subcommand("ttft",
                                     "The first token: of cold prompts in every way to run them, and of turns "
                                     "behind a cached prefix; with neither list, both");
  BenchTtftOptions& o = all.ttft;
  AddTarget(*c, o.target);
  AddList(*c, "--prompt-tokens", o.prompt_tokens, 1, kMaxTokens, "Cold prompts of these lengths");
  AddList(*c, "--cached-tokens", o.cached_tokens, 1, kMaxTokens,
          "Cached prefixes of these lengths: whole pages, above the window");
  c->add_option("--new-tokens", o.new_tokens, "Tokens behind the cached ones")
      ->check(Whole(1, kMaxTokens))
      ->capture_default_str();
  AddRepeats(*c, o.repeats, "Prompts of each length; the median counts");
  c->callback([&all] { all.chosen = [](const BenchOptions& b) { return RunBenchTtft(b.ttft); }; });
}

void AddMixed(CLI::App& bench, BenchOptions& all) {
  CLI::App* c = bench.add_subcommand("mixed", "A stream's gaps while a long prompt is prefilled beside it");
  BenchMixedOptions& o = all.mixed;
  AddTarget(*c, o.target);
  AddList(*c, "--budgets", o.budgets, 2, 1 << 20, "Rows of a step; one engine after the other");
  c->add_option("--prompt-tokens", o.prompt_tokens, "Length of the prompt; 0: 131072 with --device cuda, or 8192")
      ->check(Whole(0, kMaxTokens))
      ->capture_default_str();
  c->add_option("--stream-tokens", o.stream_tokens, "Length of the stream's own prompt")
      ->check(Whole(1, kMaxTokens))
      ->capture_default_str();
  c->add_option("--quiet-tokens", o.quiet_tokens, "Tokens of the stream before the prompt comes")
      ->check(Whole(2, 1 << 20))
      ->capture_default_str();
  c->callback([&all] { all.chosen = [](const BenchOptions& b) { return RunBenchMixed(b.mixed); }; });
}

void AddOps(CLI::App& bench, BenchOptions& all) {
  CLI::App* c = bench.add_subcommand("ops", "Every operator at the released model's shapes");
  BenchOpsOptions& o = all.ops;
  c->add_option("--filter", o.filter, "Only cases whose name contains this");
  c->add_option("--device", o.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  c->add_option("--threads", o.threads, "0 takes every CPU this process may use")
      ->check(Whole(0, kMaxThreads))
      ->capture_default_str();
  c->add_flag("--json", o.json, "One JSON object instead of a table");
  c->callback([&all] { all.chosen = [](const BenchOptions& b) { return RunBenchOps(b.ops); }; });
}

}  // namespace

void AddBenchFlags(CLI::App& bench, BenchOptions& options) {
  bench.require_subcommand(1);
  AddOps(bench, options);
  AddDecode(bench, options);
  AddPrefill(bench, options);
  AddTtft(bench, options);
  AddMixed(bench, options);
}

void AddProfileFlags(CLI::App& profile, BenchOptions& options) {
  profile.require_subcommand(1);
  CLI::App* c = profile.add_subcommand("step", "One step on a GPU, by operator");
  ProfileStepOptions& o = options.profile_step;
  c->add_option("--model", o.run.model, "Checkpoint folder; without it the bundled model");
  c->add_option("--batch", o.batch, "Sequences")->check(Whole(1, 4096))->capture_default_str();
  c->add_option("--context", o.context, "Tokens of each before the step")
      ->check(Whole(0, kMaxTokens))
      ->capture_default_str();
  c->add_option("--rows", o.rows, "Tokens of each in the step")->check(Whole(1, kMaxTokens))->capture_default_str();
  c->add_flag("--json", o.json, "One JSON object instead of a table");
  AddRunFlags(*c, o.run);
  c->callback([&options] { options.chosen = [](const BenchOptions& b) { return RunProfileStep(b.profile_step); }; });
}

}  // namespace senko::cli
