// The `senko` program: command-line parsing and exit codes, nothing else.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/thread_count.h"
#include "checkpoint/inspect.h"
#include "checkpoint/make_model.h"
#include "cli/bench_flags.h"
#include "cli/chat_options.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/print_settings.h"
#include "cli/run_flags.h"
#include "cli/serve_flags.h"
#include "cli/terminal.h"
#include "cli/whole_number.h"

namespace senko::cli {
namespace {

CLI::Validator Seed() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size()) return {};
        return "must be a whole number from 0 to 18446744073709551615";
      },
      "");
}

void AddKvFlags(CLI::App& app, RunOptions& o) {
  app.add_option("--kv-cache-memory-bytes", o.kv_cache_memory_bytes, "Memory for KV pages; 0 takes what is needed")
      ->check(Whole(0, kMaxBytes))
      ->capture_default_str();
  app.add_option("--decoder-replay", o.decoder_replay,
                 "Rows of a prompt before its last window: trim skips the decoder pass, halo runs what the last rows "
                 "depend on, full runs all");
}

struct Program {
  CLI::App app{"Senko: DeepSeek-V4.1 inference", "senko"};
  GenerateOptions generate;
  LogitsOptions logits;
  BenchOptions bench;
  EvalReplayOptions eval_replay;
  ServeOptions serve;
  ChatOptions chat;
  checkpoint::InspectOptions inspect;
  checkpoint::MakeModelOptions make_model;
  int (*run)(Program&) = nullptr;

  Program();
};

void AddGenerate(Program& p) {
  CLI::App* c = p.app.add_subcommand("generate", "Continue a prompt");
  GenerateOptions& o = p.generate;
  c->add_option("--model", o.run.model, "Checkpoint folder; without it the bundled model");
  c->add_option("--prompt", o.prompt, "The prompt's text");
  c->add_option("--prompt-file", o.prompt_file, "A file with the prompt's text");
  c->add_option("--token-ids", o.token_ids, "The prompt as ids: 1,2,3");
  c->add_flag("--chat", o.chat, "Send the prompt as a user's message");
  c->add_flag("--thinking", o.thinking, "With --chat: let the model reason first");
  c->add_option("--max-tokens", o.max_tokens, "Most tokens to generate")
      ->check(Whole(1, kMaxTokens))
      ->capture_default_str();
  c->add_option("--temperature", o.temperature, "0 takes the most likely token")->capture_default_str();
  c->add_option("--top-k", o.top_k, "Draw from the k most likely tokens; 0: all")
      ->check(Whole(0, kMaxTokens))
      ->capture_default_str();
  c->add_option("--top-p", o.top_p, "Draw from the smallest set of this mass")->capture_default_str();
  c->add_option("--min-p", o.min_p, "Drop tokens less likely than this part of the likeliest")->capture_default_str();
  c->add_option("--seed", o.seed, "Same seed, same text")->check(Seed())->capture_default_str();
  c->add_option("--stop", o.stop, "Stop before this text; repeatable");
  c->add_flag("--ignore-eos", o.ignore_eos, "Go on past the end token");
  c->add_flag("--json", o.json, "One JSON object instead of text");
  AddRunFlags(*c, o.run);
  AddKvFlags(*c, o.run);
  c->callback([&p] { p.run = [](Program& q) { return RunGenerate(q.generate); }; });
}

void AddLogits(Program& p) {
  CLI::App* c = p.app.add_subcommand("logits", "Write the logits of prompts given as token ids");
  LogitsOptions& o = p.logits;
  c->add_option("--model", o.run.model, "Checkpoint folder")->required();
  c->add_option("--tokens", o.tokens, "JSON: {\"prompts\": [[ids], ...]}")->required();
  c->add_option("--out", o.out, "Safetensors file: prompt_k.positions, prompt_k.logits")->required();
  c->add_option("--chunks", o.chunks, "Feed prompts in pieces of these sizes, the last one repeated")
      ->delimiter(',')
      ->check(Whole(1, kMaxTokens));
  c->add_option("--encoder-replay", o.encoder_replay, "Run the first H tokens cold, then adopt them as a cache hit")
      ->check(Whole(0, kMaxTokens))
      ->capture_default_str();
  c->add_option("--dump", o.dump, "Folder for what flows between operators, one file per prompt");
  c->add_option("--dump-from", o.dump_from, "First position whose rows are dumped; entries are dumped whatever theirs")
      ->check(CLI::NonNegativeNumber)
      ->needs("--dump");
  c->add_option("--inject", o.inject, "Folder with tensors to use instead of the computed ones");
  AddRunFlags(*c, o.run);
  AddKvFlags(*c, o.run);
  c->callback([&p] { p.run = [](Program& q) { return RunLogits(q.logits); }; });
}

void AddBench(Program& p) {
  CLI::App* bench = p.app.add_subcommand("bench", "Measure, against the machine's limits of the same run");
  CLI::App* profile = p.app.add_subcommand("profile", "Where the time goes");
  AddBenchFlags(*bench, p.bench);
  AddProfileFlags(*profile, p.bench);
  for (CLI::App* c : {bench, profile}) {
    c->callback([&p] { p.run = [](Program& q) { return q.bench.chosen(q.bench); }; });
  }
}

void AddInspect(Program& p) {
  CLI::App* c =
      p.app.add_subcommand("inspect", "What a checkpoint or a configuration holds, and what a sequence costs");
  checkpoint::InspectOptions& o = p.inspect;
  c->add_option("model", o.model, "Checkpoint folder or file: opened and checked");
  c->add_option("--config", o.config, "Only this configuration");
  c->add_flag("--json", o.json, "JSON instead of text");
  c->add_flag("--scan", o.scan, "Also read every weight, looking for NaN, infinity and absurd scales");
  c->add_option("--block-size", o.block_size, "Tokens per KV page: 64, 128 or 256")
      ->check(Whole(64, 256))
      ->capture_default_str();
  c->add_option("--threads", o.threads, "Of the scan; 0 takes every CPU")
      ->check(Whole(0, kMaxThreads))
      ->capture_default_str();
  c->callback([&p] {
    p.run = [](Program& q) {
      std::ostringstream text;  // quotes the checkpoint
      checkpoint::Inspect(q.inspect, text, TerminalProgress());
      Print(text.str(), stdout);
      return 0;
    };
  });
}

void AddMakeModel(Program& p) {
  CLI::App* c = p.app.add_subcommand("make-model", "Write a random checkpoint in the released formats");
  checkpoint::MakeModelOptions& o = p.make_model;
  c->add_option("--config", o.config, "config.json of the model to make")->required();
  c->add_option("--out", o.out, "Folder to write")->required();
  c->add_option("--seed", o.seed, "Same seed, same bytes")->check(Seed())->capture_default_str();
  c->add_option("--parrot", o.parrot, "Script of byte strings the model recites, instead of random weights");
  c->add_option("--max-shard-bytes", o.max_shard_bytes, "Split into files of about this size; 0: one file")
      ->check(Whole(0, kMaxBytes))
      ->capture_default_str();
  c->add_flag("--sparse-engram", o.sparse_engram, "Leave Engram tables as holes: zeros that take no disk");
  c->add_option("--threads", o.threads, "0 takes every CPU")->check(Whole(0, kMaxThreads))->capture_default_str();
  c->callback([&p] {
    p.run = [](Program& q) {
      const UnwindOnSignals unwind(TerminalProgress());
      std::ostringstream text;
      checkpoint::MakeModel(q.make_model, text, unwind.sink());
      Print(text.str(), stdout);
      return 0;
    };
  });
}

void AddEval(Program& p) {
  CLI::App* eval = p.app.add_subcommand("eval", "How well a model, or an approximation of it, does");
  eval->require_subcommand(1);
  CLI::App* c = eval->add_subcommand("replay", "What bounded replay changes in the logits of a text");
  EvalReplayOptions& o = p.eval_replay;
  c->add_option("--model", o.run.model, "Checkpoint folder; without it the bundled model");
  c->add_option("--text", o.text, "A file with the text");
  c->add_option("--tokens", o.tokens, "Instead, JSON: {\"prompts\": [[ids]]}");
  c->add_option("--prompt-tokens", o.prompt_tokens, "The prompt's part of it; 0: all but the last quarter, at most 256")
      ->check(Whole(0, kMaxTokens))
      ->capture_default_str();
  c->add_option("--hit", o.hits, "Cached lengths to try; without it the longest possible and half of it")
      ->delimiter(',')
      ->check(Whole(1, kMaxTokens));
  c->add_flag("--json", o.json, "One JSON object instead of a table");
  AddRunFlags(*c, o.run);
  c->callback([&p] { p.run = [](Program& q) { return RunEvalReplay(q.eval_replay); }; });
}

void AddServe(Program& p) {
  CLI::App* c = p.app.add_subcommand("serve", "Serve a model over HTTP");
  AddServeFlags(*c, p.serve);
  c->callback([&p, c] {
    for (const std::string& line : SettingLines(*c, p.serve)) Tell(line);
    p.run = [](Program& q) { return RunServe(q.serve); };
  });
}

void AddChat(Program& p) {
  CLI::App* c = p.app.add_subcommand("chat", "Talk to a server");
  ChatSettings& o = p.chat.settings;
  c->add_option("--url", o.url, "Of the server")->capture_default_str();
  c->add_option("--api-key", o.api_key, "If it wants one");
  c->add_option("--model", o.model, "Without it the first the server names");
  c->add_option("--system", o.system, "System message");
  c->add_flag("--thinking,!--no-thinking", o.thinking, "Let the model reason first (default)");
  c->add_option("--temperature", o.temperature, "0 takes the most likely token")->capture_default_str();
  c->add_option("--max-tokens", o.max_tokens, "Most tokens of an answer; 0: what the context leaves")
      ->check(Whole(0, kMaxTokens))
      ->capture_default_str();
  c->callback([&p] { p.run = [](Program& q) { return RunChat(q.chat); }; });
}

Program::Program() {
  app.require_subcommand(1);
  app.set_version_flag("--version", "senko " SENKO_VERSION);
  AddGenerate(*this);
  AddLogits(*this);
  AddInspect(*this);
  AddMakeModel(*this);
  AddBench(*this);
  AddEval(*this);
  AddServe(*this);
  AddChat(*this);
}

// CLI11 takes the next argument as the value of `--flag=`; give it the empty value that was written.
std::vector<std::string> Arguments(int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {  // CLI11 wants them last to first
    std::string argument = argv[i];
    if (argument.starts_with("--") && argument.size() > 3 && argument.ends_with('=')) {
      argument.pop_back();
      arguments.push_back("");
    }
    arguments.push_back(argument);
  }
  return arguments;
}

int Main(int argc, char** argv) {
  Program program;
  try {
    program.app.parse(Arguments(argc, argv));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return program.app.exit(e);
    Tell(std::string(e.what()) + "; --help lists the flags");
    return 2;
  }
  return program.run(program);
}

// What was written must have arrived: a full disk or a closed stdout is not a success.
int Finish(int code) {
  std::cout.flush();
  const bool failed = !std::cout || std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!failed || code != 0) return code;
  Tell(std::string("cannot write to stdout: ") + std::strerror(errno));
  return 2;
}

}  // namespace
}  // namespace senko::cli

int main(int argc, char** argv) {
  try {
    senko::ReportTruncatedMappings();
    return senko::cli::Finish(senko::cli::Main(argc, argv));
  } catch (const senko::cli::Interrupted& e) {
    senko::cli::EndBySignal(e);
  } catch (const senko::Error& e) {
    senko::cli::Tell(e.what());
    return 2;
  } catch (const std::filesystem::filesystem_error& e) {
    senko::cli::Tell(e.path1().string() + ": " + e.code().message());
    return 2;
  } catch (const std::bad_alloc&) {
    senko::cli::Tell("out of memory; a smaller --max-num-batched-tokens or context needs less");
    return 2;
  } catch (const std::exception& e) {
    senko::cli::Tell(std::string("internal fault: ") + e.what());
    return 1;
  }
}
