// A reader that has stopped costs lines, not the writer.
#include "base/line_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>

namespace senko {
namespace {

struct Pipe {
  int ends[2];
  Pipe() { EXPECT_EQ(::pipe(ends), 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  // What lies in it now.
  std::string Read() {
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    std::string all(1 << 20, '\0');
    const ssize_t got = ::read(ends[0], all.data(), all.size());
    all.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return all;
  }
};

TEST(LineWriter, DropsWhatNobodyTakesAndGoesOn) {
  Pipe pipe;
  LineWriter writer(pipe.ends[1]);
  std::string written;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20000; ++i) {  // far more than a pipe holds, and no second wait once it is full
    const std::string line = "line " + std::to_string(i) + "\n";
    if (writer.Write(line)) written += line;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_GT(writer.dropped(), 1000u);
  EXPECT_EQ(pipe.Read(), written);
  EXPECT_TRUE(writer.Write("again\n"));
  EXPECT_EQ(pipe.Read(), "again\n");
}

TEST(LineWriter, WritesLongLinesWhole) {
  Pipe pipe;
  LineWriter writer(pipe.ends[1]);
  const std::string line = std::string(20000, 'x') + "\n";
  EXPECT_TRUE(writer.Write(line));
  EXPECT_EQ(pipe.Read(), line);
  EXPECT_EQ(writer.dropped(), 0u);
}

TEST(LineWriter, AClosedDescriptorOrReaderIsNoError) {
  signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  ::close(pipe.ends[0]);
  LineWriter writer(pipe.ends[1]);
  EXPECT_FALSE(writer.Write("x\n"));
  EXPECT_FALSE(LineWriter(-1).Write("x\n"));
  EXPECT_EQ(writer.dropped(), 1u);
}

}  // namespace
}  // namespace senko
