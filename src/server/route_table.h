// Path -> routes.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "api/exchange.h"

namespace senko::server {

// Immutable.
class RouteTable {
 public:
  explicit RouteTable(std::vector<api::Route> routes);

  // The routes of one path, one for each method; the longest prefix wins where no path fits exactly. Empty: unknown.
  const std::vector<const api::Route*>& Find(std::string_view path) const;

 private:
  using Routes = std::vector<const api::Route*>;
  const std::vector<api::Route> routes_;
  std::unordered_map<std::string, Routes> exact_;
  std::vector<std::pair<std::string, Routes>> prefixes_;  // longest first
};

}  // namespace senko::server
