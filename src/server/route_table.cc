#include "server/route_table.h"

#include <algorithm>
#include <utility>

namespace senko::server {

RouteTable::RouteTable(std::vector<api::Route> routes) : routes_(std::move(routes)) {
  for (const api::Route& route : routes_) {
    if (!route.path.ends_with('/')) {
      exact_[route.path].push_back(&route);
      continue;
    }
    const auto known = std::find_if(prefixes_.begin(), prefixes_.end(),
                                    [&](const auto& prefix) { return prefix.first == route.path; });
    if (known != prefixes_.end()) {
      known->second.push_back(&route);
    } else {
      prefixes_.emplace_back(route.path, Routes{&route});
    }
  }
  std::stable_sort(prefixes_.begin(), prefixes_.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
}

const std::vector<const api::Route*>& RouteTable::Find(std::string_view path) const {
  static const Routes unknown;
  if (const auto found = exact_.find(std::string(path)); found != exact_.end()) return found->second;
  for (const auto& [prefix, routes] : prefixes_) {
    if (path.starts_with(prefix)) return routes;
  }
  return unknown;
}

}  // namespace senko::server
