// What an operator watches, under vLLM's names with the prefix `senko:`.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "api/metrics.h"
#include "senko/senko.h"
#include "server/gate.h"
#include "server/metrics.h"

namespace senko::server {

// Thread-safe; lives as long as the registry is read.
class EngineMetrics final : public api::RequestMetrics {
 public:
  // The functions are called at every scrape; `engine` returns nothing while there is no engine yet.
  EngineMetrics(MetricsRegistry* registry, std::function<std::optional<EngineStats>()> engine,
                std::function<HttpStats()> http);

  void OnScheduled(double queue_s) override;
  void OnFirstToken(double since_arrival_s) override;
  void OnTokens(int64_t tokens, double gap_s) override;
  void OnFinished(const api::RequestRecord& record) override;

 private:
  MetricsRegistry::Histogram* const queue_time_;
  MetricsRegistry::Histogram* const first_token_;
  MetricsRegistry::Histogram* const inter_token_;
  MetricsRegistry::Histogram* const end_to_end_;
  MetricsRegistry::Counter* const stop_;
  MetricsRegistry::Counter* const length_;
  MetricsRegistry::Counter* const abort_;
  MetricsRegistry::Counter* const error_;
};

}  // namespace senko::server
