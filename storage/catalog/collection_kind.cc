#include "storage/catalog/collection_kind.h"

#include "protocol/system_names.h"
#include "storage/catalog/catalog.h"
#include "storage/catalog/namespace.h"

namespace mayfly {
namespace {

/// A message around the namespace.
struct Words {
  std::string_view before, after = {};
  bool with_ns = true;
  std::string Of(std::string_view ns) const {
    std::string s(before);
    if (with_ns) s.append(ns);
    return s.append(after);
  }
};
constexpr Words kIsView{"Namespace ", " is a view, not a collection"};
constexpr Words kMayBeAbsent{};

/// By CollectionUse: the answers for a view, and if the collection does not exist.
struct UseRow {
  CollectionUse use;
  Words view, absent;
};
constexpr UseRow kUses[] = {
    {CollectionUse::kWrite, kIsView, kMayBeAbsent},
    {CollectionUse::kReplace, kIsView, kMayBeAbsent},
    {CollectionUse::kWatch, kIsView, kMayBeAbsent},
    {CollectionUse::kStatistics, kIsView, kMayBeAbsent},
    {CollectionUse::kCreateIndexes, {"Cannot create indexes on a view: "}, kMayBeAbsent},
    {CollectionUse::kExplain, kIsView, kMayBeAbsent},
    {CollectionUse::kIndexes, kIsView, {"ns does not exist: "}},
    {CollectionUse::kChange, {}, {"ns does not exist: "}},
    {CollectionUse::kRename, {"cannot rename view: "}, {"Source collection ", " does not exist"}},
    {CollectionUse::kConvertToCapped, kIsView, {"source collection ", " does not exist"}},
    {CollectionUse::kCompact,
     {"can't compact a view", {}, false},
     {"collection does not exist", {}, false}},
    {CollectionUse::kValidate,
     {"Cannot validate a view", {}, false},
     {"Collection '", "' does not exist to validate."}},
    {CollectionUse::kArchiveInto,
     {"onExpire cannot archive into the view "},
     {"onExpire cannot archive into ", ": it does not exist; create it first"}},
};
constexpr bool UsesStandByTheirNumber() {
  for (size_t i = 0; i < std::size(kUses); ++i)
    if (static_cast<size_t>(kUses[i].use) != i) return false;
  return std::size(kUses) == static_cast<size_t>(CollectionUse::kArchiveInto) + 1;
}
static_assert(UsesStandByTheirNumber());

/// Whether this use of a time series is one of its buckets.
constexpr bool IsOfBuckets(CollectionUse use) {
  switch (use) {
    case CollectionUse::kStatistics:
    case CollectionUse::kCreateIndexes:
    case CollectionUse::kIndexes:
    case CollectionUse::kCompact:
    case CollectionUse::kValidate:
      return true;
    default:
      return false;
  }
}

Result<void> RefuseSeriesUse(const CollectionInfo& coll, CollectionUse use) {
  switch (use) {
    case CollectionUse::kChange:
      return Ok();
    case CollectionUse::kRename:
      return Error{ErrorCode::kIllegalOperation,
                   "Renaming time-series collections is not allowed: " + coll.ns};
    case CollectionUse::kReplace:
      return Ok();
    case CollectionUse::kConvertToCapped:
      return Error{ErrorCode::kCommandNotSupportedOnView,
                   "a time-series collection cannot be capped: " + coll.ns};
    case CollectionUse::kArchiveInto:
      return Error{ErrorCode::kCommandNotSupportedOnView,
                   "onExpire cannot archive into the time-series collection " + coll.ns};
    default:
      return Error{ErrorCode::kCommandNotSupportedOnView,
                   "Namespace " + coll.ns + " is a timeseries collection"};
  }
}

Result<void> RefuseBucketsUse(const CollectionInfo& coll, CollectionUse use) {
  switch (use) {
    case CollectionUse::kRename:
    case CollectionUse::kReplace:
    case CollectionUse::kConvertToCapped:
    case CollectionUse::kArchiveInto:
      return Error{ErrorCode::kIllegalOperation,
                   coll.ns +
                       " holds the buckets of a time-series collection: it cannot be "
                       "renamed, replaced, capped or archived into"};
    case CollectionUse::kWatch:
      return Error{ErrorCode::kInvalidNamespace,
                   "change streams do not watch the buckets of time series: " + coll.ns};
    default:
      return Ok();
  }
}

/// Views change with `create`, `collMod` and `drop` of the view.
Result<void> RefuseViewRowsUse(const CollectionInfo& coll, CollectionUse use) {
  switch (use) {
    case CollectionUse::kWrite:
    case CollectionUse::kReplace:
    case CollectionUse::kCreateIndexes:
    case CollectionUse::kChange:
    case CollectionUse::kRename:
    case CollectionUse::kConvertToCapped:
    case CollectionUse::kCompact:
    case CollectionUse::kArchiveInto:
      return Error{ErrorCode::kInvalidNamespace, "cannot write to " + coll.ns};
    case CollectionUse::kWatch:
      return Error{ErrorCode::kInvalidNamespace, "change streams do not watch " + coll.ns};
    default:
      return Ok();
  }
}

/// MongoDB's words. It refuses who comes with a session, as every driver does.
Result<void> RefuseSessionsUse(CollectionUse use) {
  switch (use) {
    case CollectionUse::kWrite:
    case CollectionUse::kReplace:
    case CollectionUse::kChange:
    case CollectionUse::kRename:
    case CollectionUse::kConvertToCapped:
    case CollectionUse::kArchiveInto:
      return Error{LocationCode(40528),
                   "Direct writes against config.transactions cannot be performed using a "
                   "transaction or on a session."};
    case CollectionUse::kCreateIndexes:
      return Error{ErrorCode::kIllegalOperation,
                   "not allowed to create index on config.transactions: it is the server's own"};
    default:
      return Ok();
  }
}

}  // namespace

Result<void> RefuseUse(const CollectionInfo& coll, CollectionUse use) {
  const UseRow& row = kUses[static_cast<size_t>(use)];
  if (coll.is_series()) return RefuseSeriesUse(coll, use);
  if (coll.is_buckets()) return RefuseBucketsUse(coll, use);
  if (coll.source && coll.name == kViewsCollection) return RefuseViewRowsUse(coll, use);
  if (coll.source && !coll.capped()) return RefuseSessionsUse(use);
  // The definition of a view changes as that of any other.
  if (coll.traits().pipeline && !row.view.before.empty())
    return Error{ErrorCode::kCommandNotSupportedOnView, row.view.Of(coll.ns)};
  // Each member also has its own copy of the set's configuration.
  if (use == CollectionUse::kWrite && (coll.kind == CollectionKind::kOplog ||
                                       (coll.unreplicated && coll.ns == "local.system.replset")))
    return Error{ErrorCode::kInvalidNamespace, "cannot write to '" + coll.ns + "'"};
  if (use == CollectionUse::kChange && coll.kind == CollectionKind::kOplog)
    return Error{ErrorCode::kIllegalOperation,
                 coll.ns + " cannot be changed: it shows the replication log"};
  if (use == CollectionUse::kReplace && coll.capped())
    return Error{LocationCode(17152),
                 "namespace '" + coll.ns + "' is capped so it can't be used for $out"};
  return Ok();
}

Result<CollectionInfoPtr> OpenCollection(Catalog& catalog, std::string_view db,
                                         std::string_view name, CollectionUse use) {
  MAYFLY_TRY(ValidateNamespace(db, name));
  CollectionInfoPtr coll = catalog.Find(db, name);
  if (coll && coll->is_series() && IsOfBuckets(use)) coll = catalog.Find(db, coll->view_on);
  if (coll) {
    MAYFLY_TRY(CheckUse(*coll, use));
    return coll;
  }
  const UseRow& row = kUses[static_cast<size_t>(use)];
  if (row.absent.before.empty()) return coll;
  return Error{ErrorCode::kNamespaceNotFound, row.absent.Of(JoinNamespace(db, name))};
}

}  // namespace mayfly
