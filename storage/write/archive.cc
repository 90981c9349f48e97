#include "storage/write/archive.h"

#include "protocol/bson_builder.h"
#include "protocol/database_name.h"
#include "storage/catalog/index_keys.h"
#include "storage/catalog/namespace.h"
#include "storage/write/transaction_unit.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {
namespace {

/// A chain of archives is not longer than this; what is, counts as a cycle.
constexpr int kLongestChain = 64;

/// Whether what expires into `next` comes to db.name in the end.
bool LeadsTo(Catalog& catalog, std::optional<ArchiveTarget> next, std::string_view db,
             std::string_view name) {
  for (int length = 0; next; ++length) {
    if ((next->db == db && next->collection == name) || length > kLongestChain) return true;
    CollectionInfoPtr at = catalog.Find(next->db, next->collection);
    if (!at) return false;
    next = ArchiveTargetOf(*at);
  }
  return false;
}

}  // namespace

std::optional<ArchiveTarget> ArchiveTargetOf(const CollectionInfo& coll) {
  const BsonView options = coll.options.view();
  if (options.empty()) return std::nullopt;
  const BsonValue on_expire = options["onExpire"];
  if (!on_expire.IsDocument()) return std::nullopt;
  const BsonValue into = on_expire.Document()["into"];
  if (!into.IsDocument()) return std::nullopt;
  return ArchiveTarget{std::string(into.Document()["db"].String()),
                       std::string(into.Document()["coll"].String())};
}

Result<std::optional<ArchiveTarget>> ParseOnExpire(BsonValue v, Catalog& catalog,
                                                   std::string_view db, std::string_view name,
                                                   bool new_collection) {
  const std::string ns = JoinNamespace(db, name);
  auto type = [](std::string_view field, BsonValue got, const char* expected) {
    return Error{ErrorCode::kTypeMismatch,
                 "BSON field '" + std::string(field) + "' is the wrong type '" +
                     std::string(BsonTypeName(got.type())) + "', expected type '" + expected + "'"};
  };
  auto invalid = [](std::string why) { return Error{ErrorCode::kInvalidOptions, std::move(why)}; };
  if (!v.IsDocument()) return type("onExpire", v, "object");
  BsonValue action, into;
  for (const BsonElement& e : v.Document()) {
    if (e.name == "action")
      action = e.value;
    else if (e.name == "into")
      into = e.value;
    else
      return invalid("onExpire has no field '" + std::string(e.name) +
                     "': give {action: \"archive\", into: {db, coll}}");
  }
  if (action.missing()) return invalid("onExpire needs an action: \"archive\" or \"delete\"");
  if (!action.IsString()) return type("onExpire.action", action, "string");
  if (action.String() == "delete") {
    if (!into.missing()) return invalid("onExpire {action: \"delete\"} takes no into");
    return std::optional<ArchiveTarget>();
  }
  if (action.String() != "archive")
    return invalid("onExpire.action must be \"archive\" or \"delete\", but it is \"" +
                   std::string(action.String()) + "\"");
  if (into.missing()) return invalid("onExpire needs into: {db, coll}");
  if (!into.IsDocument()) return type("onExpire.into", into, "object");
  BsonValue to_db, to_coll;
  for (const BsonElement& e : into.Document()) {
    if (e.name == "db")
      to_db = e.value;
    else if (e.name == "coll")
      to_coll = e.value;
    else
      return invalid("onExpire.into has no field '" + std::string(e.name) + "': give {db, coll}");
  }
  if (to_db.missing() || to_coll.missing()) return invalid("onExpire.into needs db and coll");
  if (!to_db.IsString()) return type("onExpire.into.db", to_db, "string");
  if (!to_coll.IsString()) return type("onExpire.into.coll", to_coll, "string");
  ArchiveTarget target{std::string(to_db.String()), std::string(to_coll.String())};
  MAYFLY_TRY(ValidateNamespace(target.db, target.collection));
  const std::string to = JoinNamespace(target.db, target.collection);
  if (to == ns) return invalid("onExpire cannot archive " + ns + " into itself");
  if (target.collection.starts_with("system.") || IsInternalDatabase(target.db))
    return invalid("onExpire cannot archive into the system's " + to);
  if (new_collection && !catalog.Find(target.db, target.collection))
    return std::optional(std::move(target));
  MAYFLY_TRY(CollectionInfoPtr at,
             OpenCollection(catalog, target.db, target.collection, CollectionUse::kArchiveInto));
  if (at->capped())
    return invalid("onExpire cannot archive into " + to +
                   ": it is capped and would drop documents");
  if (LeadsTo(catalog, ArchiveTargetOf(*at), db, name))
    return Error{ErrorCode::kGraphContainsCycle, "onExpire cannot archive " + ns + " into " + to +
                                                     ": expired documents of " + to +
                                                     " come back to " + ns};
  return std::optional(std::move(target));
}

std::string ArchiveProblem(Catalog& catalog, const CollectionInfo& coll) {
  const std::optional<ArchiveTarget> target = ArchiveTargetOf(coll);
  if (!target) return {};
  const CollectionInfoPtr into = catalog.Find(target->db, target->collection);
  if (!into) return "it does not exist";
  if (into->is_view()) return "it is a view";
  if (into->capped()) return "it is capped";
  return {};
}

Result<void> CheckArchiveUnderName(Catalog& catalog, const CollectionInfo& coll,
                                   std::string_view db, std::string_view name) {
  if (!LeadsTo(catalog, ArchiveTargetOf(coll), db, name)) return Ok();
  const std::string ns = JoinNamespace(db, name);
  return Error{ErrorCode::kGraphContainsCycle,
               "cannot rename " + coll.ns + " to " + ns +
                   ": its onExpire archives documents that would come back to " + ns +
                   "; change onExpire with collMod first"};
}

namespace {
/// What the validator of an archive may take, for the reaper and for who has no limit of his own.
constexpr int64_t kMaxValidatorMicros = 1'000'000;
}  // namespace

Result<void> CopyToArchive(WriteUnit& unit, const ArchiveTarget& target, const CollectionInfo& from,
                           BsonView doc) {
  WriteUnit::Impl& u = unit.impl();
  auto refuse = [&](const char* why) {
    return Error{ErrorCode::kIllegalOperation,
                 "expired documents of " + from.ns + " cannot be archived into " + target.db + "." +
                     target.collection + ", which " + why +
                     ": they are kept; create it, or change onExpire with collMod"};
  };
  CollectionInfoPtr into = u.storage->catalog->Find(target.db, target.collection);
  if (!into) return refuse("does not exist");
  if (into->is_view() || into->capped() || into->id == from.id) return refuse("takes no documents");
  if (u.keep_short && into->validator_filter)  // which may take any time
    return Error{ErrorCode::kWriteConflict, "the archive has a validator"};
  // The caller may be in the middle of another document of this unit.
  std::vector<KeySet> before = std::move(u.before), after = std::move(u.after);
  std::string record_key = std::move(u.record_key), index_key = std::move(u.index_key);
  u.before.clear();
  u.after.clear();
  const BsonView copy(u.arena.Copy(doc.bytes()));
  auto put = [&]() -> Result<void> {
    std::string key;
    AppendRecordKeyOfId(into->id, doc.First().value, key);
    if (u.transaction) u.transaction->archived.insert(key);
    WriteUnit::Locked existing;
    MAYFLY_TRY(bool found, unit.LockAndRead(*into, key, &existing));
    const FilteringFor filtering(u.op);
    const bool limited = into->validator_filter && u.op->deadline_micros == 0;
    if (limited) u.op->deadline_micros = u.op->clock().MonotonicMicros() + kMaxValidatorMicros;
    const bool valid =
        !into->validator_filter || into->validator_filter->Matches(copy) ||
        (found && into->validation_moderate && !into->validator_filter->Matches(existing.doc));
    // A filter that was stopped has said no.
    const Result<void> stopped = into->validator_filter ? u.op->CheckInterruptNow() : Ok();
    if (limited) {
      u.op->deadline_micros = 0;
      if (!stopped && stopped.error().code == ErrorCode::kMaxTimeMSExpired)
        return Error{ErrorCode::kDocumentValidationFailure,
                     "an expired document of " + from.ns + " cannot be archived into " + into->ns +
                         ", whose validator takes longer than a second: it is kept"};
    }
    MAYFLY_TRY(stopped);
    if (!valid) {
      if (into->validation_warn_only)
        u.storage->Log('W', "An archived document would fail validation",
                       BuildBson([&](BsonBuilder& b) {
                         b.Append("namespace", into->ns).Append("_id", copy["_id"]);
                       }));
      else
        return Error{ErrorCode::kDocumentValidationFailure,
                     "an expired document of " + from.ns + " cannot be archived into " + into->ns +
                         ", whose validator refuses it: it is kept"};
    }
    MAYFLY_TRY(std::optional<Instant> deadline,
               u.storage->expiry_policy->ArchiveDeadline(*into, copy, u.op->now));
    if (found) return unit.Update(*into, existing, copy, deadline);
    return unit.Insert(*into, copy, deadline);
  };
  Result<void> r = put();
  u.before = std::move(before);
  u.after = std::move(after);
  u.record_key = std::move(record_key);
  u.index_key = std::move(index_key);
  if (r)
    unit.OnCommit([policy = u.storage->expiry_policy.get()] {
      if (policy->on_archived) policy->on_archived(1);
    });
  // The unit's caller looks its own collection up again when that is gone, not this one.
  if (!r && r.error().code == ErrorCode::kQueryPlanKilled) return refuse("does not exist");
  return r;
}

}  // namespace mayfly
