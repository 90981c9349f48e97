#include <span>

#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"

namespace mayfly {

namespace {

struct Unavailable {
  std::string_view name;
  ErrorCode code;
  std::string_view message;
};

constexpr std::string_view kNoSearch =
    "search indexes are a service of MongoDB Atlas, which this server does not have";
constexpr std::string_view kNoUsers =
    "users and roles are not built yet: this version runs without access control";
constexpr std::string_view kNoAuthentication =
    "Authentication failed: access control is not enabled, connect without a user name";

/// Commands that MongoDB has and whose answer here is always the same error.
constexpr Unavailable kUnavailable[] = {
    {"abortTransaction", ErrorCode::kCommandFailed,
     "abortTransaction must be run within a transaction"},
    {"authenticate", ErrorCode::kAuthenticationFailed, kNoAuthentication},
    {"commitTransaction", ErrorCode::kCommandFailed,
     "commitTransaction must be run within a transaction"},
    {"createSearchIndexes", LocationCode(31082), kNoSearch},
    {"createRole", ErrorCode::kNotImplemented, kNoUsers},
    {"createUser", ErrorCode::kNotImplemented, kNoUsers},
    {"dropAllRolesFromDatabase", ErrorCode::kNotImplemented, kNoUsers},
    {"dropAllUsersFromDatabase", ErrorCode::kNotImplemented, kNoUsers},
    {"dropSearchIndex", LocationCode(31082), kNoSearch},
    {"dropRole", ErrorCode::kNotImplemented, kNoUsers},
    {"dropUser", ErrorCode::kNotImplemented, kNoUsers},
    {"grantPrivilegesToRole", ErrorCode::kNotImplemented, kNoUsers},
    {"grantRolesToRole", ErrorCode::kNotImplemented, kNoUsers},
    {"grantRolesToUser", ErrorCode::kNotImplemented, kNoUsers},
    {"revokePrivilegesFromRole", ErrorCode::kNotImplemented, kNoUsers},
    {"revokeRolesFromRole", ErrorCode::kNotImplemented, kNoUsers},
    {"revokeRolesFromUser", ErrorCode::kNotImplemented, kNoUsers},
    {"mapReduce", LocationCode(31264),
     "mapReduce cannot be used: server-side JavaScript execution is disabled; an aggregation with "
     "$group does the same"},
    {"saslContinue", ErrorCode::kProtocolError, "No SASL session state found"},
    {"saslStart", ErrorCode::kAuthenticationFailed, kNoAuthentication},
    {"updateSearchIndex", LocationCode(31082), kNoSearch},
    {"updateRole", ErrorCode::kNotImplemented, kNoUsers},
    {"updateUser", ErrorCode::kNotImplemented, kNoUsers},
};

Result<void> Refuse(CommandContext&, const CommandRequest& req, BsonBuilder&) {
  for (const Unavailable& u : kUnavailable)
    if (u.name == req.name) return Error{u.code, std::string(u.message)};
  return Error{ErrorCode::kInternalError, "a command without its reason"};
}

Result<void> UsersInfo(CommandContext&, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  in.LooseBoolOr("showCredentials", false);
  in.LooseBoolOr("showCustomData", true);
  in.LooseBoolOr("showPrivileges", false);
  in.LooseBoolOr("showAuthenticationRestrictions", false);
  in.OptDocument("filter");
  MAYFLY_TRY(in.Finish());
  reply.OpenArray("users").Done();
  return Ok();
}

Result<void> RolesInfo(CommandContext&, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  in.Any("showPrivileges");
  in.LooseBoolOr("showBuiltinRoles", false);
  in.LooseBoolOr("showAuthenticationRestrictions", false);
  MAYFLY_TRY(in.Finish());
  reply.OpenArray("roles").Done();
  return Ok();
}

/// Nobody is logged in, so there is nothing to end; MongoDB answers ok in that case too.
Result<void> Logout(CommandContext&, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  return in.Finish();
}

}  // namespace

void RegisterUnavailableCommands(CommandRegistry& registry) {
  for (const Unavailable& u : kUnavailable) {
    const bool transaction = u.name.ends_with("Transaction");
    const bool users = u.code == ErrorCode::kNotImplemented;
    // What is missing is what has to be said, not that it takes no write concern; and a password is
    // nothing for the profile.
    const bool secret = users || u.code == ErrorCode::kAuthenticationFailed;
    registry.Add({.name = u.name,
                  .flags = kNoAuth | kSecondaryOk | kHidden |
                           (transaction || users ? uint32_t{kTakesWriteConcern} : 0u) |
                           (transaction ? kAdminOnly | kApiV1 : 0u) |
                           (secret ? uint32_t{kNoProfile} : 0u),
                  .help = "Not available on this server.",
                  .run = &Refuse});
  }
  registry.Add({.name = "usersInfo",
                .flags = kSecondaryOk,
                .help = "Users of the database: none.",
                .run = &UsersInfo});
  registry.Add({.name = "rolesInfo",
                .flags = kSecondaryOk,
                .help = "Roles of the database: none.",
                .run = &RolesInfo});
  registry.Add({.name = "logout",
                .flags = kNoAuth | kSecondaryOk,
                .help = "Ends the log-in of this connection.",
                .run = &Logout});
}

}  // namespace mayfly
