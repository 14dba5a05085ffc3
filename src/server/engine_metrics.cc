#include "server/engine_metrics.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/process_stats.h"

namespace senko::server {
namespace {

using Sample = MetricsRegistry::Sample;

// 1-2-5 steps, seconds: an engine's steps lie at a few milliseconds, a queue may take minutes.
std::vector<double> Seconds(double from, double to) {
  std::vector<double> bounds;
  for (const double decade : {1e-4, 1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2, 1e3}) {
    for (const double step : {1.0, 2.0, 5.0}) {
      const double bound = decade * step;
      if (bound >= from * 0.99 && bound <= to * 1.01) bounds.push_back(bound);
    }
  }
  return bounds;
}

MetricsRegistry::Counter* Finished(MetricsRegistry* registry, const char* reason) {
  return registry->AddCounter("senko:request_success_total", "Requests that the engine took, by how they ended",
                              {{"finished_reason", reason}});
}

Sample Gauge(const char* name, const char* help, double value) { return {Sample::Kind::kGauge, name, help, value}; }

template <typename Number>
Sample Count(const char* name, const char* help, Number value) {
  return {Sample::Kind::kCounter, name, help, static_cast<double>(value)};
}

std::vector<Sample> EngineSamples(const EngineStats& s) {
  const double usage = s.num_pages > 0 ? static_cast<double>(s.pages_in_use) / static_cast<double>(s.num_pages) : 0.0;
  return {
      Gauge("senko:num_requests_running", "Sequences running", static_cast<double>(s.running)),
      Gauge("senko:num_requests_waiting", "Requests of which nothing has run yet", static_cast<double>(s.waiting)),
      Gauge("senko:kv_cache_usage_perc", "Part of the KV pages that running sequences hold, 0 to 1", usage),
      Gauge("senko:kv_cache_slots_in_use", "Slots of private state that sequences hold",
            static_cast<double>(s.slots_in_use)),
      Gauge("senko:kv_cache_pages_cached", "KV pages that are kept for later hits only",
            static_cast<double>(s.pages_cached)),
      Gauge("senko:workspace_bytes", "Memory of a step's activations and logits, fixed at start",
            static_cast<double>(s.workspace_bytes)),
      Count("senko:num_preemptions_total", "Sequences that gave way and started again", s.preemptions),
      Count("senko:engine_steps_total", "Steps of the engine", s.steps),
      Count("senko:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache", s.prefix_queries),
      Count("senko:prefix_cache_hits_total", "Prompt tokens found in the prefix cache", s.prefix_hits),
      Count("senko:replayed_tokens_total", "Cached tokens run again for their windows", s.replayed_tokens),
      Count("senko:trimmed_rows_total", "Rows that skipped the decoder pass", s.trimmed_rows),
      Count("senko:prompt_tokens_total", "Prompt tokens of admitted requests", s.prompt_tokens),
      Count("senko:generation_tokens_total", "Tokens generated", s.generation_tokens),
      Count("senko:compute_cpu_seconds_total", "CPU time of the threads that run steps, in steps: model and sampler",
            s.compute_cpu_seconds),
  };
}

std::vector<Sample> HttpSamples(const HttpStats& s) {
  return {
      Gauge("senko:http_connections", "Open connections", static_cast<double>(s.connections)),
      Gauge("senko:http_requests_in_flight",
            "Requests with a handler, and those of whose answer more than 64 KiB wait to be sent",
            static_cast<double>(s.requests_in_flight)),
      Gauge("senko:http_buffered_body_bytes", "Bytes of request bodies held",
            static_cast<double>(s.buffered_body_bytes)),
      Gauge("senko:http_buffered_answer_bytes", "Bytes of answers held until they are sent",
            static_cast<double>(s.buffered_answer_bytes)),
      Count("senko:http_connections_total", "Connections accepted", s.accepted),
      Count("senko:http_requests_total", "Requests read", s.requests),
      Count("senko:http_refused_total", "Requests refused for load or rate", s.refused),
      Count("senko:http_clients_gone_total", "Clients that left before their answer's end", s.clients_gone),
      Count("senko:http_no_room_total",
            "Answers refused and streams cut because --max-buffered-answer-bytes left no room", s.no_room),
  };
}

// Names and meanings are those of Prometheus' client libraries.
std::vector<Sample> ProcessSamples(const ProcessStats& s) {
  std::vector<Sample> samples = {
      Count("process_cpu_seconds_total", "CPU time of all threads, user and system", s.cpu_seconds),
      Gauge("process_resident_memory_bytes", "Resident memory", static_cast<double>(s.resident_bytes)),
      Gauge("process_open_fds", "Open file descriptors", static_cast<double>(s.open_files)),
      Gauge("process_max_fds", "Most file descriptors that may be open", static_cast<double>(s.max_files)),
  };
  for (Sample& sample : samples) sample.common_labels = false;
  return samples;
}

}  // namespace

EngineMetrics::EngineMetrics(MetricsRegistry* registry, std::function<std::optional<EngineStats>()> engine,
                             std::function<HttpStats()> http)
    : queue_time_(registry->AddHistogram("senko:request_queue_time_seconds", "From arrival to the first row run",
                                         Seconds(1e-3, 1e3))),
      first_token_(registry->AddHistogram("senko:time_to_first_token_seconds", "From arrival to the first token",
                                          Seconds(1e-3, 1e3))),
      inter_token_(registry->AddHistogram("senko:inter_token_latency_seconds", "Between two tokens of one choice",
                                          Seconds(5e-4, 1e1))),
      end_to_end_(registry->AddHistogram("senko:e2e_request_latency_seconds", "From arrival to the last token",
                                         Seconds(1e-2, 5e3))),
      stop_(Finished(registry, "stop")),
      length_(Finished(registry, "length")),
      abort_(Finished(registry, "abort")),
      error_(Finished(registry, "error")) {
  registry->AddSamples([engine = std::move(engine)] {
    const std::optional<EngineStats> stats = engine();
    return stats ? EngineSamples(*stats) : std::vector<Sample>();
  });
  registry->AddSamples([http = std::move(http)] { return HttpSamples(http()); });
  registry->AddSamples([] { return ProcessSamples(ReadProcessStats()); });
}

void EngineMetrics::OnScheduled(double queue_s) { queue_time_->Observe(queue_s); }
void EngineMetrics::OnFirstToken(double since_arrival_s) { first_token_->Observe(since_arrival_s); }

void EngineMetrics::OnTokens(int64_t tokens, double gap_s) {
  constexpr int64_t kMostAtOnce = 64;  // more than a step ever verifies
  for (int64_t i = 0; i < std::min(tokens, kMostAtOnce); ++i) {
    inter_token_->Observe(gap_s / static_cast<double>(tokens));
  }
}

void EngineMetrics::OnFinished(const api::RequestRecord& record) {
  if (record.finish == "length") {
    length_->Add(1);
  } else if (record.finish == "cancelled" || record.status == 499) {
    abort_->Add(1);
  } else if (record.finish == "error" || record.status >= 400) {
    error_->Add(1);
  } else {
    stop_->Add(1);
  }
  if (record.total_s >= 0 && record.status == 200) end_to_end_->Observe(record.total_s);
}

}  // namespace senko::server
