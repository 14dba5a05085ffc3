// From a row of logits to a token of a sequence: what a request's sampling options ask for, and what its answer so far
// has to say about it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/thread_pool.h"
#include "ops/sample/processors.h"
#include "senko/senko.h"

namespace senko::runtime {

// Why there is no token. The sequence's request fails, nobody else.
enum class DrawFailure {
  kNone,
  kNotFinite,       // a logit is NaN or infinite, before or after the penalties
  kNothingAllowed,  // min_tokens, bad words and the mask together bar every token: the request's own fault
  kBefore,          // a draw of the sequence has failed before this one
};
// For OutputChunk::error.
std::string_view DescribeFailure(DrawFailure failure);

struct DrawJob {
  uint64_t sequence = 0;
  int64_t position = 0;           // absolute, of the row; the drawn token gets the next one
  const float* logits = nullptr;  // [vocab], read only: jobs may share a row
  // For a row that runs ahead of Commit: the sequence's tokens up to `position`, oldest first, as far back as they may
  // not have been committed. Those that have been are passed over, and so are ids below zero (failed draws).
  std::span<const int32_t> uncommitted;
  const uint32_t* allowed = nullptr;  // bit v mod 32 of word v / 32: the output's structure lets v follow; null: all
};

struct SampleDraw {
  TokenOutput output;  // token -1 on failure
  DrawFailure failure = DrawFailure::kNone;
};

// What a sequence's options and its answer say about a draw, for a device that draws itself. Views live until the next
// call that changes the sampler.
struct DrawTerms {
  const SamplingOptions* options = nullptr;
  uint64_t seed = 0;
  uint64_t choice = 0;
  bool failed = false;                // kBefore: whatever is drawn does not count
  bool penalises = false;             // asks for the counts of the tokens drawn so far
  bool has_longer_bad_words = false;  // asks for the tokens drawn so far
  int64_t drawn = 0;                  // tokens of the answer before this draw
  int64_t unknown = 0;  // of them, those that were not committed yet, if it asks for any; 0 where it failed
  std::span<const int32_t> prompt_ids;          // distinct, ascending; under a repetition penalty only
  std::span<const ops::OutputCount> committed;  // where it penalises: the counts of the committed tokens
};

// A row of a prompt and the prompt token behind it.
struct PromptRow {
  const float* logits = nullptr;  // [vocab]
  int32_t next = -1;
};

// Keeps what belongs to a sequence (engine/request.h's ids) beside pages and slots: its random stream and, where
// penalties or bad words look back, its answer so far. Draws depend on (options, seed, choice, position, history, row)
// and on nothing that runs beside them; a preempted sequence keeps its state.
//
// Thread-compatible: one thread begins, commits and ends; it draws in between, with a pool's help.
class Sampler {
 public:
  // `eos_token` below zero: there is none.
  Sampler(int64_t vocab, int32_t eos_token);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Options and prompt are the request's, checked when it came in; its first choice to begin settles them for all that
  // begin while one of them is there, and draws the seed if none was given. The prompt is read here only, and only
  // under a repetition penalty.
  void Begin(uint64_t sequence, std::shared_ptr<const SamplingOptions> options, std::span<const int32_t> prompt);
  // The token counts: it is the sequence's next one.
  void Commit(uint64_t sequence, int32_t token);
  // A draw of it failed, or the step that was to make one: there is no history to draw from any more, and what a step
  // behind draws for it fails too. Unknown sequences are ignored.
  void Fail(uint64_t sequence);
  // Unknown sequences are ignored.
  void End(uint64_t sequence);

  SampleDraw Draw(const DrawJob& job) const;
  // One after the other or side by side, the draws are the same.
  std::vector<SampleDraw> DrawAll(std::span<const DrawJob> jobs, ThreadPool& pool) const;

  // Of a draw from the row at `position`.
  DrawTerms Terms(uint64_t sequence, int64_t position) const;
  // Appends the tokens that it may not give, but for a mask's; nothing is unknown of the tokens before where longer bad
  // words ask for them.
  void AppendBarred(uint64_t sequence, int64_t position, std::vector<int32_t>* barred) const;

  // Appends the rows' next tokens with their log-probabilities and the `top` likeliest (at most kMaxLogprobs). False,
  // with nothing appended, when a row is not finite.
  bool PromptLogprobs(std::span<const PromptRow> rows, int top, ThreadPool& pool, std::vector<TokenOutput>* out) const;

  int64_t sequences() const { return static_cast<int64_t>(sequences_.size()); }

 private:
  struct RequestState;
  struct SequenceState;
  struct Scratch;

  std::unique_ptr<RequestState> MakeRequest(std::shared_ptr<const SamplingOptions> options,
                                            std::span<const int32_t> prompt) const;
  static void AddListed(const RequestState& request, int64_t drawn_before, std::vector<int32_t>* barred);
  static void AddCompletions(const RequestState& request, std::span<const int32_t> generated,
                             std::span<const int32_t> ahead, std::vector<int32_t>* barred);
  const SequenceState& Find(uint64_t sequence) const;
  TokenOutput Logprobs(const float* logits, int32_t token, int top) const;

  const int64_t vocab_;
  const int32_t eos_token_;
  std::unordered_map<uint64_t, std::unique_ptr<RequestState>> requests_;
  std::unordered_map<uint64_t, std::unique_ptr<SequenceState>> sequences_;
};

}  // namespace senko::runtime
