#include "server/commands/sasl_cmds.h"

#include <boost/asio/use_awaitable.hpp>

#include "protocol/base64.h"
#include "protocol/database_name.h"
#include "protocol/micros.h"
#include "protocol/utf8.h"
#include "security/login_backoff.h"
#include "security/sasl.h"
#include "security/tls.h"
#include "server/access/login.h"
#include "server/base/client_of.h"
#include "server/base/login_lines.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/command.h"
#include "server/dispatch/login_turn.h"
#include "server/dispatch/server_context.h"
#include "server/net/connection.h"
#include "storage/catalog/namespace.h"

namespace mayfly {

namespace {

/// A payload is binary data, or its base64 as text (mongosh's `runCommand`).
void ReadSaslPayload(ArgReader& in, std::string* out) {
  const BsonValue v = in.Any("payload");
  if (v.Is(BsonType::kBinary)) {
    *out = v.BinaryData();
  } else if (v.IsString()) {
    if (!DecodeBase64(v.String(), *out))
      in.Fail({ErrorCode::kFailedToParse, "the payload is neither binary data nor base64"});
  } else {
    in.Fail(v.missing() ? Error{ErrorCode::kMissingField, "BSON field '" + in.where() +
                                                              ".payload' is missing but a "
                                                              "required field"}
                        : in.WrongType("payload", v.type(), "[string, binData]"));
  }
}

struct StartArgs {
  std::string mechanism, db, payload;
  bool skip_empty_exchange = false;
};

void ReadStart(ArgReader& in, StartArgs* a) {
  a->mechanism = in.String("mechanism");
  ReadSaslPayload(in, &a->payload);
  in.Any("autoAuthorize");  // unused: drivers of long ago; a login always counts for the connection
  if (auto options = in.OptDocument("options")) {
    ArgReader inner("saslStart.options", *options);
    a->skip_empty_exchange = inner.BoolOr("skipEmptyExchange", false);
    if (auto ok = inner.Finish(); !ok) in.Fail(ok.error());
  }
}

void AppendStep(BsonBuilder& out, const LoginState& login, const SaslStep& step) {
  out.Append("conversationId", login.conversation_id).Append("done", step.done);
  out.AppendBinary("payload", 0, step.payload);
}

/// The client and user of an attempt, for the log and the audit log; never the payload.
struct Attempt {
  UserName name;
  std::string mechanism;
  bool speculative = false;
};

Attempt AttemptOf(const LoginState& login) {
  return {login.conversation->name(),
          std::string(ScramMechanismName(login.conversation->mechanism())), login.speculative};
}

/// Writes the lines about a finished login to the log and the audit log.
void TellLogin(CommandContext& ctx, const Attempt& a, ErrorCode result, std::string_view why) {
  const bool good = result == ErrorCode::kOk;
  const BsonDocument attributes = BuildBson([&](BsonBuilder& b) {
    b.Append("client", ctx.connection->remote()).Append("isSpeculative", a.speculative);
    b.Append("mechanism", a.mechanism);
    b.Append("user", PrintableUtf8(a.name.user)).Append("db", PrintableUtf8(a.name.db));
    b.Append("result", static_cast<int32_t>(result));
    if (!good) b.Append("error", why);
  });
  WriteLoginLine(ctx.data.log(), ctx.server.access().backoff().told(),
                 ctx.data.clock().MonotonicMicros() / 1'000'000,
                 {.good = good,
                  .local = ctx.client->local_address,
                  .remote = ctx.connection->remote(),
                  .attributes = attributes,
                  .context = ctx.client->desc});
  AuditLog* audit = ctx.server.audit();
  if (audit == nullptr) return;
  AuditActor who = AuditActor::Of(&ctx);
  if (const UserAccess* access = ctx.connection->login.access.get(); good && access != nullptr) {
    who.user = &access->user.name;
    who.access = access;
  }
  const auto param = [&](BsonBuilder& p) {
    p.Append("user", a.name.user).Append("db", a.name.db).Append("mechanism", a.mechanism);
  };
  if (good)
    audit->Write(who, "authenticate", param, result);
  else
    audit->WriteFailedLogin(who, param, result);
}

/// The time of a login's first answer is rounded up to these: otherwise the time to read a user
/// (above all the roles) would reveal that the user exists.
constexpr int64_t kAnswerStepMicros = 1000;

/// Waits until a whole number of steps after `began` (MonotonicMicros). Errors: SleepUntil's.
Awaitable<Result<void>> WaitForStep(CommandContext& ctx, int64_t began) {
  const int64_t took = ctx.data.clock().MonotonicMicros() - began;
  co_return co_await ctx.SleepUntil(began + (took / kAnswerStepMicros + 1) * kAnswerStepMicros);
}

/// The proof was right, and the reply is made: what fails after this leaves the client logged in.
/// Errors: the connection may not stay; that is no guess.
Result<void> LogIn(CommandContext& ctx, const Attempt& a) {
  auto stays = ctx.connection->LoggedIn([&] {
    TellRolesLeftOut(ctx.data.log(), nullptr, *ctx.connection->login.access, ctx.client->desc);
    // The audit log's entry is the last step, so that it is there only if the login stands.
    TellLogin(ctx, a, ErrorCode::kOk, {});
  });
  if (!stays) TellLogin(ctx, a, stays.error().code, stays.error().message);
  return stays;
}

/// A login has failed: what was under way is forgotten.
Awaitable<Result<void>> FailLogin(CommandContext& ctx, const Attempt& a, Error error,
                                  std::string why) {
  AccessControl& access = ctx.server.access();
  ctx.connection->login.conversation.reset();
  TellLogin(ctx, a, error.code, why);
  if (const int64_t delay = access.parameters().failed_delay_millis; delay > 0) {
    MAYFLY_CO_TRY(co_await ctx.SleepUntil(ctx.data.clock().MonotonicMicros() + MicrosOf(delay)));
  }
  co_return std::move(error);
}

/// A login has failed before any proof. Clients that have not logged in could fill a
/// disk with such failures, so they share the limit of refused commands. The log has
/// the reason; the client only learns that the login failed, as with a wrong
/// password.
Error RefuseLogin(CommandContext& ctx, std::string_view user, std::string_view db,
                  std::string_view mechanism, const Error& reason) {
  constexpr size_t kShown = 1024;
  const bool malformed = FindScramMechanism(mechanism) && reason.code == ErrorCode::kBadValue;
  const Error error =
      malformed ? Error{ErrorCode::kAuthenticationFailed, "Authentication failed."} : reason;
  AuditLog* audit = ctx.server.audit();
  if (audit != nullptr && audit->AdmitAnonymous())
    TellLogin(ctx,
              {{PrintableUtf8(user.substr(0, kShown)), std::string(db)},
               std::string(ShownMechanism(mechanism))},
              error.code, reason.message);
  return error;
}

/// Views into the arguments and the database's name.
LoginStart StartOf(const StartArgs& a, std::string_view db, bool speculative) {
  return {.mechanism = a.mechanism,
          .db = db,
          .payload = a.payload,
          .skip_empty_exchange = a.skip_empty_exchange,
          .speculative = speculative};
}

Result<void> NeedsClient(const CommandContext& ctx) {
  if (ctx.connection != nullptr && ctx.client != nullptr) return Ok();
  return Error{ErrorCode::kIllegalOperation, "a login needs a client"};
}

Awaitable<Result<void>> SaslStart(CommandContext& ctx, const CommandRequest& req,
                                  BsonBuilder& reply) {
  MAYFLY_CO_TRY(NeedsClient(ctx));
  ArgReader in(req);
  StartArgs a;
  ReadStart(in, &a);
  MAYFLY_CO_TRY(in.Finish());
  const int64_t began = ctx.data.clock().MonotonicMicros();
  co_await ctx.MoveToWorker();
  MAYFLY_CO_TRY(ctx.connection->RefreshLogin(ctx));
  LoginState& login = ctx.connection->login;
  const LoginStart start = StartOf(a, req.db, /*speculative=*/false);
  ctx.connection->AbandonLogin();
  const Result<SaslStep> step = BeginLogin(ctx.server.access(), login, start);
  MAYFLY_CO_TRY(co_await WaitForStep(ctx, began));
  if (!step) co_return RefuseLogin(ctx, {}, req.db, a.mechanism, step.error());
  AppendStep(reply, login, step.value());
  co_return Ok();
}

Awaitable<Result<void>> SaslContinue(CommandContext& ctx, const CommandRequest& req,
                                     BsonBuilder& reply) {
  MAYFLY_CO_TRY(NeedsClient(ctx));
  ArgReader in(req);
  const int64_t id = in.Int64("conversationId");
  std::string payload;
  ReadSaslPayload(in, &payload);
  MAYFLY_CO_TRY(in.Finish());
  LoginState& login = ctx.connection->login;
  if (!login.conversation)
    co_return Error{ErrorCode::kProtocolError, "No SASL session state found"};
  if (id != login.conversation_id) {
    ctx.connection->AbandonLogin();
    login.conversation.reset();
    co_return Error{ErrorCode::kProtocolError, "sasl: Mismatched conversation id"};
  }
  const Attempt attempt = AttemptOf(login);
  AccessControl& access = ctx.server.access();
  // Before the proof is looked at, so that a right guess is no quicker than a wrong one.
  std::optional<LoginBackoff::Attempt> turn;
  if (!login.conversation->proven()) {
    MAYFLY_CO_TRY(auto got,
                  co_await LoginTurn(ctx, ClientOf(ctx.connection->remote()), attempt.name));
    if (got) {
      turn.emplace(std::move(*got));
    } else {
      Error error{ErrorCode::kAuthenticationFailed, "Authentication failed."};
      std::string unseen = "too many others have failed: its password was not looked at";
      co_return co_await FailLogin(ctx, attempt, std::move(error), std::move(unseen));
    }
  }
  co_await ctx.MoveToWorker();
  MAYFLY_CO_TRY(ctx.connection->RefreshLogin(ctx));
  std::string why;
  Result<SaslStep> step =
      ContinueLogin(access, login, payload, ctx.connection->login_origin(), &why);
  if (step && turn) turn->Succeeded();
  turn.reset();
  if (!step) co_return co_await FailLogin(ctx, attempt, step.error(), std::move(why));
  AppendStep(reply, login, step.value());
  if (step.value().done) {
    login.conversation.reset();
    MAYFLY_CO_TRY(LogIn(ctx, attempt));
  }
  co_return Ok();
}

constexpr std::string_view kX509 = "MONGODB-X509";

struct CertificateArgs {
  std::string mechanism, user;
};

void ReadCertificate(ArgReader& in, CertificateArgs* a) {
  a->mechanism = in.StringOr("mechanism", "MONGODB-CR");
  if (auto user = in.OptString("user")) a->user = *user;
  in.Any("nonce");  // unused: of MONGODB-CR, which is no mechanism here
  in.Any("key");    // unused: of MONGODB-CR, too
}

/// The user that the connection's certificate names. Errors: AuthenticationFailed 18, ProtocolError
/// 17, MechanismUnavailable 334, BadValue 2 for other mechanisms.
Result<UserName> UserOfCertificate(const CommandContext& ctx, const CertificateArgs& a,
                                   std::string_view db) {
  if (a.mechanism != kX509)
    return Error{ErrorCode::kBadValue,
                 "Unsupported mechanism: " + std::string(ShownMechanism(a.mechanism))};
  const AccessParameters& parameters = ctx.server.access().parameters();
  if (!parameters.x509)
    return Error{ErrorCode::kMechanismUnavailable,
                 "Received authentication for mechanism MONGODB-X509 which is unknown or not "
                 "enabled"};
  const TlsPeer* peer = ctx.connection->tls_peer();
  if (peer == nullptr)
    return Error{ErrorCode::kAuthenticationFailed,
                 "SSL support is required for the MONGODB-X509 mechanism."};
  if (db != kExternalDatabase)
    return Error{ErrorCode::kProtocolError,
                 "X.509 authentication must always use the $external database."};
  const std::string_view subject = peer->subject;
  if (subject.empty())
    return Error{ErrorCode::kAuthenticationFailed,
                 "No verified subject name available from client: connect with a certificate that "
                 "the server's tlsCAFile has signed"};
  if (!a.user.empty() && a.user != subject)
    return Error{ErrorCode::kAuthenticationFailed,
                 "There is no x.509 client certificate matching the user."};
  // The handshake has looked at it, maybe long ago.
  if (peer->expires <= ctx.data.clock().Now().millis / 1000)
    return Error{ErrorCode::kAuthenticationFailed,
                 "The certificate has expired since this connection began: connect with a new one"};
  // Members of a set use no logins. A thief of a member's certificate does not become a user, even
  // if someone created one with that name.
  if (parameters.members_are_no_users && ctx.server.tls().IsMember(*peer))
    return Error{ErrorCode::kAuthenticationFailed,
                 "The certificate is one of a member of the set, and no user's: "
                 "enforceUserClusterSeparation prohibits this login"};
  return UserName{std::string(subject), std::string(kExternalDatabase)};
}

/// Logs in by it and appends who that is. On a worker.
Awaitable<Result<void>> ByCertificate(CommandContext& ctx, const UserName& name, bool speculative,
                                      BsonBuilder& reply) {
  AccessControl& access = ctx.server.access();
  const Attempt attempt{name, std::string(kX509), speculative};
  MAYFLY_CO_TRY(ctx.connection->RefreshLogin(ctx));
  ctx.connection->AbandonLogin();
  std::string why;
  Result<void> done =
      LoginByCertificate(access, ctx.connection->login, name,
                         access.parameters().certificate_roles ? ctx.connection->tls_peer()->roles
                                                               : std::vector<RoleName>(),
                         ctx.connection->login_origin(), &why);
  if (!done) co_return co_await FailLogin(ctx, attempt, done.error(), std::move(why));
  reply.Append("dbname", name.db).Append("user", name.user);
  co_return LogIn(ctx, attempt);
}

/// The same beside a hello; empty when it failed.
Awaitable<BsonDocument> SpeculativeCertificate(CommandContext& ctx, const UserName& name) {
  std::string bytes;
  BsonBuilder out(bytes);
  const Result<void> done = co_await ByCertificate(ctx, name, true, out);
  if (!done) {
    out.Abandon();
    co_return BsonDocument();
  }
  out.Done();
  co_return BsonDocument(std::move(bytes));
}

Awaitable<Result<void>> Authenticate(CommandContext& ctx, const CommandRequest& req,
                                     BsonBuilder& reply) {
  MAYFLY_CO_TRY(NeedsClient(ctx));
  ArgReader in(req);
  CertificateArgs a;
  ReadCertificate(in, &a);
  MAYFLY_CO_TRY(in.Finish());
  const Result<UserName> name = UserOfCertificate(ctx, a, req.db);
  if (!name) {
    const std::string_view user = a.user.empty() ? ctx.connection->peer_subject() : a.user;
    co_return RefuseLogin(ctx, user, req.db, a.mechanism, name.error());
  }
  co_await ctx.MoveToWorker();
  co_return co_await ByCertificate(ctx, name.value(), false, reply);
}

Result<void> Logout(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  MAYFLY_TRY(in.Finish());
  if (ctx.connection == nullptr) return Ok();
  LoginState& login = ctx.connection->login;
  // No user of another database is logged in.
  if (login.access != nullptr && login.access->user.name.db != req.db && req.db != "admin")
    return Ok();
  ctx.connection->AbandonLogin();
  const bool was_known = login.access != nullptr;
  ctx.connection->LogOut(std::string(kExplicitLogout) + std::string(req.db));
  if (was_known) ctx.connection->CountAsUnknown();
  if (ctx.access == nullptr) return Ok();
  RunFor(ctx.op, nullptr);
  return Ok();
}

}  // namespace

Awaitable<void> SpeculativeLogin(CommandContext& ctx, BsonView command, BsonBuilder& reply) {
  if (command.First().name == "authenticate") {
    ArgReader certificate("hello.speculativeAuthenticate", command);
    certificate.Any("authenticate");  // unused: the command's name
    CertificateArgs a;
    ReadCertificate(certificate, &a);
    const std::string db(certificate.StringOr("db", kExternalDatabase));
    if (!certificate.Finish()) co_return;
    const Result<UserName> name = UserOfCertificate(ctx, a, db);
    if (!name || !CheckAudit(ctx.server)) co_return;
    co_await ctx.MoveToWorker();
    const BsonDocument who = co_await SpeculativeCertificate(ctx, name.value());
    if (!who.view().empty()) reply.Append("speculativeAuthenticate", who.view());
    co_return;
  }
  if (command.First().name != "saslStart") co_return;
  ArgReader in("hello.speculativeAuthenticate", command);
  in.Any("saslStart");  // unused: the command's name
  StartArgs a;
  ReadStart(in, &a);
  a.db = in.String("db");
  if (!in.Finish() || !ValidateDatabaseName(a.db)) co_return;
  const int64_t began = ctx.data.clock().MonotonicMicros();
  co_await ctx.MoveToWorker();
  if (!ctx.connection->RefreshLogin(ctx)) co_return;
  LoginState& login = ctx.connection->login;
  const LoginStart start = StartOf(a, a.db, /*speculative=*/true);
  ctx.connection->AbandonLogin();
  const Result<SaslStep> step = BeginLogin(ctx.server.access(), login, start);
  const Result<void> waited = co_await WaitForStep(ctx, began);
  if (!step || !waited) co_return;
  BsonBuilder out = reply.OpenDocument("speculativeAuthenticate");
  AppendStep(out, login, step.value());
}

Awaitable<Result<void>> AppendMechanisms(CommandContext& ctx, std::string_view user,
                                         BsonBuilder& reply) {
  const size_t dot = user.find('.');
  if (dot == std::string_view::npos)
    co_return Error{ErrorCode::kBadValue,
                    "UserName must contain a '.' separated database.user pair"};
  UserName name;
  name.db = user.substr(0, dot);
  name.user = user.substr(dot + 1);
  const int64_t began = ctx.data.clock().MonotonicMicros();
  co_await ctx.MoveToWorker();
  AccessControl& access = ctx.server.access();
  std::optional<UserDocument> found;
  if (auto read = access.users().ForLogin(name)) found = std::move(read).value();
  MAYFLY_CO_TRY(co_await WaitForStep(ctx, began));
  // A user without a password (of $external) gets the same answer as an unknown user.
  if (found && !found->sha1 && !found->sha256) found.reset();
  BsonArrayBuilder list = reply.OpenArray("saslSupportedMechs");
  for (ScramMechanism m : {ScramMechanism::kSha1, ScramMechanism::kSha256})
    if (access.parameters().Offers(m) && (!found || found->credential(m)))
      list.Append(ScramMechanismName(m));
  list.Done();
  co_return Ok();
}

void RegisterSaslCommands(CommandRegistry& registry) {
  // Drivers say apiStrict in these, too.
  constexpr uint32_t kFlags = kNoAuth | kSecondaryOk | kNoProfile | kSecret | kApiV1;
  registry.Add(
      {.name = "saslStart", .flags = kFlags, .help = "Begins a login.", .run_async = &SaslStart});
  registry.Add({.name = "saslContinue",
                .flags = kFlags,
                .help = "Goes on with a login.",
                .run_async = &SaslContinue});
  registry.Add({.name = "authenticate",
                .flags = kFlags,
                .help = "A login by certificate.",
                .run_async = &Authenticate});
  registry.Add({.name = "logout",
                .flags = kNoAuth | kSecondaryOk,
                .help = "Ends the login of this connection.",
                .run = &Logout});
}

}  // namespace mayfly
