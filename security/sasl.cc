#include "security/sasl.h"

namespace mayfly {

std::string_view ShownMechanism(std::string_view mechanism) {
  for (const std::string_view known : {"SCRAM-SHA-1", "SCRAM-SHA-256", "MONGODB-X509", "MONGODB-CR",
                                       "MONGODB-AWS", "MONGODB-OIDC", "PLAIN", "GSSAPI"})
    if (mechanism == known) return known;
  return "(unknown)";
}

Result<SaslConversation> SaslConversation::Begin(std::string_view mechanism, std::string_view db,
                                                 std::string_view payload,
                                                 bool skip_empty_exchange) {
  const auto m = FindScramMechanism(mechanism);
  if (!m)
    return Error{ErrorCode::kMechanismUnavailable,
                 "Received authentication for mechanism " + std::string(ShownMechanism(mechanism)) +
                     " which is not enabled: use SCRAM-SHA-256 or SCRAM-SHA-1"};
  MAYFLY_TRY(auto first, ParseScramClientFirst(payload));
  UserName name{first.user, std::string(db)};
  return SaslConversation(*m, std::move(name), std::move(first), skip_empty_exchange);
}

Result<SaslStep> SaslConversation::Challenge(const std::optional<UserDocument>& user,
                                             const ScramDecoys& decoys, int iterations) {
  // Decoys are computed for every user, so that existing and unknown names take the same time.
  ScramCredential credential = decoys.For(mechanism_, name_, iterations);
  bool known = false;
  if (user && !user->external && user->credential(mechanism_)) {
    credential = *user->credential(mechanism_);
    known = true;
  }
  server_.emplace(mechanism_, std::move(first_), std::move(credential), known);
  MAYFLY_TRY(auto challenge, server_->Challenge());
  state_ = State::kChallenged;
  return SaslStep{std::move(challenge), false};
}

Result<SaslStep> SaslConversation::Continue(std::string_view payload) {
  if (state_ == State::kChallenged) {
    state_ = State::kFailed;
    MAYFLY_TRY(auto answer, server_->CheckProof(payload));
    proven_ = true;
    state_ = skip_ ? State::kDone : State::kProven;
    return SaslStep{std::move(answer), skip_};
  }
  if (state_ == State::kProven && payload.empty()) {
    state_ = State::kDone;
    return SaslStep{"", true};
  }
  state_ = State::kFailed;
  proven_ = false;
  return Error{ErrorCode::kAuthenticationFailed, "Authentication failed."};
}

}  // namespace mayfly
