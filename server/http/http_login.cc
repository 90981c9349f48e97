#include "server/http/http_login.h"

#include <algorithm>
#include <boost/algorithm/string/predicate.hpp>

#include "protocol/base64.h"
#include "protocol/utf8.h"
#include "security/crypto.h"
#include "security/login_backoff.h"
#include "security/tls.h"
#include "server/access/login.h"
#include "server/base/client_of.h"
#include "server/base/environment.h"
#include "server/base/login_lines.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/config.h"
#include "server/dispatch/login_turn.h"
#include "server/dispatch/server_context.h"
#include "server/http/local_command.h"

namespace mayfly {

namespace {

constexpr std::string_view kBasic = "Basic ", kBearer = "Bearer ";
constexpr size_t kMinMetricsToken = 16;  // wrong ones are not slowed down, so no short word
constexpr size_t kMaxAuthorization = 8192;
constexpr size_t kMaxKnown = 100;
constexpr int64_t kKnownMicros = 300'000'000;
constexpr int kMaxChecks = 4;  // at once: each keeps a worker busy for some milliseconds

std::string WithoutPort(std::string_view address) {
  return std::string(address.substr(0, address.rfind(':')));
}

/// On a worker. Takes the same time for a user who does not exist.
UserAccessPtr CheckPassword(AccessControl& control, const UserName& name, std::string_view password,
                            const LoginOrigin& origin) {
  std::optional<UserDocument> found;
  if (auto read = control.users().ForLogin(name)) found = std::move(read).value();
  // The strongest that is offered and that the user has.
  const AccessParameters& parameters = control.parameters();
  ScramMechanism mechanism = ScramMechanism::kSha256;
  if (!parameters.Offers(mechanism) ||
      (found && !found->sha256 && found->sha1 && parameters.Offers(ScramMechanism::kSha1)))
    mechanism = ScramMechanism::kSha1;
  const bool known = found && found->credential(mechanism) && parameters.Offers(mechanism);
  const ScramCredential stored =
      known ? *found->credential(mechanism)
            : control.decoys()->For(mechanism, name, parameters.iterations(mechanism));
  const auto made =
      MakeScramCredential(mechanism, name, password, false, stored.iterations, stored.salt);
  if (!made || !SameBytes(made.value().stored_key, stored.stored_key) || !known) return nullptr;
  auto access = control.users().Find(name);
  if (!access || access.value() == nullptr || access.value()->user.id != found->id) return nullptr;
  return MayComeFrom(*access.value(), origin) ? std::move(access).value() : nullptr;
}

/// Writes the log's line about a finished login.
void TellHttpLogin(ServerContext& server, const UserName& name, std::string_view mechanism,
                   const HttpOrigin& origin, bool good) {
  const BsonDocument attributes = BuildBson([&](BsonBuilder& b) {
    b.Append("client", origin.remote).Append("mechanism", mechanism);
    b.Append("user", PrintableUtf8(name.user)).Append("db", name.db);
  });
  WriteLoginLine(server.log(), server.access().backoff().told(),
                 server.clock().MonotonicMicros() / 1'000'000,
                 {.good = good,
                  .local = origin.local,
                  .remote = origin.remote,
                  .attributes = attributes,
                  .context = {}});
}

/// The audit log's entry. `ctx.access`: who has logged in.
void AuditLogin(CommandContext& ctx, const UserName& name, std::string_view mechanism, bool good) {
  AuditLog* audit = ctx.server.audit();
  if (audit == nullptr) return;
  const auto param = [&](BsonBuilder& p) {
    p.Append("user", name.user).Append("db", name.db).Append("mechanism", mechanism);
  };
  if (good)
    audit->Write(&ctx, "authenticate", param);
  else
    audit->WriteFailedLogin(AuditActor::Of(&ctx), param, ErrorCode::kAuthenticationFailed);
}

/// A scraper may see the metrics, and nothing else.
UserAccessPtr ScraperAccess() {
  auto granted = std::make_shared<GrantedRoles>();
  granted->privileges =
      PrivilegeSet({Privilege{Resource::Cluster(), ActionSet{Action::serverStatus}}});
  return std::make_shared<UserAccess>(std::move(granted));
}

/// RFC 6750, b64token.
bool IsTokenCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-._~+/=").find(c) != std::string_view::npos;
}

}  // namespace

Result<std::string> ReadTokenFile(const std::string& path) {
  MAYFLY_TRY(std::string token, ReadPasswordFile(path, "httpMetricsTokenFile: "));
  if (token.size() < kMinMetricsToken)
    return Error{ErrorCode::kBadValue,
                 path +
                     ": a token has at least 16 characters, so that nobody guesses it: openssl "
                     "rand -hex 32"};
  if (!std::ranges::all_of(token, IsTokenCharacter))
    return Error{ErrorCode::kBadValue,
                 path +
                     ": a token has only letters, digits and -._~+/= (RFC 6750): openssl rand "
                     "-hex 32"};
  return token;
}

HttpLogins::HttpLogins(ServerContext& server, IoExecutor io) : server_(server), io_(io) {}

Result<void> HttpLogins::Start() {
  MAYFLY_TRY(key_, RandomBytes(32));
  const BsonValue file = server_.config().parsed.view().FindPath("mayfly.httpMetricsTokenFile");
  if (!file.IsString()) return Ok();
  if (!server_.access().enforced() && !server_.config().transition_to_auth)
    return Error{ErrorCode::kBadValue,
                 "--httpMetricsTokenFile is for access control, which is off: everybody may read "
                 "/metrics then. Leave it out, or switch access control on"};
  MAYFLY_TRY(const std::string token, ReadTokenFile(std::string(file.String())));
  token_digest_ = HmacOf(HashKind::kSha256, key_, token).view();
  scraper_ = ScraperAccess();
  return Ok();
}

Awaitable<UserAccessPtr> HttpLogins::Find(std::string_view authorization, const HttpOrigin& origin,
                                          HttpCertificate& certificate) {
  if (boost::algorithm::istarts_with(authorization, kBearer))
    co_return ByToken(authorization, origin);
  // A name and a password that are given are what counts.
  if (authorization.empty() && certificate.peer)
    co_return co_await ByCertificate(certificate, origin);
  co_return co_await ByPassword(authorization, origin);
}

UserAccessPtr HttpLogins::ByToken(std::string_view authorization, const HttpOrigin& origin) {
  if (token_digest_.empty() || authorization.size() > kMaxAuthorization) return nullptr;
  std::string_view given = authorization.substr(kBearer.size());
  while (!given.empty() && given.front() == ' ') given.remove_prefix(1);
  // Digests with a secret key: neither the bytes that are right nor their number show in the time.
  if (SameBytes(HmacOf(HashKind::kSha256, key_, given).view(), token_digest_)) return scraper_;
  LocalOperation local(server_, io_, &origin);
  AuditLogin(local.ctx, {}, "HTTP Bearer", false);
  return nullptr;
}

Awaitable<UserAccessPtr> HttpLogins::ByCertificate(HttpCertificate& certificate,
                                                   const HttpOrigin& origin) {
  AccessControl& control = server_.access();
  const TlsPeer& peer = *certificate.peer;
  // As for MONGODB-X509: no untrusted certificate, and no member's.
  const AccessParameters& parameters = control.parameters();
  if (!parameters.x509 || peer.subject.empty() ||
      (parameters.members_are_no_users && server_.tls().IsMember(peer)))
    co_return nullptr;
  const uint64_t generation = control.users().generation();
  // Each request is a login of its own, so none succeeds after the certificate's end.
  const bool expired = peer.expires <= server_.clock().Now().millis / 1000;
  if (certificate.generation == generation && !(expired && certificate.access != nullptr))
    co_return certificate.access;
  const UserName name{peer.subject, std::string(kExternalDatabase)};
  LocalOperation local(server_, io_, &origin);
  co_await local.ctx.MoveToWorker();
  LoginState state;
  std::string why;
  bool good = false;
  try {
    good = !expired &&
           LoginByCertificate(control, state, name,
                              parameters.certificate_roles ? peer.roles : std::vector<RoleName>(),
                              OriginOf(origin.remote, origin.local), &why)
               .has_value() &&
           CheckAudit(server_).has_value();
  } catch (const std::bad_alloc&) {
    // As an unknown user, and this thread returns to its own work.
  }
  const bool first = certificate.generation == 0;
  const UserAccessPtr access = good ? state.access : nullptr;
  if (access != nullptr) RunFor(local.op, access);
  // Once a connection, and when users have changed or time has passed so that it matters.
  const bool tell = first || (access == nullptr) != (certificate.access == nullptr);
  if (tell) AuditLogin(local.ctx, name, "MONGODB-X509", good);
  co_await local.ctx.MoveToIo();
  if (tell) TellHttpLogin(server_, name, "MONGODB-X509", origin, good);
  if (tell && access != nullptr) TellRolesLeftOut(server_.log(), nullptr, *access, {});
  certificate.access = access;
  certificate.generation = generation;
  co_return access;
}

Awaitable<UserAccessPtr> HttpLogins::ByPassword(std::string_view authorization,
                                                const HttpOrigin& origin) {
  if (authorization.size() > kMaxAuthorization ||
      !boost::algorithm::istarts_with(authorization, kBasic))
    co_return nullptr;
  // Both addresses count too, whole: restrictions look at them.
  const std::string digest(HmacOf(HashKind::kSha256, key_,
                                  WithoutPort(origin.remote) + "\n" + WithoutPort(origin.local) +
                                      "\n" + std::string(authorization))
                               .view());
  const int64_t now = server_.clock().MonotonicMicros();
  if (const auto at = known_.find(digest);
      at != known_.end() && at->second.until > now &&
      at->second.access->generation == server_.access().users().generation())
    co_return at->second.access;
  std::string text;
  if (!DecodeBase64(authorization.substr(kBasic.size()), text)) co_return nullptr;
  const size_t colon = text.find(':');
  if (colon == std::string::npos || text.find('\0') != std::string::npos) co_return nullptr;
  const UserName name{text.substr(0, colon), "admin"};
  if (!CheckPrincipalName(name.user, "User")) co_return nullptr;
  // A login that must wait takes no place from those that need not.
  LocalOperation local(server_, io_, &origin);
  Result<std::optional<LoginBackoff::Attempt>> turn =
      co_await LoginTurn(local.ctx, ClientOf(origin.remote), name);
  if (!turn || !turn.value()) co_return nullptr;
  LoginBackoff::Attempt& attempt = *turn.value();
  if (checking_ >= kMaxChecks) {
    attempt.Abandon();
    co_return nullptr;
  }
  ++checking_;
  UserAccessPtr access;
  try {
    access = co_await Check(local.ctx, name, std::string_view(text).substr(colon + 1), origin);
  } catch (...) {
    --checking_;
    throw;
  }
  --checking_;
  if (access != nullptr) attempt.Succeeded();
  if (access == nullptr) co_return nullptr;
  if (known_.size() >= kMaxKnown) known_.clear();
  known_.insert_or_assign(digest, Known{access, now + kKnownMicros});
  co_return access;
}

Awaitable<UserAccessPtr> HttpLogins::Check(CommandContext& ctx, const UserName& name,
                                           std::string_view password, const HttpOrigin& origin) {
  AccessControl& control = server_.access();
  co_await ctx.MoveToWorker();
  UserAccessPtr access;
  try {
    access = CheckPassword(control, name, password, OriginOf(origin.remote, origin.local));
  } catch (const std::bad_alloc&) {
    // As a wrong one, and this thread returns to its own work.
  }
  if (!CheckAudit(server_)) access = nullptr;  // a login that cannot be audited is none
  if (access != nullptr) RunFor(ctx.op, access);
  AuditLogin(ctx, name, "HTTP Basic", access != nullptr);
  co_await ctx.MoveToIo();
  TellHttpLogin(server_, name, "HTTP Basic", origin, access != nullptr);
  if (access != nullptr) TellRolesLeftOut(server_.log(), nullptr, *access, {});
  co_return access;
}

}  // namespace mayfly
