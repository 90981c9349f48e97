#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "protocol/error.h"
#include "security/crypto.h"
#include "security/names.h"

namespace mayfly {

/// The two mechanisms. SCRAM-SHA-1 takes MongoDB's digest of name and password for a password.
enum class ScramMechanism : uint8_t { kSha1, kSha256 };

std::string_view ScramMechanismName(ScramMechanism mechanism);  ///< "SCRAM-SHA-1" …
/// By its exact name; none for others.
std::optional<ScramMechanism> FindScramMechanism(std::string_view name);
/// The hash of HMAC, Hi() and the keys (RFC 5802, RFC 7677).
HashKind ScramHash(ScramMechanism mechanism);

inline constexpr int kMinScramIterations = 5000;
inline constexpr int kMaxScramIterations = 10'000'000;
inline constexpr int kDefaultScramSha1Iterations = 10'000;
inline constexpr int kDefaultScramSha256Iterations = 15'000;
inline constexpr size_t kMaxScramPayload = 8192;  ///< bytes of one message of a client
inline constexpr size_t kMaxScramNonce = 1024;    ///< bytes of a client's nonce

/// The stored form of a password: enough to check one, too little to log in with. Raw bytes.
struct ScramCredential {
  int iterations = 0;
  std::string salt, stored_key, server_key;
  bool operator==(const ScramCredential&) const = default;
};

/// A credential for a password, with a fresh salt. Takes some milliseconds of computing: on a
/// worker. `digested`: `password` is already MD5 of "user:mongo:password" (SCRAM-SHA-1 only).
/// Errors: BadValue 2 for passwords that SASLprep refuses.
Result<ScramCredential> MakeScramCredential(ScramMechanism mechanism, const UserName& name,
                                            std::string_view password, bool digested,
                                            int iterations);
/// The same with a salt that is given; what the tests of the RFCs need.
Result<ScramCredential> MakeScramCredential(ScramMechanism mechanism, const UserName& name,
                                            std::string_view password, bool digested,
                                            int iterations, std::string salt);

/// The decoy for a user who does not exist (or has no password for the mechanism): a salt that is
/// the same each time, so it reveals nothing. Made from a secret that clients never see; keep it as
/// long as the directory, or a restart reveals which users exist.
class ScramDecoys {
 public:
  /// `secret`: 32 random bytes.
  explicit ScramDecoys(std::string secret) : secret_(std::move(secret)) {}
  /// A credential that no password fits.
  ScramCredential For(ScramMechanism mechanism, const UserName& name, int iterations) const;

 private:
  Secret secret_;
};

/// The first message of a client, taken apart.
struct ScramClientFirst {
  std::string gs2_header;  ///< "n,," or "y,,", with an authorization name if there was one
  std::string bare;        ///< the rest, which is part of what both sides sign
  std::string user, nonce;
};
/// Errors: BadValue 2 for an invalid message; channel binding is refused, since no mechanism with
/// it is offered.
Result<ScramClientFirst> ParseScramClientFirst(std::string_view payload);

/// The server's side of one conversation (RFC 5802): first message in, challenge out, proof in,
/// signature out. One thread at a time. Keeps nothing of the password, and ends after one proof.
class ScramServer {
 public:
  /// `credential` of the user, or a decoy (`known` is false then: no proof is accepted).
  ScramServer(ScramMechanism mechanism, ScramClientFirst first, ScramCredential credential,
              bool known)
      : mechanism_(mechanism),
        first_(std::move(first)),
        credential_(std::move(credential)),
        known_(known) {}

  /// The challenge. To be called once. Errors: InternalError 1.
  Result<std::string> Challenge();
  /// With a nonce that is given instead of a random one, for the tests of the RFCs.
  std::string ChallengeWith(std::string_view server_nonce);
  /// The answer to a proof. Errors: AuthenticationFailed 18 "Authentication failed.", whatever was
  /// wrong: `why()` says it, for the log only.
  Result<std::string> CheckProof(std::string_view payload);
  const std::string& why() const { return why_; }

 private:
  Error Fail(const char* why) {
    why_ = why;
    return {ErrorCode::kAuthenticationFailed, "Authentication failed."};
  }
  ScramMechanism mechanism_;
  ScramClientFirst first_;
  ScramCredential credential_;
  bool known_, challenged_ = false, ended_ = false;
  std::string nonce_, challenge_, why_;
};

}  // namespace mayfly
