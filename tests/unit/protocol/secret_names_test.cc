// Which names are those of secrets, and which texts quote such fields.
#include "protocol/secret_names.h"

#include <catch2/catch.hpp>
#include <string>

namespace mayfly {
namespace {

TEST_CASE("Names of secrets are known in any part of a path", "[redaction]") {
  for (const char* name :
       {"password", "a.userPassword", "PWD", "x.pass", "credentials", "my passphrase"})
    CHECK(IsSecretName(name));
  for (const char* name : {"", "a", "compass", "passwordDigestor", "saltNumber", "key"})
    CHECK_FALSE(IsSecretName(name));
}

TEST_CASE("A text that quotes a secret is known by the field's name", "[redaction]") {
  for (const char* text : {
           R"(E11000 duplicate key error collection: a.c index: p dup key: { password: "x" })",
           R"(dup key: { a: 1, b.pwd: "x" })",
           R"(Cannot create field 'x' in element {a: [ { password: 'x'} ]})",
           R"({"n":{"$date":5},"password":"x"})",
           R"({ "user" : { "password" : "x" } })",
           R"({'my password': 'x'})",
       }) {
    INFO(text);
    CHECK(QuotesSecret(text));
    CHECK(WithoutSecret(text) == kRedacted);
  }
  for (const char* text : {
           "",
           ":",
           "{:,:\"\":",
           "wrong password for the key file: bad decrypt",
           R"(E11000 duplicate key error collection: a.passwords index: p dup key: { _id: 1 })",
           R"(unknown field 'password', did you mean 'user'?)",
           R"({ "passwordDigestor" : "server" })",
       }) {
    INFO(text);
    CHECK_FALSE(QuotesSecret(text));
    CHECK(WithoutSecret(text) == text);
  }
  CHECK_FALSE(QuotesSecret(std::string(100'000, ':')));
  CHECK_FALSE(QuotesSecret(std::string(100'000, '{')));
}

}  // namespace
}  // namespace mayfly
