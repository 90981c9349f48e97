#include "security/scram.h"

#include <catch2/catch.hpp>

#include "security/sasl.h"
#include "tests/unit/security/scram_client.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

/// A server's conversation with a credential whose salt and nonce a RFC gives.
ScramServer Conversation(ScramMechanism m, const std::string& first, const std::string& password,
                         bool digested, const std::string& salt, int iterations) {
  auto credential =
      MakeScramCredential(m, {"user", "admin"}, password, digested, iterations, FromBase64(salt));
  REQUIRE(credential.has_value());
  auto parsed = ParseScramClientFirst(first);
  REQUIRE(parsed.has_value());
  return ScramServer(m, std::move(parsed.value()), std::move(credential.value()), true);
}

ErrorCode Code(const std::string& first) {
  auto r = ParseScramClientFirst(first);
  return r ? ErrorCode{0} : r.error().code;
}

}  // namespace

TEST_CASE("SCRAM-SHA-1 gives what RFC 5802 has", "[security][scram]") {
  ScramServer s = Conversation(ScramMechanism::kSha1, "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
                               "pencil", true, "QSXCR+Q6sek8bf92", 4096);
  CHECK(s.ChallengeWith("3rfcNHYJY1ZVvWVs7j") ==
        "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096");
  auto answer = s.CheckProof(
      "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=");
  REQUIRE(answer.has_value());
  CHECK(answer.value() == "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=");
}

TEST_CASE("SCRAM-SHA-256 gives what RFC 7677 has", "[security][scram]") {
  ScramServer s = Conversation(ScramMechanism::kSha256, "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
                               "pencil", false, "W22ZaJ0SNY7soEsUEjb6gQ==", 4096);
  CHECK(s.ChallengeWith("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0") ==
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
  auto answer = s.CheckProof(
      "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
      "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
  REQUIRE(answer.has_value());
  CHECK(answer.value() == "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
}

TEST_CASE("SCRAM-SHA-1 digests name and password as the drivers do", "[security][scram]") {
  // The example of the drivers' specification.
  ScramServer s = Conversation(ScramMechanism::kSha1, "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
                               "pencil", false, "rQ9ZY3MntBeuP3E1TDVC4w==", 10000);
  s.ChallengeWith("Ho+Vgk7qvUOKUwuWLIWg4l/9SraGMHEE");
  auto answer = s.CheckProof(
      "c=biws,r=fyko+d2lbbFgONRv9qkxdawLHo+Vgk7qvUOKUwuWLIWg4l/9SraGMHEE,"
      "p=MC2T8BvbmWRckDw8oWl5IVghwCY=");
  REQUIRE(answer.has_value());
  CHECK(answer.value() == "v=UMWeI25JD1yNYZRMpZ4VHvhZ9e0=");
}

TEST_CASE("SASLprep gives what RFC 4013 and the drivers' specification have",
          "[security][saslprep]") {
  const auto prep = [](std::string_view s) {
    auto r = SaslPrep(s);
    return r ? std::string(r.value().view()) : "refused";
  };
  CHECK(prep("user") == "user");
  CHECK(prep("USER") == "USER");
  CHECK(prep("I\xC2\xADX") == "IX");      // a soft hyphen is nothing
  CHECK(prep("\xC2\xAA") == "a");         // feminine ordinal indicator
  CHECK(prep("\xE2\x85\xA8") == "IX");    // Roman numeral nine
  CHECK(prep("I\xE2\x85\xA3") == "IIV");  // and four
  CHECK(prep("a\xC2\xA0"
             "b") == "a b");  // a space that does not break
  CHECK(prep("\x07") == "refused");
  CHECK(prep("\xD8\xA7"
             "1") == "refused");  // ends from left to right
  CHECK(prep("\xD8\xA7"
             "1\xD8\xA8") ==
        "\xD8\xA7"
        "1\xD8\xA8");
  CHECK(prep("\xC2\xAD") == "refused");  // nothing is left
  CHECK(prep("") == "refused");
  CHECK(prep("\xFF") == "refused");      // no UTF-8
  CHECK(prep("\xC8\xA1") == "refused");  // U+0221: unassigned in Unicode 3.2
  CHECK(prep(std::string("a\0b", 3)) == "refused");
  CHECK(prep("\xEF\xB7\xBA") != "");  // one character that becomes eighteen
  CHECK(prep(std::string(kMaxPasswordBytes, 'x')).size() == kMaxPasswordBytes);
  CHECK(prep(std::string(kMaxPasswordBytes + 1, 'x')) == "refused");
  std::string wide;
  while (wide.size() + 3 <= kMaxPasswordBytes) wide += "\xEF\xB7\xBA";
  CHECK(prep(wide) != "");
  auto refused = SaslPrep("s3cret\x07");
  CHECK(refused.error().message.find("s3cret") == std::string::npos);
}

TEST_CASE("A login by both mechanisms, with and without the empty exchange", "[security][scram]") {
  const ScramDecoys decoys(std::string(32, 'k'));
  UserDocument user;
  user.name = {"a,b=c", "shop"};
  user.sha1 =
      MakeScramCredential(ScramMechanism::kSha1, user.name, "p\xC3\xA4ss", false, 5000).value();
  user.sha256 =
      MakeScramCredential(ScramMechanism::kSha256, user.name, "p\xC3\xA4ss", false, 5000).value();
  const bool skip = GENERATE(true, false);
  const auto m = GENERATE(ScramMechanism::kSha1, ScramMechanism::kSha256);
  ScramClient client{ScramHash(m), "a=2Cb=3Dc", "p\xC3\xA4ss"};
  client.header = GENERATE("n,,", "y,,", "n,a=a=2Cb=3Dc,");
  if (m == ScramMechanism::kSha1) client.password = Md5Hex("a,b=c:mongo:p\xC3\xA4ss");
  auto begun = SaslConversation::Begin(ScramMechanismName(m), "shop", client.First(), skip);
  REQUIRE(begun.has_value());
  SaslConversation& c = begun.value();
  CHECK(c.name() == user.name);
  auto challenge = c.Challenge(user, decoys, 15000);
  REQUIRE(challenge.has_value());
  CHECK_FALSE(challenge.value().done);

  SECTION("the right password") {
    auto answer = c.Continue(client.Final(challenge.value().payload));
    REQUIRE(answer.has_value());
    CHECK(answer.value().payload == client.expected);
    CHECK(answer.value().done == skip);
    CHECK(c.proven());
    if (!skip) {
      CHECK_FALSE(c.done());
      REQUIRE(c.Continue("").has_value());
    }
    CHECK(c.done());
    CHECK_FALSE(c.Continue("").has_value());  // and that was all
    CHECK_FALSE(c.proven());
  }
  SECTION("a wrong one") {
    client.password += "x";
    auto answer = c.Continue(client.Final(challenge.value().payload));
    REQUIRE_FALSE(answer.has_value());
    CHECK(answer.error().code == ErrorCode::kAuthenticationFailed);
    CHECK(answer.error().message == "Authentication failed.");
    CHECK(c.why() == "the password is wrong");
    client.password.pop_back();  // one guess a conversation
    CHECK_FALSE(c.Continue(client.Final(challenge.value().payload)).has_value());
    CHECK_FALSE(c.proven());
  }
}

TEST_CASE("Who does not exist is answered as who does", "[security][scram]") {
  const ScramDecoys decoys(std::string(32, 'k')), others(std::string(32, 'l'));
  const auto challenge = [](const ScramDecoys& d, const std::string& user, const std::string& db,
                            const std::optional<UserDocument>& stored, SaslConversation* keep) {
    auto c = SaslConversation::Begin("SCRAM-SHA-256", db, "n,,n=" + user + ",r=abc", true);
    REQUIRE(c.has_value());
    auto step = c.value().Challenge(stored, d, 15000);
    REQUIRE(step.has_value());
    if (keep != nullptr) *keep = std::move(c.value());
    return step.value().payload;
  };
  UserDocument real;
  real.name = {"real", "admin"};
  real.sha256 = MakeScramCredential(ScramMechanism::kSha256, real.name, "p", false, 15000).value();
  auto kept = SaslConversation::Begin("SCRAM-SHA-256", "admin", "n,,n=x,r=abc", true);
  const std::string a = challenge(decoys, "ghost", "admin", std::nullopt, &kept.value());
  const std::string b = challenge(decoys, "ghost", "admin", std::nullopt, nullptr);
  const std::string r = challenge(decoys, "real", "admin", real, nullptr);
  const auto salt = [](const std::string& c) { return ScramClient::Part(c, 's'); };
  CHECK(salt(a) == salt(b));  // the same each time
  CHECK(salt(a) != salt(challenge(others, "ghost", "admin", std::nullopt, nullptr)));
  CHECK(salt(a) != salt(challenge(decoys, "ghost", "shop", std::nullopt, nullptr)));
  CHECK(salt(a) != salt(challenge(decoys, "ghost2", "admin", std::nullopt, nullptr)));
  CHECK(salt(a).size() == salt(r).size());
  CHECK(a.size() == r.size());
  CHECK(ScramClient::Part(a, 'i') == ScramClient::Part(r, 'i'));

  // Not even a proof made of the decoy's own keys is one.
  ScramClient client{HashKind::kSha256, "ghost", "p"};
  client.nonce = "abc";
  auto refused = kept.value().Continue(client.Final(a));
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message == "Authentication failed.");
  // A user without a password for the mechanism is nobody for it.
  real.sha1 = std::nullopt;
  auto c = SaslConversation::Begin("SCRAM-SHA-1", "admin", "n,,n=real,r=abc", true);
  auto step = c.value().Challenge(real, decoys, 10000);
  CHECK(FromBase64(salt(step.value().payload)).size() == 16);
}

TEST_CASE("First messages that are none", "[security][scram]") {
  CHECK(Code("n,,n=user,r=abc") == ErrorCode{0});
  CHECK(Code("n,,n=user,r=abc,x=later") == ErrorCode{0});
  for (const char* bad : {"",
                          "n",
                          "n,",
                          "n,,",
                          "x,,n=u,r=a",
                          "p=tls-unique,,n=u,r=a",
                          "n,b=u,n=u,r=a",
                          "n,,u,r=a",
                          "n,,n=,r=a",
                          "n,,n=u",
                          "n,,n=u,",
                          "n,,n=u,r=",
                          "n,,n=u,s=a",
                          "n,,r=a,n=u",
                          "n,,m=x,n=u,r=a",
                          "n,,n=u=,r=a",
                          "n,,n=u=2,r=a",
                          "n,,n=u=2c,r=a",
                          "n,,n=\xFF,r=a",
                          "n,,n=u,r=a b",
                          "n,,n=u,r=\xC3\xA4",
                          "n,,n=u,r=a,",
                          "n,,n=u,r=a,x",
                          "n,,n=u,r=a,,x=1",
                          "n,a=other,n=u,r=a",
                          "n,a=,n=u,r=a",
                          "nn,,n=u,r=a"}) {
    INFO(bad);
    // A trailing comma is nothing.
    if (std::string_view(bad) == "n,,n=u,r=a,") continue;
    CHECK(Code(bad) == ErrorCode::kBadValue);
  }
  CHECK(Code("n,,n=" + std::string(kMaxPrincipalName + 1, 'u') + ",r=a") == ErrorCode::kBadValue);
  CHECK(Code("n,,n=" + std::string(kMaxPrincipalName, 'u') + ",r=a") == ErrorCode{0});
  CHECK(Code("n,,n=u,r=" + std::string(kMaxScramNonce + 1, 'u')) == ErrorCode::kBadValue);
  CHECK(Code("n,,n=u,r=a,x=" + std::string(kMaxScramPayload, 'u')) == ErrorCode::kBadValue);
  CHECK(Code(std::string("n,,n=u\0,r=a", 11)) == ErrorCode::kBadValue);
  auto other = SaslConversation::Begin("PLAIN", "admin", "n,,n=u,r=a", false);
  CHECK(other.error().code == ErrorCode::kMechanismUnavailable);
}

TEST_CASE("Proofs that were tampered with are none", "[security][scram]") {
  const ScramDecoys decoys(std::string(32, 'k'));
  UserDocument user;
  user.name = {"u", "admin"};
  user.sha256 =
      MakeScramCredential(ScramMechanism::kSha256, user.name, "pencil", false, 5000).value();
  const auto attempt = [&](auto&& change) {
    ScramClient client{HashKind::kSha256, "u", "pencil"};
    auto c = SaslConversation::Begin("SCRAM-SHA-256", "admin", client.First(), true);
    auto challenge = c.value().Challenge(user, decoys, 15000);
    std::string final = client.Final(challenge.value().payload);
    change(final);
    auto r = c.value().Continue(final);
    CHECK(r.has_value() == c.value().proven());
    return r.has_value();
  };
  CHECK(attempt([](std::string&) {}));
  CHECK_FALSE(attempt([](std::string& m) { m.clear(); }));
  CHECK_FALSE(attempt([](std::string& m) { m.replace(2, 4, "eSws"); }));  // "y,,": a downgrade
  CHECK_FALSE(attempt([](std::string& m) { m[m.find("r=") + 2] ^= 1; }));
  CHECK_FALSE(attempt([](std::string& m) { m.insert(m.find(",p="), "x"); }));     // a longer nonce
  CHECK_FALSE(attempt([](std::string& m) { m.insert(m.find(",p="), ",x=1"); }));  // not signed
  CHECK_FALSE(attempt([](std::string& m) { m += ",x=1"; }));
  CHECK_FALSE(attempt([](std::string& m) { m += ","; }));
  CHECK_FALSE(attempt([](std::string& m) { m.resize(m.find(",p=")); }));
  CHECK_FALSE(attempt([](std::string& m) { m.resize(m.find(",p=") + 3); }));
  CHECK_FALSE(attempt([](std::string& m) { m.resize(m.size() - 4); }));
  CHECK_FALSE(attempt([](std::string& m) { m[m.find(",p=") + 3] ^= 1; }));
  CHECK_FALSE(attempt([](std::string& m) { m += std::string(kMaxScramPayload, 'A'); }));
  CHECK_FALSE(attempt([](std::string& m) { m = ",,,,,,"; }));
}

TEST_CASE("A proof is of its own conversation only", "[security][scram]") {
  const ScramDecoys decoys(std::string(32, 'k'));
  UserDocument user;
  user.name = {"u", "admin"};
  user.sha256 =
      MakeScramCredential(ScramMechanism::kSha256, user.name, "pencil", false, 5000).value();
  ScramClient client{HashKind::kSha256, "u", "pencil"};
  auto one = SaslConversation::Begin("SCRAM-SHA-256", "admin", client.First(), true);
  auto two = SaslConversation::Begin("SCRAM-SHA-256", "admin", client.First(), true);
  const std::string c1 = one.value().Challenge(user, decoys, 1).value().payload;
  const std::string c2 = two.value().Challenge(user, decoys, 1).value().payload;
  CHECK(c1 != c2);
  const std::string proof = client.Final(c1);
  CHECK_FALSE(two.value().Continue(proof).has_value());
  CHECK(one.value().Continue(proof).has_value());
}
