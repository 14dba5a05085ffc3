#include "api/choice_text.h"

namespace senko::api {

std::string_view EndingName(Ending ending) {
  switch (ending) {
    case Ending::kStop:
      return "stop";
    case Ending::kLength:
      return "length";
    case Ending::kToolCalls:
      return "tool_calls";
  }
  return "stop";
}

ChoiceText::ChoiceText(const text::Tokenizer& tokenizer, const TextOptions& options, const TurnOpening* opening)
    : options_(options), tokenizer_(&tokenizer), detokenizer_(tokenizer, options.skip_special), stops_(options.stops) {
  if (opening == nullptr) return;
  parser_ = std::make_unique<text::TurnParser>(opening->start, opening->reads_calls);
  parser_->Feed(opening->opened, &opening_events_);
  read_bytes_ = opening->opened.size();
}

bool ChoiceText::Push(const OutputChunk& chunk, int32_t eos, std::vector<Piece>* pieces) {
  if (ended()) return false;
  for (const text::TurnEvent& event : std::exchange(opening_events_, {})) Handle(event, pieces);
  for (size_t i = 0; i < chunk.tokens.size(); ++i) {
    const TokenOutput& token = chunk.tokens[i];
    const bool is_last = i + 1 == chunk.tokens.size();
    if (is_last && chunk.finish == FinishReason::kStop && (token.token == eos || chunk.stop_token == token.token)) {
      if (token.token != eos) stop_token_ = token.token;
      if (stop_token_ && options_.include_stop) {
        PushToken(token, pieces);
      } else {
        reasoning_tokens_ += parser_ && parser_->in_reasoning();
        ++tokens_;
      }
      break;
    }
    if (parser_ && parser_->done()) {
      if (!options_.ignore_eos && tokens_ >= options_.min_tokens) {
        ++tokens_;
        ending_ = Ending::kToolCalls;
        whole_calls_ = true;
        return !chunk.finish;
      }
      whole_calls_ = false;  // the turn goes on, unread
    } else {
      whole_calls_ = true;
    }
    PushToken(token, pieces);
    if (ended()) {
      whole_calls_ = false;
      return !chunk.finish || !is_last;
    }
  }
  if (!chunk.finish) return false;
  const bool in_call = parser_ && parser_->in_call();
  whole_calls_ = whole_calls_ && calls_ > 0 && parser_ && parser_->done();
  FinishText(pieces);
  if (!ended()) Decide(*chunk.finish, in_call);
  return false;
}

void ChoiceText::Decide(FinishReason finish, bool in_call) {
  // A call that its turn left open is delivered, closed so that its arguments parse, but nobody should run it.
  if (whole_calls_ || (finish == FinishReason::kStop && calls_ > 0 && !in_call)) {
    ending_ = Ending::kToolCalls;
  } else {
    ending_ = finish == FinishReason::kLength ? Ending::kLength : Ending::kStop;
  }
}

void ChoiceText::PushToken(const TokenOutput& token, std::vector<Piece>* pieces) {
  ++tokens_;
  if (parser_) {
    ids_.push_back(token.token);
    reasoning_tokens_ += parser_->in_reasoning();
  }
  if (options_.logprobs && calls_ == 0) pending_.push_back({token, read_bytes_});
  // The engine's vocabulary may be padded beyond the tokenizer's.
  if (tokenizer_->IsValid(token.token)) Read(detokenizer_.Push(token.token), pieces);
}

void ChoiceText::Read(std::string_view text, std::vector<Piece>* pieces) {
  const uint64_t at = read_bytes_;
  read_bytes_ += text.size();
  if (text.empty()) return;
  if (!parser_) return Content(text, at, pieces);
  events_.clear();
  parser_->Feed(text, &events_);
  for (const text::TurnEvent& event : events_) {
    Handle(event, pieces);
    if (ended()) return;
  }
}

void ChoiceText::Handle(const text::TurnEvent& event, std::vector<Piece>* pieces) {
  switch (event.kind) {
    case Piece::Kind::kReasoning:
      Emit(event.kind, event.text, -1, pieces);
      TakeTokens(event.at, event.at + event.text.size(), &pieces->back());
      return;
    case Piece::Kind::kContent:
      return Content(event.text, event.at, pieces);
    case Piece::Kind::kToolCallBegin:
      CloseContent(pieces);
      if (ended()) return;
      ++calls_;
      pending_ = {};  // neither a call's tokens nor those behind it are shown
      break;
    case Piece::Kind::kToolCallEnd:
      // One that only the answer's end has closed is not the call that was to be the last.
      if (options_.one_call && !finishing_) ending_ = Ending::kToolCalls;
      break;
    case Piece::Kind::kToolArguments:
      break;
  }
  Emit(event.kind, event.text, event.call, pieces);
  pieces->back().cut = finishing_ && event.kind == Piece::Kind::kToolCallEnd;
}

void ChoiceText::Content(std::string_view text, uint64_t at, std::vector<Piece>* pieces) {
  if (!in_content_) content_at_ = at;
  in_content_ = true;
  std::string out = tokens_ > options_.min_tokens ? stops_.Push(text) : std::string(text);
  content_bytes_ += out.size();
  if (stops_.stopped()) {
    stop_ = stops_.stop();
    ending_ = Ending::kStop;
    if (options_.include_stop) {
      out += *stop_;
      content_bytes_ += stop_->size();
    }
  }
  if (out.empty()) return;
  Emit(Piece::Kind::kContent, std::move(out), -1, pieces);
  TakeTokens(content_at_, content_at_ + content_bytes_, &pieces->back());
}

// What the stop strings held back is content after all.
void ChoiceText::CloseContent(std::vector<Piece>* pieces) {
  std::string rest = stops_.Finish();
  if (rest.empty()) return;
  content_bytes_ += rest.size();
  Emit(Piece::Kind::kContent, std::move(rest), -1, pieces);
  TakeTokens(content_at_, content_at_ + content_bytes_, &pieces->back());
}

void ChoiceText::FinishText(std::vector<Piece>* pieces) {
  finishing_ = true;
  Read(detokenizer_.Finish(), pieces);
  if (ended()) return;
  if (parser_) {
    events_.clear();
    parser_->Finish(&events_);
    for (const text::TurnEvent& event : events_) {
      Handle(event, pieces);
      if (ended()) return;
    }
  }
  CloseContent(pieces);
  const bool speaks = !parser_ || (in_content_ && calls_ == 0);
  if (!speaks || pending_.empty()) return;
  // Tokens without text at the very end.
  if (pieces->empty() || pieces->back().kind != Piece::Kind::kContent) {
    Emit(Piece::Kind::kContent, "", -1, pieces);
  }
  TakeTokens(content_at_, UINT64_MAX, &pieces->back());
}

void ChoiceText::Emit(Piece::Kind kind, std::string text, int call, std::vector<Piece>* pieces) {
  const bool joins =
      kind == Piece::Kind::kReasoning || kind == Piece::Kind::kContent || kind == Piece::Kind::kToolArguments;
  if (joins && !pieces->empty() && pieces->back().kind == kind && pieces->back().call == call) {
    pieces->back().text += text;
  } else {
    pieces->push_back({kind, std::move(text), call, false, {}});
  }
}

void ChoiceText::TakeTokens(uint64_t begin, uint64_t end, Piece* piece) {
  for (; !pending_.empty() && pending_.front().at < end; pending_.pop_front()) {
    if (pending_.front().at >= begin) piece->tokens.push_back(std::move(pending_.front().output));
  }
}

}  // namespace senko::api
