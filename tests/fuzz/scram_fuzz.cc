// A login: whatever a client sends is answered or refused, and no bytes but the right proof log
// anybody in. Users, roles and restrictions as somebody may have restored them: read or refused.
#include <cstdint>
#include <string>

#include "fuzz_util.h"
#include "security/privilege_set.h"
#include "security/sasl.h"
#include "security/saslprep.h"

using namespace mayfly;

namespace {

void Login(std::string_view input) {
  static const ScramDecoys decoys(std::string(32, 'd'));
  static const UserDocument user = [] {
    UserDocument u;
    u.name = {"user", "admin"};
    u.sha1 = MakeScramCredential(ScramMechanism::kSha1, u.name, "pencil", false, 1).value();
    u.sha256 = MakeScramCredential(ScramMechanism::kSha256, u.name, "pencil", false, 1).value();
    return u;
  }();
  const size_t line = input.find('\n');
  const std::string_view first = input.substr(0, line);
  auto c = SaslConversation::Begin(input.size() % 2 ? "SCRAM-SHA-1" : "SCRAM-SHA-256", "admin",
                                   first, false);
  if (!c.has_value()) return Require(!c.error().message.empty(), "a refusal says why");
  Require(CheckPrincipalName(c.value().name().user, "User").has_value(), "a user has a name");
  auto challenge = c.value().Challenge(
      c.value().name() == user.name ? std::optional(user) : std::nullopt, decoys, 15000);
  Require(challenge.has_value() && !challenge.value().done, "there is a challenge");
  std::string_view rest = line == std::string_view::npos ? "" : input.substr(line + 1);
  // The nonce is random, so it is put in where the input has an N.
  std::string final;
  const std::string& text = challenge.value().payload;
  for (char ch : rest)
    if (ch == 'N')
      final += text.substr(2, text.find(",s=") - 2);
    else
      final += ch;
  auto answer = c.value().Continue(final);
  Require(!answer.has_value() && !c.value().proven(), "nobody guesses a proof");
  Require(answer.error().message == "Authentication failed.", "a refusal says nothing");
  Require(!c.value().Continue("").has_value(), "a conversation has one proof");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 64 * 1024) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 3) {
    case 0:
      Login(input);
      break;
    case 1: {
      auto prepared = SaslPrep(input);
      if (!prepared.has_value()) break;
      auto again = SaslPrep(prepared.value().view());
      Require(!again.has_value() || again.value().view() == prepared.value().view(),
              "what is prepared stays so");
      break;
    }
    case 2: {
      std::string bytes;
      BsonDocument d;
      if (input.starts_with('{')) {
        auto parsed = ParseJson(input);
        if (!parsed.has_value()) break;
        d = std::move(parsed.value());
      } else {
        if (!ValidateBson(input).has_value()) break;
        d = BsonDocument(std::string(input));
      }
      if (auto user = ParseUserDocument(d); user.has_value()) {
        const BsonDocument stored = StoredUser(user.value());
        Require(ValidateBson(stored.view().bytes()).has_value(), "what is stored is BSON");
        Require(ParseUserDocument(stored).has_value(), "what is stored can be read");
      }
      if (auto role = ParseRoleDocument(d); role.has_value()) {
        const PrivilegeSet set(role.value().privileges);
        for (const Privilege& p : role.value().privileges)
          Require(set.Allows(p.resource, p.actions), "a set allows what it was made of");
        Require(ParseRoleDocument(StoredRole(role.value())).has_value(),
                "what is stored can be read");
      }
      break;
    }
  }
  return 0;
}
