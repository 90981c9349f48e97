#include "security/scram.h"

#include <algorithm>

#include "protocol/base64.h"
#include "security/saslprep.h"

namespace mayfly {

namespace {

constexpr size_t kServerNonceBytes = 24;

Error Malformed(std::string what) {
  return {ErrorCode::kBadValue, "this is no SCRAM message: " + std::move(what)};
}

/// The length of a salt, as MongoDB chooses it: salt and block number fit into one block of the
/// hash.
size_t SaltSize(ScramMechanism m) { return DigestSize(ScramHash(m)) - 4; }

/// Takes the text before the next comma off `rest`, and the comma with it.
std::string_view TakeUntilComma(std::string_view& rest) {
  const size_t comma = rest.find(',');
  const std::string_view part = rest.substr(0, comma);
  rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  return part;
}

/// "=2C" stands for a comma and "=3D" for an equals sign. A name must not contain any other "=".
Result<std::string> DecodeName(std::string_view text) {
  std::string name;
  name.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '=') {
      name.push_back(text[i]);
      continue;
    }
    const std::string_view code = text.substr(i, 3);
    if (code != "=2C" && code != "=3D")
      return Malformed("a name has an '=' that is no '=2C' or '=3D'");
    name.push_back(code == "=2C" ? ',' : '=');
    i += 2;
  }
  MAYFLY_TRY(CheckPrincipalName(name, "User"));
  return name;
}

/// Printable ASCII without commas, as RFC 5802 has it.
bool IsNonce(std::string_view s) {
  return !s.empty() &&
         std::all_of(s.begin(), s.end(), [](char c) { return c > 0x20 && c < 0x7F && c != ','; });
}

/// Whether it is "name=value" with a name of one letter.
bool IsAttribute(std::string_view s) {
  return s.size() >= 2 && s[1] == '=' &&
         ((s[0] >= 'a' && s[0] <= 'z') || (s[0] >= 'A' && s[0] <= 'Z'));
}

}  // namespace

std::string_view ScramMechanismName(ScramMechanism mechanism) {
  return mechanism == ScramMechanism::kSha1 ? "SCRAM-SHA-1" : "SCRAM-SHA-256";
}

std::optional<ScramMechanism> FindScramMechanism(std::string_view name) {
  if (name == "SCRAM-SHA-1") return ScramMechanism::kSha1;
  if (name == "SCRAM-SHA-256") return ScramMechanism::kSha256;
  return std::nullopt;
}

HashKind ScramHash(ScramMechanism mechanism) {
  return mechanism == ScramMechanism::kSha1 ? HashKind::kSha1 : HashKind::kSha256;
}

Result<ScramCredential> MakeScramCredential(ScramMechanism mechanism, const UserName& name,
                                            std::string_view password, bool digested,
                                            int iterations) {
  MAYFLY_TRY(auto salt, RandomBytes(SaltSize(mechanism)));
  return MakeScramCredential(mechanism, name, password, digested, iterations, std::move(salt));
}

Result<ScramCredential> MakeScramCredential(ScramMechanism mechanism, const UserName& name,
                                            std::string_view password, bool digested,
                                            int iterations, std::string salt) {
  if (password.empty()) return Error{ErrorCode::kBadValue, "Password cannot be empty"};
  if (password.size() > kMaxPasswordBytes)
    return Error{ErrorCode::kBadValue, "Password cannot be longer than 4,096 bytes"};
  const HashKind hash = ScramHash(mechanism);
  Secret prepared;
  if (mechanism == ScramMechanism::kSha256) {
    if (digested)
      return Error{ErrorCode::kBadValue,
                   "SCRAM-SHA-256 credentials need the password itself: do not set "
                   "digestPassword to false"};
    MAYFLY_TRY(prepared, SaslPrep(password));
  } else if (digested) {
    prepared = Secret(std::string(password));
  } else {
    const Secret joined(name.user + ":mongo:" + std::string(password));
    prepared = Secret(Md5Hex(joined.view()));
  }
  Digest salted = Pbkdf2(hash, prepared.view(), salt, iterations);
  const Digest client_key = HmacOf(hash, salted.view(), "Client Key");
  return ScramCredential{
      .iterations = iterations,
      .salt = std::move(salt),
      .stored_key = std::string(HashOf(hash, client_key.view()).view()),
      .server_key = std::string(HmacOf(hash, salted.view(), "Server Key").view())};
}

ScramCredential ScramDecoys::For(ScramMechanism mechanism, const UserName& name,
                                 int iterations) const {
  const HashKind hash = ScramHash(mechanism);
  // The length of each part is included, so that two different names never give the same text.
  std::string what(ScramMechanismName(mechanism));
  what += ' ' + std::to_string(name.db.size()) + ' ' + name.db + ' ' + name.user;
  const auto made = [&](std::string_view use) {
    return HmacOf(hash, secret_.view(), std::string(use) + ' ' + what);
  };
  return {.iterations = iterations,
          .salt = std::string(made("salt").view().substr(0, SaltSize(mechanism))),
          .stored_key = std::string(made("stored").view()),
          .server_key = std::string(made("server").view())};
}

Result<ScramClientFirst> ParseScramClientFirst(std::string_view payload) {
  if (payload.size() > kMaxScramPayload) return Malformed("it has more than 8,192 bytes");
  ScramClientFirst first;
  std::string_view rest = payload;
  const std::string_view flag = TakeUntilComma(rest);
  if (flag.starts_with("p="))
    return Malformed("channel binding is not supported, and no mechanism with it was offered");
  if (flag != "n" && flag != "y") return Malformed("it does not begin with 'n,' or 'y,'");
  const std::string_view authorize_as = TakeUntilComma(rest);
  if (!authorize_as.empty() && !authorize_as.starts_with("a="))
    return Malformed("its second part is no name to act as");
  if (rest.empty()) return Malformed("it ends after its header");
  first.gs2_header = payload.substr(0, static_cast<size_t>(rest.data() - payload.data()));
  first.bare = rest;

  std::string_view part = TakeUntilComma(rest);
  if (part.starts_with("m="))
    return Malformed("it needs an extension that this server does not have");
  if (!part.starts_with("n=")) return Malformed("it names no user");
  MAYFLY_TRY(first.user, DecodeName(part.substr(2)));
  if (!authorize_as.empty()) {
    MAYFLY_TRY(auto other, DecodeName(authorize_as.substr(2)));
    if (other != first.user) return Malformed("a user cannot act as another one");
  }
  part = TakeUntilComma(rest);
  if (!part.starts_with("r=") || !IsNonce(part.substr(2)) || part.size() - 2 > kMaxScramNonce)
    return Malformed("it has no nonce of 1 to 1,024 printable characters");
  first.nonce = part.substr(2);
  while (!rest.empty())
    if (!IsAttribute(TakeUntilComma(rest)))
      return Malformed("what follows the nonce is no attribute");
  return first;
}

Result<std::string> ScramServer::Challenge() {
  MAYFLY_TRY(auto random, RandomBytes(kServerNonceBytes));
  return ChallengeWith(Base64(random));
}

std::string ScramServer::ChallengeWith(std::string_view server_nonce) {
  nonce_ = first_.nonce + std::string(server_nonce);
  challenge_ = "r=" + nonce_ + ",s=" + Base64(credential_.salt) +
               ",i=" + std::to_string(credential_.iterations);
  challenged_ = true;
  return challenge_;
}

Result<std::string> ScramServer::CheckProof(std::string_view payload) {
  if (!challenged_ || ended_) return Fail("no challenge is open");
  ended_ = true;
  if (payload.size() > kMaxScramPayload) return Fail("the proof's message is too long");
  std::string_view rest = payload;
  std::string_view part = TakeUntilComma(rest);
  std::string header;
  if (!part.starts_with("c=") || !DecodeBase64(part.substr(2), header) ||
      header != first_.gs2_header)
    return Fail("the header of the first message was not repeated");
  part = TakeUntilComma(rest);
  if (!part.starts_with("r=") || part.substr(2) != nonce_) return Fail("the nonce is another one");
  while (true) {  // extensions; the proof comes last
    part = TakeUntilComma(rest);
    if (part.starts_with("p=")) {
      if (part.data() + part.size() != payload.data() + payload.size())
        return Fail("something follows the proof");
      break;
    }
    if (!IsAttribute(part)) return Fail("there is no proof");
  }
  std::string proof;
  const HashKind hash = ScramHash(mechanism_);
  if (!DecodeBase64(part.substr(2), proof) || proof.size() != DigestSize(hash))
    return Fail("the proof has a wrong length");

  const std::string_view without_proof =
      payload.substr(0, static_cast<size_t>(part.data() - payload.data()) - 1);
  const std::string message = first_.bare + "," + challenge_ + "," + std::string(without_proof);
  const Digest signature = HmacOf(hash, credential_.stored_key, message);
  for (size_t i = 0; i < proof.size(); ++i)
    proof[i] = static_cast<char>(static_cast<unsigned char>(proof[i]) ^ signature.bytes[i]);
  const bool right = SameBytes(HashOf(hash, proof).view(), credential_.stored_key);
  const Digest server_signature = HmacOf(hash, credential_.server_key, message);
  if (!known_) return Fail("there is no such user with a password for this mechanism");
  if (!right) return Fail("the password is wrong");
  return "v=" + Base64(server_signature.view());
}

}  // namespace mayfly
