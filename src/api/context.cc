#include "api/context.h"

#include <algorithm>

#include "base/check.h"

namespace senko::api {

ApiContext::ApiContext(Engine& engine, const text::Tokenizer& tokenizer, const text::ToolsPrompt* tools_prompt,
                       ApiOptions options, RequestMetrics* metrics, RequestLog log)
    : engine_(&engine),
      tokenizer_(&tokenizer),
      tools_prompt_(tools_prompt),
      options_(std::move(options)),
      limits_(engine.limits()),
      metrics_(metrics),
      log_(std::move(log)),
      call_memory_(options_.call_memory_bytes),
      started_(UnixSeconds()),
      output_workers_(options_.output_threads),
      request_workers_(options_.request_threads, Workers::Jobs::kLong) {
  SENKO_CHECK(!options_.model_names.empty());
}

ApiContext::~ApiContext() {
  request_workers_.Stop();
  output_workers_.Stop();
}

void ApiContext::ReadSoon(size_t bytes, std::function<void()> work) {
  if (bytes <= kInlineBodyBytes) return work();
  const size_t requests = ++waiting_requests_, all_bytes = waiting_bytes_ += bytes;
  // Given back when the work is done, and also when it never comes to that.
  const std::shared_ptr<void> place(nullptr, [this, bytes](void*) {
    --waiting_requests_;
    waiting_bytes_ -= bytes;
  });
  // One that is larger than the limit alone may wait alone.
  if (requests > options_.max_waiting_requests || all_bytes > std::max(options_.max_waiting_bytes, bytes)) {
    throw Error(ErrorCode::kOverloaded, "too many long requests wait to be read; try again later");
  }
  request_workers_.Post([place, work = std::move(work)] { work(); });
}

void ApiContext::Report(const Incoming& incoming, RequestRecord record) const {
  record.id = incoming.http.id;
  record.number = incoming.http.number;
  record.route = incoming.route;
  record.model = options_.model_names[0];
  record.total_s = SecondsSince(incoming.arrived);
  if (metrics_ != nullptr && record.submitted) metrics_->OnFinished(record);
  if (log_) log_(record);
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace senko::api
