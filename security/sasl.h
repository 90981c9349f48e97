#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "protocol/error.h"
#include "security/scram.h"
#include "security/user_document.h"

namespace mayfly {

/// What goes back to a client in one step.
struct SaslStep {
  std::string payload;
  bool done = false;
};

/// The mechanism of a login if it is one that exists anywhere, or "(unknown)": somebody may have
/// sent a password in its place.
std::string_view ShownMechanism(std::string_view mechanism);

/// One login, begun by `saslStart` and continued by `saslContinue`, up to and including the empty
/// exchange at the end. One thread at a time. It never waits or reads storage: its caller brings
/// the user.
class SaslConversation {
 public:
  /// The first message of a client. Errors: MechanismUnavailable 334 for a mechanism that is not
  /// offered, BadValue 2 for an invalid message.
  static Result<SaslConversation> Begin(std::string_view mechanism, std::string_view db,
                                        std::string_view payload, bool skip_empty_exchange);

  const UserName& name() const { return name_; }
  ScramMechanism mechanism() const { return mechanism_; }

  /// The challenge for this user; `user` none, or one without a password for the mechanism, gets
  /// one of `decoys` and cannot succeed. `iterations`: of a decoy, what new users get.
  Result<SaslStep> Challenge(const std::optional<UserDocument>& user, const ScramDecoys& decoys,
                             int iterations);
  /// The proof, or afterwards the empty message that ends a login. Errors: AuthenticationFailed 18;
  /// the conversation has ended then.
  Result<SaslStep> Continue(std::string_view payload);

  bool proven() const { return proven_; }  ///< the proof was right
  bool done() const { return state_ == State::kDone; }
  /// What was wrong, for the log only.
  std::string why() const { return server_ ? server_->why() : std::string(); }

 private:
  enum class State : uint8_t { kBegun, kChallenged, kProven, kDone, kFailed };
  SaslConversation(ScramMechanism mechanism, UserName name, ScramClientFirst first, bool skip)
      : mechanism_(mechanism), name_(std::move(name)), first_(std::move(first)), skip_(skip) {}

  ScramMechanism mechanism_;
  UserName name_;
  ScramClientFirst first_;
  bool skip_, proven_ = false;
  State state_ = State::kBegun;
  std::optional<ScramServer> server_;
};

}  // namespace mayfly
