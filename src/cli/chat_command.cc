// `senko chat`: a terminal's side of a conversation with a server.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cli/chat_client.h"
#include "cli/chat_options.h"
#include "cli/line_input.h"
#include "cli/terminal.h"

namespace senko::cli {
namespace {

constexpr int kEndedByInterrupt = 128 + SIGINT;  // as a shell says it

std::atomic<bool> interrupted{false};  // ends an answer, or gives up the line that is being typed
static_assert(std::atomic<bool>::is_always_lock_free);

constexpr std::string_view kHelp =
    "/new              forget the conversation\n"
    "/system TEXT      set the system message (empty: none)\n"
    "/thinking on|off  let the model reason first\n"
    "/temperature T    0 takes the most likely tokens\n"
    "/save FILE        write the conversation as JSON\n"
    "/usage            tokens of the last answer\n"
    "/quit             or Ctrl-D\n"
    "A line that ends in \\ goes on; so does everything between two lines of \"\"\".\n"
    "Ctrl-C stops an answer or discards what is being typed; a second one on an empty line leaves.\n";

// A message of one or more lines. kLine: `text` is one. kDiscarded: all of it was given up. kInterrupted: the same, and
// nothing had been typed. kEnd: of the input.
LineInput::Got ReadMessage(LineInput& input, std::string* text) {
  using Got = LineInput::Got;
  text->clear();
  bool block = false;
  for (;;) {
    const bool begins = text->empty() && !block;
    std::string line;
    const Got got = input.Next(begins ? "> " : ". ", &line);
    if (got == Got::kEnd) return text->empty() ? Got::kEnd : Got::kLine;
    if (got == Got::kInterrupted) return begins ? Got::kInterrupted : Got::kDiscarded;
    if (got == Got::kDiscarded) return got;
    if (line == "\"\"\"") {
      if (block) return Got::kLine;
      block = true;
      continue;
    }
    const bool more = !block && !line.empty() && line.back() == '\\';
    if (more) line.pop_back();
    *text += line;
    if (!block && !more) return Got::kLine;
    *text += '\n';
  }
}

class Terminal {
 public:
  explicit Terminal(bool colours) : colours_(colours) {}
  void Piece(std::string_view reasoning, std::string_view content) {
    if (!reasoning.empty()) {
      if (!dim_ && colours_) std::fputs("\033[2m", stdout);
      dim_ = true;
      Print(reasoning, stdout);
    }
    if (!content.empty()) {
      EndReasoning();
      Print(content, stdout);
    }
    std::fflush(stdout);
  }
  void End() {
    EndReasoning();
    std::fputs("\n", stdout);
    std::fflush(stdout);
  }

 private:
  void EndReasoning() {
    if (dim_) std::fputs(colours_ ? "\033[0m\n\n" : "\n\n", stdout);
    dim_ = false;
  }
  bool colours_;
  bool dim_ = false;
};

// False: the command is unknown.
bool Command(ChatClient& client, const std::string& line, bool* quit) {
  const size_t space = line.find(' ');
  const std::string name = line.substr(0, space), rest = space == std::string::npos ? "" : line.substr(space + 1);
  if (name == "/quit" || name == "/exit") {
    *quit = true;
  } else if (name == "/help") {
    std::fwrite(kHelp.data(), 1, kHelp.size(), stderr);
  } else if (name == "/new") {
    client.Forget();
  } else if (name == "/system") {
    client.settings().system = rest;
  } else if (name == "/thinking" && (rest == "on" || rest == "off")) {
    client.settings().thinking = rest == "on";
  } else if (name == "/temperature") {
    char* end = nullptr;
    const double value = std::strtod(rest.c_str(), &end);
    if (end == rest.c_str() || *end != '\0') return false;
    client.settings().temperature = value;
  } else if (name == "/save" && !rest.empty()) {
    std::ofstream file(rest);
    file << DumpJson(client.messages(), 1) << "\n";
    Print((file ? "written to " : "cannot write ") + rest + "\n", stderr);
  } else if (name == "/usage") {
    const ChatUsage& u = client.usage();
    std::fprintf(stderr, "%lld prompt tokens (%lld cached), %lld generated\n", static_cast<long long>(u.prompt_tokens),
                 static_cast<long long>(u.cached_tokens), static_cast<long long>(u.completion_tokens));
  } else {
    return false;
  }
  return true;
}

}  // namespace

int RunChat(const ChatOptions& options) {
  LineInput input(interrupted);
  const bool terminal = input.is_terminal();
  ChatClient client(options.settings);
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };
  ::sigaction(SIGINT, &action, nullptr);
  if (terminal) Print(client.model() + " at " + client.settings().url + "; /help lists the commands\n", stderr);
  std::string text;
  int status = 0;
  bool leaves = false;  // at the next Ctrl-C, if the line is empty
  for (;;) {
    const LineInput::Got got = ReadMessage(input, &text);
    if (got == LineInput::Got::kEnd) break;
    if (got != LineInput::Got::kLine) {
      if (!terminal || (leaves && got == LineInput::Got::kInterrupted)) return kEndedByInterrupt;
      std::fputs("\n[Ctrl-C again, Ctrl-D or /quit leaves]\n", stderr);
      leaves = true;
      continue;
    }
    leaves = false;
    if (text.find_first_not_of(" \t\n") == std::string::npos) continue;
    if (text.front() == '/') {
      bool quit = false;
      if (!Command(client, text, &quit)) std::fprintf(stderr, "unknown command; /help lists them\n");
      if (quit) break;
      continue;
    }
    Terminal out(::isatty(STDOUT_FILENO) != 0);
    interrupted = false;
    try {
      const std::string finish =
          client.Say(text, interrupted,
                     [&](std::string_view reasoning, std::string_view content) { out.Piece(reasoning, content); });
      out.End();
      if (finish != "stop") Print("[" + finish + "]\n", stderr);
    } catch (const Error& error) {
      out.End();
      Tell(error.what());
      status = 2;
      if (!terminal) return status;
    }
    interrupted = false;  // that was for the answer, even if it had just ended
  }
  return terminal ? 0 : status;
}

}  // namespace senko::cli
