// Encoding speed: ordinary text, and runs of one class, which are single words.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <string>

#include "text/chat.h"
#include "text/tokenizer.h"
#include "text/turn_parser.h"

namespace senko::text {
namespace {

// The released tokenizer where tests/text/make_v41_tokenizer.py puts it, else the bundled one; the label says
// which.
const Tokenizer& TheTokenizer(benchmark::State& state) {
  static const std::filesystem::path released = SENKO_SOURCE_DIR "/.cache/tokenizers/deepseek-v4.1/tokenizer.json";
  static const bool has_released = std::filesystem::exists(released);
  static const Tokenizer tokenizer =
      Tokenizer::FromFile(has_released ? released : SENKO_SOURCE_DIR "/models/tiny/tokenizer.json");
  state.SetLabel(has_released ? "released tokenizer" : "bundled tokenizer");
  return tokenizer;
}

std::string Repeated(const std::string& unit, size_t size) {
  std::string text;
  while (text.size() < size) text += unit;
  return text;
}

void Encode(benchmark::State& state, const std::string& unit) {
  const Tokenizer& tokenizer = TheTokenizer(state);
  const std::string text = Repeated(unit, static_cast<size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.Encode(text, AddedTokens::kAll));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

const std::string kProse =
    "The quick brown fox, 1234 times, jumped over the lazy dog; \"why?\" asked the cat.\n\nint main() { "
    "return x[i] + 1; }\n"
    "東京は日本の首都です。Καλημέρα κόσμε 🌍\n";

BENCHMARK_CAPTURE(Encode, prose, kProse)->Arg(1 << 10)->Arg(1 << 20);
BENCHMARK_CAPTURE(Encode, letters, std::string("a"))->Arg(1 << 16)->Arg(1 << 20);
BENCHMARK_CAPTURE(Encode, spaces, std::string(" "))->Arg(1 << 16)->Arg(1 << 20);
BENCHMARK_CAPTURE(Encode, marks, std::string("\xCC\x81"))->Arg(1 << 16)->Arg(1 << 20);
BENCHMARK_CAPTURE(Encode, invalid, std::string("\xFF"))->Arg(1 << 16)->Arg(1 << 20);

void ParseContent(benchmark::State& state) {
  const std::string text = Repeated(kProse, 1 << 20);
  for (auto _ : state) benchmark::DoNotOptimize(ParseTurn(text, TurnStart::kContent));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}
BENCHMARK(ParseContent);

}  // namespace
}  // namespace senko::text
