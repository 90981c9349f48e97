#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "protocol/bson_builder.h"
#include "protocol/extended_json.h"
#include "protocol/wire_message.h"
#include "server/commands/register.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/config.h"
#include "server/dispatch/parameter_table.h"
#include "server/dispatch/server_context.h"
#include "server/net/server.h"
#include "tests/unit/patience.h"

namespace mayfly::test {

inline constexpr std::string_view kPing = R"({"ping": 1, "$db": "admin"})";

/// Waits for a condition that another thread brings about; fails at a Deadline and names the
/// caller's line. It polls, because conditions are counters and states of a server, which wakes
/// nobody when they change.
template <class F>
void Eventually(F&& f, std::source_location waits = std::source_location::current()) {
  const Deadline deadline(std::chrono::minutes(1), waits);
  while (!f()) {
    if (!deadline.Holds()) FAIL(deadline.InVain());
    ::usleep(1000);  // sleeps: polls until a deadline
  }
}

/// A server without storage on a free port of the loopback address, with two commands of its own:
/// testWait {ms} waits without a thread, testSpin runs on a worker until it is interrupted.
class TestServer {
 public:
  TestServer() : TestServer([](ServerConfig&) {}) {}
  /// `late`: it listens, the test starts it.
  explicit TestServer(const std::function<void(ServerConfig&)>& change, bool late = false) {
    config_.port = 0;
    config_.unix_socket = false;
    config_.test_clock = true;
    config_.worker_threads = 2;
    config_.io_threads = 1;
    log_path_ = (std::filesystem::temp_directory_path() /
                 ("mayfly-server-test-" + std::to_string(::getpid()) + ".log"))
                    .string();
    config_.log.path = log_path_;
    config_.log.append = true;
    change(config_);
    log_ = Log::Open(config_.log, clock_).value();
    context_ = std::make_unique<ServerContext>(config_, clock_, *log_);
    RegisterParameters(*context_);
    RegisterAllCommands(context_->commands());
    context_->commands().Add(
        {.name = "testWait", .flags = kCommandNone, .help = "", .run_async = &Wait});
    context_->commands().Add(
        {.name = "testSpin", .flags = kWorker | kReadOnly, .help = "", .run = &Spin});
    context_->commands().Add({.name = "testThrow", .help = "", .run = &Throw});
    context_->commands().Add(
        {.name = "testThrowOnWorker", .flags = kWorker, .help = "", .run = &Throw});
    context_->commands().Add({.name = "testThrowLater", .help = "", .run_async = &ThrowLater});
    server_ = std::make_unique<Server>(*context_);
    REQUIRE(server_->Listen());
    if (!late) server_->Start();
  }
  ~TestServer() {
    server_->Stop(1000);
    server_.reset();
    context_.reset();
    log_.reset();
    std::filesystem::remove(log_path_);
  }
  int port() const { return server_->port(); }
  Server& server() { return *server_; }
  ServerContext& context() { return *context_; }
  SystemClock& clock() { return clock_; }
  template <class F>
  void PostToIo(F&& f) {
    boost::asio::post(server_->executor(), std::forward<F>(f));
  }

 private:
  static Awaitable<Result<void>> Wait(CommandContext& ctx, const CommandRequest& req,
                                      BsonBuilder&) {
    ArgReader in(req);
    const int64_t ms = in.Int64("ms");
    MAYFLY_CO_TRY(in.Finish());
    co_return co_await ctx.SleepUntil(ctx.server.clock().MonotonicMicros() + ms * 1000);
  }
  static Result<void> Throw(CommandContext&, const CommandRequest& req, BsonBuilder& reply) {
    reply.Append("halfway", 1);
    if (req.fields.size() > 2) throw 42;
    throw std::runtime_error("as the test asked");
  }
  static Awaitable<Result<void>> ThrowLater(CommandContext& ctx, const CommandRequest& req,
                                            BsonBuilder& reply) {
    co_await ctx.MoveToWorker();
    co_return Throw(ctx, req, reply);
  }
  static Result<void> Spin(CommandContext& ctx, const CommandRequest&, BsonBuilder&) {
    while (true) {
      MAYFLY_TRY(ctx.op.CheckInterrupt());
      std::this_thread::yield();
    }
  }

  ServerConfig config_;
  SystemClock clock_;
  std::string log_path_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<ServerContext> context_;
  std::unique_ptr<Server> server_;
};

/// A blocking client that says exactly what it is told to.
class RawClient {
 public:
  explicit RawClient(int port, const std::string& address = "127.0.0.1") {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    timeval limit{60, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(port));
    REQUIRE(::inet_pton(AF_INET, address.c_str(), &a.sin_addr) == 1);
    REQUIRE(::connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
  }
  ~RawClient() { Close(); }
  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  /// From any thread, so without Catch's checks, which are for one. Throws when the server closed
  /// the connection.
  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) throw std::runtime_error("cannot send: the server closed the connection");
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  static std::string Message(std::string_view json, uint32_t flags = 0, int32_t id = 7) {
    std::string out;
    const size_t start = BeginOpMsg(out, id, 0, flags);
    out += ParseJson(json).value().bytes();
    FinishMessage(out, start);
    return out;
  }
  /// One message as it came; empty when the server closed the connection.
  std::string Receive() {
    std::string head = Read(16);
    if (head.size() < 16) return {};
    return head + Read(static_cast<size_t>(LoadLe<int32_t>(head.data())) - 16);
  }
  /// The body of the next reply. Its header and flags are in `header` and `flags`.
  BsonDocument Reply() {
    last_ = Receive();
    REQUIRE(last_.size() > 21);
    header = ReadHeader(last_.data());
    if (header.opcode == static_cast<int32_t>(Opcode::kReply))
      return BsonDocument(BsonView(last_.data() + 36));
    if (header.opcode == static_cast<int32_t>(Opcode::kCompressed)) {
      std::string plain;
      Compressor used;
      const char* reason = nullptr;
      REQUIRE(Decompress(last_, &plain, &used, &reason));
      compressed = true;
      last_ = plain;
    }
    OpMsg msg;
    WireError failure;
    REQUIRE(ParseOpMsg(last_, &msg, &failure));
    flags = msg.flags;
    return BsonDocument(msg.body);
  }
  BsonDocument Command(std::string_view json, uint32_t message_flags = 0) {
    Send(Message(json, message_flags));
    return Reply();
  }
  /// Everything until the server closes the connection.
  std::string ReadAll() {
    std::string all;
    for (std::string piece; !(piece = Read(1)).empty();) all += piece;
    return all;
  }
  bool Closed() { return Receive().empty(); }
  MessageHeader header;
  uint32_t flags = 0;
  bool compressed = false;

 private:
  std::string Read(size_t n) {
    std::string out(n, '\0');
    size_t got = 0;
    while (got < n) {
      const ssize_t r = ::recv(fd_, out.data() + got, n - got, 0);
      if (r <= 0) break;
      got += static_cast<size_t>(r);
    }
    out.resize(got);
    return out;
  }
  int fd_ = -1;
  std::string last_;
};

inline bool IsOk(const BsonDocument& d) { return d.view()["ok"].NumberAsDouble() == 1; }
inline int64_t Code(const BsonDocument& d) { return d.view()["code"].NumberAsInt64(); }

}  // namespace mayfly::test
