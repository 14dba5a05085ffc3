#include "runtime/replay_error.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "runtime/session.h"
#include "tensor/buffer.h"

namespace senko::runtime {
namespace {

using OnRow = std::function<void(int64_t row, const Buffer<float>& logits)>;

// The text through one session; rows from the prompt's last on are shown, numbered from 0.
void RunText(Executor& executor, Session& session, std::span<const int32_t> text, int64_t prompt, const OnRow& on_row) {
  Buffer<float> logits(static_cast<size_t>(executor.model().config().vocab_size));
  int64_t kept = 0;
  while (session.size() < prompt) {
    const int64_t count = std::min(executor.max_rows(), prompt - session.size());
    kept = session.Feed(text.subspan(static_cast<size_t>(session.size()), static_cast<size_t>(count)));
  }
  for (int64_t row = 0;; ++row) {
    executor.Logits(kept - 1, 1, logits.data(), nullptr);
    on_row(row, logits);
    if (session.size() == static_cast<int64_t>(text.size())) return;
    kept = session.Feed(text.subspan(static_cast<size_t>(session.size()), 1));
  }
}

double LogSum(const float* logits, size_t count) {
  const double top = *std::max_element(logits, logits + count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(logits[i]) - top);
  return top + std::log(sum);
}

void Compare(const float* exact, const float* other, size_t vocab, ReplayError* error) {
  const double exact_sum = LogSum(exact, vocab), other_sum = LogSum(other, vocab);
  double kl = 0, squares = 0, largest = 0;
  for (size_t i = 0; i < vocab; ++i) {
    const double p = static_cast<double>(exact[i]) - exact_sum, q = static_cast<double>(other[i]) - other_sum;
    kl += std::exp(p) * (p - q);
    squares += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
    largest = std::max(largest, std::abs(static_cast<double>(exact[i]) - static_cast<double>(other[i])));
  }
  ++error->rows;
  error->flips += std::max_element(exact, exact + vocab) - exact != std::max_element(other, other + vocab) - other;
  error->mean_kl += std::max(kl, 0.0);
  error->largest_kl = std::max(error->largest_kl, kl);
  error->largest_logit = std::max(error->largest_logit, largest / std::sqrt(squares / static_cast<double>(vocab)));
}

}  // namespace

std::vector<ReplayError> MeasureReplay(Executor& executor, cache::SlotPool& slots, std::span<const int32_t> text,
                                       int64_t prompt_tokens, std::span<const int64_t> hits,
                                       const ProgressSink& progress) {
  const config::ModelConfig& config = executor.model().config();
  const auto vocab = static_cast<size_t>(config.vocab_size);
  const int64_t block = executor.model().page_layout().block_size;
  for (int64_t hit : hits) {
    if (hit % block != 0 || hit <= config.window || hit >= prompt_tokens) {
      throw Error(ErrorCode::kInvalidArgument, "--hit " + std::to_string(hit) + ": must be a multiple of the page of " +
                                                   std::to_string(block) + " above the window of " +
                                                   std::to_string(config.window) + " and below the prompt's " +
                                                   std::to_string(prompt_tokens) + " tokens");
    }
  }
  std::vector<ReplayError> errors;
  errors.push_back({"trim", 0, 0, 0, 0, 0, 0});
  errors.push_back({"halo", 0, 0, 0, 0, 0, 0});
  for (int64_t hit : hits) {
    errors.push_back({"hit " + std::to_string(hit), hit, 0, 0, 0, 0, 0});
    errors.push_back({"hit " + std::to_string(hit) + " + trim", hit, 0, 0, 0, 0, 0});
  }
  const int64_t rows = static_cast<int64_t>(text.size()) - prompt_tokens + 1;
  Buffer<float> exact(static_cast<size_t>(rows) * vocab);
  {
    Session session(executor, slots, prompt_tokens, DecoderReplay::kFull);
    RunText(executor, session, text, prompt_tokens, [&](int64_t row, const Buffer<float>& logits) {
      std::copy_n(logits.data(), vocab, exact.data() + static_cast<size_t>(row) * vocab);
    });
  }
  for (size_t i = 0; i < errors.size(); ++i) {
    ReplayError& error = errors[i];
    const bool trims = error.mode.find("trim") != std::string::npos;
    Session session(executor, slots, prompt_tokens,
                    trims                  ? DecoderReplay::kTrim
                    : error.mode == "halo" ? DecoderReplay::kHalo
                                           : DecoderReplay::kFull);
    if (error.hit > 0) {
      Session cold(executor, slots, error.hit, DecoderReplay::kFull);
      const auto prefix = text.first(static_cast<size_t>(error.hit));
      for (int64_t done = 0; done < error.hit;) {
        const int64_t count = std::min(executor.max_rows(), error.hit - done);
        cold.Feed(prefix.subspan(static_cast<size_t>(done), static_cast<size_t>(count)));
        done += count;
      }
      session.AdoptPrefix(prefix, cold.pages());
    }
    RunText(executor, session, text, prompt_tokens, [&](int64_t row, const Buffer<float>& logits) {
      Compare(exact.data() + static_cast<size_t>(row) * vocab, logits.data(), vocab, &error);
    });
    error.mean_kl /= static_cast<double>(error.rows);
    if (progress) progress({"replay", i + 1, errors.size(), "modes"});
  }
  return errors;
}

}  // namespace senko::runtime
