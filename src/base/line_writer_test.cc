// A reader that has stopped costs lines, not the writer.
#include "base/line_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace senko {
namespace {

// A writer that waits for ever ends the test.
struct Limit {
  Limit() { ::alarm(100); }
  ~Limit() { ::alarm(0); }
};

// What lies in `fd` now.
std::string ReadAll(int fd) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  std::string all(1 << 20, '\0');
  size_t size = 0;
  for (ssize_t got; (got = ::read(fd, all.data() + size, all.size() - size)) > 0;) size += static_cast<size_t>(got);
  all.resize(size);
  return all;
}

struct Pipe {
  int ends[2];
  Pipe() { EXPECT_EQ(::pipe(ends), 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  std::string Read() const { return ReadAll(ends[0]); }
  // Leaves room for so many pages.
  void Fill(int room) const {
    const std::string page(4096, 'y');
    const int pages = ::fcntl(ends[1], F_SETPIPE_SZ, 65536) / 4096;
    for (int i = 0; i < pages - room; ++i) ASSERT_EQ(::write(ends[1], page.data(), page.size()), 4096);
  }
};

struct Terminal {
  int master, slave = -1;
  Terminal() : master(::posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_TRUE(master >= 0 && ::grantpt(master) == 0 && ::unlockpt(master) == 0);
    slave = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
    EXPECT_GE(slave, 0);
  }
  ~Terminal() {
    ::close(master);
    ::close(slave);
  }
};

// The lines in `text`, without a terminal's carriage returns.
std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(line);
  }
  return lines;
}

std::string NumberedLine(int number) {
  return "line " + std::to_string(number) + std::string(static_cast<size_t>(number % 7) * 100, 'x') + ".";
}

// Writes far more than fits, on `threads` threads, to what nobody reads until they are done; then a few lines more.
// Those that Write took come whole and in order; cut ones may lie between them.
void LosesLinesOnly(LineWriter& writer, int read_from, int threads) {
  const Limit limit;
  constexpr int kEach = 4000;
  std::vector<std::vector<std::string>> taken(static_cast<size_t>(threads));
  std::vector<std::thread> running;
  const auto begin = std::chrono::steady_clock::now();
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const std::string line = NumberedLine(t * kEach + i);
        if (writer.Write(line + "\n")) taken[static_cast<size_t>(t)].push_back(line);
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  std::string text = ReadAll(read_from);
  size_t kept = 0;
  for (const auto& of_one : taken) kept += of_one.size();
  EXPECT_GT(kept, 0u);
  EXPECT_EQ(writer.dropped(), static_cast<uint64_t>(threads * kEach) - kept);
  for (int i = 0; i < 3; ++i) {
    taken[0].push_back("again " + std::to_string(i));
    EXPECT_TRUE(writer.Write(taken[0].back() + "\n"));
  }
  text += ReadAll(read_from);
  const std::vector<std::string> lines = Lines(text);
  for (const std::string& line : lines) {  // each for itself
    EXPECT_EQ(line.find("line", 1), std::string::npos) << line;
    EXPECT_EQ(line.find("again", 1), std::string::npos) << line;
  }
  for (const auto& of_one : taken) {
    auto at = lines.begin();
    for (const std::string& line : of_one) {
      at = std::find(at, lines.end(), line);
      ASSERT_NE(at, lines.end()) << line;
    }
  }
}

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

TEST(LineWriter, APipeThatNobodyReads) {
  Pipe pipe;
  LineWriter writer(pipe.ends[1]);
  LosesLinesOnly(writer, pipe.ends[0], 4);
  EXPECT_EQ(::fcntl(pipe.ends[1], F_GETFL) & O_NONBLOCK, 0);  // others use it
}

TEST(LineWriter, ATerminalThatNobodyReads) {
  for (const int threads : {1, 3}) {
    Terminal terminal;
    LineWriter writer(terminal.slave);
    LosesLinesOnly(writer, terminal.master, threads);
    EXPECT_EQ(::fcntl(terminal.slave, F_GETFL) & O_NONBLOCK, 0);
  }
}

TEST(LineWriter, ASocketThatNobodyReads) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, type, 0, ends), 0);
    {
      LineWriter writer(ends[1]);
      LosesLinesOnly(writer, ends[0], 2);
    }
    EXPECT_EQ(::fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0);
    ::close(ends[0]);
    EXPECT_FALSE(LineWriter(ends[1]).Write("x\n"));  // and no SIGPIPE
    ::close(ends[1]);
  }
}

// There is room for one, and all see it.
void ManyWantTheLastPage(const Pipe& pipe) {
  constexpr int kThreads = 4;
  pipe.Fill(1);
  LineWriter writer(pipe.ends[1]);
  std::atomic<int> taken = 0;
  std::barrier<> start(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      taken += writer.Write(std::string(3000, 'x') + "\n");
    });
  }
  const auto begin = std::chrono::steady_clock::now();
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(taken, 1);
  EXPECT_EQ(writer.dropped(), 3u);
}

TEST(LineWriter, ManyThreadsWantTheLastPage) {
  const Limit limit;
  for (int run = 0; run < 20; ++run) {
    Pipe pipe;
    ManyWantTheLastPage(pipe);
  }
}

// True: `fd` cannot be opened again from here on.
bool LeaveToSomebodyElse(int fd) {
  if (::fchmod(fd, 0) != 0) return false;
  if (::geteuid() == 0 && ::seteuid(65534) != 0) return false;
  return ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY) < 0;
}

// What may not be opened again is asked for room.
TEST(LineWriterDeathTest, APipeOfSomebodyElse) {
  const auto try_it = [] {
    ::alarm(100);
    for (int run = 0; run < 5; ++run) {
      Pipe pipe;
      if (!LeaveToSomebodyElse(pipe.ends[1])) std::_Exit(2);
      ManyWantTheLastPage(pipe);
      pipe.Read();
      LineWriter writer(pipe.ends[1]);
      LosesLinesOnly(writer, pipe.ends[0], 2);
    }
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(try_it(), testing::ExitedWithCode(0), "");
}

// One thread may be held there, and no other.
TEST(LineWriterDeathTest, ATerminalOfSomebodyElse) {
  const auto try_it = [] {
    ::alarm(100);
    Terminal terminal;
    if (!LeaveToSomebodyElse(terminal.slave)) std::_Exit(2);
    LineWriter writer(terminal.slave);
    std::atomic<int> taken = 0;
    std::thread held([&] {
      for (;;) taken += writer.Write(std::string(3000, 'x') + "\n");
    });
    while (taken == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 1000; ++i) writer.Write("x\n");
    std::_Exit(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5) ? 0 : 1);
  };
  EXPECT_EXIT(try_it(), testing::ExitedWithCode(0), "");
}

// Each line could have its room if it waited; all together may not.
TEST(LineWriter, AReaderThatIsSlowDoesNotHoldTheWriter) {
  const Limit limit;
  Pipe pipe;
  pipe.Fill(0);
  std::atomic<bool> done = false;
  std::thread reader([&] {
    std::string page(4096, '\0');
    while (!done) {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      EXPECT_EQ(::read(pipe.ends[0], page.data(), page.size()), 4096);
    }
  });
  LineWriter writer(pipe.ends[1]);
  const std::string line = std::string(4095, 'x') + "\n";
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) writer.Write(line);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_GT(writer.dropped(), 900u);
  done = true;
  reader.join();
}

// No line is lost to a reader that only pauses.
TEST(LineWriter, WaitsAMoment) {
  const Limit limit;
  Terminal terminal;
  LineWriter writer(terminal.slave);
  std::string read;
  std::thread reader([&] {
    while (Lines(read).empty() || Lines(read).back() != "the end") {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      read += ReadAll(terminal.master);
    }
  });
  std::vector<std::string> written;
  for (int i = 0; i < 100; ++i) written.push_back(NumberedLine(i));
  written.push_back(std::string(20000, 'z'));  // several times what fits
  written.push_back("the end");
  for (const std::string& line : written) EXPECT_TRUE(writer.Write(line + "\n"));
  EXPECT_EQ(writer.dropped(), 0u);
  reader.join();
  EXPECT_EQ(Lines(read), written);
}

TEST(LineWriter, AFileKeepsThePlaceThatItShares) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  LineWriter writer(::fileno(file));
  ASSERT_EQ(::write(::fileno(file), "one\n", 4), 4);
  EXPECT_TRUE(writer.Write("two\n"));
  ASSERT_EQ(::write(::fileno(file), "three\n", 6), 6);
  ::lseek(::fileno(file), 0, SEEK_SET);
  EXPECT_EQ(ReadAll(::fileno(file)), "one\ntwo\nthree\n");
  std::fclose(file);
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
