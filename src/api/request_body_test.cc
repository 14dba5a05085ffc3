// Bodies of any kind and length, and how a refusal is told (behaviours.md, 8).
#include <gtest/gtest.h>

#include <mutex>

#include "api/test_api.h"

namespace senko::api {
namespace {

constexpr char kPath[] = "/v1/chat/completions";

TEST(RequestBody, BodiesThatAreNoRequest) {
  TestApi api;
  const std::string good = DumpJson(UserChat());
  std::vector<std::string> bodies = {
      "",
      " ",
      "x",
      "null",
      "[]",
      "1",
      "\"a\"",
      good + "x",
      good + good,
      "\xEF\xBB\xBF" + good,
      "{\"messages\":",
      R"({"messages":[{"role":"user","content":"\ud800"}]})",
      R"({"messages":[{"role":"user","content":"\udc00\ud800"}]})",
      R"({"messages":[{"role":"user","content":"\ud83dx"}]})",
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"\ud83d"},{"type":"text","text":"\ude00"}]}]})",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"\xFF\"}]}",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"\xC0\xAF\"}]}",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"\xED\xA0\x80\"}]}",
      R"({"n":1,"n":2,"messages":[{"role":"user","content":"hi"}]})",
      std::string("{\0}", 3)};
  for (const size_t depth : {10u, 65u, 1000u, 100000u}) {
    bodies.push_back("{\"messages\":" + std::string(depth, '['));
    bodies.push_back("{\"messages\":" + std::string(depth, '[') + std::string(depth, ']') + "}");
    std::string objects;
    for (size_t i = 0; i < depth; ++i) objects += "{\"a\":";
    bodies.push_back(objects);
  }
  for (const std::string& body : bodies) {
    SCOPED_TRACE(body.substr(0, 100));
    const auto exchange = api.Post(kPath, body);
    ExpectError(*exchange, 400);
    EXPECT_EQ(exchange->body.find("ud83d"), std::string::npos);
  }
  EXPECT_TRUE(api.engine.submitted().empty());
  EXPECT_EQ(api.Post(kPath, std::string(R"({"messages":[{"role":"user","content":"\ud83d\ude00 \u0000"}]})"))->status,
            200);
}

TEST(RequestBody, ErrorsAreSmallAndEchoNothing) {
  TestApi api;
  const std::string secret = "SECRET" + std::string(100000, 's');
  std::vector<Json> bodies = {ChatWith(secret, 1), ChatWith("model", secret), ChatWith("stop", {secret, ""})};
  Json items = Json::array();
  for (int i = 0; i < 12000; ++i) items.push_back({{"role", secret.substr(0, 50)}, {"content", 7}});
  bodies.push_back({{"messages", items}});
  bodies.push_back(Json{{"messages", {{{"role", "user"}, {"content", {{{"type", secret}, {"text", secret}}}}}}}});
  bodies.push_back(ChatWith("tools", {{{"type", "function"}, {"function", {{"name", secret}}}}}));
  for (const Json& body : bodies) {
    const auto exchange = api.Post(kPath, body);
    EXPECT_GE(exchange->status, 400);
    EXPECT_LT(exchange->body.size(), 1000u);
    EXPECT_EQ(exchange->body.find("ssssssssss"
                                  "sssssssssssssssssssssssssssssssssssssssssssssssssssssssssss"),
              std::string::npos);
  }
  for (const std::string body : {"{\"messages\": SECRET}", "{\"SECRETkey\": 1, \"SECRETkey\": 2}"}) {
    EXPECT_EQ(api.Post(kPath, std::string(body))->body.find("SECRET"), std::string::npos);
  }
}

TEST(RequestBody, WhatTheEngineRefusesIsTold) {
  TestApi api;
  api.engine.on_submit = [](const GenerationRequest&) {
    throw Error(ErrorCode::kOverloaded, "1024 requests wait already");
  };
  for (const bool stream : {false, true}) {
    const auto exchange = api.Post(kPath, ChatWith("stream", stream));
    ExpectError(*exchange, 503, "", "overloaded");
    EXPECT_EQ(exchange->Header("Retry-After"), "1");
  }
  api.engine.on_submit = [](const GenerationRequest&) {
    throw Error(ErrorCode::kInvalidArgument, "stop_token_ids: too many");
  };
  ExpectError(*api.Post(kPath, UserChat()), 400, "stop_token_ids");
  api.engine.on_submit = [](const GenerationRequest&) { throw std::logic_error("secret place in the code"); };
  const auto exchange = api.Post(kPath, UserChat());
  ExpectError(*exchange, 500);
  EXPECT_EQ(exchange->body.find("secret"), std::string::npos);
}

// How long a body may be is the server's to say: here only its values are counted.
TEST(RequestBody, ManyBytesAreReadAndManyValuesAreNot) {
  TestApi api;
  Json body = UserChat();
  body["metadata"] = {{"x", std::string(size_t{65} << 20, 'x')}};
  EXPECT_EQ(api.Post(kPath, body)->status, 200);
  std::string text = "{\"metadata\":[1";
  for (int i = 0; i < 1 << 21; ++i) text += ",1";
  const auto exchange = api.Post(kPath, text + "],\"messages\":[]}");
  ExpectError(*exchange, 400, "metadata");
  EXPECT_NE(exchange->body.find("2097152 values"), std::string::npos);
}

// Long runs of one class, in a tool's result, on a worker: tokenized in linear time (the real splitter).
TEST(RequestBody, LongTexts) {
  TestApi api({}, 64 << 20, &TinyTokenizer());
  api.Say({});
  for (const char* unit : {"Z", "7", " ", "\n", ".", "漢", "\u0301", "\u200d"}) {
    std::string text;
    while (text.size() < 300000) text += unit;
    Json body = UserChat();
    body["messages"].push_back({{"role", "tool"}, {"content", text}});
    EXPECT_EQ(api.Post(kPath, body)->status, 200) << unit;
    EXPECT_EQ(api.tokenizer.Decode(api.engine.submitted().back().prompt, false).find(text) == std::string::npos, false);
  }
}

TEST(RequestBody, TooManyLongOnesAreRefused) {
  TestApi api({}, 1 << 20);
  std::mutex gate;
  gate.lock();
  api.engine.on_submit = [&](const GenerationRequest&) { const std::lock_guard wait(gate); };
  Json body = UserChat(std::string(kInlineBodyBytes, 'x'));
  body["max_tokens"] = 1;
  std::vector<std::shared_ptr<FakeExchange>> all;
  for (int i = 0; i < 400; ++i) all.push_back(api.Begin(kPath, DumpJson(body)));
  gate.unlock();
  int refused = 0;
  for (const auto& exchange : all) {
    EXPECT_TRUE(exchange->Wait());
    refused += exchange->status == 503;
  }
  EXPECT_GE(refused, 400 - 256 - 4);
  EXPECT_EQ(api.Post(kPath, body)->status, 200) << "what has been read no longer waits";
}

}  // namespace
}  // namespace senko::api
