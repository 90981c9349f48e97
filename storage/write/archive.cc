#include "storage/write/archive.h"

#include <sys/random.h>

#include "protocol/bson_builder.h"
#include "protocol/database_name.h"
#include "protocol/field_once.h"
#include "protocol/object_id.h"
#include "protocol/shown_namespace.h"
#include "storage/catalog/index_keys.h"
#include "storage/catalog/namespace.h"
#include "storage/write/indexed_arrays.h"
#include "storage/write/transaction_unit.h"
#include "storage/write/write_unit_impl.h"
#include "timeseries/bucket_control.h"

namespace mayfly {
namespace {

/// A chain of archives is not longer than this; what is, counts as a cycle.
constexpr int kLongestChain = 64;

/// What has the documents of a collection: of a time series, its buckets. Null: it is not there.
CollectionInfoPtr FindStored(Catalog& catalog, std::string_view db, std::string_view name) {
  CollectionInfoPtr coll = catalog.Find(db, name);
  if (coll && coll->is_series()) coll = catalog.Find(db, coll->view_on);
  return coll;
}

/// What is wrong with archiving buckets of `from` in those of `into`; null: nothing.
const char* SeriesProblem(const SeriesOptions& from, const SeriesOptions& into) {
  if (from.time_field != into.time_field || from.meta_field != into.meta_field)
    return "is a time series with another timeField or metaField";
  // A reader that looks for a time looks so far back for buckets.
  if (from.max_span_seconds > into.max_span_seconds)
    return "is a time series whose buckets have a smaller span";
  return nullptr;
}

/// Why `into`, as FindStored has it, takes nothing from there; null: it does. `from` null: of no
/// time series.
const char* TargetProblem(const SeriesOptions* from, const CollectionInfo* into) {
  if (into == nullptr) return "does not exist";
  if (into->is_view()) return "is a view";
  if (into->capped()) return "is capped";
  if (!into->is_buckets()) return nullptr;
  return from == nullptr ? "is a time series" : SeriesProblem(*from, *into->series);
}

/// Whether documents that expire into `next` finally reach db.name.
bool LeadsTo(Catalog& catalog, std::optional<ArchiveTarget> next, std::string_view db,
             std::string_view name) {
  for (int length = 0; next; ++length) {
    if ((next->db == db && next->collection == name) || length > kLongestChain) return true;
    CollectionInfoPtr at = FindStored(catalog, next->db, next->collection);
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
                                                   bool new_collection,
                                                   const SeriesOptions* series) {
  const std::string ns = JoinNamespace(db, name);
  auto type = [](std::string_view field, BsonValue got, const char* expected) {
    return Error{ErrorCode::kTypeMismatch,
                 "BSON field '" + std::string(field) + "' is the wrong type '" +
                     std::string(BsonTypeName(got.type())) + "', expected type '" + expected + "'"};
  };
  auto invalid = [](std::string why) { return Error{ErrorCode::kInvalidOptions, std::move(why)}; };
  if (!v.IsDocument()) return type("onExpire", v, "object");
  // Who decides whether an archive is allowed must not see another one.
  constexpr std::string_view kFields[] = {"action", "into"}, kFieldsOfInto[] = {"db", "coll"};
  unsigned seen = 0, seen_of_into = 0;
  BsonValue action, into;
  for (const BsonElement& e : v.Document()) {
    MAYFLY_TRY(FieldOnce("onExpire", kFields, e.name, &seen));
    if (e.name == "action") {
      action = e.value;
    } else if (e.name == "into") {
      into = e.value;
    } else {
      return invalid("onExpire has no field '" + std::string(e.name) +
                     "': give {action: \"archive\", into: {db, coll}}");
    }
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
    MAYFLY_TRY(FieldOnce("onExpire.into", kFieldsOfInto, e.name, &seen_of_into));
    if (e.name == "db") {
      to_db = e.value;
    } else if (e.name == "coll") {
      to_coll = e.value;
    } else {
      return invalid("onExpire.into has no field '" + std::string(e.name) + "': give {db, coll}");
    }
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
  CollectionInfoPtr at = FindStored(catalog, target.db, target.collection);
  if (series == nullptr || !at || !at->is_buckets()) {
    MAYFLY_TRY(at,
               OpenCollection(catalog, target.db, target.collection, CollectionUse::kArchiveInto));
  } else if (const char* why = SeriesProblem(*series, *at->series)) {
    return invalid("onExpire cannot archive " + ns + " into " + to + ", which " + why);
  }
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
  const CollectionInfoPtr into = FindStored(catalog, target->db, target->collection);
  const char* why = TargetProblem(coll.is_buckets() ? coll.series.get() : nullptr, into.get());
  return why == nullptr ? std::string() : std::string("it ") + why;
}

std::string RefusedByArchive(const CollectionInfo& from, const CollectionInfo& into,
                             const Error& error) {
  return "expired points of " + ShownNamespace(from.ns) + " are kept, because the archive " +
         ShownNamespace(into.ns) + " refuses them: " + error.message +
         ", or change onExpire with collMod";
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
/// The time of an archive's validator, for the reaper and for operations without a time limit.
constexpr int64_t kMaxValidatorMicros = 1'000'000;

/// Errors: DocumentValidationFailure 121, those of an interrupt.
Result<void> Validate(WriteUnit::Impl& u, const CollectionInfo& from, const CollectionInfo& into,
                      BsonView copy, const BsonView* existing) {
  if (!into.validator_filter) return Ok();
  const FilteringFor filtering(u.op);
  const bool limited = u.op->deadline_micros == 0;
  if (limited) u.op->deadline_micros = u.op->clock().MonotonicMicros() + kMaxValidatorMicros;
  const bool valid =
      into.validator_filter->Matches(copy) || (existing != nullptr && into.validation_moderate &&
                                               !into.validator_filter->Matches(*existing));
  // A filter that was stopped has said no.
  const Result<void> stopped = u.op->CheckInterruptNow();
  if (limited) {
    u.op->deadline_micros = 0;
    if (!stopped && stopped.error().code == ErrorCode::kMaxTimeMSExpired)
      return Error{ErrorCode::kDocumentValidationFailure,
                   "an expired document of " + from.ns + " cannot be archived into " + into.ns +
                       ", whose validator takes longer than a second: it is kept"};
  }
  MAYFLY_TRY(stopped);
  if (valid) return Ok();
  if (!into.validation_warn_only)
    return Error{ErrorCode::kDocumentValidationFailure,
                 "an expired document of " + from.ns + " cannot be archived into " + into.ns +
                     ", whose validator refuses it: it is kept"};
  u.storage->Log('W', "An archived document would fail validation", BuildBson([&](BsonBuilder& b) {
                   b.Append("namespace", into.ns).Append("_id", copy["_id"]);
                 }));
  return Ok();
}

/// Puts one document into the archive, in the place of `existing`, which has been read and locked;
/// null: there is none. `copy`: in the unit's arena. Errors: as CopyToArchive.
Result<void> PutOver(WriteUnit& unit, const CollectionInfo& from, const CollectionInfo& into,
                     BsonView copy, const WriteUnit::Locked* existing) {
  WriteUnit::Impl& u = unit.impl();
  MAYFLY_TRY(Validate(u, from, into, copy, existing != nullptr ? &existing->doc : nullptr));
  MAYFLY_TRY(std::optional<Instant> deadline,
             u.storage->expiry_policy->ArchiveDeadline(into, copy, u.op->now));
  if (existing != nullptr) return unit.Update(into, *existing, copy, deadline);
  return unit.Insert(into, copy, deadline);
}

/// Puts one document into the archive, in the place of one with its `_id`. `copy`: in the unit's
/// arena. Errors: as CopyToArchive.
Result<void> PutDocument(WriteUnit& unit, const CollectionInfo& from, const CollectionInfo& into,
                         BsonView copy) {
  WriteUnit::Impl& u = unit.impl();
  std::string key;
  AppendRecordKeyOfId(into.id, copy.First().value, key);
  if (u.transaction) u.transaction->archived.insert(key);
  WriteUnit::Locked existing;
  MAYFLY_TRY(const bool found, unit.LockAndRead(into, key, &existing));
  return PutOver(unit, from, into, copy, found ? &existing : nullptr);
}

/// Whether a document of an ordinary collection may have this `_id`. Of the points in a bucket that
/// a client has restored nobody has asked.
bool MayBeId(BsonValue v) {
  return !v.missing() && !v.IsArray() && !v.Is(BsonType::kRegex) && !v.Is(BsonType::kUndefined);
}

/// Each point as a document. Points need no `_id` of their own: where the archive has another
/// document with it, or it is none that a document can have, it is replaced by a new one.
Result<void> PutPoints(WriteUnit& unit, const CollectionInfo& from, const CollectionInfo& into,
                       BsonView bucket, int64_t* documents) {
  WriteUnit::Impl& u = unit.impl();
  std::string points;
  std::vector<size_t> ends;
  large_memory::Hold hold;
  MAYFLY_TRY(PointsOfBucketDocument(bucket, {from.series->time_field, from.series->meta_field},
                                    points, ends, hold));
  size_t begin = 0;
  std::string made, key;
  const auto with_id_first = [&made](BsonView point, auto append_id) {
    made.clear();
    BsonBuilder b(made);
    append_id(b);
    for (const BsonElement& e : point)
      if (e.name != "_id") b.Append(e);
    b.Done();
    return BsonView(made);
  };
  for (const size_t end : ends) {
    MAYFLY_TRY(u.op->CheckInterrupt());
    const BsonView point(points.data() + begin);
    begin = end;
    BsonValue id = point["_id"];
    bool taken = !MayBeId(id);
    BsonView copy = point;
    if (!taken) {
      if (point.First().name != "_id")
        copy = with_id_first(point, [&](BsonBuilder& b) { b.Append("_id", id); });
      key.clear();
      AppendRecordKeyOfId(into.id, id, key);
      WriteUnit::Locked existing;
      MAYFLY_TRY(const bool found, unit.LockAndRead(into, key, &existing));
      // The same point, archived before.
      if (found && existing.doc.bytes() == copy.bytes()) continue;
      taken = found;
    }
    if (taken) {
      copy = with_id_first(
          point, [&](BsonBuilder& b) { b.AppendObjectId("_id", NewObjectId(u.op->now)); });
      MAYFLY_TRY(PutDocument(unit, from, into, BsonView(u.arena.Copy(copy.bytes()))));
    } else {
      // Nothing is there: that has just been read, and is locked.
      if (u.transaction) u.transaction->archived.insert(key);
      MAYFLY_TRY(PutOver(unit, from, into, BsonView(u.arena.Copy(copy.bytes())), nullptr));
    }
    ++*documents;
  }
  return Ok();
}

/// A new bucket of the archive. Errors: as CopyToArchive.
Result<void> InsertBucket(WriteUnit& unit, const CollectionInfo& from, const CollectionInfo& into,
                          BsonView bucket) {
  Result<void> r = unit.Insert(into, BsonView(unit.impl().arena.Copy(bucket.bytes())));
  if (r || r.error().code != LocationCode(kIndexedArray)) return r;
  return Error{r.error().code, RefusedByArchive(from, into, r.error())};
}

/// A bucket as it is. Errors: as CopyToArchive.
Result<void> PutBucket(WriteUnit& unit, const CollectionInfo& from, const CollectionInfo& into,
                       BsonView bucket) {
  std::string key;
  AppendRecordKeyOfId(into.id, bucket.First().value, key);
  WriteUnit::Locked existing;
  MAYFLY_TRY(const bool found, unit.LockAndRead(into, key, &existing));
  if (!found) return InsertBucket(unit, from, into, bucket);
  if (existing.doc.bytes() == bucket.bytes()) return Ok();
  // Restored into both. Its number is not part of what it holds.
  std::string id(bucket.First().value.ObjectId().substr(0, 4)), own(8, '\0');
  while (getrandom(own.data(), own.size(), 0) != static_cast<ssize_t>(own.size())) {
  }
  id += own;
  const BsonDocument renamed = BuildBson([&](BsonBuilder& b) {
    b.AppendObjectId("_id", id);
    for (const BsonElement& e : bucket)
      if (e.name != "_id") b.Append(e);
  });
  return InsertBucket(unit, from, into, renamed);
}

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
  const CollectionInfoPtr into = FindStored(*u.storage->catalog, target.db, target.collection);
  const SeriesOptions* series = from.is_buckets() ? from.series.get() : nullptr;
  if (const char* why = TargetProblem(series, into.get())) return refuse(why);
  if (into->id == from.id) return refuse("takes no documents");
  if (u.keep_short && (into->validator_filter || series != nullptr))  // which may take any time
    return Error{ErrorCode::kWriteConflict, "the archive has a validator"};
  // The caller may be in the middle of another document of this unit.
  std::vector<KeySet> before = std::move(u.before), after = std::move(u.after);
  std::string record_key = std::move(u.record_key), index_key = std::move(u.index_key);
  u.before.clear();
  u.after.clear();
  int64_t documents = 1;
  Result<void> r = Ok();
  if (into->is_buckets()) {
    r = PutBucket(unit, from, *into, doc);
  } else if (series != nullptr) {
    documents = 0;
    r = PutPoints(unit, from, *into, doc, &documents);
  } else {
    r = PutDocument(unit, from, *into, BsonView(u.arena.Copy(doc.bytes())));
  }
  u.before = std::move(before);
  u.after = std::move(after);
  u.record_key = std::move(record_key);
  u.index_key = std::move(index_key);
  if (r)
    unit.OnCommit([policy = u.storage->expiry_policy.get(), documents] {
      if (policy->on_archived) policy->on_archived(documents);
    });
  // The unit's caller looks up its own collection again if that is gone, not this one.
  if (!r && r.error().code == ErrorCode::kQueryPlanKilled) return refuse("does not exist");
  return r;
}

}  // namespace mayfly
