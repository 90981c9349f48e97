#include "server/dispatch/audit_log.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "protocol/base64.h"
#include "protocol/extended_json.h"
#include "security/crypto.h"
#include "security/user_cache.h"
#include "server/base/client_of.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/audit_filter.h"
#include "server/dispatch/audit_sink.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"

namespace mayfly {
namespace {

/// As MongoDB's audit log writes it.
void AppendUuidText(BsonBuilder& out, std::string_view uuid) {
  std::string base64;
  AppendBase64(uuid, base64);
  out.OpenDocument("uuid").Append("$binary", base64).Append("$type", "04");
}

/// Of a user with more, an entry has the first ones: a request of 60 bytes would make a megabyte of
/// entry.
constexpr int64_t kMaxAuditRoles = 100;
constexpr size_t kMaxAuditRoleBytes = 8 * 1024;

/// The user: none without access control, and before a login.
void AppendWho(BsonBuilder& out, const AuditActor& who) {
  {
    BsonArrayBuilder users = out.OpenArray("users");
    if (who.user != nullptr) {
      BsonBuilder one = users.OpenDocument();
      AppendUserName(one, *who.user);
    }
  }
  size_t room = kMaxAuditRoleBytes, left_out = 0;
  {
    BsonArrayBuilder list = out.OpenArray("roles");
    const auto append = [&](const RoleName& r) {
      const size_t size = r.role.size() + r.db.size();
      if (list.count() >= kMaxAuditRoles || size > room) {
        ++left_out;
        return;
      }
      room -= size;
      BsonBuilder one = list.OpenDocument();
      AppendRoleName(one, r);
    };
    if (who.access == nullptr) return;
    const std::vector<RoleName>& all = who.access->roles.roles;
    if (all.size() <= static_cast<size_t>(kMaxAuditRoles)) {
      for (const RoleName& r : all) append(r);
    } else {
      // First what the user was granted itself: the rest follows from it.
      const std::vector<RoleName>& granted = who.access->user.roles;
      const size_t first = std::min<size_t>(granted.size(), kMaxAuditRoles);
      const std::set<RoleName> own(granted.begin(),
                                   granted.begin() + static_cast<ptrdiff_t>(first));
      for (const RoleName& r : own) append(r);
      size_t others = 0;
      for (const RoleName& r : all) {
        if (list.count() >= kMaxAuditRoles) break;
        if (own.contains(r)) continue;
        ++others;
        append(r);
      }
      left_out += all.size() - std::min(all.size(), own.size() + others);
    }
  }
  if (left_out > 0) out.Append("rolesLeftOut", static_cast<int64_t>(left_out));
}

/// The audited events, by their command.
constexpr std::string_view kAudited[] = {"_mergeAuthzCollections",
                                         "applyOps",
                                         "authenticate",
                                         "backup",
                                         "cloneCollectionAsCapped",
                                         "collMod",
                                         "convertToCapped",
                                         "create",
                                         "createIndexes",
                                         "createRole",
                                         "createUser",
                                         "drop",
                                         "dropAllRolesFromDatabase",
                                         "dropAllUsersFromDatabase",
                                         "dropDatabase",
                                         "dropIndexes",
                                         "dropRole",
                                         "dropUser",
                                         "grantPrivilegesToRole",
                                         "grantRolesToRole",
                                         "grantRolesToUser",
                                         "reIndex",
                                         "renameCollection",
                                         "replSetInitiate",
                                         "replSetReconfig",
                                         "revokePrivilegesFromRole",
                                         "revokeRolesFromRole",
                                         "revokeRolesFromUser",
                                         "saslContinue",
                                         "saslStart",
                                         "setClusterParameter",
                                         "setDatabaseExpiry",
                                         "ttlHold",
                                         "ttlHoldRelease",
                                         "ttlPause",
                                         "ttlRelease",
                                         "ttlResume",
                                         "updateRole",
                                         "updateUser"};
static_assert(std::is_sorted(std::begin(kAudited), std::end(kAudited)));

/// As the format has it.
std::string Written(BsonView entry, AuditFormat format) {
  if (format == AuditFormat::kBson) return std::string(entry.bytes());
  return ToRelaxedJson(entry) + "\n";
}

/// The entry without its long values, for sinks with a length limit: a change cannot evade the
/// audit log by being large.
BsonDocument Shortened(BsonView entry) {
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : entry) {
      if (e.name != "param" || !e.value.IsDocument()) {
        AppendAuditValue(b, e.name, e.value);
        continue;
      }
      BsonBuilder param = b.OpenDocument("param");
      size_t room = kMaxAuditArguments;
      for (const BsonElement& p : e.value.Document()) {
        const size_t size = p.name.size() + std::min<size_t>(p.value.size(), kMaxAuditValue);
        if (size > room) {
          param.Append("$truncated", true);
          break;
        }
        room -= size;
        AppendAuditValue(param, p.name, p.value);
      }
    }
  });
}

}  // namespace

void AppendAuditAddress(BsonBuilder& out, std::string_view name, std::string_view address) {
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

AuditActor AuditActor::Of(const CommandContext* ctx) {
  AuditActor who;
  if (ctx == nullptr) return who;
  if (ctx->client != nullptr) {
    who.connection = ctx->client->desc;
    who.local = ctx->client->local_address;
    who.remote = ctx->client->address;
  } else if (ctx->http != nullptr) {
    who.connection = who.remote = ctx->http->remote;
    who.local = ctx->http->local;
  }
  if (ctx->access != nullptr && !ctx->access->user.name.user.empty()) {
    who.user = &ctx->access->user.name;
    who.access = ctx->access.get();
  }
  return who;
}

AuditLog::AuditLog(AuditFormat format, const Clock& clock) : format_(format), clock_(clock) {}

Result<std::unique_ptr<AuditLog>> AuditLog::Open(const AuditOptions& options,
                                                 const std::string& path, const Clock& clock) {
  auto log = std::make_unique<AuditLog>(options.format, clock);
  MAYFLY_TRY(log->Open(options, path));
  return log;
}

Result<void> AuditLog::Open(const AuditOptions& options, const std::string& path) {
  if (options.destination == AuditDestination::kNone) return Ok();
  MAYFLY_TRY(key_, RandomBytes(16));
  MAYFLY_TRY(SetFilter(options.filter));
  MAYFLY_TRY(sink_, AuditSink::Open(options, path));
  return Ok();
}

AuditLog::~AuditLog() { Close(); }

void AuditLog::Close() {
  if (enabled()) WriteRepeated(true);
  std::lock_guard l(mutex_);
  problem_ = nullptr;
  if (sink_ != nullptr) Flush();
  sink_.reset();
}

void AuditLog::set_all_checks(bool on) {
  all_checks_ = on;
  watches_ = on || fail_closed_;
}

void AuditLog::set_fail_closed(bool on) {
  fail_closed_ = on;
  watches_ = on || all_checks_;
}

std::string AuditLog::Name() const { return sink_ != nullptr ? sink_->Name() : "no audit log"; }

BsonDocument AuditLog::Entry(const AuditActor& who, std::string_view atype, const Param& param,
                             ErrorCode result) const {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("atype", atype).Append("ts", clock_.Now());
    // The same for all of a connection, and not to be guessed by another one.
    const Digest digest = HmacOf(HashKind::kSha256, key_, who.connection);
    std::string uuid(digest.view().substr(0, 16));
    uuid[6] = static_cast<char>((uuid[6] & 0x0f) | 0x40);
    uuid[8] = static_cast<char>((uuid[8] & 0x3f) | 0x80);
    if (format_ == AuditFormat::kBson)
      b.AppendBinary("uuid", 4, uuid);
    else
      AppendUuidText(b, uuid);
    if (!who.connection.empty()) {
      AppendAuditAddress(b, "local", who.local);
      AppendAuditAddress(b, "remote", who.remote);
    } else {
      b.OpenDocument("local").Append("isSystemUser", true);
      b.OpenDocument("remote").Append("isSystemUser", true);
    }
    AppendWho(b, who);
    {
      BsonBuilder p = b.OpenDocument("param");
      param(p);
    }
    b.Append("result", static_cast<int32_t>(result));
  });
}

bool AuditLog::Wanted(BsonView entry) const {
  std::shared_ptr<const MatchExpression> filter;
  {
    std::lock_guard l(filter_mutex_);
    filter = filter_;
  }
  if (filter == nullptr) return true;
  const Result<bool> matches = filter->Matches(entry);
  return !matches || matches.value();  // an entry too many, rather than one too few
}

void AuditLog::Write(const AuditActor& who, std::string_view atype, const Param& param,
                     ErrorCode result) {
  if (!enabled()) return;
  WriteRepeated(false);
  const BsonDocument entry = Entry(who, atype, param, result);
  if (Wanted(entry)) Add(entry);
}

void AuditLog::WriteAlways(const AuditActor& who, std::string_view atype, const Param& param) {
  if (enabled()) Add(Entry(who, atype, param, ErrorCode::kOk));
}

bool AuditLog::AdmitAnonymous() { return Admit(anonymous_); }

bool AuditLog::AdmitMetadata() { return Admit(metadata_); }

bool AuditLog::Admit(Allowance& of) {
  std::lock_guard l(mutex_);
  const bool admitted = of.Take(clock_.MonotonicMicros() / 1'000'000);
  if (!admitted) ++state_.suppressed;
  return admitted;
}

void AuditLog::WriteFailedLogin(const AuditActor& who, const Param& param, ErrorCode result) {
  if (!enabled()) return;
  WriteRepeated(false);
  if (failed_.Admit(ClientOf(who.remote), who.local, who.remote,
                    clock_.MonotonicMicros() / 1'000'000)) {
    Write(who, "authenticate", param, result);
    return;
  }
  std::lock_guard l(mutex_);
  ++state_.suppressed;
}

void AuditLog::WriteRefused(const AuditActor& who, const Param& param, ErrorCode result) {
  if (!enabled()) return;
  WriteRepeated(false);
  static const UserName nobody;
  const RefusedCommands::Client client{
      .user = who.user != nullptr ? *who.user : nobody, .local = who.local, .remote = who.remote};
  if (!all_checks() && !refused_.Admit(client, clock_.MonotonicMicros() / 1'000'000)) {
    std::lock_guard l(mutex_);
    ++state_.suppressed;
    return;
  }
  const BsonDocument entry = Entry(who, "authCheck", param, result);
  if (Wanted(entry)) refused_.Wrote(client, Add(entry));
}

void AuditLog::WriteRepeatedRefusals(bool all) {
  for (const RefusedCommands::Repeated& of :
       refused_.TakeRepeated(clock_.MonotonicMicros() / 1'000'000, all)) {
    const AuditActor who{.connection = of.several ? std::string_view("others") : of.remote,
                         .local = of.local,
                         .remote = of.remote,
                         .user = of.user.user.empty() ? nullptr : &of.user};
    const BsonDocument entry = Entry(
        who, "authCheck",
        [&](BsonBuilder& p) {
          p.Append("command", "").Append("repeated", of.count);
          if (of.several) p.Append("severalUsers", true);
        },
        ErrorCode::kUnauthorized);
    if (Wanted(entry)) Add(entry);
  }
}

void AuditLog::WriteRepeated(bool all) {
  WriteRepeatedRefusals(all);
  for (const FailedLogins::Repeated& of :
       failed_.TakeRepeated(clock_.MonotonicMicros() / 1'000'000, all)) {
    const bool several = of.client.empty();
    const AuditActor who{.connection = several ? std::string_view("others") : of.client,
                         .local = of.local,
                         .remote = of.remote};
    const BsonDocument entry = Entry(
        who, "authenticate",
        [&](BsonBuilder& p) {
          p.Append("user", "").Append("db", "").Append("mechanism", "");
          p.Append("repeated", of.count);
          if (several) p.Append("severalAddresses", true);
        },
        ErrorCode::kAuthenticationFailed);
    if (Wanted(entry)) Add(entry);
  }
}

size_t AuditLog::Add(BsonView entry) {
  std::string bytes = Written(entry, format_);
  std::lock_guard l(mutex_);
  if (sink_ == nullptr) return 0;
  if (bytes.size() > sink_->MostBytes()) bytes = Written(Shortened(entry), format_);
  if (pending_bytes_ + bytes.size() > kMaxWaiting && !pending_.empty()) Flush();
  if (pending_bytes_ + bytes.size() > kMaxWaiting && !pending_.empty()) {
    Lose();
    return 0;
  }
  const size_t size = bytes.size();
  pending_bytes_ += size;
  pending_.push_back(std::move(bytes));
  Flush();
  return size;
}

// REQUIRES: mutex_.
void AuditLog::Lose() {
  ++state_.lost;
  if (problem_) problem_(state_);
}

// REQUIRES: mutex_.
void AuditLog::Flush() {
  std::string error;
  while (!pending_.empty()) {
    std::string why;
    const AuditSink::Outcome o = sink_->Put(pending_.front(), &first_done_, &why);
    if (o == AuditSink::Outcome::kWaits) {
      error = std::move(why);
      break;
    }
    pending_bytes_ -= pending_.front().size();
    pending_.pop_front();
    first_done_ = 0;
    if (o == AuditSink::Outcome::kTaken) {
      ++state_.written;
    } else {
      state_.waiting = static_cast<int64_t>(pending_.size());
      std::swap(state_.error, why);
      Lose();
      std::swap(state_.error, why);
    }
  }
  state_.waiting = static_cast<int64_t>(pending_.size());
  const bool changed = error.empty() != state_.error.empty();
  state_.error = std::move(error);
  if (changed && problem_) problem_(state_);
}

AuditLog::State AuditLog::Check(bool reserve) {
  std::lock_guard l(mutex_);
  if (sink_ == nullptr) return state_;
  if (!pending_.empty()) Flush();
  State state = state_;
  if (reserve && state.error.empty()) state.error = sink_->Reserve();
  return state;
}

Result<void> AuditLog::Rotate(const CommandContext* who) {
  if (!enabled() || !sink_->rotates()) return Ok();
  std::string old;
  {
    std::lock_guard l(mutex_);
    // A half-written entry belongs to the old file; the rest may wait for the new one.
    if (!pending_.empty()) Flush();
    const bool torn = first_done_ > 0;
    MAYFLY_TRY(old, sink_->Rotate(clock_.Now()));
    if (torn) first_done_ = 0;  // the new file has all of it
    if (!pending_.empty()) Flush();
  }
  Write(who, "rotateLog", [&](BsonBuilder& p) {
    BsonBuilder status = p.OpenDocument("logRotationStatus");
    status.Append("status", "OK").Append("rotatedLogPath", old);
    status.OpenArray("errors").Done();
  });
  return Ok();
}

BsonDocument AuditLog::filter() const {
  std::lock_guard l(filter_mutex_);
  return filter_source_;
}

Result<void> AuditLog::SetFilter(BsonView filter) {
  std::shared_ptr<const MatchExpression> compiled;
  if (!filter.empty()) {
    MAYFLY_TRY(compiled, CompileAuditFilter(filter));
  }
  std::lock_guard l(filter_mutex_);
  filter_ = std::move(compiled);
  filter_source_ = BsonDocument(filter);
  return Ok();
}

Result<void> CheckAudit(ServerContext& server, std::string_view command) {
  if (!std::binary_search(std::begin(kAudited), std::end(kAudited), command)) return Ok();
  return CheckAudit(server);
}

Result<void> CheckAudit(ServerContext& server) {
  AuditLog* log = server.audit();
  if (log == nullptr || !server.settings().audit_fail_closed.load(std::memory_order_relaxed))
    return Ok();
  const AuditLog::State state = log->Check(true);
  if (state.error.empty()) return Ok();
  return Error{ErrorCode::kOperationFailed,
               log->Name() + " cannot be written (" + state.error +
                   "), and auditFailClosed refuses what would have to be in it: make room, or set "
                   "auditFailClosed to false"};
}

void Audit(CommandContext& ctx, std::string_view atype, const AuditLog::Param& param,
           ErrorCode result) {
  if (AuditLog* log = ctx.server.audit()) log->Write(&ctx, atype, param, result);
}

}  // namespace mayfly
