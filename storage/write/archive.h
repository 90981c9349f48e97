#pragma once
#include <optional>
#include <string>

#include "storage/catalog/catalog.h"
#include "storage/write/write_unit.h"

namespace mayfly {

/// The collection option `onExpire: {action: "archive", into: {db, coll}}` (docs/expiry.md,
/// "Archive instead of delete").
struct ArchiveTarget {
  std::string db, collection;
};

/// Where the expired documents of a collection go; nothing when they are just deleted. Cheap for
/// collections without options.
std::optional<ArchiveTarget> ArchiveTargetOf(const CollectionInfo& coll);

/// Reads the option and checks it against the catalog for the collection `db.name` (which need not
/// exist yet); nothing for {action: "delete"}, which is the same as no option. `new_collection`:
/// a target that does not exist (yet) is taken, as a dump names it before it is restored; see
/// ArchiveProblem. Errors: TypeMismatch 14 and InvalidOptions 72 for what it looks like, 40413 for
/// a field that is there twice, and 72 into itself, a capped or a system collection;
/// InvalidNamespace 73 for a name that no collection can have; NamespaceNotFound 26 for a target
/// that does not exist; CommandNotSupportedOnView 166; GraphContainsCycle 5 when the target's own
/// archive leads back here.
/// `series`: of a time series, which `name` names, and not its buckets: it may archive into another
/// one with the same fields and no smaller span (72 otherwise).
Result<std::optional<ArchiveTarget>> ParseOnExpire(BsonValue on_expire, Catalog& catalog,
                                                   std::string_view db, std::string_view name,
                                                   bool new_collection = false,
                                                   const SeriesOptions* series = nullptr);

/// Why the archive of the collection takes no documents now; empty when it does, or there is none.
std::string ArchiveProblem(Catalog& catalog, const CollectionInfo& coll);

/// What to tell of a time series of which the archive, another one, refuses a bucket for its arrays
/// (indexed_arrays.h).
std::string RefusedByArchive(const CollectionInfo& from, const CollectionInfo& into,
                             const Error& error);

/// Whether the collection may have this name, as far as its archive goes. Errors:
/// GraphContainsCycle 5 when expired documents would come back to it.
Result<void> CheckArchiveUnderName(Catalog& catalog, const CollectionInfo& coll,
                                   std::string_view db, std::string_view name);

/// Puts a copy of an expired document into the collection's archive, in the unit that deletes it.
/// One that is there under the same `_id` is replaced, so doing it twice does no harm. It is a new
/// document of the archive: that one's rules give it a deadline, and its validator is asked.
/// A bucket of a time series goes as it is into the buckets of another one; into any other
/// collection go its points, each a document. Since several points may have the same `_id`, one
/// whose `_id` another document of the archive has gets a new one.
/// Errors: IllegalOperation 20 when the target is gone or takes no documents; DuplicateKey 11000 by
/// another unique index; DocumentValidationFailure 121; Location5930501 by an index on
/// measurements that a bucket's arrays do not fit; WriteConflict 112. The document then stays where
/// it is.
Result<void> CopyToArchive(WriteUnit& unit, const ArchiveTarget& target, const CollectionInfo& from,
                           BsonView doc);

}  // namespace mayfly
