#include <cstdarg>
#include <cstdio>
#include <string>

#include "checkpoint/inspect.h"

namespace senko::checkpoint {
namespace {

std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));

std::string Format(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

long long Number(const Json& value) { return value.get<long long>(); }

std::string Source(const Json& value) { return value.is_null() ? "-" : std::to_string(Number(value)); }

// Layers that differ only in their number are printed as one range.
void PrintLayers(const Json& layers, std::ostream& out) {
  out << "\n  layers    ratio  KV from  selection from  mode\n";
  for (size_t first = 0; first < layers.size();) {
    Json same = layers[first];
    size_t last = first;
    for (; last + 1 < layers.size(); ++last) {
      same["layer"] = layers[last + 1]["layer"];
      if (same != layers[last + 1]) break;
    }
    const Json& layer = layers[first];
    std::string range = std::to_string(first);
    if (last > first) range.append(1, '-').append(std::to_string(last));
    std::string mode = layer["mode"].get<std::string>();
    if (layer["candidate_source"] == true) mode += ", candidate source";
    if (layer["restricted_to_candidates"] == true) mode += ", inside the candidates";
    if (layer["engram"] == true) mode += ", Engram";
    out << Format("  %-9s %5lld  %7s  %14s  %s\n", range.c_str(), Number(layer["ratio"]),
                  Source(layer["kv_source"]).c_str(), Source(layer["index_source"]).c_str(), mode.c_str());
    first = last + 1;
  }
}

void PrintEngram(const Json& engram, std::ostream& out) {
  for (size_t i = 0; i < engram["layers"].size(); ++i) {
    out << Format("\n  Engram layer %lld: %lld rows\n    multipliers", Number(engram["layers"][i]),
                  Number(engram["rows"][i]));
    for (const Json& multiplier : engram["multipliers"][i]) out << " " << multiplier.get<std::string>();
    out << "\n    primes";
    for (const Json& prime : engram["primes"][i]) out << " " << Number(prime);
    out << "\n";
  }
}

}  // namespace

void PrintReport(const Json& report, std::ostream& out) {
  if (report.contains("checkpoint")) {
    const Json& found = report["checkpoint"];
    out << found["path"].get<std::string>() << ": " << Number(found["tensors"]) << " tensors in "
        << Number(found["files"]) << " files, as the configuration asks"
        << (found["values_scanned"] == true ? "; every value is finite" : "") << "\n";
  }
  out << Format("%lld bytes, %lld parameters, %lld tensors\n\n", Number(report["total_bytes"]),
                Number(report["total_parameters"]), Number(report["total_tensors"]));
  for (const Json& group : report["groups"]) {
    out << Format("  %-28s %8lld tensors %16lld bytes\n", group["name"].get<std::string>().c_str(),
                  Number(group["tensors"]), Number(group["bytes"]));
  }
  PrintLayers(report["layers"], out);
  PrintEngram(report["engram"], out);
  const double tokens = static_cast<double>(Number(report["max_positions"]));
  out << Format("\n  a token of context        %12lld bytes\n", Number(report["kv_bytes_per_token"]));
  out << Format("  a page of %3lld tokens      %12lld bytes\n", Number(report["block_size"]),
                Number(report["page_bytes"]));
  out << Format("  a sequence's windows      %12lld bytes\n", Number(report["window_bytes_per_sequence"]));
  out << Format("  a sequence's whole slot   %12lld bytes\n", Number(report["slot_bytes"]));
  out << Format("  a sequence of %.0f tokens: %.1f MiB\n", tokens,
                (tokens * static_cast<double>(Number(report["kv_bytes_per_token"])) +
                 static_cast<double>(Number(report["slot_bytes"]))) /
                    1048576.0);
}

}  // namespace senko::checkpoint
