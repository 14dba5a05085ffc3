// What `senko serve` is started with.
#pragma once

#include <string>
#include <vector>

#include "api/context.h"
#include "senko/senko.h"
#include "server/options.h"

namespace senko::cli {

struct ServeOptions {
  EngineOptions engine;  // engine.model empty: the bundled model
  server::HttpOptions http;
  api::ApiOptions api;              // api.model_names empty: the model folder's name
  std::string access_log = "-";     // a file, "-": standard error, empty: none
  int64_t shutdown_timeout_s = 60;  // running requests may finish within it after SIGTERM
};

// Serves until SIGTERM or SIGINT; a second signal ends at once. Returns the process's exit code.
int RunServe(ServeOptions options);

}  // namespace senko::cli
