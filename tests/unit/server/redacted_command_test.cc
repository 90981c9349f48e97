// What may be shown of commands and definitions: no password, no credential, nothing of the
// collections of users but names.
#include "server/dispatch/redacted_command.h"

#include <catch2/catch.hpp>

#include "protocol/extended_json.h"
#include "tests/unit/server/allocations.h"

namespace mayfly {
namespace {

const std::string kCanary = "canary-4711";

std::string Json(const char* text) { return ToRelaxedJson(ParseJson(text).value()); }

void Hides(const char* json) {
  const BsonDocument command = ParseJson(json).value();
  CHECK(ShortCommandText(command).find(kCanary) == std::string::npos);
  CHECK(ToRelaxedJson(RedactedCommand(command)).find(kCanary) == std::string::npos);
}

void Shows(const char* json) {
  CHECK(ToRelaxedJson(RedactedCommand(ParseJson(json).value())) == Json(json));
}

TEST_CASE("Messages of logins show nothing that proves anything", "[redaction]") {
  for (const char* json :
       {R"({"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": "canary-4711"})",
        R"({"saslContinue": 1, "conversationId": 1, "payload": "canary-4711"})",
        R"({"hello": 1, "speculativeAuthenticate": {"saslStart": 1, "payload": "canary-4711"}})"}) {
    INFO(json);
    Hides(json);
  }
}

TEST_CASE("Credentials and passwords are hidden at any depth", "[redaction]") {
  // In commands that do not take any, and all of whatever names the collections of users.
  for (const char* json :
       {R"({"createUser": {"user": "x", "pwd": "canary-4711"}})",
        R"({"rotateCertificates": 1, "password": "canary-4711"})",
        R"({"applyOps": [{"op": "c", "o": {"createUser": "x", "pwd": "canary-4711"}}]})",
        R"({"applyOps": [{"op": "i", "ns": "admin.system.users", "o": {"a": "canary-4711"}}]})",
        R"({"applyOps": [{"op": "i", "ns": "a.b", "o": {"credentials": {"a": "canary-4711"}}}]})",
        R"({"insert": "system.users", "documents": [{"a": ["canary-4711"]}], "$db": "admin"})",
        R"({"insert": "tempusers", "documents": [{"a": "canary-4711"}], "$db": "admin"})",
        R"({"find": "c", "filter": {"$or": [{"credentials.S.storedKey": "canary-4711"}]}})",
        R"({"update": "c", "updates": [{"q": {}, "u": {"$set": {"x.salt": "canary-4711"}}}]})",
        R"({"bulkWrite": 1, "ops": [{"insert": 0, "document": {"a": "canary-4711"}}],
            "nsInfo": [{"ns": "admin.system.users"}]})",
        R"({"aggregate": "c", "pipeline": [{"$match": {"a": "canary-4711"}},
            {"$merge": {"into": {"db": "admin", "coll": "system.users"}}}]})",
        R"({"explain": {"find": "system.users", "filter": {"a": "canary-4711"}}})",
        // The collection for restored users, from another database.
        R"({"aggregate": "c", "pipeline": [{"$match": {"a": "canary-4711"}},
            {"$merge": {"into": {"db": "admin", "coll": "tempusers"}}}], "$db": "shop"})",
        R"({"aggregate": "c", "pipeline": [{"$match": {"a": "canary-4711"}},
            {"$out": {"coll": "tempusers", "db": "admin"}}], "$db": "shop"})",
        R"({"applyOps": [{"op": "c", "ns": "admin.$cmd", "o": {"createIndexes": "tempusers",
            "partialFilterExpression": {"a": "canary-4711"}}}], "$db": "shop"})",
        R"({"explain": {"applyOps": [{"op": "c", "ns": "admin.$cmd", "o": {"collMod": "tempusers",
            "validator": {"a": "canary-4711"}}}]}, "$db": "shop"})",
        R"({"find": "system.keys", "filter": {"key": "canary-4711"}, "$db": "admin"})",
        R"({"aggregate": "c", "pipeline": [{"$lookup": {"from": "system.keys", "let":
            {"a": "canary-4711"}}}], "$db": "admin"})",
        // A password under a wrong name.
        R"({"createUser": "x", "pass": "canary-4711", "roles": []})",
        R"({"createUser": "x", "secret": "canary-4711", "roles": []})",
        R"({"createUser": {"user": "x", "secret": "canary-4711"}})",
        R"({"updateUser": "x", "PASS": ["canary-4711"]})",
        R"({"updateUser": "x", "customData": {"passphrase": "canary-4711"}})",
        R"({"explain": {"updateUser": "x", "new": "canary-4711"}})",
        R"({"applyOps": [{"op": "c", "o": {"createUser": "x", "secret": "canary-4711"}}]})",
        R"({"rotateCertificates": 1, "secret": "canary-4711"})",
        R"({"rotateCertificates": {"secret": "canary-4711"}})",
        R"({"createuser": "x", "pass": "canary-4711", "roles": []})",
        R"({"saslStart": 1, "mechanism": "canary-4711", "payload": "a"})",
        R"({"saslStart": "canary-4711", "options": {"a": "canary-4711"}})",
        R"({"authenticate": 1, "mechanism": "canary-4711", "user": "a"})",
        R"({"hello": 1, "speculativeAuthenticate": "canary-4711"})",
        R"({"hello": 1, "speculativeAuthenticate": {"db": "a", "payload": "canary-4711"}})"}) {
    INFO(json);
    Hides(json);
  }
}

// Issue 29.
TEST_CASE("Values of clients are hidden in fields that say how, and under names in other cases",
          "[redaction]") {
  for (const char* json :
       {R"({"find": "system.users", "projection": {"x": "canary-4711"}})",
        R"({"find": "system.users", "projection": {"x": {"$literal": "canary-4711"}}})",
        R"({"find": "system.users", "sort": {"x": ["canary-4711"]}})",
        R"({"find": "system.users", "readConcern": {"level": "canary-4711"}})",
        R"({"find": "system.users", "$readPreference": {"tags": [{"x": "canary-4711"}]}})",
        R"({"find": "system.users", "lsid": {"id": "canary-4711"}})",
        R"({"insert": "system.users", "writeConcern": {"w": "canary-4711"}})",
        R"({"aggregate": "system.users", "cursor": {"x": "canary-4711"}})",
        R"({"bulkWrite": 1, "nsInfo": [{"ns": "admin.system.users", "x": "canary-4711"}]})",
        R"({"CreateUser": "x", "pw": "canary-4711"})",
        R"({"creatUser": "x", "pw": "canary-4711"})",
        R"({"explain": {"creatUser": "x", "pw": "canary-4711"}})",
        R"({"applyOps": [{"op": "c", "o": {"changeUserPassword": "x", "to": "canary-4711"}}]})",
        R"({"dropUser": "x", "secret": "canary-4711"})",
        R"({"grantRolesToUser": "x", "roles": [], "pw": "canary-4711"})",
        R"({"grantRolesToUser": "x", "roles": [{"role": "read", "pw": "canary-4711"}]})",
        R"({"usersInfo": {"user": "x", "db": "a", "pw": "canary-4711"}})",
        R"({"usersInfo": 1, "filter": {"$expr": {"$eq": ["$credentials.S", "canary-4711"]}}})",
        R"({"SASLStart": 1, "mechanism": "PLAIN", "payload": "canary-4711"})",
        R"({"hello": 1, "SpeculativeAuthenticate": {"payload": "canary-4711"}})",
        R"({"hello": 1, "speculativeauthenticate": "canary-4711"})"}) {
    INFO(json);
    Hides(json);
  }
  // What says how is shown.
  for (const char* json :
       {R"({"find":"system.users","sort":{"user":1},"projection":{"user":true},"limit":5,)"
        R"("readConcern":{"level":"majority"},"$readPreference":{"mode":"primary"},"$db":"admin"})",
        R"({"bulkWrite":1,"nsInfo":[{"ns":"admin.system.users"},{"ns":"shop.c"}],"$db":"admin"})",
        R"({"usersInfo":[{"user":"x","db":"a"},"y"],"showPrivileges":true})",
        R"({"find":"c","filter":{"userId":1,"to":"x"},"$db":"a"})"}) {
    INFO(json);
    Shows(json);
  }
}

TEST_CASE("What is no secret is shown as it is", "[redaction]") {
  for (const char* json :
       {R"({"find":"c","filter":{"a":{"$gt":[1,{"b":"x"}]}},"sort":{"password":1},"$db":"a"})",
        R"({"find":"tempusers","filter":{"a":"b"},"$db":"shop"})",
        R"({"aggregate":"c","pipeline":[{"$out":{"db":"shop","coll":"tempusers"}}],"$db":"a"})",
        R"({"createUser":"x","roles":[{"role":"read","db":"a"}],"customData":{"a":"b","key":"v"},)"
        R"("mechanisms":["SCRAM-SHA-256"],"writeConcern":{"w":1},"comment":"c","$db":"a"})",
        R"({"find":"c","filter":{"passengers":{"a":"b"},"bypass":"c"},"$db":"a"})",
        R"({"createRole":"r","privileges":[{"resource":{"db":"admin","collection":"system.users"},)"
        R"("actions":["find"]}],"roles":[]})",
        R"({"update":"c","updates":[{"q":{"_id":1},"u":{"$set":{"key":"v","payload":"w"}}}]})"}) {
    INFO(json);
    Shows(json);
  }
}

TEST_CASE("The collections of users are found wherever a command names them", "[redaction]") {
  // Behind much else, and in the sequences of a message.
  const BsonDocument late = BuildBson([](BsonBuilder& b) {
    b.Append("bulkWrite", 1).Append("x", std::string(400'000, 'x')).Append("y", "canary-4711");
    b.OpenArray("nsInfo").OpenDocument().Append("ns", "admin.system.users");
  });
  CHECK(ShownCommand(late).of_users());
  const BsonDocument info = ParseJson(R"({"ns": "admin.system.users"})").value();
  const BsonDocument plain = ParseJson(R"({"bulkWrite": 1})").value();
  const std::vector<OpMsg::Sequence> sequences = {{"nsInfo", {info.view()}}};
  CHECK_FALSE(ShownCommand(plain).of_users());
  CHECK(ShownCommand(plain, {.sequences = &sequences}).of_users());
  CHECK(ShownCommand(plain, {.whole = false}).of_users());
  const auto shown_beside = [&](std::string_view sequence, const char* text) {
    std::string bytes;
    BsonArrayBuilder list(bytes);
    const BsonDocument document = ParseJson(text).value();
    ShownCommand(plain, {.sequences = &sequences}).AppendDocument(sequence, document, list);
    list.Done();
    return ToRelaxedJson(BsonView(bytes.data()));
  };
  // A document of a user may have such a field, too.
  CHECK(shown_beside("ops", R"({"ns": "a", "x": "canary-4711"})").find(kCanary) ==
        std::string::npos);
  CHECK(shown_beside("nsInfo", R"({"ns": "a", "x": "canary-4711"})") ==
        Json(R"({"0":{"ns":"a","x":"xxx"}})"));
  // By UUID, and behind so much that nobody looks there.
  const Uuid users{1, 2, 3};
  const BsonDocument by_uuid = BuildBson([&](BsonBuilder& b) {
    b.AppendBinary("find", 4, {reinterpret_cast<const char*>(users.data()), users.size()});
    b.OpenDocument("filter").Append("x", kCanary);
  });
  CHECK_FALSE(ShownCommand(by_uuid).of_users());
  const std::vector<Uuid> uuids{users};
  CHECK(ToRelaxedJson(RedactedCommand(by_uuid, {.uuids = uuids})).find(kCanary) ==
        std::string::npos);
  const auto much = [&](std::string_view command) {
    return BuildBson([&](BsonBuilder& b) {
      b.Append(command, "c").Append("let", kCanary);
      BsonArrayBuilder list = b.OpenArray("pipeline");
      for (int i = 0; i < 300'000; ++i) list.Append(i);
      list.OpenDocument().Append("from", "system.users");
    });
  };
  CHECK(ShownCommand(much("aggregate")).of_users());
  CHECK_FALSE(ShownCommand(much("insert")).of_users());
}

// Each field was looked up among all of them: hours for a message of 16 MB.
TEST_CASE("A document of fields with one name is looked at once", "[redaction]") {
  const BsonDocument many = BuildBson([](BsonBuilder& b) {
    b.Append("insert", "c");
    BsonBuilder inner = b.OpenDocument("x");
    for (int i = 0; i < 5'000'000; ++i) inner.AppendNull("o");
    inner.Append("password", kCanary);
  });
  CHECK(RedactedCommand(many).view()["x"].Document().size() ==
        many.view()["x"].Document().size() - kCanary.size() + kRedacted.size());
}

TEST_CASE("As text a login and a command for users are not shown at all", "[redaction]") {
  const auto hidden = [](const char* json) {
    const BsonDocument document = ParseJson(json).value();
    return IsHiddenAsText(document.view().First());
  };
  for (const char* json :
       {R"({"x": {"saslContinue": 1}})", R"({"x": {"createUser": "u"}})", R"({"pwd": "x"})",
        R"({"speculativeAuthenticate": {"db": "a", "payload": "x"}})",
        R"({"SpeculativeAuthenticate": {"payload": "x"}})", R"({"explain": {"creatUser": "u"}})",
        R"({"explain": {"setParameter": 1, "tlsClusterPassword": 5}})",
        R"({"o": {"changeUserPassword": "u"}})"}) {
    INFO(json);
    CHECK(hidden(json));
  }
  for (const char* json : {R"({"x": {"userId": 1}})", R"({"explain": {"find": "c"}})",
                           R"({"o": {"_id": 1, "user": "x"}})", R"({"0": {"user": "x"}})"}) {
    INFO(json);
    CHECK_FALSE(hidden(json));
  }
}

TEST_CASE("The custom data of users is shown as in their commands", "[redaction]") {
  const auto shown = [](const char* json) {
    return ToRelaxedJson(ShownCustomData(ParseJson(json).value()));
  };
  CHECK(shown(R"({"a":"b","password":"s","deep":{"passphrase":5},"list":[{"pwd":"s"}]})") ==
        Json(R"({"a":"b","password":"xxx","deep":{"passphrase":"xxx"},"list":[{"pwd":"xxx"}]})"));
}

TEST_CASE("Definitions on the collections of users have names alone", "[redaction]") {
  const auto definition = [&](std::string_view name, const char* text) {
    return ToRelaxedJson(ShownDefinition("admin", name, {}, ParseJson(text).value()));
  };
  CHECK(definition("tempusers", R"({"key":{"a":1},"partialFilterExpression":{"a":"s"}})") ==
        Json(R"({"key":{"a":1},"partialFilterExpression":"xxx"})"));
  CHECK(definition("v", R"({"pipeline":[{"$lookup":{"from":"system.users","let":"s"}}]})") ==
        Json(R"({"pipeline":"xxx"})"));
  CHECK(definition("c", R"({"validator":{"password":"s","b":"t"}})") ==
        Json(R"({"validator":{"password":"xxx","b":"t"}})"));
}

// A document of 16 MB that failed a validator was copied twice, for a line that has its size alone.
TEST_CASE("Whether all of a document is shown is known without a copy", "[redaction]") {
  const auto is_whole = [](std::string_view db, BsonView document) {
    const BsonDocument definition =
        BuildBson([&](BsonBuilder& b) { b.Append("document", document); });
    const bool shown =
        ShownDefinition(db, "c", {}, definition).bytes() == definition.view().bytes();
    const size_t before = test::Allocations();
    const bool known = ShowsWhole(db, "c", {"document", document.AsValue()});
    const size_t asked = test::Allocations() - before;
    CHECK(known == shown);
    CHECK(asked == 0);
    return known;
  };
  for (const char* json :
       {R"({})", R"({"_id": 1, "a": [{"b": "x"}, ["y", {"c": null}]], "user": "u"})",
        R"({"passwordDigestor": "server", "password": 5})", R"({"saslStart": 1, "user": "u"})",
        R"({"o": {"b": {"user": "u"}}, "op": "i"})", R"({"a": "tempusers"})"}) {
    INFO(json);
    CHECK(is_whole("d", ParseJson(json).value()));
  }
  for (const char* json :
       {R"({"password": "x"})", R"({"a": [[{"b": {"pwd": "x"}}]]})",
        R"({"saslStart": 1, "payload": "x"})", R"({"a": [{"createUser": "u", "b": 1}]})",
        R"({"createUser": "u", "roles": [{"role": "r", "x": 1}]})", R"({"a": ["system.users"]})",
        R"({"op": "c", "o": {"creatUser": "u", "b": 1}})",
        R"({"speculativeAuthenticate": {"db": "a", "payload": "x"}})"}) {
    INFO(json);
    CHECK_FALSE(is_whole("d", ParseJson(json).value()));
  }
  CHECK_FALSE(is_whole("admin", ParseJson(R"({"a": "tempusers"})").value()));
  for (const char* last : {"pad", "password"})
    CHECK(is_whole("d", BuildBson([&](BsonBuilder& b) {
                     b.Append("a", std::string(8'000'000, 'x'));
                     b.Append(last, std::string(8'000'000, 'x'));
                   })) == (std::string_view(last) == "pad"));
}

TEST_CASE("The message of an error shows no more than its command", "[redaction]") {
  const auto message = [](const char* json, Error e) {
    const BsonDocument body = ParseJson(json).value();
    return std::string(ShownCommand(body).Message(body, e));
  };
  const Error plain{ErrorCode::kBadValue, "Failed to parse number 'canary'"};
  for (const char* json :
       {R"({"aggregate": "c", "pipeline": [{"$project": {"x": {"$toInt": "$password"}}}]})",
        R"({"aggregate": "c", "pipeline": [{"$set": {"x": {"$toInt": {"$getField": "a.pwd"}}}}]})",
        R"({"aggregate": "c", "pipeline": [{"$set": {"password": {"$toInt": "canary"}}}]})",
        R"({"findAndModify": "c", "update": {"$set": {"password": "canary"}}})",
        R"({"find": "system.users", "filter": {"x": 1}, "$db": "admin"})"}) {
    INFO(json);
    CHECK(message(json, plain) == kRedacted);
  }
  for (const char* json :
       {R"({"aggregate": "passwords", "pipeline": [{"$set": {"x": "$y"}}], "$db": "passwords"})",
        R"({"find": "c", "filter": {}, "sort": {"password": 1}})",
        R"({"createUser": "u", "pwd": "s", "roles": []})"}) {
    INFO(json);
    CHECK(message(json, plain) == plain.message);
  }
  const char* const upsert = R"({"findAndModify": "c", "update": [{"$set": {"a": "$b"}}]})";
  CHECK(message(upsert, {ErrorCode::kDuplicateKey, "dup key: { password: \"s\" }"}) == kRedacted);
  const auto keys = [](const char* json) { return ParseJson(json).value().bytes(); };
  CHECK(message(upsert, {ErrorCode::kDuplicateKey, "dup", keys(R"({"keyValue": {"pwd": "s"}})")}) ==
        kRedacted);
  CHECK(message(upsert, {ErrorCode::kDuplicateKey, "dup", keys(R"({"keyValue": {"a": "s"}})")}) ==
        "dup");
}

}  // namespace
}  // namespace mayfly
