#include "server/gate.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "server/error_body.h"

namespace senko::server {
namespace {

constexpr std::string_view kJson = "application/json";
constexpr int64_t kRetryLaterSeconds = 5;  // while loading or draining

Verdict AnswerNow(int status, std::string_view content_type, std::string body) {
  Verdict verdict;
  verdict.status = status;
  verdict.content_type = content_type;
  verdict.body = std::move(body);
  return verdict;
}

// A preflight's list of header names, to be repeated to it: short, and names alone. Clients add headers of their own,
// which the server ignores (openai-js x-stainless-*), so no list of ours would do.
bool IsListOfNames(std::string_view text) {
  constexpr size_t kMaxBytes = 4096;
  constexpr std::string_view kNameCharacters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~";
  return text.size() <= kMaxBytes && text.find_first_of(kNameCharacters) != std::string_view::npos &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return c == ',' || c == ' ' || kNameCharacters.find(c) != std::string_view::npos; });
}

bool IsGet(const api::HttpRequest& head) { return head.method == "GET" || head.method == "HEAD"; }

Verdict OptionsAnswer(const std::string& allow) {
  Verdict verdict = AnswerNow(204, "", "");
  verdict.headers.emplace_back("Allow", allow);
  return verdict;
}

Verdict WrongMethod(const api::HttpRequest& head, const std::string& allow) {
  if (head.method == "OPTIONS") return OptionsAnswer(allow);
  Verdict verdict = Gate::Refuse(head.path, 405, "this path does not take this method", "method_not_allowed");
  verdict.headers.emplace_back("Allow", allow);
  return verdict;
}

std::string AllowedMethods(const std::vector<const api::Route*>& routes) {
  std::string allow;
  for (const api::Route* route : routes) {
    allow += route->method + ", ";
    if (route->method == "GET") allow += "HEAD, ";
  }
  return allow + "OPTIONS";
}

}  // namespace

Gate::Gate(HttpOptions options, std::vector<api::Route> routes, HttpHooks hooks)
    : options_(std::move(options)),
      hooks_(std::move(hooks)),
      keys_(options_.api_keys),
      rate_limit_(options_.requests_per_minute, std::max<size_t>(1, keys_.size())),
      routes_(std::make_shared<RouteTable>(std::move(routes))),
      bodies_(std::make_shared<Ledger>(options_.max_buffered_body_bytes)),
      answers_(std::make_shared<Ledger>(options_.max_buffered_answer_bytes)) {}

void Gate::SetRoutes(std::vector<api::Route> routes) {
  auto table = std::make_shared<const RouteTable>(std::move(routes));
  const std::lock_guard lock(routes_mutex_);
  routes_ = std::move(table);
}

Verdict Gate::Refuse(std::string_view path, int status, std::string_view message, std::string_view code) {
  return AnswerNow(status, kJson, HttpErrorBody(path, status, message, code));
}

Verdict Gate::Overloaded(std::string_view path, int status, std::string_view message, int64_t retry_after) {
  ++refused;
  Verdict verdict = Refuse(path, status, message, status == 429 ? "rate_limit_exceeded" : "overloaded");
  verdict.headers.emplace_back("Retry-After", std::to_string(retry_after));
  return verdict;
}

Verdict Gate::RefuseForNow(std::string_view path) {
  if (!draining_) return Overloaded(path, 503, "too many requests in flight", 1);
  Verdict verdict = Overloaded(path, 503, "the server is shutting down", kRetryLaterSeconds);
  verdict.close = true;
  return verdict;
}

// Routes that the server answers itself, on the I/O thread.
bool Gate::BuiltIn(const api::HttpRequest& head, Verdict* verdict) const {
  const bool ready = head.path == "/ready", version = head.path == "/version", metrics = head.path == "/metrics";
  if (!ready && !version && !metrics) return false;
  if (!IsGet(head)) {
    *verdict = WrongMethod(head, "GET, HEAD, OPTIONS");
  } else if (version) {
    *verdict = AnswerNow(200, kJson, DumpJson(Json{{"version", hooks_.version}}));
  } else if (metrics) {
    *verdict = AnswerNow(200, "text/plain; version=0.0.4; charset=utf-8", hooks_.metrics ? hooks_.metrics() : "");
  } else {
    std::string reason = draining_ ? "draining" : hooks_.not_ready ? hooks_.not_ready() : "";
    if (reason.empty()) {
      *verdict = AnswerNow(200, kJson, R"({"status":"ready"})");
    } else {
      *verdict = AnswerNow(503, kJson, DumpJson(Json{{"status", "not ready"}, {"reason", reason}}));
      verdict->headers.emplace_back("Retry-After", std::to_string(kRetryLaterSeconds));
    }
  }
  return true;
}

void Gate::AddCors(const api::HttpRequest& head, Verdict* verdict) const {
  const std::string_view origin = head.Header("origin");
  if (origin.empty() || options_.allowed_origins.empty()) return;
  const bool allowed = std::any_of(options_.allowed_origins.begin(), options_.allowed_origins.end(),
                                   [&](const std::string& o) { return o == "*" || o == origin; });
  verdict->common.emplace_back("Vary", "Origin");
  if (!allowed) return;
  verdict->common.emplace_back("Access-Control-Allow-Origin", std::string(origin));
  verdict->common.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  if (head.method == "OPTIONS" && !head.Header("access-control-request-method").empty()) {
    // A browser asks without a key whether it may ask with one.
    const std::string_view wanted = head.Header("access-control-request-headers");
    verdict->status = 204;
    verdict->headers = {
        {"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
        {"Access-Control-Allow-Headers",
         IsListOfNames(wanted) ? std::string(wanted)
                               : "Authorization, Content-Type, X-Api-Key, X-Request-Id, Anthropic-Version"},
        {"Vary", "Access-Control-Request-Headers"},
        {"Access-Control-Max-Age", "600"}};
  }
}

Verdict Gate::Judge(const api::HttpRequest& head, bool over_limit, TimePoint now) {
  Verdict cors;
  AddCors(head, &cors);
  if (cors.status != 0) return cors;
  // What every answer below shares.
  const auto with_common = [&](Verdict verdict) {
    verdict.common = cors.common;
    verdict.key = cors.key;
    verdict.key_hash = cors.key_hash;
    return verdict;
  };

  if (head.path == "/health") {
    if (!IsGet(head)) return with_common(WrongMethod(head, "GET, HEAD, OPTIONS"));
    return with_common(AnswerNow(200, kJson, R"({"status":"ok"})"));
  }
  if (over_limit) return with_common(Overloaded(head.path, 503, "too many connections", 1));

  std::shared_ptr<const RouteTable> table;
  {
    const std::lock_guard lock(routes_mutex_);
    table = routes_;
  }
  const std::vector<const api::Route*>& routes = table->Find(head.path);
  const bool open = !routes.empty() && std::none_of(routes.begin(), routes.end(),
                                                    [](const api::Route* route) { return route->needs_key; });
  int key = 0;
  if (!keys_.empty() && !open) {
    key = keys_.Find(head);
    if (key == ApiKeys::kNone) {
      Verdict verdict = Refuse(head.path, 401, "a valid API key is needed, once: Authorization: Bearer, or x-api-key",
                               "invalid_api_key");
      verdict.headers.emplace_back("WWW-Authenticate", "Bearer");
      return with_common(std::move(verdict));
    }
    cors.key = keys_.key(key);
    cors.key_hash = keys_.short_hash(key);
  }

  Verdict verdict;
  if (head.path == "*" && head.method == "OPTIONS") return with_common(OptionsAnswer("GET, HEAD, POST, OPTIONS"));
  if (BuiltIn(head, &verdict)) return with_common(std::move(verdict));

  // While loading there may be no routes yet: "later" is then a truer answer than "unknown".
  const std::string not_ready = draining_ ? "draining" : hooks_.not_ready ? hooks_.not_ready() : "";
  if (routes.empty() && not_ready.empty())
    return with_common(Refuse(head.path, 404, "there is no such path", "not_found"));
  const std::string_view method = head.method == "HEAD" ? "GET" : std::string_view(head.method);
  const auto route =
      std::find_if(routes.begin(), routes.end(), [&](const api::Route* r) { return r->method == method; });
  if (!routes.empty() && route == routes.end()) return with_common(WrongMethod(head, AllowedMethods(routes)));
  if (draining_) return with_common(RefuseForNow(head.path));
  if (!not_ready.empty()) return with_common(Overloaded(head.path, 503, not_ready, kRetryLaterSeconds));
  const std::string_view coding = head.Header("content-encoding");
  if (!coding.empty() && coding != "identity") {
    return with_common(
        Refuse(head.path, 415, "a body with a Content-Encoding is not read here", "unsupported_encoding"));
  }
  if (in_flight_ >= options_.max_requests_in_flight) return with_common(RefuseForNow(head.path));
  if (const int64_t seconds = rate_limit_.Take(key, now); seconds > 0) {
    return with_common(Overloaded(head.path, 429, "too many requests in a minute", seconds));
  }
  verdict.pass = true;
  verdict.routes = std::move(table);
  verdict.route = *route;
  return with_common(std::move(verdict));
}

// Busy first, then the look: whoever begins to drain later than this look waits for it.
Gate::Admission Gate::Admit() {
  Admission admission;
  admission.busy = TakeBusy();
  if (!draining_) admission.place = TakePlace();
  return admission;
}

std::shared_ptr<void> Gate::TakePlace() {
  if (++in_flight_ > options_.max_requests_in_flight) {
    --in_flight_;
    return nullptr;
  }
  return std::shared_ptr<void>(this, [self = shared_from_this()](void*) { --self->in_flight_; });
}

std::shared_ptr<void> Gate::TakeBusy() {
  {
    const std::lock_guard lock(busy_mutex_);
    ++busy_;
  }
  return std::shared_ptr<void>(this, [self = shared_from_this()](void*) {
    const std::lock_guard lock(self->busy_mutex_);
    if (--self->busy_ == 0) self->idle_.notify_all();
  });
}

void Gate::BeginDrain() { draining_ = true; }

bool Gate::WaitUntilIdle(std::chrono::milliseconds timeout) {
  std::unique_lock lock(busy_mutex_);
  idle_.wait_for(lock, timeout, [this] { return busy_ == 0 || end_wait_; });
  return busy_ == 0 && !cut_short_;
}

void Gate::EndWait() {
  const std::lock_guard lock(busy_mutex_);
  end_wait_ = true;
  cut_short_ = cut_short_ || busy_ != 0;
  idle_.notify_all();
}

HttpStats Gate::stats() const {
  HttpStats s;
  s.connections = connections;
  s.requests_in_flight = in_flight_;
  s.buffered_body_bytes = bodies_->held();
  s.buffered_answer_bytes = answers_->held();
  s.accepted = accepted;
  s.requests = requests;
  s.refused = refused;
  s.clients_gone = clients_gone;
  s.no_room = answers_->refusals();
  return s;
}

}  // namespace senko::server
