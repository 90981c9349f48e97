#pragma once
#include <string>
#include <string_view>

#include "protocol/database_name.h"
#include "protocol/error.h"

namespace mayfly {

inline constexpr size_t kMaxNamespace = 255;  ///< bytes of "db.collection"

/// "db.collection".
std::string JoinNamespace(std::string_view db, std::string_view collection);

/// The two names of a namespace, which it outlives: the first dot parts them. Without a dot the
/// collection is empty.
struct NamespaceParts {
  std::string_view db, collection;
  /// Both are there.
  bool whole() const { return !db.empty() && !collection.empty(); }
};
/// Checks nothing; the views point into `ns`.
NamespaceParts SplitNamespace(std::string_view ns);

/// Errors: InvalidNamespace 73.
Result<void> ValidateDatabaseName(std::string_view db);
/// The basic rules for every collection name: not empty, at most kMaxNamespace bytes, UTF-8 without
/// NUL, and no leading dot.
bool IsCollectionName(std::string_view collection);
/// Database and collection name of anything a client may read or write.
Result<void> ValidateNamespace(std::string_view db, std::string_view collection);
/// Also: may a client create (or rename to) it? Of system.* only what the server knows, and never
/// the buckets of a time series, which are made with it: an ordinary collection in their place
/// would block that name, and one renamed onto them would take the points from their time series.
Result<void> ValidateNewNamespace(std::string_view db, std::string_view collection);

}  // namespace mayfly
