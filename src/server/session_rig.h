// A session with a clock that stands still and a client that is a string.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/session.h"

namespace senko::server {

struct SessionRig {
  struct RungBell : Bell {
    void Ring() noexcept override { rung = true; }
    bool rung = false;
  };

  explicit SessionRig(const HttpOptions& options = {}, bool over_limit = false, HttpHooks hooks = {}) {
    hooks.access_log = [this](const AccessRecord& record) { records.push_back(record); };
    gate = std::make_shared<Gate>(options, Routes(), std::move(hooks));
    session = std::make_unique<Session>(gate, bell, over_limit, now);
  }

  std::vector<api::Route> Routes() {
    const auto echo = [](const api::HttpRequest& request, const std::shared_ptr<api::Exchange>& exchange) {
      exchange->Reply(200, "text/plain", request.body);
    };
    const auto hold = [this](const api::HttpRequest&, std::shared_ptr<api::Exchange> exchange) {
      held.push_back(std::move(exchange));
    };
    return {{"POST", "/echo", echo}, {"GET", "/echo", echo}, {"POST", "/hold", hold}, {"GET", "/hold", hold}};
  }

  void Input(std::string_view bytes) { session->OnInput(bytes, now); }
  void Wait(std::chrono::milliseconds time) {
    now += time;
    session->OnTime(now);
  }
  // What a client that takes at most `limit` bytes gets; time does not move.
  std::string Output(size_t limit = size_t{1} << 30) {
    std::string out;
    for (;;) {
      if (std::exchange(bell->rung, false)) session->OnRing(now);
      if (!session->HasOutput() || out.size() >= limit) return out;
      size_t taken = 0;
      for (const std::string_view piece : session->Output()) {
        const std::string_view part = piece.substr(0, limit - out.size());
        out += part;
        taken += part.size();
        if (part.size() < piece.size()) break;
      }
      session->Wrote(taken, now);
    }
  }

  std::vector<std::shared_ptr<api::Exchange>> held;
  std::vector<AccessRecord> records;
  Session::TimePoint now{std::chrono::hours(1)};
  std::shared_ptr<RungBell> bell = std::make_shared<RungBell>();
  std::shared_ptr<Gate> gate;
  std::unique_ptr<Session> session;
};

}  // namespace senko::server
