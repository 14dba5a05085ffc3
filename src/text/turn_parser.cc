#include "text/turn_parser.h"

#include <algorithm>
#include <optional>
#include <span>

#include "base/json.h"
#include "text/python_json.h"
#include "text/special_tokens.h"

namespace senko::text {
namespace {

#define SENKO_DSML "｜DSML｜"
constexpr std::string_view kBar = "｜";
constexpr std::string_view kBreak = "\n\n";
constexpr std::string_view kCallsOpen = "<" SENKO_DSML " calls>\n";
constexpr std::string_view kCallsOpenInvoke = "\n\n<" SENKO_DSML " calls>\n<" SENKO_DSML " invoke";
constexpr std::string_view kCallsOpenClose = "\n\n<" SENKO_DSML " calls>\n</" SENKO_DSML " calls>";
constexpr std::string_view kCallsClose = "</" SENKO_DSML " calls>";
constexpr std::string_view kInvokeOpen = "<" SENKO_DSML " invoke";
constexpr std::string_view kInvokeClose = "</" SENKO_DSML " invoke>";
constexpr std::string_view kParameterOpen = "<" SENKO_DSML " parameter";
constexpr std::string_view kParameterClose = "</" SENKO_DSML " parameter>";
#undef SENKO_DSML
constexpr std::string_view kNameOpen = " name=\"";
constexpr std::string_view kHeadClose = "\">";
constexpr std::string_view kStringTrue = "\" string=\"true\">";
constexpr std::string_view kStringFalse = "\" string=\"false\">";
constexpr std::string_view kNameless = " name=\"\">";
constexpr size_t kMaxHeadBytes = kMaxCallNameBytes;  // of a tag's name; beyond it, the tag is no tag
// Of a value. A client may send arguments back inside its body, where up to seven lists and objects stand around a
// value, and JsonLimits bounds the depth of all.
constexpr int kMaxValueDepth = 48;
static_assert(kMaxValueDepth + 7 <= JsonLimits().max_depth);
constexpr size_t kMaxValues = size_t{1} << 16;  // within a value: while it is looked at, it takes some MB

struct Found {
  size_t at;  // where the tag begins; without one, how many bytes can no longer be part of a tag
  int which;  // index of the tag, or -1
};

bool MatchesSoFar(std::string_view text, std::string_view tag) { return tag.starts_with(text.substr(0, tag.size())); }

// Whether `tag` stands at the start of `text`; nothing where the text ends before that is decided. Calls that begin
// with one of nothing are no calls.
std::optional<bool> StandsAt(std::string_view text, std::string_view tag) {
  if (!MatchesSoFar(text, tag)) return false;
  if (text.size() < tag.size()) return std::nullopt;
  if (tag == kInvokeOpen || !tag.ends_with(kInvokeOpen)) return true;
  const std::string_view head = text.substr(tag.size());
  if (!MatchesSoFar(head, kNameless)) return true;
  if (head.size() < kNameless.size()) return std::nullopt;
  return false;
}

// The first of `tags` in `text`. A place where the text ends inside a tag decides nothing yet and ends the
// search.
Found FindTag(std::string_view text, std::span<const std::string_view> tags) {
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '<' && text[at] != '\n') continue;
    const std::string_view rest = text.substr(at);
    for (size_t i = 0; i < tags.size(); ++i) {
      const std::optional<bool> stands = StandsAt(rest, tags[i]);
      if (stands == false) continue;
      return {at, stands ? static_cast<int>(i) : -1};
    }
  }
  return {text.size(), -1};
}

bool IsBlank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

// Whether every reader of JSON takes `text` for the same value, ours among them: no key twice, no number beyond a
// double's, no half of a surrogate pair.
bool IsValue(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) return false;  // the parser skips a byte order mark
  JsonLimits limits;
  limits.max_bytes = text.size();
  limits.max_depth = kMaxValueDepth;
  limits.max_values = kMaxValues;
  try {
    ParseJson(text, "value", limits);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

TurnStart StartOf(const Prompt& prompt) {
  // The last think token decides, unless a block was opened behind it. A conversation's text is never control.
  TurnStart start = TurnStart::kContent;
  for (const Segment& segment : prompt.segments()) {
    if (!segment.is_control) continue;
    if (segment.text == kThinkOpen) start = TurnStart::kReasoning;
    if (segment.text == kThinkClose || segment.text == kAssistantToken) start = TurnStart::kContent;
    if (segment.text == kDsml) start = TurnStart::kToolCalls;
  }
  return start;
}

TurnParser::TurnParser(TurnStart start, bool reads_calls)
    : reads_calls_(reads_calls),
      state_(start == TurnStart::kReasoning ? State::kReasoning
             : start == TurnStart::kContent ? State::kContent
                                            : State::kBetweenCalls) {}

void TurnParser::Feed(std::string_view bytes, std::vector<TurnEvent>* events) {
  utf8_.Push(bytes, &pending_);
  while (Step(events)) {
  }
  pending_.erase(0, taken_);
  dropped_ += taken_;
  taken_ = 0;
}

bool TurnParser::Step(std::vector<TurnEvent>* events) {
  if (Rest().empty()) return false;
  switch (state_) {
    case State::kReasoning:
    case State::kContent:
      return StepWords(events);
    case State::kBetweenCalls:
      return StepBetween(events);
    case State::kInvokeHead:
      return StepInvokeHead(events);
    case State::kInvokeBody:
      return StepInvokeBody(events);
    case State::kParameterHead:
      return StepParameterHead(events);
    case State::kValue:
      return StepValue(events);
    case State::kDone:
      Take(Rest().size());
      return false;
  }
  return false;
}

void TurnParser::Emit(TurnEvent::Kind kind, std::string_view text, std::vector<TurnEvent>* events) {
  const bool is_call = kind != TurnEvent::Kind::kReasoning && kind != TurnEvent::Kind::kContent;
  events->push_back({kind, std::string(text), is_call ? call_ : -1, is_call ? 0 : position()});
}

// Passes the first `size` bytes on as reasoning or content.
void TurnParser::EmitWords(size_t size, std::vector<TurnEvent>* events) {
  if (size == 0) return;
  const auto kind = state_ == State::kReasoning ? TurnEvent::Kind::kReasoning : TurnEvent::Kind::kContent;
  Emit(kind, Rest().substr(0, size), events);
  Take(size);
  section_empty_ = false;
}

bool TurnParser::StepWords(std::vector<TurnEvent>* events) {
  // At the start of a section the block may come without its line breaks; </think> only ends reasoning.
  constexpr std::string_view kTags[] = {kThinkClose, kCallsOpenInvoke, kCallsOpenClose};
  const int first = state_ == State::kReasoning ? 0 : 1, end = reads_calls_ ? 3 : 1;
  if (section_empty_ && reads_calls_) {
    for (const std::string_view tag : {kCallsOpenInvoke.substr(kBreak.size()), kCallsOpenClose.substr(kBreak.size())}) {
      const std::optional<bool> stands = StandsAt(Rest(), tag);
      if (stands == false) continue;
      if (!stands) return false;
      Take(kCallsOpen.size());
      malformed_ |= state_ == State::kReasoning;
      state_ = State::kBetweenCalls;
      return true;
    }
  }
  const Found found = FindTag(Rest(), std::span(kTags + first, kTags + end));
  EmitWords(found.at, events);
  if (found.which < 0) return false;
  if (first + found.which == 0) {
    Take(kThinkClose.size());
    state_ = State::kContent;
    section_empty_ = true;
    return true;
  }
  Take(kBreak.size() + kCallsOpen.size());
  malformed_ |= state_ == State::kReasoning;
  state_ = State::kBetweenCalls;
  return true;
}

bool TurnParser::StepBetween(std::vector<TurnEvent>*) {
  constexpr std::string_view kTags[] = {kInvokeOpen, kCallsClose};
  const Found found = FindTag(Rest(), kTags);
  malformed_ |= !IsBlank(Rest().substr(0, found.at));
  Take(found.at);
  if (found.which < 0) return false;
  Take(kTags[found.which].size());
  state_ = found.which == 0 ? State::kInvokeHead : State::kDone;
  return true;
}

bool TurnParser::StepInvokeHead(std::vector<TurnEvent>* events) {
  const std::string_view near = Rest().substr(0, kMaxHeadBytes);
  const size_t close = near.find(kHeadClose);
  if (close == std::string_view::npos) {
    if (near.size() < kMaxHeadBytes) return false;
    malformed_ = true;
    state_ = State::kBetweenCalls;
    return true;
  }
  const std::string_view head = near.substr(0, close);
  const bool named = head.starts_with(kNameOpen) && head.size() > kNameOpen.size();
  if (named) {
    ++call_;
    names_ = {};  // clear() would go over the buckets of the largest call so far
    body_.clear();
    Emit(TurnEvent::Kind::kToolCallBegin, head.substr(kNameOpen.size()), events);
  }
  malformed_ |= !named;
  Take(close + kHeadClose.size());
  state_ = named ? State::kInvokeBody : State::kBetweenCalls;
  return true;
}

bool TurnParser::StepInvokeBody(std::vector<TurnEvent>* events) {
  constexpr std::string_view kTags[] = {kParameterOpen, kInvokeClose, kInvokeOpen, kCallsClose};
  const Found found = FindTag(Rest(), kTags);
  body_.append(Rest().substr(0, found.at));
  Take(found.at);
  if (found.which < 0) return false;
  if (found.which == 0) {
    Take(kParameterOpen.size());
    state_ = State::kParameterHead;
    return true;
  }
  if (found.which == 1) {
    Take(kInvokeClose.size());
  } else {
    malformed_ = true;  // the closing tag is missing; the next tag is read where it stands
  }
  EndCall(events);
  state_ = State::kBetweenCalls;
  return true;
}

bool TurnParser::StepParameterHead(std::vector<TurnEvent>* events) {
  const std::string_view near = Rest().substr(0, kMaxHeadBytes);
  const size_t yes = near.find(kStringTrue), no = near.find(kStringFalse);
  const size_t close = std::min(yes, no);
  if (close == std::string_view::npos) {
    if (near.size() < kMaxHeadBytes) return false;
    malformed_ = true;
    state_ = State::kInvokeBody;
    return true;
  }
  const std::string_view head = near.substr(0, close);
  const bool named = head.starts_with(kNameOpen);
  is_string_ = yes < no;
  name_ = named ? head.substr(kNameOpen.size()) : std::string_view();
  skips_ = !named || names_.size() == JsonLimits().max_keys || !names_.insert(name_).second;
  malformed_ |= skips_;
  value_.clear();
  if (is_string_) BeginValue(events);
  Take(close + (is_string_ ? kStringTrue : kStringFalse).size());
  state_ = State::kValue;
  return true;
}

bool TurnParser::StepValue(std::vector<TurnEvent>* events) {
  constexpr std::string_view kTags[] = {kParameterClose};
  const Found found = FindTag(Rest(), kTags);
  const std::string_view text = Rest().substr(0, found.at);
  if (!is_string_) {
    value_.append(text);
  } else if (!skips_ && !text.empty()) {
    std::string escaped;
    AppendEscaped(text, &escaped);
    Emit(TurnEvent::Kind::kToolArguments, escaped, events);
  }
  Take(found.at);
  if (found.which < 0) return false;
  Take(kParameterClose.size());
  EndValue(events);
  state_ = State::kInvokeBody;
  return true;
}

void TurnParser::BeginValue(std::vector<TurnEvent>* events) {
  if (skips_) return;
  std::string text = names_.size() == 1 ? "{" : ", ";
  text.append(PythonJsonString(name_)).append(is_string_ ? ": \"" : ": ");
  Emit(TurnEvent::Kind::kToolArguments, text, events);
}

void TurnParser::EndValue(std::vector<TurnEvent>* events) {
  if (skips_) return;
  if (is_string_) {
    Emit(TurnEvent::Kind::kToolArguments, "\"", events);
    return;
  }
  BeginValue(events);
  const bool is_json = IsValue(value_);
  malformed_ |= !is_json;
  Emit(TurnEvent::Kind::kToolArguments, is_json ? std::string(Trim(value_)) : PythonJsonString(value_), events);
}

void TurnParser::EndCall(std::vector<TurnEvent>* events) {
  const std::string_view body = Trim(body_);
  const bool is_object = names_.empty() && body.starts_with('{') && IsValue(body);
  malformed_ |= !is_object && !body.empty();
  const bool has_written = !names_.empty();
  Emit(TurnEvent::Kind::kToolArguments, is_object ? body : has_written ? "}" : "{}", events);
  Emit(TurnEvent::Kind::kToolCallEnd, "", events);
}

void TurnParser::Finish(std::vector<TurnEvent>* events) {
  // What is undecided now is the beginning of a tag. With the first bar of the DSML token in it, it is taken
  // for one and dropped, with any bytes of a character that follow it; without, it may be anything and is
  // passed on.
  const bool is_tag = Rest().find(kBar) != std::string_view::npos;
  if (!is_tag) {
    utf8_.Finish(&pending_);
    while (Step(events)) {
    }
  }
  if (state_ == State::kReasoning || state_ == State::kContent) {
    malformed_ |= is_tag;
    if (!is_tag) EmitWords(Rest().size(), events);
    return;
  }
  malformed_ |= state_ != State::kDone;
  if (state_ == State::kValue) {
    if (is_string_) {
      if (!is_tag && !skips_ && !Rest().empty()) Emit(TurnEvent::Kind::kToolArguments, Rest(), events);
      EndValue(events);
    } else if (!skips_) {
      names_.erase(name_);  // half a number is another number: it is left out
    }
  }
  if (state_ == State::kValue || state_ == State::kInvokeBody || state_ == State::kParameterHead) EndCall(events);
  state_ = State::kDone;
}

AssistantTurn ParseTurn(std::string_view text, TurnStart start) {
  if (text.ends_with(kEos)) text.remove_suffix(kEos.size());
  TurnParser parser(start);
  std::vector<TurnEvent> events;
  parser.Feed(text, &events);
  parser.Finish(&events);
  AssistantTurn turn;
  for (const TurnEvent& event : events) {
    switch (event.kind) {
      case TurnEvent::Kind::kReasoning:
        turn.reasoning += event.text;
        break;
      case TurnEvent::Kind::kContent:
        turn.content += event.text;
        break;
      case TurnEvent::Kind::kToolCallBegin:
        turn.tool_calls.push_back({"", event.text, ""});
        break;
      case TurnEvent::Kind::kToolArguments:
        turn.tool_calls.back().arguments += event.text;
        break;
      case TurnEvent::Kind::kToolCallEnd:
        break;
    }
  }
  turn.malformed = parser.malformed();
  return turn;
}

}  // namespace senko::text
