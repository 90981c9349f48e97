#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

/// The database in which a target keeps what its links know; it is never replicated.
inline constexpr std::string_view kLinkDatabase = "mayflyLink";

/// The collections that a link copies. The names that it is asked for come from the other side:
/// what is no name of a database or collection is not part of it. Threads: any.
class Selection {
 public:
  /// Patterns: "db" and "db.*" (the whole database) or "db.collection". `include` empty: all but
  /// the internal databases, which cannot be chosen. Errors: BadValue 2.
  static Result<Selection> Make(const std::vector<std::string>& include,
                                const std::vector<std::string>& exclude);
  bool Has(std::string_view db, std::string_view collection) const;
  /// Whether collections of this database may be part of it.
  bool HasDatabase(std::string_view db) const;
  /// All of its collections are.
  bool HasWholeDatabase(std::string_view db) const;

 private:
  struct Pattern {
    std::string db, collection;  ///< collection empty: all of them
  };
  static Result<std::vector<Pattern>> Parse(const std::vector<std::string>& texts);
  std::vector<Pattern> include_, exclude_;
};

/// A filter of documents as one of change events: its conditions are about fullDocument, and events
/// that are about no document, or have none, pass. Errors: BadValue 2 for what cannot be moved
/// ($expr, $where, $text, $jsonSchema and so on at the top).
Result<BsonDocument> EventMatch(BsonView filter);

}  // namespace mayfly
