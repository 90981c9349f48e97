#include "server/dispatch/redacted_command.h"

#include "protocol/extended_json.h"
#include "protocol/utf8.h"

namespace mayfly {

namespace {

struct SecretField {
  std::string_view command, field;
};

constexpr SecretField kSecrets[] = {
    {"createUser", "pwd"},       {"updateUser", "pwd"},   {"saslStart", "payload"},
    {"saslContinue", "payload"}, {"authenticate", "key"}, {"authenticate", "nonce"},
    {"authenticate", "pwd"},
};

/// The field of a command that is a command itself: a login within a handshake, what is explained.
bool HoldsCommand(std::string_view field) {
  return field == "speculativeAuthenticate" || field == "explain";
}

/// Of a nested command in a message.
constexpr size_t kMaxValue = 256;

void AppendRedacted(std::string_view command, const BsonElement& e, BsonBuilder& out) {
  if (IsSecretField(command, e.name)) {
    out.Append(e.name, kRedacted);
  } else if (HoldsCommand(e.name) && e.value.IsDocument()) {
    out.Append(e.name, RedactedCommand(e.value.Document()));
  } else {
    out.Append(e);
  }
}

}  // namespace

bool IsSecretField(std::string_view command, std::string_view field) {
  for (const SecretField& s : kSecrets)
    if (s.field == field && s.command == command) return true;
  return false;
}

bool HoldsSecrets(std::string_view command) {
  for (const SecretField& s : kSecrets)
    if (s.command == command) return true;
  return command == "hello" || command == "isMaster" || command == "ismaster" ||
         command == "explain";
}

BsonDocument RedactedCommand(BsonView command) {
  const std::string_view name = command.First().name;
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : command) AppendRedacted(name, e, b);
  });
}

std::string ShortCommandText(BsonView command) {
  const std::string_view name = command.First().name;
  std::string text = "{ ";
  bool first = true;
  for (const BsonElement& e : command) {
    if (!first) text += ", ";
    first = false;
    if (text.size() > kShortCommand) return text + "... }";
    text.append(e.name.substr(0, kMaxValue)).append(": ");
    if (IsSecretField(name, e.name)) {
      text.append(1, '"').append(kRedacted).append(1, '"');
    } else if (e.value.size() > kMaxValue) {
      text += "...";
    } else if (HoldsCommand(e.name) && e.value.IsDocument()) {
      text += ShortCommandText(e.value.Document());
    } else {
      text += ToRelaxedJson(e.value);
    }
  }
  text += " }";
  return IsUtf8(text) ? text : PrintableUtf8(text);
}

}  // namespace mayfly
