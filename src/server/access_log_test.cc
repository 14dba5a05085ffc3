// Where the log's lines go, and which of those that are lost it counts.
#include "server/access_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/line_writer.h"

namespace senko::server {
namespace {

class AccessLogTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Text() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("access_log_test_" + std::to_string(::getpid()));
  const std::string path_ = folder_ / "new" / "access.log";
};

bool Becomes(const std::function<bool()>& true_now) {
  for (int i = 0; i < 3000 && !true_now(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return true_now();
}

TEST_F(AccessLogTest, AddsToItsFile) {
  std::string wanted;
  for (int run = 0; run < 2; ++run) {
    const LineLog log = OpenLineLog(path_);
    for (int i = 0; i < 100; ++i) {
      const std::string line = "{} line " + std::to_string(i);
      log.write(line);
      wanted += line + "\n";
    }
    EXPECT_TRUE(Becomes([&] { return Text().size() == wanted.size(); }));
    EXPECT_EQ(Text(), wanted);
    EXPECT_EQ(log.dropped(), 0u);
    if (run == 0) continue;
    std::filesystem::resize_file(path_, 0);  // as rotation does: copied and truncated
    log.write("after");
    EXPECT_TRUE(Becomes([&] { return Text() == "after\n"; })) << Text();
  }
}

TEST_F(AccessLogTest, WhatIsWrittenLastArrives) {
  std::string wanted;
  {
    const LineLog log = OpenLineLog(path_);
    for (int i = 0; i < 5000; ++i) {
      log.write("line");
      wanted += "line\n";
    }
  }
  EXPECT_EQ(Text(), wanted);
}

TEST_F(AccessLogTest, AFileThatCannotBeIsNamed) {
  for (const std::string& path : {std::string("/dev/null/access.log"), std::string("/")}) {
    try {
      OpenLineLog(path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_NE(std::string(error.what()).find("--access-log: cannot write '" + path + "': "), std::string::npos);
    }
  }
}

TEST_F(AccessLogTest, CountsWhatAFullDiskLost) {
  const LineLog log = OpenLineLog("/dev/full");
  for (int i = 0; i < 200; ++i) log.write(std::string(1000, 'x'));
  EXPECT_TRUE(Becomes([&] { return log.dropped() == 200; })) << log.dropped();
}

// Standard error is not the log's alone: the program's own lines are lost there too, and are not the log's.
void FullStandardError() {
  ::alarm(100);
  int ends[2];
  if (::pipe(ends) != 0 || ::fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0) std::_Exit(2);
  const std::string page(4096, 'x');
  while (::write(ends[1], page.data(), page.size()) > 0) {
  }
  ::fcntl(ends[1], F_SETFL, 0);
  ::dup2(ends[1], STDERR_FILENO);
  const LineLog log = OpenLineLog("-");
  for (int i = 0; i < 50; ++i) Say("a line of the program");
  if (StandardError().dropped() != 50 || log.dropped() != 0) std::_Exit(3);
  for (int i = 0; i < 7; ++i) log.write("a line of the log");
  if (!Becomes([&] { return log.dropped() == 7; })) std::_Exit(4);
  std::_Exit(StandardError().dropped() == 57 ? 0 : 5);
}

TEST(AccessLogDeathTest, CountsItsOwnLinesOnly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(FullStandardError(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace senko::server
