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

/// Who is logged in on a connection, and the login that is under way. Of the connection: its io
/// thread's, or the worker's on which its one command runs.
struct LoginState {
  UserAccessPtr access;  ///< null: nobody
  std::string digest;    ///< UserDigestOf its name; empty: nobody
  std::optional<SaslConversation> conversation;
  int32_t conversation_id = 0;
  bool speculative = false;  ///< the conversation began in hello
  std::string user_id;       ///< userId of the user whose challenge was sent; empty: unknown

  /// Nobody is logged in any more.
  void Forget() {
    access.reset();
    digest.clear();
    conversation.reset();
  }
};

/// Of a client that has not logged in while access control is on: it may do nothing.
const UserAccess& NobodysAccess();

/// SHA-256 of "user@db", 32 bytes: the `uid` of the user's sessions. No two users have the same.
std::string UserDigestOf(const UserName& name);

/// From "ip:port" of both ends; a unix socket has neither.
LoginOrigin OriginOf(std::string_view client, std::string_view server);

/// Whether the authenticationRestrictions of the user and of each of the roles allow the address.
bool MayComeFrom(const UserAccess& access, const LoginOrigin& origin);

/// Users or roles have changed since `state.access` was read: it as it is now. False: the user was
/// dropped, or may not come from there any more; `state` then is as it was. Reads storage. Errors:
/// those of UserCache::Again.
Result<bool> RefreshLogin(AccessControl& control, LoginState& state, const LoginOrigin& origin);

/// The first message of a login.
struct LoginStart {
  std::string_view mechanism, db, payload;
  bool skip_empty_exchange = false, speculative = false;
};

/// Begins a login in `state`, whatever was under way there; the answer is the challenge. Reads
/// storage. Errors: MechanismUnavailable 334, BadValue 2 for what is no SCRAM message,
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
