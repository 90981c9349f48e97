#include "server/dispatch/redacted_command.h"

#include <algorithm>

#include "protocol/extended_json.h"
#include "protocol/utf8.h"
#include "security/sasl.h"

namespace mayfly {

namespace {

/// Behind the first kMaxLook bytes: so many fields, and no longer ones, are looked at.
constexpr int kMaxFieldsBehind = 1000;
constexpr size_t kMaxFieldBehind = 4 * 1024;
/// Of a name that is longer, the beginning is looked at.
constexpr size_t kMaxName = 1024;
/// For a nested command in a message.
constexpr size_t kMaxValue = 256;

/// Commands of a login. What is not known to be harmless in them is hidden.
bool IsLogin(std::string_view command) {
  return command == "saslStart" || command == "saslContinue" || command == "authenticate";
}

/// Commands whose fields are few and known, of which one is a password: any other field may be the
/// password under a wrong name.
bool IsOfOneUser(std::string_view command) {
  return command == "createUser" || command == "updateUser" || command == "rotateCertificates";
}

/// Commands to which a password may be sent under any type.
bool TakesPassword(std::string_view command) {
  return IsOfOneUser(command) || command == "setParameter";
}

/// `part`, whatever its case, in `text`. `part`: lower case.
bool ContainsLower(std::string_view text, std::string_view part) {
  const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; };
  return std::ranges::search(text, part, same).begin() != text.end();
}

bool IsSecretPart(std::string_view part) {
  if (part == "credentials" || part == "storedKey" || part == "serverKey" || part == "salt")
    return true;
  if (part == "passwordDigestor" || part == "digestPassword") return false;
  return ContainsLower(part, "passw") || ContainsLower(part, "pwd") ||
         ContainsLower(part, "passphrase") || (part.size() == 4 && ContainsLower(part, "pass"));
}

bool IsScalar(BsonValue v) {
  return v.missing() || v.IsNumber() || v.Is(BsonType::kBool) || v.Is(BsonType::kNull);
}

/// Of a login: whether this field is harmless.
bool IsShownOfLogin(const BsonElement& e) {
  if (e.name == "payload" || e.name == "key" || e.name == "nonce" || IsSecretName(e.name))
    return false;
  if (IsScalar(e.value)) return true;
  if (e.name == "mechanism")
    return e.value.IsString() && ShownMechanism(e.value.String()) == e.value.String();
  return e.name == "user" || e.name == "db" || e.name == "lsid" || e.name.starts_with('$') ||
         (e.name == "options" && e.value.IsDocument());
}

/// Whether a field of a command with one user's password is shown: those that it has besides that,
/// and those that any command may have.
bool IsShownOfOneUser(const BsonElement& e) {
  constexpr std::string_view kKnown[] = {"roles",
                                         "customData",
                                         "mechanisms",
                                         "authenticationRestrictions",
                                         "passwordDigestor",
                                         "comment",
                                         "digestPassword",
                                         "writeConcern",
                                         "readConcern",
                                         "maxTimeMS",
                                         "lsid",
                                         "apiVersion",
                                         "message"};
  if (IsOfOneUser(e.name)) return IsScalar(e.value) || e.value.IsString();
  return e.name.starts_with('$') || std::ranges::find(kKnown, e.name) != std::end(kKnown);
}

/// Whether a field is hidden. `command`: whose field it is, at whatever depth; empty: one without a
/// login or a password. `own`: it is one of the command's own fields.
bool Hides(std::string_view command, bool own, const BsonElement& e) {
  if (IsLogin(command)) return !IsShownOfLogin(e);
  if (own && IsOfOneUser(command) && !IsShownOfOneUser(e)) return true;
  if (!IsSecretName(e.name))
    return e.name == "speculativeAuthenticate" && !e.value.IsDocument() && !IsScalar(e.value);
  return TakesPassword(command) || !IsScalar(e.value);
}

/// The command that a document is, or that it is part of.
std::string_view CommandOf(BsonView document, std::string_view outer) {
  const std::string_view name = document.First().name;
  return IsLogin(name) || TakesPassword(name) ? name : outer;
}

void AppendFields(std::string_view command, BsonView document, BsonBuilder& out);

void AppendItems(std::string_view command, BsonView array, BsonArrayBuilder& out) {
  for (const BsonElement& e : array) {
    if (e.value.IsDocument()) {
      BsonBuilder inner = out.OpenDocument();
      AppendFields(CommandOf(e.value.Document(), command), e.value.Document(), inner);
    } else if (e.value.IsArray()) {
      BsonArrayBuilder inner = out.OpenArray();
      AppendItems(command, e.value.Document(), inner);
    } else {
      out.Append(e.value);
    }
  }
}

void AppendField(std::string_view command, bool own, const BsonElement& e, BsonBuilder& out) {
  if (Hides(command, own, e)) {
    out.Append(e.name, kRedacted);
  } else if (e.value.IsDocument()) {
    BsonBuilder inner = out.OpenDocument(e.name);
    const std::string_view login = "saslStart";
    AppendFields(
        e.name == "speculativeAuthenticate" ? login : CommandOf(e.value.Document(), command),
        e.value.Document(), inner);
  } else if (e.value.IsArray()) {
    BsonArrayBuilder inner = out.OpenArray(e.name);
    AppendItems(command, e.value.Document(), inner);
  } else {
    out.Append(e);
  }
}

void AppendFields(std::string_view command, BsonView document, BsonBuilder& out) {
  const bool own = document.First().name == command;
  for (const BsonElement& e : document) AppendField(command, own, e, out);
}

bool NamesUsers(std::string_view text, bool of_admin) {
  return text == "system.users" || text == "admin.system.users" || text == "admin.tempusers" ||
         (of_admin && text == "tempusers");
}

/// Whether a text in it is the name of a collection of users. Takes what it looks at from `*left`.
bool NamesUsers(BsonView document, bool of_admin, size_t* left) {
  bool with_tempusers = false, with_admin = false;
  for (const BsonElement& e : document) {
    const size_t bytes =
        e.name.size() +
        (e.value.IsDocument() || e.value.IsArray() ? 8 : static_cast<size_t>(e.value.size()));
    if (e.value.IsString()) {
      if (NamesUsers(e.value.String(), of_admin)) return true;
      // { db: "admin", coll: "tempusers" }, from whatever database.
      with_tempusers = with_tempusers || e.value.String() == "tempusers";
      with_admin = with_admin || e.value.String() == "admin";
      if (with_tempusers && with_admin) return true;
    }
    if (bytes >= *left) {
      *left = 0;
      return false;
    }
    *left -= bytes;
    if ((e.value.IsDocument() || e.value.IsArray()) &&
        NamesUsers(e.value.Document(), of_admin, left))
      return true;
  }
  return false;
}

/// Commands about roles name collections, and have no documents of these.
bool IsOfRoles(std::string_view command) {
  return command.substr(0, kMaxValue).find("Role") != std::string_view::npos;
}

/// Shown of a command on the collections of users: what says how, and not what.
bool IsShownOfUsers(const BsonElement& e) {
  if (e.value.IsString()) return NamesUsers(e.value.String(), true) || e.name == "$db";
  constexpr std::string_view kShown[] = {"nsInfo", "lsid",        "$clusterTime",
                                         "cursor", "readConcern", "$readPreference",
                                         "sort",   "projection",  "writeConcern"};
  return IsScalar(e.value) || e.value.Is(BsonType::kDate) ||
         std::ranges::find(kShown, e.name) != std::end(kShown);
}

}  // namespace

bool IsSecretName(std::string_view field) {
  field = field.substr(0, kMaxName);
  for (size_t at = 0;;) {
    const size_t dot = field.find('.', at);
    if (IsSecretPart(field.substr(at, dot - at))) return true;
    if (dot == std::string_view::npos) return false;
    at = dot + 1;
  }
}

bool HoldsCredentials(std::string_view db, std::string_view collection) {
  if (db == "admin") return NamesUsers(collection, true);
  return db == "local" && collection == "oplog.rs";
}

bool IsHidden(const BsonElement& field) { return Hides({}, false, field); }

ShownCommand::ShownCommand(BsonView body, const std::vector<OpMsg::Sequence>* sequences)
    : command_(body.First().name) {
  if (IsOfRoles(command_)) return;
  size_t left = kMaxLook;
  bool of_admin = true;
  int behind = 0;
  if (body.size() <= kMaxLook)
    if (const BsonValue db = body["$db"]; db.IsString()) of_admin = db.String() == "admin";
  if (NamesUsers(body, of_admin, &left)) {
    of_users_ = true;
    return;
  }
  for (const BsonElement& e : body) {
    if (left != 0 || ++behind > kMaxFieldsBehind) break;
    if (e.value.size() > kMaxFieldBehind) continue;
    size_t short_one = kMaxFieldBehind;
    if ((e.value.IsString() && NamesUsers(e.value.String(), of_admin)) ||
        ((e.value.IsDocument() || e.value.IsArray()) &&
         NamesUsers(e.value.Document(), of_admin, &short_one)))
      of_users_ = true;
  }
  if (sequences == nullptr) return;
  for (const OpMsg::Sequence& s : *sequences) {
    left = kMaxLook;
    for (const BsonView d : s.documents)
      if (left == 0 || (of_users_ = of_users_ || NamesUsers(d, of_admin, &left))) break;
  }
}

void ShownCommand::Append(const BsonElement& field, BsonBuilder& out) const {
  if (of_users_ && field.name == "explain" && field.value.IsDocument()) {
    BsonBuilder inner = out.OpenDocument(field.name);
    for (const BsonElement& e : field.value.Document()) Append(e, inner);
  } else if (of_users_ && !IsShownOfUsers(field)) {
    out.Append(field.name, kRedacted);
  } else {
    AppendField(command_, true, field, out);
  }
}

void ShownCommand::AppendDocument(BsonView document, BsonArrayBuilder& out) const {
  if (of_users_ && document["ns"].missing()) {
    out.Append(kRedacted);
    return;
  }
  BsonBuilder inner = out.OpenDocument();
  AppendFields(CommandOf(document, command_), document, inner);
}

BsonDocument RedactedCommand(BsonView command) {
  const ShownCommand shown(command);
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : command) shown.Append(e, b);
  });
}

std::string ShortCommandText(BsonView command) {
  const ShownCommand shown(command);
  std::string text = "{ ";
  bool first = true;
  for (const BsonElement& e : command) {
    if (!first) text += ", ";
    first = false;
    if (text.size() > kShortCommand) return text + "... }";
    text.append(e.name.substr(0, kMaxValue)).append(": ");
    if (e.value.size() > kMaxValue) {
      text += "...";
    } else if (e.name == "explain" && e.value.IsDocument() && !shown.of_users()) {
      text += ShortCommandText(e.value.Document());
    } else {
      const BsonElement cut{e.name.substr(0, kMaxValue), e.value};
      const BsonDocument one = BuildBson([&](BsonBuilder& b) { shown.Append(cut, b); });
      text += ToRelaxedJson(one.view().First().value);
    }
  }
  text += " }";
  return IsUtf8(text) ? text : PrintableUtf8(text);
}

}  // namespace mayfly
