#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "security/restrictions.h"
#include "security/sasl.h"
#include "security/user_cache.h"
#include "server/access/access_control.h"

namespace mayfly {

/// The user logged in on a connection, and a login in progress. Belongs to the connection: used by
/// its io thread, or by the worker that runs its one command.
struct LoginState {
  UserAccessPtr access;  ///< null: nobody. Change it with Set and Forget
  std::string digest;    ///< UserDigestOf its name; empty: nobody
  std::optional<SaslConversation> conversation;
  int32_t conversation_id = 0;
  bool speculative = false;  ///< the conversation began in hello
  std::string user_id;       ///< userId of the user whose challenge was sent; empty: unknown

  /// Who is logged in now: all of it, or without memory nothing.
  void Set(const UserAccessPtr& now);
  /// Nobody is logged in any more. A login in progress goes on.
  void Forget() noexcept {
    access.reset();
    digest.clear();
  }
};

/// The access of a client that has not logged in while access control is on: none.
const UserAccess& NobodysAccess();

/// The operation runs for `user` from here on, and owns it; null: for nobody (NobodysAccess). While
/// access control is on. By the thread that runs the operation.
void RunFor(Operation& op, UserAccessPtr user);

/// SHA-256 of "user@db", 32 bytes: the `uid` of the user's sessions. No two users have the same.
std::string UserDigestOf(const UserName& name);

/// From "ip:port" of both ends; a unix socket has neither.
LoginOrigin OriginOf(std::string_view client, std::string_view server);

/// Whether the authenticationRestrictions of the user and of each of the roles allow the address.
bool MayComeFrom(const UserAccess& access, const LoginOrigin& origin);

/// Why a login ends, as entries of the audit log say it. The manual has reasons for the first two
/// only ("System Event Audit Messages").
inline constexpr std::string_view kExplicitLogout = "Explicit logout from ";  ///< and a database
inline constexpr std::string_view kConnectionEnds =
    "Implicit logout due to client connection closure";
inline constexpr std::string_view kUserDropped = "Implicit logout because the user was dropped";
inline constexpr std::string_view kAddressRestricted =
    "Implicit logout because authenticationRestrictions do not allow the address any more";

/// Users or roles have changed since `state.access` was read: makes it what it is now. The result
/// is empty, or it says why the login has ended: one of the reasons above. `state` then is as it
/// was. Reads storage. Errors: those of UserCache::Again; when there is no memory for the
/// privileges (146), `state` keeps the login without any until the next refresh.
Result<std::string_view> RefreshLogin(AccessControl& control, LoginState& state,
                                      const LoginOrigin& origin);

/// The first message of a login.
struct LoginStart {
  std::string_view mechanism, db, payload;
  bool skip_empty_exchange = false, speculative = false;
};

/// Begins a login in `state`, replacing one in progress; the answer is the challenge. Reads
/// storage. Errors: MechanismUnavailable 334, BadValue 2 for an invalid SCRAM message,
/// ProtocolError 17 on a connection where somebody else is logged in.
Result<SaslStep> BeginLogin(AccessControl& control, LoginState& state, const LoginStart& start);

/// Goes on with it. When the step is done, `state.access` says who it is. Reads storage. `*why`:
/// for the log, of a failure. Errors: AuthenticationFailed 18, whatever was wrong; the login is
/// over then. REQUIRES: state.conversation.
Result<SaslStep> ContinueLogin(AccessControl& control, LoginState& state, std::string_view payload,
                               const LoginOrigin& origin, std::string* why);

/// A login by the certificate of a TLS connection (MONGODB-X509): `subject`, RFC 2253, of one that
/// was verified, is a user of `$external`, stored there unless the certificate itself grants
/// `roles`. Reads storage. `*why`: for the log, of a failure.
/// Errors: AuthenticationFailed 18; ProtocolError 17 where somebody else is logged in.
Result<void> LoginByCertificate(AccessControl& control, LoginState& state, const UserName& subject,
                                const std::vector<RoleName>& roles, const LoginOrigin& origin,
                                std::string* why);

}  // namespace mayfly
