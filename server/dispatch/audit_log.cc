#include "server/dispatch/audit_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "protocol/extended_json.h"
#include "server/base/log.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"

namespace mayfly {
namespace {

/// "127.0.0.1:5000" or "[::1]:5000" as {ip, port}; a unix socket's path as {unix}.
void AppendAddress(BsonBuilder& out, std::string_view name, std::string_view address) {
  BsonBuilder d = out.OpenDocument(name);
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon != std::string_view::npos)
    std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
  if (address.empty() || address.front() == '/' || port == 0) {
    d.Append("unix", address.empty() ? std::string_view("anonymous") : address);
    return;
  }
  std::string_view ip = address.substr(0, colon);
  if (ip.size() > 2 && ip.front() == '[') ip = ip.substr(1, ip.size() - 2);
  d.Append("ip", ip).Append("port", port);
}

}  // namespace

Result<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& path, bool rename_on_rotate,
                                                 const Clock& clock) {
  std::unique_ptr<AuditLog> log(new AuditLog(path, rename_on_rotate, clock));
  if (path.empty()) return log;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ec;
  if (!folder.empty()) std::filesystem::create_directories(folder, ec);
  if (ec)
    return Error{ErrorCode::kFileNotOpen,
                 "Can't make the folder of the audit log " + path + ": " + ec.message()};
  MAYFLY_TRY(log->OpenFile());
  return log;
}

AuditLog::~AuditLog() {
  problem_ = nullptr;
  if (fd_ >= 0 && !pending_.empty()) Flush();
  if (fd_ >= 0) ::close(fd_);
}

Result<void> AuditLog::OpenFile() {
  const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0)
    return Error{ErrorCode::kFileNotOpen, "Can't open the audit log " + path_ + ": " +
                                              std::generic_category().message(errno)};
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
  return Ok();
}

void AuditLog::Write(const CommandContext* ctx, std::string_view atype,
                     const std::function<void(BsonBuilder& param)>& param) {
  if (!enabled()) return;
  BsonDocument event = BuildBson([&](BsonBuilder& b) {
    b.Append("atype", atype).Append("ts", clock_.Now());
    if (ctx && ctx->client) {
      AppendAddress(b, "local", ctx->client->local_address);
      AppendAddress(b, "remote", ctx->client->address);
    } else if (ctx && ctx->http) {
      AppendAddress(b, "local", ctx->http->local);
      AppendAddress(b, "remote", ctx->http->remote);
    } else {
      b.OpenDocument("local").Append("isSystemUser", true);
      b.OpenDocument("remote").Append("isSystemUser", true);
    }
    b.OpenArray("users").Done();
    b.OpenArray("roles").Done();
    {
      BsonBuilder p = b.OpenDocument("param");
      param(p);
    }
    b.Append("result", 0);
  });
  std::string line = ToRelaxedJson(event.view());
  line.push_back('\n');
  std::lock_guard l(mutex_);
  if (pending_.size() + line.size() > kMostWaiting && !pending_.empty()) Flush();
  if (pending_.size() + line.size() > kMostWaiting && !pending_.empty()) {
    ++state_.lost;
    if (problem_) problem_(state_);
    return;
  }
  pending_ += line;
  ++state_.waiting;
  Flush();
}

// REQUIRES: mutex_.
void AuditLog::Flush() {
  size_t done = 0;
  std::string error;
  while (done < pending_.size()) {
    const ssize_t n = ::write(fd_, pending_.data() + done, pending_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      error = n < 0 ? std::generic_category().message(errno) : "nothing was written";
      break;
    }
    done += static_cast<size_t>(n);
  }
  pending_.erase(0, done);
  state_.waiting = std::count(pending_.begin(), pending_.end(), '\n');
  if (pending_.empty()) std::string().swap(pending_);
  const bool changed = error.empty() != state_.error.empty();
  state_.error = std::move(error);
  if (changed && problem_) problem_(state_);
}

AuditLog::State AuditLog::Check() {
  std::lock_guard l(mutex_);
  if (!pending_.empty()) Flush();
  return state_;
}

Result<void> AuditLog::Rotate() {
  if (!enabled()) return Ok();
  std::lock_guard l(mutex_);
  if (rename_on_rotate_) {
    MAYFLY_TRY(RenameLogAway(path_, clock_.Now()));
  }
  if (!pending_.empty()) Flush();
  MAYFLY_TRY(OpenFile());
  if (!pending_.empty()) Flush();
  return Ok();
}

Result<void> CheckAudit(ServerContext& server, std::string_view command) {
  static constexpr std::string_view kAudited[] = {
      "collMod",      "convertToCapped", "create",           "createIndexes",     "drop",
      "dropDatabase", "dropIndexes",     "renameCollection", "setDatabaseExpiry", "ttlHold",
      "ttlPause",     "ttlRelease",      "ttlResume"};
  AuditLog* log = server.audit();
  if (log == nullptr || !log->enabled() ||
      !server.settings().audit_fail_closed.load(std::memory_order_relaxed) ||
      std::find(std::begin(kAudited), std::end(kAudited), command) == std::end(kAudited))
    return Ok();
  const AuditLog::State state = log->Check();
  if (state.error.empty()) return Ok();
  return Error{ErrorCode::kOperationFailed,
               "the audit log " + log->path() + " cannot be written (" + state.error +
                   "), and auditFailClosed refuses what would have to be in it: make room, or set "
                   "auditFailClosed to false"};
}

void Audit(CommandContext& ctx, std::string_view atype,
           const std::function<void(BsonBuilder& param)>& param) {
  if (AuditLog* log = ctx.server.audit()) log->Write(&ctx, atype, param);
}

}  // namespace mayfly
