// Who shares cached prefixes: what the engine is given as a salt, in every route.
#include <gtest/gtest.h>

#include <set>

#include "api/test_api.h"

namespace senko::api {
namespace {

struct RouteCase {
  const char* path;
  Json body;
};
const std::vector<RouteCase>& Routes() {
  static const std::vector<RouteCase> routes = {
      {"/v1/chat/completions", UserChat()},
      {"/v1/completions", {{"prompt", "hi"}}},
      {"/v1/responses", {{"input", "hi"}}},
      {"/v1/messages", ChatWith("max_tokens", 9)},
  };
  return routes;
}

std::string SaltOf(TestApi* api, const RouteCase& route, const std::string& key, const std::string& salt) {
  Json body = route.body;
  if (!salt.empty()) body["cache_salt"] = salt;
  EXPECT_EQ(api->Post(route.path, body, key)->status, 200) << route.path;
  return api->engine.submitted().back().cache_salt;
}

TEST(PrefixScope, OfEachKeyAndSaltAndOfEveryRouteTheSame) {
  TestApi api;
  std::set<std::string> salts;
  for (const std::string key : {"", "a", "b", "ab"}) {
    for (const std::string salt : {"", "a", "b", "ab"}) {
      const std::string first = SaltOf(&api, Routes()[0], key, salt);
      EXPECT_TRUE(salts.insert(first).second) << key << " " << salt << " shares " << first;
      for (const RouteCase& route : Routes()) EXPECT_EQ(SaltOf(&api, route, key, salt), first) << route.path;
    }
  }
  EXPECT_TRUE(salts.contains(""));  // without keys and salts everybody shares
  // The key itself is nobody's business.
  EXPECT_EQ(SaltOf(&api, Routes()[0], "a-secret-key", "").find("secret"), std::string::npos);
}

// No salt imitates what a key's holder gets.
TEST(PrefixScope, NoSaltIsAnothersKey) {
  TestApi api;
  const std::string victim = SaltOf(&api, Routes()[0], "b", "");
  EXPECT_NE(SaltOf(&api, Routes()[0], "a", victim), victim);
  EXPECT_NE(SaltOf(&api, Routes()[0], "a", "b"), victim);
}

TEST(PrefixScope, KeysShareWhereTheServerSaysSo) {
  TestApi api;
  ApiOptions options{{"m"}};
  options.keys_share_prefixes = true;
  const ApiContext* before = api.context.get();
  ASSERT_NE(before, nullptr);
  api.context = std::make_unique<ApiContext>(api.engine, api.tokenizer, &api.tools_prompt, options);
  api.routes = MakeRoutes(*api.context);
  EXPECT_EQ(SaltOf(&api, Routes()[0], "a", ""), SaltOf(&api, Routes()[0], "b", ""));
  EXPECT_EQ(SaltOf(&api, Routes()[0], "a", "x"), SaltOf(&api, Routes()[0], "b", "x"));
  EXPECT_NE(SaltOf(&api, Routes()[0], "a", "x"), SaltOf(&api, Routes()[0], "a", ""));
}

TEST(PrefixScope, AnEmptySaltIsRefusedEverywhere) {
  TestApi api;
  for (const RouteCase& route : Routes()) {
    for (const Json& salt : {Json(""), Json(3), Json(std::string(1025, 's'))}) {
      Json body = route.body;
      body["cache_salt"] = salt;
      const auto refused = api.Post(route.path, body);
      EXPECT_EQ(refused->status, 400) << route.path << " " << refused->body;
      EXPECT_NE(refused->body.find("cache_salt "), std::string::npos) << refused->body;
    }
  }
  EXPECT_TRUE(api.engine.submitted().empty());
}

}  // namespace
}  // namespace senko::api
