// The same request in any pieces.
#include "server/request_parser.h"

#include <gtest/gtest.h>

#include <random>

namespace senko::server {
namespace {

struct Parsed {
  RequestParser::Progress end = RequestParser::Progress::kMore;
  int heads = 0;
  size_t used = 0;
};

// Feeds `text` with more of it at each call, `step(rest)` bytes at a time.
template <typename Step>
Parsed ParseIn(RequestParser& parser, const std::string& text, const Step& step) {
  Parsed result;
  size_t known = 0;
  while (known < text.size()) {
    known = std::min(text.size(), known + step());
    for (;;) {
      size_t used = 0;
      result.end = parser.Feed(std::string_view(text).substr(result.used, known - result.used), &used);
      result.used += used;
      if (result.end != RequestParser::Progress::kHead) break;
      ++result.heads;
      if (parser.complete()) {
        result.end = RequestParser::Progress::kDone;
        break;
      }
    }
    if (result.end != RequestParser::Progress::kMore) break;
  }
  return result;
}

TEST(RequestParser, CutsDoNotMatter) {
  const std::string one =
      "POST /v1/x?y HTTP/1.1\r\nHost: h\r\nX-Multi: a\r\nX-Multi: b\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "5;a=b\r\nhello\r\n1\r\n \r\n00000005\r\nworld\r\n0\r\nAuthorization: trailer\r\n\r\n";
  const std::string text = one + "GET / HTTP/1.1\r\n";
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 300; ++round) {
    const HttpOptions options;
    RequestParser parser(options);
    const size_t most = 1 + random() % 40;
    const Parsed parsed = ParseIn(parser, text, [&] { return 1 + random() % most; });
    ASSERT_EQ(parsed.end, RequestParser::Progress::kDone);
    ASSERT_EQ(parsed.heads, 1);
    ASSERT_EQ(parsed.used, one.size());
    ASSERT_EQ(parser.request().body, "hello world");
    ASSERT_EQ(parser.request().path, "/v1/x");
    ASSERT_EQ(parser.request().query, "y");
    ASSERT_EQ(parser.request().headers.size(), 4u);  // the trailer is not among them
    ASSERT_EQ(parser.request().Header("x-multi"), "a");
    ASSERT_TRUE(parser.chunked());
    ASSERT_TRUE(parser.keep_alive());
  }
}

// What is wrong with a head is told in the same words whatever the cuts, and not before all of it is there. What comes
// behind it does not count.
TEST(RequestParser, RefusalsDoNotDependOnCuts) {
  struct Bad {
    std::string text;
    int status;
  };
  const std::string host = "Host: h\r\n";
  const std::string line(600, 'x');
  const std::vector<Bad> all = {
      {"GET /\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET / HTTP/1.1\n\n", 400},
      {"GET / HTTP/1.1\n" + host + "\r\n", 400},
      {"GET / HTTP/1.1\r" + host + "\r\n", 400},
      {"GET / HTTP/2.0\r\n" + host + "\r\n", 505},
      {"GET / HTTP/0.9\r\nA : b\r\n\r\n", 505},
      {"G\x01T / HTTP/2.0\r\nA : b\r\n\r\n", 400},
      {"GET nowhere HTTP/1.1\r\nA : b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nA : b\r\n" + host + "\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + host + "\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nA: \x7F\r\n" + host + "Transfer-Encoding: gzip\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip\r\nContent-Length: 1\r\n\r\n", 501},
      {"GET / HTTP/1.1\r\n" + host + "Content-Length: -1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n" + host + "A: b\r\nA: b\r\nA: b\r\nA: b\r\n\r\n", 431},
      {"GET / HTTP/1.1\r\n" + host + "A: " + line + "\r\nB: " + line + "\r\n\r\n", 431},
      {"GET /" + line + line, 431},
      {"GET  /" + line + line + "\r\n\r\n", 431},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n1;" + line + line + "\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nA:" + line + line + "\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n1\r\nabc", 400},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n801\r\nabc", 413},
  };
  HttpOptions options;
  options.max_header_bytes = 1024;
  options.max_header_count = 4;
  options.max_body_bytes = 2048;
  std::mt19937_64 random(std::random_device{}());
  for (const Bad& bad : all) {
    const std::string text = bad.text + "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";
    RequestParser whole(options);
    ASSERT_EQ(ParseIn(whole, text, [&] { return text.size(); }).end, RequestParser::Progress::kBad) << bad.text;
    EXPECT_EQ(whole.fault().status, bad.status) << bad.text;
    for (int round = 0; round < 50; ++round) {
      RequestParser cut(options);
      const size_t most = round == 0 ? 1 : 1 + random() % 60;
      const Parsed parsed = ParseIn(cut, text, [&] { return 1 + random() % most; });
      ASSERT_EQ(parsed.end, RequestParser::Progress::kBad) << bad.text;
      ASSERT_EQ(cut.fault().status, whole.fault().status) << bad.text;
      ASSERT_EQ(cut.fault().message, whole.fault().message) << bad.text;
      ASSERT_EQ(cut.request().path, whole.request().path) << bad.text;
    }
  }
}

TEST(RequestParser, StopsBehindTheHead) {
  const HttpOptions options;
  RequestParser parser(options);
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nConnection: close\r\n\r\n";
  size_t used = 0;
  EXPECT_EQ(parser.Feed(head + "abcd", &used), RequestParser::Progress::kHead);
  EXPECT_EQ(used, head.size());
  EXPECT_FALSE(parser.complete());
  EXPECT_EQ(parser.content_length(), 3u);
  EXPECT_FALSE(parser.keep_alive());
  EXPECT_EQ(parser.Feed("abcd", &used), RequestParser::Progress::kDone);
  EXPECT_EQ(used, 3u);
  EXPECT_EQ(parser.request().body, "abc");
}

TEST(RequestParser, ADiscardedBodyIsNotKept) {
  const HttpOptions options;
  RequestParser parser(options);
  size_t used = 0;
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n";
  ASSERT_EQ(parser.Feed(head, &used), RequestParser::Progress::kHead);
  parser.DiscardBody();
  EXPECT_EQ(parser.Feed("abc", &used), RequestParser::Progress::kDone);
  EXPECT_EQ(parser.request().body, "");
  EXPECT_EQ(parser.body_bytes(), 3u);
}

}  // namespace
}  // namespace senko::server
