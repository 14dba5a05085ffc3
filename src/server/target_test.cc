#include "server/target.h"

#include <gtest/gtest.h>

namespace senko::server {
namespace {

TEST(Target, Splits) {
  std::string path, query;
  const auto split = [&](std::string_view target) { return SplitTarget(target, &path, &query); };
  ASSERT_TRUE(split("/a/b?c=d?e"));
  EXPECT_EQ(path, "/a/b");
  EXPECT_EQ(query, "c=d?e");
  ASSERT_TRUE(split("/%41%2f%7E"));
  EXPECT_EQ(path, "/A/~");
  EXPECT_EQ(query, "");
  ASSERT_TRUE(split("http://host:1/x?y"));
  EXPECT_EQ(path, "/x");
  ASSERT_TRUE(split("https://host?y"));
  EXPECT_EQ(path, "/");
  EXPECT_EQ(query, "y");
  ASSERT_TRUE(split("/a#fragment?not"));
  EXPECT_EQ(path, "/a");
  EXPECT_EQ(query, "");
  ASSERT_TRUE(split("*"));
  EXPECT_EQ(path, "*");
  ASSERT_TRUE(split("/%E2%82%AC"));
  EXPECT_EQ(path, "/\xE2\x82\xAC");
}

TEST(Target, Refuses) {
  std::string path, query;
  for (const std::string& bad :
       {std::string(""), std::string("a"), std::string("ftp://h/x"), std::string("/%"), std::string("/%4"),
        std::string("/%4g"), std::string("/%00"), std::string("/%0a"), std::string("/%7f"), std::string("/a b"),
        std::string("/\xE2"), std::string("/\0", 2), std::string("**"), std::string("?x")}) {
    EXPECT_FALSE(SplitTarget(bad, &path, &query)) << bad;
  }
}

}  // namespace
}  // namespace senko::server
