#include "server/access/login.h"

#include <algorithm>

namespace mayfly {
namespace {

Error Failed() { return {ErrorCode::kAuthenticationFailed, "Authentication failed."}; }

/// The address in "ip:port" or "[ip]:port".
std::optional<IpAddress> AddressOf(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view ip = text.substr(0, colon);
  if (ip.size() > 2 && ip.front() == '[' && ip.back() == ']') ip = ip.substr(1, ip.size() - 2);
  return ParseIpAddress(ip);
}

/// The proof was right: finds the user again, and checks whether this user may log in from this
/// address. `user_id` is the id of the user whose credentials the proof was made with; empty: any
/// user with this name.
Result<void> Admit(LoginState& state, const Result<UserAccessPtr>& found,
                   const std::string& user_id, const LoginOrigin& origin, std::string* why) {
  if (!found) {
    *why = found.error().message;
    return Failed();
  }
  const UserAccessPtr& access = found.value();
  if (access == nullptr || (!user_id.empty() && access->user.id != user_id)) {
    *why = user_id.empty() ? "there is no such user" : "the user was dropped meanwhile";
    return Failed();
  }
  if (!MayComeFrom(*access, origin)) {
    *why = "authenticationRestrictions do not allow this address";
    return Failed();
  }
  state.Set(access);
  return Ok();
}

}  // namespace

const UserAccess& NobodysAccess() {
  static const UserAccess nobody{};
  return nobody;
}

void RunFor(Operation& op, UserAccessPtr user) {
  // Without an owner: it lives as long as the process.
  if (user == nullptr) user = UserAccessPtr(UserAccessPtr(), &NobodysAccess());
  const Value* const roles = &user->role_documents;
  op.SetUser(std::move(user), roles);
}

void LoginState::Set(const UserAccessPtr& now) {
  // Each operation counts itself among its user's owners. The count of each connection is its own:
  // one for all connections of a user would be passed from processor to processor.
  auto own = std::make_shared<const UserAccessPtr>(now);
  const UserAccess* const user = own->get();
  std::string its = UserDigestOf(user->user.name);
  access = UserAccessPtr(std::move(own), user);
  digest = std::move(its);
}

std::string UserDigestOf(const UserName& name) {
  // In "a@b@c" the last '@' is before the database. Of a database that has one itself the name must
  // not be another user's.
  const bool plain = name.db.find('@') == std::string::npos;
  const std::string text = plain ? name.Shown() : name.user + '\0' + name.db;
  return std::string(HashOf(HashKind::kSha256, text).view());
}

LoginOrigin OriginOf(std::string_view client, std::string_view server) {
  return {AddressOf(client), AddressOf(server)};
}

bool MayComeFrom(const UserAccess& access, const LoginOrigin& origin) {
  return Allows(access.user.restrictions, origin) &&
         std::ranges::all_of(access.roles.restrictions, [&](const AuthenticationRestrictions& r) {
           return Allows(r, origin);
         });
}

Result<std::string_view> RefreshLogin(AccessControl& control, LoginState& state,
                                      const LoginOrigin& origin) {
  const Result<UserAccessPtr> found = control.users().Again(*state.access);
  if (!found) {
    // Others may wait for the memory that the former privileges take, as this one waits for theirs.
    // The next command tries again.
    if (found.error().code == ErrorCode::kExceededMemoryLimit)
      state.Set(WithoutPrivileges(*state.access));
    return found.error();
  }
  const UserAccessPtr& now = found.value();
  if (now == nullptr) return kUserDropped;
  if (!MayComeFrom(*now, origin)) return kAddressRestricted;
  state.Set(now);
  return std::string_view();
}

static Result<void> CheckOnlyLogin(const LoginState& state, const UserName& name) {
  if (state.access == nullptr || state.access->user.name == name) return Ok();
  return Error{ErrorCode::kProtocolError,
               "Each client connection may only be authenticated once. Previously authenticated "
               "as: " +
                   state.access->user.name.Shown()};
}

Result<SaslStep> BeginLogin(AccessControl& control, LoginState& state, const LoginStart& start) {
  state.conversation.reset();
  const auto mechanism = FindScramMechanism(start.mechanism);
  if (!mechanism || !control.parameters().Offers(*mechanism))
    return Error{ErrorCode::kMechanismUnavailable,
                 "Received authentication for mechanism " +
                     std::string(ShownMechanism(start.mechanism)) +
                     " which is unknown or not enabled"};
  MAYFLY_TRY(
      SaslConversation begun,
      SaslConversation::Begin(start.mechanism, start.db, start.payload, start.skip_empty_exchange));
  MAYFLY_TRY(CheckOnlyLogin(state, begun.name()));
  // A document that cannot be read is treated like a missing user. Its state must not be revealed
  // to a client that does not know the password; usersInfo shows it.
  auto user = control.users().ForLogin(begun.name());
  std::optional<UserDocument> found;
  if (user) found = std::move(user).value();
  // A driver that starts a speculative login before it knows the mechanism starts again with the
  // one that the reply to the same hello names (saslSupportedMechs).
  if (start.speculative && found && !found->credential(*mechanism))
    return Error{ErrorCode::kMechanismUnavailable, "the user has no password for this mechanism"};
  state.user_id = found ? found->id : std::string();
  MAYFLY_TRY(SaslStep step, begun.Challenge(found, *control.decoys(),
                                            control.parameters().iterations(*mechanism)));
  state.conversation = std::move(begun);
  state.speculative = start.speculative;
  ++state.conversation_id;
  return step;
}

Result<SaslStep> ContinueLogin(AccessControl& control, LoginState& state, std::string_view payload,
                               const LoginOrigin& origin, std::string* why) {
  auto step = state.conversation->Continue(payload);
  if (!step) {
    *why = state.conversation->why();
    if (why->empty()) *why = "a message that was not expected";
    return step;
  }
  if (!step.value().done) return step;
  MAYFLY_TRY(
      Admit(state, control.users().Find(state.conversation->name()), state.user_id, origin, why));
  return step;
}

Result<void> LoginByCertificate(AccessControl& control, LoginState& state, const UserName& subject,
                                const std::vector<RoleName>& roles, const LoginOrigin& origin,
                                std::string* why) {
  MAYFLY_TRY(CheckOnlyLogin(state, subject));
  state.conversation.reset();
  state.speculative = false;
  UserCache& users = control.users();
  return Admit(state, roles.empty() ? users.Find(subject) : users.OfCertificate(subject, roles), {},
               origin, why);
}

}  // namespace mayfly
