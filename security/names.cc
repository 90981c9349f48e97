#include "security/names.h"

#include "protocol/database_name.h"
#include "protocol/field_once.h"
#include "protocol/utf8.h"

namespace mayfly {

namespace {

std::string Cut(std::string_view name) { return PrintableUtf8(name.substr(0, 128)); }

/// The two texts of {`first`: , db: }, or a single text together with the command's database.
Result<std::pair<std::string, std::string>> ParsePair(BsonValue value, std::string_view first,
                                                      std::string_view default_db,
                                                      std::string_view what) {
  std::string_view name, db = default_db;
  if (value.IsString()) {
    name = value.String();
  } else if (value.IsDocument()) {
    bool named = false, placed = false;
    for (const BsonElement& e : value.Document()) {
      const bool is_name = e.name == first;
      if (!is_name && e.name != "db")
        return Error{ErrorCode::kBadValue, std::string(what) + " names have the fields '" +
                                               std::string(first) + "' and 'db', not '" +
                                               Cut(e.name) + "'"};
      // The check of a name and its use must see the same name.
      if (is_name ? named : placed) return DuplicateField(what, e.name);
      if (!e.value.IsString())
        return Error{ErrorCode::kTypeMismatch, "'" + std::string(e.name) + "' of a " +
                                                   std::string(what) + " name must be a string"};
      (is_name ? name : db) = e.value.String();
      (is_name ? named : placed) = true;
    }
    if (!named || !placed)
      return Error{ErrorCode::kBadValue, std::string(what) + " names given as documents need '" +
                                             std::string(first) + "' and 'db'"};
  } else {
    return Error{ErrorCode::kBadValue, std::string(what) +
                                           " names must be either strings or documents, not " +
                                           std::string(BsonTypeName(value.type()))};
  }
  MAYFLY_TRY(CheckPrincipalName(name, what));
  if (db.empty() || db.size() > kMaxDatabaseName || db.find('\0') != std::string_view::npos)
    return Error{ErrorCode::kBadValue, std::string(what) +
                                           " names need the name of a database in 'db': '" +
                                           Cut(db) + "' is none"};
  return std::pair(std::string(name), std::string(db));
}

}  // namespace

Result<void> CheckPrincipalName(std::string_view name, std::string_view what) {
  if (name.empty()) return Error{ErrorCode::kBadValue, std::string(what) + " name cannot be empty"};
  if (name.find('\0') != std::string_view::npos)
    return Error{ErrorCode::kBadValue, std::string(what) + " name cannot have NUL characters"};
  if (name.size() > kMaxPrincipalName)
    return Error{ErrorCode::kBadValue,
                 std::string(what) + " name cannot be longer than 1,024 bytes"};
  if (!IsUtf8(name)) return Error{ErrorCode::kBadValue, std::string(what) + " name must be UTF-8"};
  return Ok();
}

Result<void> CheckPrincipalDatabase(std::string_view db) {
  if (db == "local")
    return Error{ErrorCode::kBadValue,
                 "users and roles cannot be created in the local database: use admin"};
  if (!IsDatabaseName(db) && db != kExternalDatabase)
    return Error{ErrorCode::kBadValue, "'" + Cut(db) + "' is no name of a database"};
  return Ok();
}

Result<UserName> ParseUserName(BsonValue value, std::string_view default_db) {
  MAYFLY_TRY(auto p, ParsePair(value, "user", default_db, "User"));
  return UserName{std::move(p.first), std::move(p.second)};
}

Result<RoleName> ParseRoleName(BsonValue value, std::string_view default_db) {
  MAYFLY_TRY(auto p, ParsePair(value, "role", default_db, "Role"));
  return RoleName{std::move(p.first), std::move(p.second)};
}

void AppendUserName(BsonBuilder& out, const UserName& name) {
  out.Append("user", name.user).Append("db", name.db);
}

void AppendRoleName(BsonBuilder& out, const RoleName& name) {
  out.Append("role", name.role).Append("db", name.db);
}

}  // namespace mayfly
