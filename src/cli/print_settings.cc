#include "cli/print_settings.h"

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace senko::cli {
namespace {

struct Setting {
  std::string value, origin;
};

std::string Joined(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : ", ") + value;
  return text;
}

// Flags that are on or off, of which CLI11 keeps no default, and the two halves of replay, which one flag stands for.
std::map<std::string, Setting> FlagSettings(const CLI::App& command, const ServeOptions& options) {
  std::string both;
  for (const char* flag : {"--swa-bounded-replay", "--no-swa-bounded-replay"}) {
    if (command.get_option(flag)->count() > 0) both = flag;
  }
  const auto on_off = [](bool on) { return std::string(on ? "on" : "off"); };
  const EngineOptions& engine = options.engine;
  const std::string replay = both.empty() ? "default" : both;
  std::map<std::string, Setting> settings;
  const auto add = [&](const std::string& flag, std::string value, const std::string& otherwise) {
    const bool given = command.get_option("--" + flag)->count() > 0;
    settings[flag] = {std::move(value), given ? "command line" : otherwise};
  };
  add("encoder-replay", on_off(engine.encoder_replay), replay);
  add("decoder-replay", engine.decoder_replay, replay);
  add("enable-prefix-caching", on_off(engine.enable_prefix_caching), "default");
  add("async-scheduling", on_off(engine.async_scheduling), "default");
  add("default-thinking", on_off(options.api.default_thinking), "default");
  add("share-prefix-cache-between-keys", on_off(options.api.keys_share_prefixes), "default");
  return settings;
}

}  // namespace

std::vector<std::string> SettingLines(const CLI::App& command, const ServeOptions& options) {
  const std::map<std::string, Setting> known = FlagSettings(command, options);
  std::map<std::string, std::string> by_origin;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_single_name();
    if (name == "help" || name == "swa-bounded-replay" || name == "no-swa-bounded-replay") continue;
    const bool given = option->count() > 0;
    Setting setting{given ? Joined(option->results()) : option->get_default_str(), given ? "command line" : "default"};
    if (const auto found = known.find(name); found != known.end()) setting = found->second;
    if (name == "api-key" && given) setting.value = std::to_string(option->count()) + " given";
    if (setting.value.empty()) setting.value = "none";
    std::string& line = by_origin[setting.origin];
    line += (line.empty() ? "" : ", ") + name + " = " + setting.value;
  }
  std::vector<std::string> lines;
  for (const auto& [origin, line] : by_origin) lines.push_back(origin + ": " + line);
  return lines;
}

}  // namespace senko::cli
