#include "server/first_start.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <optional>

#include "replication/replica_set.h"
#include "server/dispatch/config.h"
#include "server/dispatch/server_context.h"
#include "server/http/local_command.h"

namespace mayfly {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kPause{100};

using CommandOutcome = std::optional<Result<BsonDocument>>;

Awaitable<void> RunInto(ServerContext& server, IoExecutor io, BsonDocument command,
                        CommandOutcome* out) {
  try {
    *out = co_await RunLocalCommand(server, io, "admin", std::move(command));
  } catch (...) {
    *out = Error{ErrorCode::kInternalError, CurrentExceptionText()};
  }
}

}  // namespace

FirstStart::FirstStart(ServerContext& server) : server_(server) {
  // A member makes its user after others can connect: none of them may be faster.
  if (!server.config().initial_user.empty()) server.access().ExpectFirstUser();
}

FirstStart::~FirstStart() { Stop(); }

Result<BsonDocument> FirstStart::Run(BsonDocument command) {
  asio::io_context io(1);
  CommandOutcome out;
  asio::co_spawn(io.get_executor(), RunInto(server_, io.get_executor(), std::move(command), &out),
                 asio::detached);
  // Not run(): while the command is with a worker, there may be nothing to do here.
  const auto work = asio::make_work_guard(io);
  while (!out) io.run_one();
  io.poll();
  return std::move(*out);
}

Result<void> FirstStart::MakeUser() {
  const ServerConfig& config = server_.config();
  if (config.initial_user.empty() || server_.access().AnyUserOrRole()) return Ok();
  const BsonDocument command = BuildBson([&](BsonBuilder& b) {
    b.Append("createUser", config.initial_user).Append("pwd", config.initial_password);
    BsonArrayBuilder roles = b.OpenArray("roles");
    roles.Append("root");
  });
  auto made = Run(BsonDocument(command.view()));
  if (!made) return made.error();
  server_.log().Write(LogSeverity::kInfo, LogComponent::kAccess, 9000134, "Made the first user",
                      BuildBson([&](BsonBuilder& b) {
                        b.Append("user", config.initial_user).Append("db", "admin");
                      }));
  return Ok();
}

bool FirstStart::IsFirst() const {
  const std::string self = server_.replica_set()->self_host();
  const std::string& first = server_.config().initial_members.front();
  const size_t colon = first.rfind(':'), own = self.rfind(':');
  const std::string host = first.substr(0, colon), name = self.substr(0, own);
  if (colon != std::string::npos && first.substr(colon) != self.substr(own)) return false;
  return host == name || host.starts_with(name + ".") || host == "localhost" || host == "127.0.0.1";
}

Result<void> FirstStart::Initiate() {
  const ServerConfig& config = server_.config();
  const BsonDocument command = BuildBson([&](BsonBuilder& b) {
    BsonBuilder set = b.OpenDocument("replSetInitiate");
    set.Append("_id", config.repl_set);
    BsonArrayBuilder members = set.OpenArray("members");
    int32_t id = 0;
    for (const std::string& host : config.initial_members) {
      BsonBuilder one = members.OpenDocument();
      one.Append("_id", id++).Append("host", host);
    }
  });
  auto done = Run(BsonDocument(command.view()));
  if (!done && done.error().code != ErrorCode::kAlreadyInitialized) return done.error();
  return Ok();
}

void FirstStart::Tell(std::string_view what, const Error& error) {
  if (std::exchange(told_, error.message) == error.message) return;
  server_.log().Write(LogSeverity::kInfo, LogComponent::kControl, 9000135, what,
                      BuildBson([&](BsonBuilder& b) { b.Append("error", error.message); }));
}

bool FirstStart::Try() {
  const ServerConfig& config = server_.config();
  const TopologyPtr topology = server_.replica_set()->topology();
  if (!topology->config) {
    if (config.initial_members.empty() || !IsFirst()) return false;
    if (auto done = Initiate(); !done) Tell("The set cannot be initiated yet", done.error());
    return false;
  }
  if (config.initial_user.empty() || server_.access().AnyUserOrRole()) return true;
  if (topology->state != MemberState::kPrimary) return false;
  if (auto made = MakeUser(); !made) Tell("The first user cannot be made yet", made.error());
  return false;
}

void FirstStart::Begin() {
  const ServerConfig& config = server_.config();
  if (config.initial_user.empty() && config.initial_members.empty()) return;
  thread_ = std::thread([this] {
    Log::SetThreadContext("FirstStart");
    large_memory::SetThreadBudget(&server_.large_memory());
    std::unique_lock l(mutex_);
    while (!stopping_) {
      l.unlock();
      const bool done = Try();
      l.lock();
      if (done || changed_.wait_for(l, kPause, [this] { return stopping_; })) return;
    }
  });
}

void FirstStart::AskToStop() {
  {
    std::lock_guard l(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void FirstStart::Stop() {
  AskToStop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace mayfly
