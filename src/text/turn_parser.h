// The inverse of the chat encoding: what the model writes, taken apart while it arrives (model.md 7.4).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/chat.h"
#include "text/utf8_stream.h"

namespace senko::text {

inline constexpr size_t kMaxCallNameBytes = 4096;  // of a function that the model calls, whatever it made up

struct TurnEvent {
  enum class Kind {
    kReasoning,      // text: more reasoning
    kContent,        // text: more of the answer
    kToolCallBegin,  // text: the function's name
    kToolArguments,  // text: more of the arguments' JSON; all of a call's joined are one JSON object
    kToolCallEnd,    // text is empty
  };
  Kind kind;
  std::string text;  // well-formed UTF-8, never a part of a character, never a part of a tag
  int call = -1;     // number of the call, from 0; -1 for reasoning and content
  uint64_t at = 0;   // reasoning and content: where `text` begins in what was fed (made well-formed), in bytes
};

// Where the prompt left off.
enum class TurnStart {
  kReasoning,  // behind <think>
  kContent,    // behind </think>
  kToolCalls,  // inside a calls block that the prompt opened (ToolChoice::kRequired)
};

// Where a rendered prompt leaves off, whose last turn is the assistant's.
TurnStart StartOf(const Prompt& prompt);

// A state machine over bytes. The events, with neighbouring texts of one kind joined, depend on the bytes alone and not
// on how they were cut. Rules:
//  * Reasoning ends at the first </think>, or where a calls block begins.
//  * A calls block begins only at "\n\n<｜DSML｜ calls>\n" (without the line breaks at the start of a section) followed
//    by an invoke tag or the block's end; DSML quoted in prose is prose. The line breaks belong to nothing.
//  * A block whose first invoke has an empty name is no block; a later one of that kind is dropped. So whatever is
//    passed on as a call can be sent back as one.
//  * string="true" values are passed on as they arrive. string="false" values are passed on when complete, if they are
//    JSON that a request may hold, otherwise as a string. An invoke body that is one such object instead of parameters
//    is the arguments.
//  * A parameter given twice counts once, the first time; so many count as an object of a request may have keys. What
//  follows the block is dropped.
//  * At the end an unfinished call is closed, so its arguments parse, without a parameter of another type than string
//    that was not complete. A tag that was begun is dropped if the DSML token's first bar was there, else it is text.
// Buffers at most one tag, one parameter of another type than string, or one invoke body. Not thread-safe.
class TurnParser {
 public:
  // Without `reads_calls` no block begins: its markup is text like any other.
  explicit TurnParser(TurnStart start, bool reads_calls = true);
  // Appends to `events`.
  void Feed(std::string_view bytes, std::vector<TurnEvent>* events);
  // The end of the turn; nothing may be fed after it.
  void Finish(std::vector<TurnEvent>* events);

  // The calls block was closed: nothing more can come of this turn.
  bool done() const { return state_ == State::kDone; }
  // Something did not follow the grammar (or the turn ended inside a block).
  bool malformed() const { return malformed_; }
  bool in_reasoning() const { return state_ == State::kReasoning; }
  // A call has begun and not ended.
  bool in_call() const {
    return state_ == State::kInvokeBody || state_ == State::kParameterHead || state_ == State::kValue;
  }
  // Of what was fed (made well-formed), the bytes whose meaning is settled: passed on, or part of a tag.
  uint64_t position() const { return dropped_ + taken_; }

 private:
  enum class State { kReasoning, kContent, kBetweenCalls, kInvokeHead, kInvokeBody, kParameterHead, kValue, kDone };

  bool Step(std::vector<TurnEvent>* events);
  bool StepWords(std::vector<TurnEvent>* events);
  bool StepBetween(std::vector<TurnEvent>* events);
  bool StepInvokeHead(std::vector<TurnEvent>* events);
  bool StepInvokeBody(std::vector<TurnEvent>* events);
  bool StepParameterHead(std::vector<TurnEvent>* events);
  bool StepValue(std::vector<TurnEvent>* events);

  std::string_view Rest() const { return std::string_view(pending_).substr(taken_); }
  void Take(size_t size) { taken_ += size; }
  void Emit(TurnEvent::Kind kind, std::string_view text, std::vector<TurnEvent>* events);
  void EmitWords(size_t size, std::vector<TurnEvent>* events);
  void BeginValue(std::vector<TurnEvent>* events);
  void EndValue(std::vector<TurnEvent>* events);
  void EndCall(std::vector<TurnEvent>* events);

  bool reads_calls_;
  State state_;
  Utf8Stream utf8_;
  std::string pending_;  // read; what is not yet decided begins at taken_
  size_t taken_ = 0;
  uint64_t dropped_ = 0;       // bytes that have left pending_
  bool section_empty_ = true;  // nothing of this reasoning or content has been passed on
  bool malformed_ = false;
  int call_ = -1;
  std::unordered_set<std::string> names_;  // parameters of this call so far
  std::string body_;                       // text between the tags of this invoke
  std::string name_;                       // the current parameter
  std::string value_;                      // of the current parameter, if it is no string
  bool is_string_ = false;
  bool skips_ = false;  // the current parameter was there before
};

// A whole turn. `text` may end with the end-of-sentence token's spelling. Calls have no ids.
struct AssistantTurn {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;
  bool malformed = false;
};
AssistantTurn ParseTurn(std::string_view text, TurnStart start);

}  // namespace senko::text
