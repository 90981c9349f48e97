#include "server/dispatch/redacted_command.h"

#include <algorithm>
#include <utility>

#include "protocol/extended_json.h"
#include "protocol/utf8.h"
#include "security/sasl.h"
#include "server/base/log_redaction.h"
#include "storage/catalog/namespace.h"

namespace mayfly {

namespace {

/// Of a name that is longer, the beginning is looked at.
constexpr size_t kMaxName = 1024;
/// For a nested command in a message.
constexpr size_t kMaxValue = 256;
/// Of a command on the collections of users: larger fields are not looked into.
constexpr size_t kMaxShownOfUsers = 4 * 1024;
/// Of a body: so many fields are looked at.
constexpr size_t kMaxFields = 10'000;

char LowerLetter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

/// A name that somebody may have spelt with other cases, which makes it no harmless one.
bool Same(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return LowerLetter(x) == LowerLetter(y); });
}

template <size_t kCount>
bool IsOneOf(std::string_view name, const std::string_view (&names)[kCount]) {
  return std::ranges::any_of(names, [&](std::string_view n) { return Same(name, n); });
}

/// Commands of a login. What is not known to be harmless in them is hidden.
bool IsLogin(std::string_view command) {
  constexpr std::string_view kNames[] = {"saslStart", "saslContinue", "authenticate"};
  return IsOneOf(command, kNames);
}

/// Commands whose fields are few and known, and one of which may be a password: any other field may
/// be it under a wrong name.
bool IsOfOneUser(std::string_view command) {
  constexpr std::string_view kNames[] = {
      "createUser",       "updateUser",          "dropUser",  "dropAllUsersFromDatabase",
      "grantRolesToUser", "revokeRolesFromUser", "usersInfo", "rotateCertificates"};
  return IsOneOf(command, kNames);
}

/// Commands to which a password may be sent under any type.
bool TakesPassword(std::string_view command) {
  return IsOfOneUser(command) || Same(command, "setParameter");
}

/// The name by whose rules a command is shown: of one that does not exist and is called somehow
/// like a command for users, those of these.
std::string_view RuleOf(std::string_view command) {
  if (IsLogin(command) || TakesPassword(command)) return command;
  return ContainsLower(command.substr(0, kMaxName), "user") ? "createUser" : command;
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

/// Whether a field of a command for users is shown: those that these have besides a password, and
/// those that any command may have. `filter` is of documents of users.
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
                                         "apiStrict",
                                         "apiDeprecationErrors",
                                         "txnNumber",
                                         "showCredentials",
                                         "showCustomData",
                                         "showPrivileges",
                                         "showAuthenticationRestrictions",
                                         "message"};
  return e.name.starts_with('$') || std::ranges::find(kKnown, e.name) != std::end(kKnown);
}

/// Stands in the place of a builder of documents or arrays, and keeps nothing but whether something
/// is hidden.
class HiddenLook {
 public:
  explicit HiddenLook(bool* hidden) : hidden_(hidden) {}
  HiddenLook OpenDocument(std::string_view = {}) { return *this; }
  HiddenLook OpenArray(std::string_view = {}) { return *this; }
  HiddenLook& raw() { return *this; }
  std::string_view NextName() const { return {}; }
  void Append(const BsonElement&) {}
  void Append(BsonValue) {}
  /// A text is appended under a name only where it stands for what is hidden.
  void Append(std::string_view, std::string_view) { *hidden_ = true; }

 private:
  bool* hidden_;
};

// `Out`, `List`: BsonBuilder and BsonArrayBuilder, or HiddenLook.

/// The names of users or roles, alone or in arrays, and nothing that is beside them.
template <class Out>
void AppendNamesOnly(const BsonElement& e, Out& out) {
  if (e.value.IsString() || IsScalar(e.value)) {
    out.Append(e);
  } else if (e.value.IsArray()) {
    auto list = out.OpenArray(e.name);
    for (const BsonElement& one : e.value.Document())
      AppendNamesOnly({list.NextName(), one.value}, list.raw());
  } else if (e.value.IsDocument()) {
    constexpr std::string_view kNames[] = {"user", "role", "db", "forAllDBs"};
    auto inner = out.OpenDocument(e.name);
    for (const BsonElement& f : e.value.Document()) {
      if (IsOneOf(f.name, kNames) && (f.value.IsString() || IsScalar(f.value)))
        inner.Append(f);
      else
        inner.Append(f.name, kRedacted);
    }
  } else {
    out.Append(e.name, kRedacted);
  }
}

/// Whether a field is hidden. `command`: whose field it is, at whatever depth; empty: one without a
/// login or a password. `own`: it is one of the command's own fields.
bool Hides(std::string_view command, bool own, const BsonElement& e) {
  if (IsLogin(command)) return !IsShownOfLogin(e);
  if (own && IsOfOneUser(command) && !IsShownOfOneUser(e)) return true;
  if (!IsSecretName(e.name))
    return Same(e.name, "speculativeAuthenticate") && !e.value.IsDocument() && !IsScalar(e.value);
  return TakesPassword(command) || !IsScalar(e.value);
}

/// The command by whose rules a document is shown: the one that it is, or that it is part of.
std::string_view CommandOf(BsonView document, std::string_view outer) {
  const std::string_view name = document.First().name;
  return IsLogin(name) || TakesPassword(name) ? name : outer;
}

template <class Out>
void AppendFields(std::string_view command, bool own, BsonView document, Out& out);

/// A document that is no command for sure.
template <class Out>
void AppendPart(std::string_view outer, BsonView document, Out& out) {
  const std::string_view command = CommandOf(document, outer);
  AppendFields(command, document.First().name == command, document, out);
}

template <class List>
void AppendItems(std::string_view command, BsonView array, List& out) {
  for (const BsonElement& e : array) {
    if (e.value.IsDocument()) {
      auto inner = out.OpenDocument();
      AppendPart(command, e.value.Document(), inner);
    } else if (e.value.IsArray()) {
      auto inner = out.OpenArray();
      AppendItems(command, e.value.Document(), inner);
    } else {
      out.Append(e.value);
    }
  }
}

/// `is_command`: if the value is a document, then a command.
template <class Out>
void AppendField(std::string_view command, bool own, bool is_command, const BsonElement& e,
                 Out& out) {
  if (own && IsOfOneUser(command) && (Same(e.name, command) || e.name == "roles")) {
    AppendNamesOnly(e, out);
  } else if (Hides(command, own, e)) {
    out.Append(e.name, kRedacted);
  } else if (e.value.IsDocument()) {
    const BsonView document = e.value.Document();
    auto inner = out.OpenDocument(e.name);
    if (Same(e.name, "speculativeAuthenticate"))
      AppendFields("saslStart", true, document, inner);
    else if (is_command)
      AppendFields(RuleOf(document.First().name), true, document, inner);
    else
      AppendPart(command, document, inner);
  } else if (e.value.IsArray()) {
    auto inner = out.OpenArray(e.name);
    AppendItems(command, e.value.Document(), inner);
  } else {
    out.Append(e);
  }
}

/// Whether the field `o` of the document is a command: of an entry of the log, or of applyOps.
bool IsEntryOfCommand(BsonView document) {
  const BsonValue op = document["op"];
  return op.IsString() && op.String() == "c";
}

template <class Out>
void AppendFields(std::string_view command, bool own, BsonView document, Out& out) {
  std::optional<bool> entry;  // one look for all fields of this name
  for (const BsonElement& e : document) {
    if (e.name == "o" && !entry) entry = IsEntryOfCommand(document);
    AppendField(command, own, e.name == "o" && *entry, e, out);
  }
}

bool NamesUsers(std::string_view text, bool of_admin) {
  return text == "system.users" || text == kUsersNamespace || text == kRestoredUsersNamespace ||
         text == "system.keys" || text == "admin.system.keys" || (of_admin && text == "tempusers");
}

/// What finds the collections of users in a command.
struct Finder {
  std::span<const Uuid> uuids;
  bool of_admin = true;
  size_t left = 0;  ///< letters of names and fields that may still be looked at

  bool Is(const BsonValue& v) const {
    if (v.IsString()) return NamesUsers(v.String(), of_admin);
    if (uuids.empty()) return false;
    const std::optional<Uuid> uuid = UuidOf(v);
    return uuid && std::ranges::find(uuids, *uuid) != uuids.end();
  }
  /// Whether a value in it names one of them. Looks no further when nothing is left.
  bool In(BsonView document) {
    bool with_tempusers = false, with_admin = false;
    for (const BsonElement& e : document) {
      if (left <= kPerField + e.name.size()) {
        left = 0;
        return false;
      }
      left -= kPerField + e.name.size();
      if (Is(e.value)) return true;
      if (e.value.IsString()) {
        // { db: "admin", coll: "tempusers" }, from whatever database.
        with_tempusers = with_tempusers || e.value.String() == "tempusers";
        with_admin = with_admin || e.value.String() == "admin";
        if (with_tempusers && with_admin) return true;
      } else if ((e.value.IsDocument() || e.value.IsArray()) && In(e.value.Document())) {
        return true;
      }
      if (left == 0) return false;
    }
    return false;
  }
  static constexpr size_t kPerField = 4;
};

/// Whether a document names a field that holds a secret: as a field of its own, or in a text, like
/// the path "$password". Also where it is too long to be looked at; `*left`: as Finder::left.
/// `body`: it is a command, whose collection and database are no fields, whatever their names.
bool MentionsSecret(BsonView document, bool body, size_t* left) {
  bool first = true;
  for (const BsonElement& e : document) {
    const bool names = std::exchange(first, false) || e.name == "$db";
    std::string_view text;
    if (e.value.IsString() && !(body && names)) text = e.value.String().substr(0, kMaxName);
    const size_t cost = Finder::kPerField + e.name.size() + text.size();
    if (*left <= cost) {
      *left = 0;
      return true;
    }
    *left -= cost;
    if (IsSecretName(e.name) && !IsScalar(e.value)) return true;
    text.remove_prefix(std::min(text.find_first_not_of('$'), text.size()));
    if (IsSecretName(text)) return true;
    if ((e.value.IsDocument() || e.value.IsArray()) &&
        MentionsSecret(e.value.Document(), false, left))
      return true;
  }
  return false;
}

/// Commands about roles name collections, and have no documents of these.
bool IsOfRoles(std::string_view command) {
  constexpr std::string_view kNames[] = {"createRole",
                                         "updateRole",
                                         "dropRole",
                                         "dropAllRolesFromDatabase",
                                         "grantRolesToRole",
                                         "revokeRolesFromRole",
                                         "grantPrivilegesToRole",
                                         "revokePrivilegesFromRole",
                                         "rolesInfo"};
  return std::ranges::find(kNames, command) != std::end(kNames);
}

/// Whether a field may name a collection besides the one that the command is about. All but the
/// body's first field, which is always looked at.
bool MayNameOthers(std::string_view command, std::string_view field) {
  if (command == "bulkWrite") return field == "nsInfo";
  constexpr std::string_view kNames[] = {"aggregate", "explain", "applyOps", "create", "collMod"};
  return IsOneOf(command, kNames);
}

/// Whether a command is applyOps, whose entries are of any database.
bool HasEntries(BsonView command) {
  const BsonElement first = command.First();
  if (Same(first.name, "explain") && first.value.IsDocument())
    return Same(first.value.Document().First().name, "applyOps");
  return Same(first.name, "applyOps");
}

bool IsKnownWord(std::string_view text) {
  constexpr std::string_view kWords[] = {
      "local",     "majority",         "snapshot",     "linearizable",       "available",
      "primary",   "primaryPreferred", "secondary",    "secondaryPreferred", "nearest",
      "text",      "textScore",        "queryPlanner", "executionStats",     "allPlansExecution",
      "committed", "aborted"};
  return std::ranges::find(kWords, text) != std::end(kWords);
}

/// Of a command on the collections of users: what says how, and not what.
void AppendOfUsers(std::string_view field, const BsonElement& e, BsonBuilder& out) {
  constexpr std::string_view kInto[] = {
      "nsInfo", "lsid",       "$clusterTime", "cursor",       "$readPreference",
      "sort",   "projection", "readConcern",  "writeConcern", "signature"};
  const BsonValue& v = e.value;
  const auto shown = [&] {
    if (v.IsString())
      return NamesUsers(v.String(), true) || IsKnownWord(v.String()) ||
             (field.empty() && e.name == "$db") || (field == "nsInfo" && e.name == "ns");
    return !IsSecretName(e.name) && (IsScalar(v) || v.Is(BsonType::kDate) ||
                                     v.Is(BsonType::kTimestamp) || UuidOf(v).has_value());
  };
  const bool into = (v.IsDocument() || v.IsArray()) && v.size() <= kMaxShownOfUsers &&
                    (std::ranges::find(kInto, field.empty() ? e.name : field) != std::end(kInto));
  if (!into) {
    if (shown())
      out.Append(e);
    else
      out.Append(e.name, kRedacted);
    return;
  }
  const std::string_view within = field.empty() ? e.name : field;
  if (v.IsArray()) {
    BsonArrayBuilder list = out.OpenArray(e.name);
    for (const BsonElement& x : v.Document())
      AppendOfUsers(within, {list.NextName(), x.value}, list.raw());
  } else {
    BsonBuilder inner = out.OpenDocument(e.name);
    for (const BsonElement& x : v.Document()) AppendOfUsers(within, x, inner);
  }
}

}  // namespace

bool HoldsCredentials(std::string_view db, std::string_view collection) {
  if (db == "admin") return NamesUsers(collection, true);
  return db == "local" && collection == "oplog.rs";
}

bool IsHidden(const BsonElement& field) { return Hides({}, false, field); }

bool IsHiddenAsText(const BsonElement& field) {
  if (IsHidden(field)) return true;
  if (!field.value.IsDocument()) return false;
  const std::string_view first = field.value.Document().First().name;
  const bool is_command = field.name == "explain" || field.name == "o";
  const std::string_view name = is_command ? RuleOf(first) : first;
  return IsLogin(name) || TakesPassword(name) || Same(field.name, "speculativeAuthenticate");
}

bool ShownCommand::takes_secrets() const { return IsLogin(command_) || TakesPassword(command_); }

BsonDocument ShownCustomData(BsonView data) {
  return BuildBson([&](BsonBuilder& b) { AppendPart("createUser", data, b); });
}

std::vector<Uuid> CredentialUuids(Catalog& catalog) {
  std::vector<Uuid> out;
  for (const std::string_view name : {"system.users", "tempusers", "system.keys"})
    if (const CollectionInfoPtr c = catalog.Find("admin", name)) out.push_back(c->uuid);
  return out;
}

ShownCommand::ShownCommand(BsonView body, const CommandLook& look)
    : command_(RuleOf(body.First().name)), of_users_(look.of_users) {
  const std::string_view name = body.First().name;
  if (of_users_ || IsOfRoles(name)) return;
  Finder finder{.uuids = look.uuids};
  if (body.size() <= kMaxLook && !HasEntries(body))
    if (const BsonValue db = body["$db"]; db.IsString()) finder.of_admin = db.String() == "admin";
  size_t fields = 0, total = 2 * kMaxLook;
  // What cannot be looked at is not shown: in the part that is left out, or behind too much else.
  bool unsure = !look.whole && MayNameOthers(name, "nsInfo");
  const auto in = [&](std::string_view field, auto&& part) {
    const size_t most = std::min(kMaxLook, total);
    finder.left = most;
    const bool found = part();
    total -= most - finder.left;
    unsure = unsure || (finder.left == 0 && MayNameOthers(name, field));
    return found;
  };
  for (const BsonElement& e : body) {
    const bool composite = e.value.IsDocument() || e.value.IsArray();
    if (++fields > kMaxFields) {
      unsure = unsure || MayNameOthers(name, "nsInfo");
      break;
    }
    of_users_ = of_users_ || finder.Is(e.value) ||
                (composite && in(e.name, [&] { return finder.In(e.value.Document()); }));
    if (of_users_) return;
  }
  if (look.sequences != nullptr)
    for (const OpMsg::Sequence& s : *look.sequences)
      of_users_ = of_users_ || in(s.name, [&] {
                    for (const BsonView d : s.documents)
                      if (finder.In(d)) return true;
                    return false;
                  });
  of_users_ = of_users_ || unsure;
}

void ShownCommand::Append(const BsonElement& field, BsonBuilder& out) const {
  if (of_users_ && field.name == "explain" && field.value.IsDocument()) {
    BsonBuilder inner = out.OpenDocument(field.name);
    for (const BsonElement& e : field.value.Document()) Append(e, inner);
  } else if (of_users_ && takes_secrets() && Hides(command_, true, field)) {
    out.Append(field.name, kRedacted);
  } else if (of_users_) {
    AppendOfUsers({}, field, out);
  } else {
    AppendField(command_, true, field.name == "explain", field, out);
  }
}

std::string_view ShownCommand::Message(BsonView body, const Error& error) const {
  if (of_users_) return kRedacted;
  if (takes_secrets()) return error.message;
  size_t left = kMaxLook;
  if (QuotesSecret(error.message) || MentionsSecret(body, true, &left)) return kRedacted;
  if (error.details.empty()) return error.message;
  bool hidden = false;
  HiddenLook look(&hidden);
  AppendFields({}, false, BsonView(error.details.data()), look);
  return hidden ? kRedacted : std::string_view(error.message);
}

void ShownCommand::AppendDocument(std::string_view name, BsonView document,
                                  BsonArrayBuilder& out) const {
  if (of_users_ && name != "nsInfo") {
    out.Append(kRedacted);
    return;
  }
  BsonBuilder inner = out.OpenDocument();
  if (!of_users_) return AppendPart(command_, document, inner);
  for (const BsonElement& e : document) AppendOfUsers(name, e, inner);
}

BsonDocument RedactedCommand(BsonView command, const CommandLook& look) {
  return RedactedCommand(command, ShownCommand(command, look));
}

BsonDocument RedactedCommand(BsonView command, const ShownCommand& shown) {
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : command) shown.Append(e, b);
  });
}

BsonDocument ShownDefinition(std::string_view db, std::string_view collection,
                             std::string_view view_on, BsonView definition) {
  Finder finder{.uuids = {}, .of_admin = db == "admin", .left = ShownCommand::kMaxLook};
  const bool of_users = HoldsCredentials(db, collection) || NamesUsers(view_on, db == "admin") ||
                        finder.In(definition) || finder.left == 0;
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : definition) {
      const bool names = e.name == "key" || e.name == "name" || e.name == "viewOn";
      if (of_users && !names && !IsScalar(e.value))
        b.Append(e.name, kRedacted);
      else
        AppendField({}, false, false, e, b);
    }
  });
}

bool ShowsWhole(std::string_view db, std::string_view collection, const BsonElement& field) {
  Finder finder{.uuids = {}, .of_admin = db == "admin", .left = ShownCommand::kMaxLook};
  const BsonValue& v = field.value;
  const bool of_users = HoldsCredentials(db, collection) || finder.Is(v) ||
                        ((v.IsDocument() || v.IsArray()) && finder.In(v.Document())) ||
                        finder.left == 0;
  bool hidden = of_users && !IsScalar(v);
  HiddenLook look(&hidden);
  if (!hidden) AppendField({}, false, false, field, look);
  return !hidden;
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

bool NamesUsersCollection(std::string_view ns) {
  const NamespaceParts parts = SplitNamespace(ns);  // check_names: compared
  return parts.db == "admin" && HoldsCredentials(parts.db, parts.collection);
}

}  // namespace mayfly
