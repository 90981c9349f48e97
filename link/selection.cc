#include "link/selection.h"

#include <algorithm>

#include "protocol/bson_builder.h"
#include "protocol/database_name.h"

namespace mayfly {
namespace {

constexpr int kMostNested = 32;

/// Never copied: internal, or no name at all. With a dot in it, such as `admin.system`, what is
/// behind the dot would belong to the collection's name at the target.
bool IsInternal(std::string_view db) {
  return !IsDatabaseName(db) || db == "admin" || db == "local" || db == "config" ||
         db == kLinkDatabase;
}

Result<void> AppendMoved(BsonView filter, int depth, BsonBuilder& out) {
  if (depth > kMostNested)
    return Error{ErrorCode::kBadValue,
                 "--filter: more than " + std::to_string(kMostNested) + " levels of $and and $or"};
  for (const BsonElement& e : filter) {
    if (!e.name.starts_with('$')) {
      out.Append("fullDocument." + std::string(e.name), e.value);
      continue;
    }
    if (e.name == "$comment") continue;
    if ((e.name != "$and" && e.name != "$or" && e.name != "$nor") || !e.value.IsArray())
      return Error{ErrorCode::kBadValue, "--filter: '" + std::string(e.name) +
                                             "' cannot be used here: name fields, or join "
                                             "conditions by $and, $or and $nor"};
    BsonArrayBuilder list = out.OpenArray(e.name);
    for (const BsonElement& one : e.value.Document()) {
      if (!one.value.IsDocument())
        return Error{ErrorCode::kBadValue,
                     "--filter: '" + std::string(e.name) + "' must have an array of documents"};
      BsonBuilder inner = list.OpenDocument();
      MAYFLY_TRY(AppendMoved(one.value.Document(), depth + 1, inner));
    }
  }
  return Ok();
}

}  // namespace

Result<std::vector<Selection::Pattern>> Selection::Parse(const std::vector<std::string>& texts) {
  std::vector<Pattern> out;
  for (const std::string& text : texts) {
    const size_t dot = text.find('.');
    Pattern p{text.substr(0, dot), dot == std::string::npos ? "" : text.substr(dot + 1)};
    if (p.collection == "*") p.collection.clear();
    if (p.db.empty() || (dot != std::string::npos && text.size() == dot + 1) ||
        p.db.find('*') != std::string::npos || p.collection.find('*') != std::string::npos)
      return Error{ErrorCode::kBadValue,
                   "'" + text + "' names no collections: use db, db.* or db.collection"};
    if (IsInternal(p.db))
      return Error{ErrorCode::kBadValue, "the database '" + p.db + "' is never replicated"};
    out.push_back(std::move(p));
  }
  return out;
}

Result<Selection> Selection::Make(const std::vector<std::string>& include,
                                  const std::vector<std::string>& exclude) {
  Selection s;
  MAYFLY_TRY(s.include_, Parse(include));
  MAYFLY_TRY(s.exclude_, Parse(exclude));
  return s;
}

bool Selection::Has(std::string_view db, std::string_view collection) const {
  if (IsInternal(db) || collection.starts_with("system.") || collection.empty() ||
      collection.find('\0') != std::string_view::npos)
    return false;
  const auto names = [&](const Pattern& p) {
    return p.db == db && (p.collection.empty() || p.collection == collection);
  };
  if (!include_.empty() && std::ranges::none_of(include_, names)) return false;
  return std::ranges::none_of(exclude_, names);
}

bool Selection::HasDatabase(std::string_view db) const {
  if (IsInternal(db)) return false;
  const auto of_it = [&](const Pattern& p) { return p.db == db; };
  if (!include_.empty() && std::ranges::none_of(include_, of_it)) return false;
  return std::ranges::none_of(exclude_,
                              [&](const Pattern& p) { return p.db == db && p.collection.empty(); });
}

bool Selection::HasWholeDatabase(std::string_view db) const {
  if (IsInternal(db)) return false;
  const auto whole = [&](const Pattern& p) { return p.db == db && p.collection.empty(); };
  if (!include_.empty() && std::ranges::none_of(include_, whole)) return false;
  return std::ranges::none_of(exclude_, [&](const Pattern& p) { return p.db == db; });
}

Result<BsonDocument> EventMatch(BsonView filter) {
  std::string bytes;
  {
    BsonBuilder out(bytes);
    BsonArrayBuilder any = out.OpenArray("$or");
    {
      BsonBuilder other = any.OpenDocument();
      BsonBuilder type = other.OpenDocument("operationType");
      BsonArrayBuilder list = type.OpenArray("$nin");
      list.Append("insert").Append("replace").Append("update");
    }
    any.OpenDocument().AppendNull("fullDocument");
    // Links speak to each other by their own documents.
    any.OpenDocument().Append("ns.db", kLinkDatabase);
    BsonBuilder moved = any.OpenDocument();
    MAYFLY_TRY(AppendMoved(filter, 0, moved));
  }
  return BsonDocument(std::move(bytes));
}

}  // namespace mayfly
