#include "server/tcp_server.h"

#include <netinet/tcp.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <semaphore>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "api/wake_batch.h"
#include "base/check.h"
#include "base/error.h"
#include "server/session.h"

namespace senko::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// Connections beyond max_connections that may still ask for /health, or are told 503; beyond these they are closed.
constexpr int64_t kSpareConnections = 128;
constexpr int kWritesInTurn = 16;  // then other connections have their turn
constexpr int kAcceptsInTurn = 16;

// Room for one operation that waits with Asio, so that asking for it needs no memory: what all depends on is asked for
// in this way. Given back before the operation's function runs, which may ask again.
class Room {
 public:
  template <typename T>
  class Allocator {
   public:
    using value_type = T;
    explicit Allocator(Room* room) : room_(room) {}
    template <typename U>
    Allocator(const Allocator<U>& other) : room_(other.room_) {}  // NOLINT(google-explicit-constructor)
    T* allocate(size_t count) {
      static_assert(sizeof(T) <= kBytes);
      SENKO_CHECK(count == 1 && !room_->taken_.exchange(true));
      return reinterpret_cast<T*>(room_->bytes_);
    }
    void deallocate(T*, size_t) { room_->taken_ = false; }
    template <typename U>
    bool operator==(const Allocator<U>& other) const {
      return room_ == other.room_;
    }

   private:
    template <typename>
    friend class Allocator;
    Room* room_;
  };
  template <typename Function>
  auto Bind(Function function) {
    return asio::bind_allocator(Allocator<char>(this), std::move(function));
  }

 private:
  static constexpr size_t kBytes = 256;
  alignas(std::max_align_t) char bytes_[kBytes];
  std::atomic<bool> taken_ = false;
};

class Connection;

// One thread and what runs on it.
struct Loop final : api::Waker {
  Room wake_room, stop_room;
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::thread thread;
  std::unordered_set<std::shared_ptr<Connection>> connections;  // of this loop's thread
  bool stopping = false;
  std::array<char, 64 << 10> scratch;  // what was just read; nothing stays in it

  // Connections with something to send, from any thread.
  std::mutex mutex;
  std::shared_ptr<Connection> rung;  // under it; the last of them, each has the one before
  bool ended = false;                // under it; nobody is rung for any more

  void Wake() noexcept override {
    asio::post(context, wake_room.Bind([this] {
      Awake();
      TakeRung();
    }));
  }
  void TakeRung() noexcept;
  void Stop() noexcept;
};

// A socket, moved along by whatever happens to it: readable, writable, time, a bell. All but Ring run on the loop's
// thread.
class Connection final : public Bell, public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Loop> loop, tcp::socket socket, std::shared_ptr<Gate> gate)
      : loop_(std::move(loop)), socket_(std::move(socket)), timer_(loop_->context), gate_(std::move(gate)) {
    ++gate_->connections;
  }
  ~Connection() override {
    if (!closed_) --gate_->connections;  // never started
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Start(bool over_limit) noexcept {
    try {
      error_code ignored;
      socket_.non_blocking(true, ignored);
      socket_.set_option(tcp::no_delay(true), ignored);
      // What a slow reader has not taken shall wait here, where it is counted, and not in the system's buffers.
      const int unsent_bytes = 256 << 10;
      setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes, sizeof(unsent_bytes));
      session_ = std::make_unique<Session>(gate_, weak_from_this(), over_limit, Clock::now());
      Turn();
    } catch (const std::exception&) {
      Break();
    }
  }

  void Ring() noexcept override {
    {
      const std::lock_guard lock(loop_->mutex);
      if (loop_->ended) return;
      if (!rung_) {
        rung_ = true;
        next_rung_ = std::exchange(loop_->rung, shared_from_this());
      }
    }
    api::WakeBatch::Wake(loop_);
  }

  // What Ring asked for. Returns the next that asked.
  std::shared_ptr<Connection> TakeRing() noexcept {
    std::shared_ptr<Connection> next;
    {
      const std::lock_guard lock(loop_->mutex);
      rung_ = false;
      next = std::move(next_rung_);
    }
    Event([this] { session_->OnRing(Clock::now()); });
    return next;
  }

  void Stop() noexcept {
    if (closed_) return;
    try {
      if (session_) session_->OnStop(Clock::now());
    } catch (const std::exception&) {  // memory: it goes all the same
    }
    Close();
  }

 private:
  // Something happened: `function` tells the session, and what follows from it is done. An exception (memory) costs
  // this connection and no other.
  template <typename Function>
  void Event(const Function& function) noexcept {
    if (closed_) return;
    try {
      function();
      Turn();
    } catch (const std::exception&) {
      Break();
    }
  }

  void Break() noexcept {
    if (closed_) return;
    try {
      if (session_) session_->OnError(Clock::now());
    } catch (const std::exception&) {  // its owners are told by its end
    }
    Close();
  }

  void Turn() {
    const Clock::time_point now = Clock::now();
    session_->OnTime(now);
    const bool more = Write(now);
    if (session_->done()) {
      Close();
      return;
    }
    if (session_->lingering() && !shut_) {
      shut_ = true;
      error_code ignored;
      socket_.shutdown(tcp::socket::shutdown_send, ignored);
    }
    if (more) asio::post(loop_->context, [self = shared_from_this()] { self->Event([] {}); });
    if (session_->InputRoom() > 0) AwaitRead();
    if (session_->HasOutput() && !more) AwaitWrite();
    AwaitTime();
  }

  void AwaitRead() {
    if (awaits_read_) return;
    awaits_read_ = true;
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
      self->awaits_read_ = false;
      if (error != asio::error::operation_aborted) self->Event([&] { self->Read(); });
    });
  }

  void AwaitWrite() {
    if (awaits_write_) return;
    awaits_write_ = true;
    socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](error_code error) {
      self->awaits_write_ = false;
      if (error != asio::error::operation_aborted) self->Event([] {});
    });
  }

  // Deadlines mostly move away, with every event sent: the timer is left to ring early and then set again.
  void AwaitTime() {
    const Clock::time_point deadline = session_->Deadline();
    if (deadline >= timer_at_) return;
    timer_at_ = deadline;
    timer_.expires_at(deadline);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (error == asio::error::operation_aborted) return;
      self->timer_at_ = Clock::time_point::max();
      self->Event([] {});
    });
  }

  void Read() {
    const size_t room = session_->InputRoom();
    if (room == 0) return;
    error_code error;
    const size_t bytes = socket_.read_some(asio::buffer(loop_->scratch, room), error);
    const Clock::time_point now = Clock::now();
    if (error == asio::error::eof) {
      session_->OnEnd(now);
    } else if (error && error != asio::error::would_block && error != asio::error::try_again) {
      session_->OnError(now);
    } else if (!error) {
      session_->OnInput({loop_->scratch.data(), bytes}, now);
    }
  }

  // Writes without waiting for readiness first: mostly there is room. True when there is more to write and room for it.
  bool Write(Clock::time_point now) {
    for (int i = 0; i < kWritesInTurn; ++i) {
      if (!session_->HasOutput() || awaits_write_) return false;
      std::array<asio::const_buffer, std::tuple_size_v<Session::Pieces>> buffers;
      const Session::Pieces pieces = session_->Output();
      for (size_t k = 0; k < pieces.size(); ++k) buffers[k] = asio::buffer(pieces[k].data(), pieces[k].size());
      error_code error;
      const size_t bytes = socket_.write_some(buffers, error);
      if (error == asio::error::would_block || error == asio::error::try_again) return false;
      if (error) {
        session_->OnError(now);
        return false;
      }
      session_->Wrote(bytes, now);
    }
    return session_->HasOutput();
  }

  void Close() noexcept {
    closed_ = true;
    error_code ignored;
    if (session_ && session_->reset()) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
    socket_.close(ignored);
    timer_.cancel();
    session_.reset();
    --gate_->connections;
    loop_->connections.erase(shared_from_this());
  }

  const std::shared_ptr<Loop> loop_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  const std::shared_ptr<Gate> gate_;
  std::unique_ptr<Session> session_;
  Clock::time_point timer_at_ = Clock::time_point::max();
  bool awaits_read_ = false;
  bool awaits_write_ = false;
  bool shut_ = false;
  bool closed_ = false;

  // Under the loop's mutex.
  std::shared_ptr<Connection> next_rung_;
  bool rung_ = false;  // between Ring and TakeRing
};

void Loop::TakeRung() noexcept {
  std::shared_ptr<Connection> connection;
  {
    const std::lock_guard lock(mutex);
    connection = std::move(rung);
  }
  while (connection) connection = connection->TakeRing();
}

void Loop::Stop() noexcept {
  stopping = true;
  while (!connections.empty()) {
    const std::shared_ptr<Connection> connection = *connections.begin();
    connection->Stop();
  }
  {
    const std::lock_guard lock(mutex);
    ended = true;
  }
  TakeRung();  // those who rang own this loop
  work.reset();
}

// Every connection needs a descriptor: the soft limit is raised to the hard one. Returns it.
int64_t RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, rlim_t{1} << 30));
}

}  // namespace

struct TcpServer::Impl {
  std::shared_ptr<Gate> gate;
  std::vector<std::shared_ptr<Loop>> loops;
  Room accept_room;
  std::unique_ptr<tcp::acceptor> acceptor;  // of loops[0]
  std::unique_ptr<asio::steady_timer> pause;
  int64_t max_connections = 0;
  size_t next_loop = 0;
  int port = 0;

  void Listen();
  void AwaitAccept() noexcept;
  void Pause() noexcept;
  bool Accept();
  void Accepted(const std::shared_ptr<Loop>& loop, tcp::socket socket);
};

void TcpServer::Impl::Listen() {
  const HttpOptions& options = gate->options();
  error_code error;
  tcp::resolver resolver(loops[0]->context);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--host '" + options.host + "' is no address here: " + error.message());
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor = std::make_unique<tcp::acceptor>(loops[0]->context);
  acceptor->open(endpoint.protocol(), error);
  if (!error) acceptor->set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && endpoint.address() == asio::ip::address_v6::any()) {
    acceptor->set_option(asio::ip::v6_only(false), error);
  }
  if (!error) acceptor->bind(endpoint, error);
  if (!error) acceptor->listen(tcp::acceptor::max_listen_connections, error);
  if (!error) acceptor->non_blocking(true, error);
  if (error) {
    throw Error(ErrorCode::kIo, "--host " + options.host + " --port " + std::to_string(options.port) +
                                    ": cannot listen: " + error.message());
  }
  port = acceptor->local_endpoint().port();
  pause = std::make_unique<asio::steady_timer>(loops[0]->context);
}

// Asks for nothing that could be missing: whatever one connection runs into, there is a next.
void TcpServer::Impl::AwaitAccept() noexcept {
  acceptor->async_wait(tcp::acceptor::wait_read, accept_room.Bind([this](error_code error) noexcept {
    if (error == asio::error::operation_aborted || !acceptor->is_open()) return;
    bool more = false;
    try {
      more = Accept();
    } catch (const std::exception&) {  // memory: it costs this connection
    }
    if (more) {
      AwaitAccept();
    } else {
      Pause();
    }
  }));
}

// No descriptors or no memory: trying at once would only spin.
void TcpServer::Impl::Pause() noexcept {
  try {
    pause->expires_after(std::chrono::milliseconds(50));
    pause->async_wait([this](error_code stopped) {
      if (!stopped) AwaitAccept();
    });
  } catch (const std::exception&) {
    AwaitAccept();
  }
}

// False when there is no use in trying again at once.
bool TcpServer::Impl::Accept() {
  for (int i = 0; i < kAcceptsInTurn; ++i) {
    const std::shared_ptr<Loop>& loop = loops[next_loop++ % loops.size()];
    tcp::socket socket(loop->context);
    error_code error;
    acceptor->accept(socket, error);
    if (error == asio::error::would_block || error == asio::error::try_again) return true;
    if (!error) {
      Accepted(loop, std::move(socket));
    } else if (error != asio::error::connection_aborted) {
      return false;
    }
  }
  return true;
}

void TcpServer::Impl::Accepted(const std::shared_ptr<Loop>& loop, tcp::socket socket) {
  ++gate->accepted;
  if (gate->connections >= max_connections + kSpareConnections) return;
  auto connection = std::make_shared<Connection>(loop, std::move(socket), gate);
  const bool over_limit = gate->connections > max_connections;
  asio::post(loop->context, [loop, connection = std::move(connection), over_limit] {
    if (loop->stopping) return;
    loop->connections.insert(connection);
    connection->Start(over_limit);
  });
}

TcpServer::TcpServer(std::shared_ptr<Gate> gate) : impl_(std::make_unique<Impl>()) {
  constexpr int64_t kOtherFiles = 256;  // of the rest of the program
  const HttpOptions& options = gate->options();
  impl_->max_connections =
      std::max<int64_t>(1, std::min(options.max_connections, RaiseFileLimit() - kSpareConnections - kOtherFiles));
  impl_->gate = std::move(gate);
  for (int i = 0; i < options.io_threads; ++i) impl_->loops.push_back(std::make_shared<Loop>());
  impl_->Listen();
  try {
    for (const std::shared_ptr<Loop>& loop : impl_->loops) {
      loop->thread = std::thread([loop] {
        for (;;) {
          try {
            loop->context.run();
            return;
          } catch (const std::exception&) {  // memory, outside any connection: the loop goes on
          }
        }
      });
    }
    asio::post(impl_->loops[0]->context, [impl = impl_.get()] { impl->AwaitAccept(); });
  } catch (...) {
    Stop();
    throw;
  }
}

TcpServer::~TcpServer() { Stop(); }

int TcpServer::port() const { return impl_->port; }

void TcpServer::Stop() {
  if (impl_->loops.empty() || !impl_->loops[0]->thread.joinable()) return;
  // First no more connections: none may come to a loop that has ended.
  std::binary_semaphore closed{0};
  asio::post(impl_->loops[0]->context, impl_->loops[0]->stop_room.Bind([&] {
    error_code ignored;
    impl_->acceptor->close(ignored);
    impl_->pause->cancel();
    closed.release();
  }));
  closed.acquire();
  for (const std::shared_ptr<Loop>& loop : impl_->loops) {
    asio::post(loop->context, loop->stop_room.Bind([loop = loop.get()] { loop->Stop(); }));
  }
  // Each loop runs out of work by itself: nothing that was posted is left undone.
  for (const std::shared_ptr<Loop>& loop : impl_->loops) {
    if (loop->thread.joinable()) loop->thread.join();
  }
  impl_->acceptor.reset();
  impl_->pause.reset();
}

}  // namespace senko::server
