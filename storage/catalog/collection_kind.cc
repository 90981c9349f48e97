#include "storage/catalog/collection_kind.h"

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

/// By CollectionUse: what a view answers, and what is answered where there is no collection.
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
constexpr bool RowsStandByTheirNumber() {
  for (size_t i = 0; i < std::size(kUses); ++i)
    if (static_cast<size_t>(kUses[i].use) != i) return false;
  return std::size(kUses) == static_cast<size_t>(CollectionUse::kArchiveInto) + 1;
}
static_assert(RowsStandByTheirNumber());

}  // namespace

Result<void> RefuseUse(const CollectionInfo& coll, CollectionUse use) {
  const UseRow& row = kUses[static_cast<size_t>(use)];
  // The definition of a view changes as that of any other.
  if (coll.traits().pipeline && !row.view.before.empty())
    return Error{ErrorCode::kCommandNotSupportedOnView, row.view.Of(coll.ns)};
  // The configuration of the set is the members' own as well.
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
  if (coll) {
    MAYFLY_TRY(CheckUse(*coll, use));
    return coll;
  }
  const UseRow& row = kUses[static_cast<size_t>(use)];
  if (row.absent.before.empty()) return coll;
  return Error{ErrorCode::kNamespaceNotFound, row.absent.Of(JoinNamespace(db, name))};
}

}  // namespace mayfly
