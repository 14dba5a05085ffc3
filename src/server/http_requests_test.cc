// Requests over a real socket: what is answered, in which order, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/test_server.h"

namespace senko::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(HttpRequests, BuiltInRoutes) {
  std::string reason = "loading the model";
  std::mutex mutex;
  HttpHooks hooks;
  hooks.not_ready = [&] {
    const std::lock_guard lock(mutex);
    return reason;
  };
  hooks.metrics = [] { return std::string("senko:up 1\n"); };
  TestServer server({}, std::move(hooks));

  EXPECT_EQ(server.Ask(Get("/health")).status, 200);
  EXPECT_EQ(server.Ask(Get("/version")).body, R"({"version":"1.2.3"})");
  const TestResponse metrics = server.Ask(Get("/metrics"));
  EXPECT_EQ(metrics.body, "senko:up 1\n");
  EXPECT_THAT(metrics.headers.at("content-type"), HasSubstr("version=0.0.4"));

  TestResponse ready = server.Ask(Get("/ready"));
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, HasSubstr("loading the model"));
  EXPECT_EQ(ready.headers.count("retry-after"), 1u);
  TestResponse early = server.Ask(Post("/echo", "x"));
  EXPECT_EQ(early.status, 503);
  EXPECT_THAT(early.body, HasSubstr("loading the model"));
  EXPECT_EQ(early.headers.count("retry-after"), 1u);
  {
    const std::lock_guard lock(mutex);
    reason.clear();
  }
  EXPECT_EQ(server.Ask(Get("/ready")).status, 200);
  EXPECT_EQ(server.Ask(Post("/echo", "x")).status, 200);
}

TEST(HttpRequests, Methods) {
  TestServer server;
  EXPECT_EQ(server.Ask(Get("/nowhere")).status, 404);
  EXPECT_EQ(server.Ask(Get("/echo/x")).status, 404);
  EXPECT_EQ(server.Ask(Get("/")).status, 404);
  TestResponse wrong = server.Ask("DELETE /echo HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers["allow"], "POST, GET, HEAD, OPTIONS");
  wrong = server.Ask(Get("/hold"));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers["allow"], "POST, OPTIONS");
  wrong = server.Ask(Post("/health", ""));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers["allow"], "GET, HEAD, OPTIONS");
  TestResponse options = server.Ask("OPTIONS /echo HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers["allow"], "POST, GET, HEAD, OPTIONS");
  EXPECT_EQ(options.headers.count("access-control-allow-origin"), 0u);
  EXPECT_EQ(server.Ask("OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n").status, 204);

  for (const char* path : {"/health", "/echo", "/nowhere"}) {
    TestClient client = server.Connect();
    client.Send("HEAD " + std::string(path) + " HTTP/1.1\r\nHost: t\r\n\r\n" + Get("/version"));
    const TestResponse head = client.Read(true);
    EXPECT_EQ(head.status, std::string(path) == "/nowhere" ? 404 : 200);
    EXPECT_GT(std::stoi(head.headers.at("content-length")), 5);
    EXPECT_EQ(client.Read().body, R"({"version":"1.2.3"})") << "a body followed HEAD " << path;
  }
}

TEST(HttpRequests, PathsAndQueries) {
  TestServer server;
  EXPECT_EQ(server.Ask(Get("/models/a%2Fb?x=1%20")).body, "GET /models/a/b x=1%20 ");
  EXPECT_EQ(server.Ask(Get("http://elsewhere/echo?q")).body, "GET /echo q ");
  EXPECT_EQ(server.Ask(Get("/%65cho")).body, "GET /echo  ");
  EXPECT_EQ(server.Ask(Get("/echo%0")).status, 400);
  EXPECT_EQ(server.Ask(Get("/echo%00")).status, 400);
  EXPECT_EQ(server.Ask(Get("echo")).status, 400);
}

TEST(HttpRequests, ByteByByte) {
  TestServer server;
  const std::string request = Post("/echo", "hello") +
                              "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
                              "3;ext=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n" +
                              Get("/version");
  TestClient client = server.Connect();
  for (const char c : request) ASSERT_TRUE(client.Send({&c, 1}));
  EXPECT_EQ(client.Read().body, "POST /echo  hello");
  EXPECT_EQ(client.Read().body, "POST /echo  abc0123456789");
  EXPECT_EQ(client.Read().body, R"({"version":"1.2.3"})");
}

TEST(HttpRequests, PipelinedAnswersKeepTheirOrder) {
  TestServer server;
  TestClient client = server.Connect();
  std::string requests;
  for (int i = 0; i < 300; ++i) requests += i % 3 == 0 ? Get("/version") : Post("/echo", std::to_string(i));
  client.Send(requests);
  for (int i = 0; i < 300; ++i) {
    const TestResponse r = client.Read();
    ASSERT_EQ(r.status, 200) << i;
    if (i % 3 != 0) {
      ASSERT_EQ(r.body, "POST /echo  " + std::to_string(i));
    }
  }
}

TEST(HttpRequests, PipelinedBehindASlowOne) {
  TestServer server;
  TestClient client = server.Connect();
  client.Send(Post("/hold", "a") + Post("/echo", "b"));
  const ExchangePtr first = server.NextHeld();
  ASSERT_NE(first, nullptr);
  EXPECT_FALSE(client.ReadUntil("HTTP", milliseconds(50)));
  first->Reply(201, "text/plain", "first");
  EXPECT_EQ(client.Read().body, "first");
  EXPECT_EQ(client.Read().body, "POST /echo  b");
}

TEST(HttpRequests, ExpectContinue) {
  TestServer server;
  TestClient client = server.Connect();
  client.Send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nExpect: 100-Continue\r\n\r\n");
  EXPECT_EQ(client.Read().status, 100);
  client.Send("abc");
  EXPECT_EQ(client.Read().body, "POST /echo  abc");
  // Refused before anything of the body is asked for.
  client.Send("POST /nowhere HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.Read().status, 404);
  EXPECT_TRUE(client.WaitClosed());
  EXPECT_EQ(server.Ask(Post("/echo", "x", "Expect: miracles\r\n")).status, 417);
}

TEST(HttpRequests, Http10) {
  TestServer server;
  TestClient client = server.Connect();
  client.Send("GET /version HTTP/1.0\r\n\r\n");
  TestResponse r = client.Read();
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.headers["connection"], "close");
  EXPECT_TRUE(client.WaitClosed());

  TestClient keeping = server.Connect();
  for (int i = 0; i < 3; ++i) {
    keeping.Send("GET /version HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    r = keeping.Read();
    EXPECT_EQ(r.headers["connection"], "keep-alive");
    EXPECT_EQ(r.body, R"({"version":"1.2.3"})");
  }

  TestClient stream = server.Connect();
  stream.Send("POST /hold HTTP/1.0\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n");
  const ExchangePtr exchange = server.NextHeld();
  exchange->BeginEvents();
  exchange->Event("one");
  exchange->Event("two");
  exchange->EndEvents();
  r = stream.Read();
  EXPECT_EQ(r.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(r.body, "data: one\n\ndata: two\n\n");
  EXPECT_TRUE(r.complete);
}

TEST(HttpRequests, ConnectionClose) {
  TestServer server;
  TestClient client = server.Connect();
  client.Send(Get("/version", "Connection: close\r\n"));
  EXPECT_EQ(client.Read().headers["connection"], "close");
  EXPECT_TRUE(client.WaitClosed());
}

TEST(HttpRequests, RequestIds) {
  TestServer server;
  EXPECT_EQ(server.Ask(Get("/version", "X-Request-Id: my id-1\r\n")).headers["x-request-id"], "my id-1");
  const std::string longest(128, 'a');
  EXPECT_EQ(server.Ask(Get("/x", "X-Request-Id: " + longest + "\r\n")).headers["x-request-id"], longest);
  std::vector<std::string> made;
  for (const std::string& bad : {std::string(129, 'a'), std::string("caf\xC3\xA9"), std::string("")}) {
    made.push_back(server.Ask(Get("/version", "X-Request-Id: " + bad + "\r\n")).headers["x-request-id"]);
  }
  made.push_back(server.Ask("nonsense\r\n\r\n").headers["x-request-id"]);
  for (const std::string& id : made) EXPECT_EQ(id.size(), 36u) << id;
  std::sort(made.begin(), made.end());
  EXPECT_EQ(std::unique(made.begin(), made.end()), made.end());
}

TEST(HttpRequests, MalformedRequestsAreRefusedAndTheConnectionEnds) {
  TestServer server;
  const std::string ok = "POST /echo HTTP/1.1\r\nHost: t\r\n";
  const std::vector<std::pair<int, std::string>> cases = {
      {400, ok + "Content-Length: -1\r\n\r\n"},
      {400, ok + "Content-Length: +1\r\n\r\nx"},
      {400, ok + "Content-Length: 1x\r\n\r\nx"},
      {400, ok + "Content-Length: 0x1\r\n\r\nx"},
      {400, ok + "Content-Length: 99999999999999999999\r\n\r\n"},
      {400, ok + "Content-Length: 1, 1\r\n\r\nx"},
      {400, ok + "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx"},
      {400, ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx"},
      {400, ok + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, ok + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n"},
      {400, ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {501, ok + "Transfer-Encoding: gzip\r\n\r\n"},
      {501, ok + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
      {400, ok + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n"},
      {400, ok + "Transfer-Encoding: chunked\r\n\r\n-1\r\n"},
      {400, ok + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"},
      {400, ok + "Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n"},
      {400, "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, "POST /echo HTTP/1.1\r\n\r\n"},
      {400, ok + "Host: u\r\n\r\n"},
      {400, ok + "No colon\r\n\r\n"},
      {400, ok + "Space : x\r\n\r\n"},
      {400, ok + "Bad: a\x01z\r\n\r\n"},
      {400, std::string("GET /\0 HTTP/1.1\r\nHost: t\r\n\r\n", 28)},
      {400, "GET\r\n\r\n"},
      {400, "GET  /echo HTTP/1.1\r\nHost: t\r\n\r\n"},
      {400, "GET /echo\r\n\r\n"},
      {400, "GET /echo JUNK/1.1\r\nHost: t\r\n\r\n"},
      {505, "GET /echo HTTP/2.0\r\nHost: t\r\n\r\n"},
      {505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
      {400, "\x16\x03\x01\x02\x01"},  // TLS: answered at its first byte
      {400, "{\"json\": 1}"},
  };
  for (const auto& [status, request] : cases) {
    TestClient client = server.Connect();
    client.Send(request);
    const TestResponse r = client.Read();
    EXPECT_EQ(r.status, status) << request;
    EXPECT_EQ(r.headers.count("x-request-id"), 1u) << request;
    EXPECT_THAT(r.body, HasSubstr(R"("error")")) << request;
    EXPECT_LT(r.body.size(), 4096u);
    EXPECT_TRUE(client.WaitClosed(milliseconds(10'000))) << request;
  }
  EXPECT_EQ(server.Ask(Get("/health")).status, 200);
}

TEST(HttpRequests, RefusedWithAShortBodyGoesOn) {
  TestServer server;
  TestClient client = server.Connect();
  for (int i = 0; i < 3; ++i) {
    client.Send(Post("/nowhere", std::string(1000, 'x')));
    EXPECT_EQ(client.Read().status, 404);
  }
  client.Send(Post("/echo", "still here"));
  EXPECT_EQ(client.Read().body, "POST /echo  still here");
}

TEST(HttpRequests, HandlersThatFail) {
  TestServer server;
  TestClient client = server.Connect();
  client.Send(Post("/throw", ""));
  const TestResponse thrown = client.Read();
  EXPECT_EQ(thrown.status, 500);
  EXPECT_THAT(thrown.body, Not(HasSubstr("secret")));
  client.Send(Post("/drop", ""));
  EXPECT_EQ(client.Read().status, 500);
  client.Send(Post("/echo", "x"));
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(server.Ask(Post("/echo", "x", "Content-Encoding: gzip\r\n")).status, 415);
}

TEST(HttpRequests, ErrorsOfHttpFollowThePathsApi) {
  HttpOptions options;
  options.max_body_bytes = 10;
  TestServer server(options);
  TestResponse r = server.Ask(Post("/v1/messages", "01234567890"));
  EXPECT_EQ(r.status, 413);
  EXPECT_THAT(r.body, HasSubstr(R"({"type":"error","error":{"type":"request_too_large")"));
  r = server.Ask(Post("/echo", "01234567890"));
  EXPECT_EQ(r.status, 413);
  EXPECT_THAT(r.body, HasSubstr(R"("param":null)"));
  // Nothing of the request comes back.
  EXPECT_THAT(server.Ask(Get("/marker-in-path", "H: marker\r\n")).body, Not(HasSubstr("marker")));
}

TEST(HttpRequests, KeysGuardEveryRouteButHealth) {
  HttpOptions options;
  options.api_keys = {"first-key", "second-key"};
  TestServer server(options);
  const std::vector<std::string> paths = {"/ready",    "/version", "/metrics", "/echo",        "/hold", "/docs",
                                          "/models/x", "/nowhere", "/",        "/v1/messages", "*"};
  const std::string good = "Authorization: Bearer first-key\r\n";
  const std::vector<std::string> refused = {
      "",
      "Authorization: Bearer wrong\r\n",
      "Authorization: Bearer first-ke\r\n",
      "Authorization: Bearer first-key2\r\n",
      "Authorization: Bearer \r\n",
      "Authorization: Basic first-key\r\n",
      "Authorization: first-key\r\n",
      "Authorization:\r\n",
      good + good,
      good + "Authorization: Bearer wrong\r\n",
      "Authorization: Bearer wrong\r\n" + good,
      "x-api-key: first-key\r\nx-api-key: first-key\r\n",
      good + "x-api-key: wrong\r\n",
      good + "x-api-key: second-key\r\n",
      "x-api-key: \r\n",
  };
  for (const std::string& path : paths) {
    for (const std::string method : {"GET", "POST", "HEAD", "OPTIONS", "PUT"}) {
      for (const std::string& headers : refused) {
        const TestResponse r = server.Ask(method + " " + path + " HTTP/1.1\r\nHost: t\r\n" + headers + "\r\n");
        ASSERT_EQ(r.status, 401) << method << path << headers;
        ASSERT_EQ(r.headers.at("www-authenticate"), "Bearer");
      }
    }
  }
  for (const std::string& headers : refused) EXPECT_EQ(server.Ask(Get("/health", headers)).status, 200);
  EXPECT_EQ(server.Ask(Get("/version", good)).status, 200);
  EXPECT_EQ(server.Ask(Get("/nowhere", good)).status, 404);
  EXPECT_EQ(server.Ask(Get("/echo", "authorization: bearer  second-key\r\n")).headers["x-key"], "second-key");
  EXPECT_EQ(server.Ask(Get("/echo", "X-Api-Key: first-key\r\n")).headers["x-key"], "first-key");
  EXPECT_EQ(server.Ask(Get("/echo", good + "X-Api-Key: first-key\r\n")).headers["x-key"], "first-key");
  // The log names keys by hash.
  for (const AccessRecord& record : server.Records()) {
    EXPECT_EQ(record.key_hash.size(), record.status == 401 || record.path == "/health" ? 0u : 8u);
    EXPECT_THAT(AccessLine(record), Not(HasSubstr("-key")));
  }
}

TEST(HttpRequests, CrossOrigin) {
  HttpOptions options;
  options.allowed_origins = {"https://ours"};
  options.api_keys = {"k"};
  TestServer server(options);
  const std::string preflight = "Access-Control-Request-Method: POST\r\n";
  TestResponse r = server.Ask("OPTIONS /echo HTTP/1.1\r\nHost: t\r\nOrigin: https://ours\r\n" + preflight + "\r\n");
  EXPECT_EQ(r.status, 204);
  EXPECT_EQ(r.headers["access-control-allow-origin"], "https://ours");
  EXPECT_THAT(r.headers["access-control-allow-headers"], HasSubstr("Authorization"));
  EXPECT_EQ(r.headers["vary"], "Origin, Access-Control-Request-Headers");  // both decide what the answer is
  // Clients send headers of their own; a page may send any, as long as the list is one.
  const auto allowed = [&](const std::string& wanted) {
    return server
        .Ask("OPTIONS /echo HTTP/1.1\r\nHost: t\r\nOrigin: https://ours\r\n" + preflight +
             "Access-Control-Request-Headers: " + wanted + "\r\n\r\n")
        .headers["access-control-allow-headers"];
  };
  for (const std::string wanted :
       {"authorization,content-type,x-stainless-arch,x-stainless-retry-count",
        "anthropic-dangerous-direct-browser-access, anthropic-version, x-api-key", "a", "!#$%&'*+-.^_`|~9zZ"}) {
    EXPECT_EQ(allowed(wanted), wanted);
  }
  const std::string longest(4096, 'a');
  EXPECT_EQ(allowed(longest), longest);
  for (const std::string& wanted :
       {longest + "a", std::string("a: b"), std::string("a;b"), std::string("\"a\""), std::string("caf\xC3\xA9"),
        std::string("a\tb"), std::string(", ,"), std::string()}) {
    EXPECT_THAT(allowed(wanted), HasSubstr("Authorization")) << wanted;
  }
  r = server.Ask("OPTIONS /echo HTTP/1.1\r\nHost: t\r\nOrigin: https://theirs\r\n" + preflight + "\r\n");
  EXPECT_EQ(r.status, 401);
  EXPECT_EQ(r.headers.count("access-control-allow-origin"), 0u);
  EXPECT_EQ(r.headers["vary"], "Origin");
  r = server.Ask(Post("/echo", "x", "Origin: https://ours\r\nAuthorization: Bearer k\r\n"));
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.headers["access-control-allow-origin"], "https://ours");
  r = server.Ask(Post("/echo", "x", "Origin: https://ours\r\n"));  // a page may read why it failed
  EXPECT_EQ(r.status, 401);
  EXPECT_EQ(r.headers["access-control-allow-origin"], "https://ours");
}

TEST(HttpRequests, OneLogLineEach) {
  TestServer server;
  // A line is written once the answer has left: one request after the other, each line waited for.
  const auto record_of = [&](const std::string& request, size_t number) {
    server.Ask(request);
    EXPECT_TRUE(Eventually([&] { return server.Records().size() == number; }));
    return server.Records().back();
  };
  const AccessRecord echo = record_of(Post("/echo", "abc", "X-Request-Id: one\r\n"), 1);
  EXPECT_EQ(echo.id, "one");
  EXPECT_EQ(echo.method, "POST");
  EXPECT_EQ(echo.path, "/echo");
  EXPECT_EQ(echo.status, 200);
  EXPECT_GT(echo.bytes, 100u);
  EXPECT_GE(echo.seconds, 0);
  EXPECT_LT(echo.seconds, 10);
  EXPECT_FALSE(echo.gone);
  EXPECT_EQ(record_of("nonsense\r\n\r\n", 2).status, 400);
  const AccessRecord nowhere = record_of(Get("/nowhere?secret=1"), 3);
  EXPECT_EQ(nowhere.path, "/nowhere");
  EXPECT_THAT(AccessLine(nowhere), HasSubstr(R"("status":404)"));
}

TEST(HttpRequests, PortInUseIsNamed) {
  TestServer server;
  HttpOptions options;
  options.port = server.port();
  HttpServer second(options, {});
  try {
    second.Start();
    FAIL() << "two servers on one port";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), HasSubstr("--port"));
  }
}

}  // namespace
}  // namespace senko::server
