#include "storage/write/write_unit.h"

#include <list>
#include <mutex>

#include "protocol/bson_builder.h"
#include "protocol/bson_check.h"
#include "protocol/bson_compare.h"
#include "protocol/extended_json.h"
#include "protocol/hex.h"
#include "storage/kv/read_once.h"
#include "storage/read/visibility.h"
#include "storage/write/archive.h"
#include "storage/write/capped.h"
#include "storage/write/document_diff.h"
#include "storage/write/indexed_arrays.h"
#include "storage/write/inline_unit.h"
#include "storage/write/tombstone.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {
namespace {

/// Units come and go with every command; their buffers stay.
class ImplPool {
 public:
  std::unique_ptr<WriteUnit::Impl> Take() {
    {
      std::lock_guard l(mutex_);
      if (!free_.empty()) {
        auto p = std::move(free_.back());
        free_.pop_back();
        return p;
      }
    }
    return std::make_unique<WriteUnit::Impl>();
  }
  void Give(std::unique_ptr<WriteUnit::Impl> p) {
    if (p->slots.capacity() > 4096) return;  // a large batch: its memory goes back
    std::lock_guard l(mutex_);
    if (free_.size() < 64) free_.push_back(std::move(p));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<WriteUnit::Impl>> free_;
};

ImplPool& Pool() {
  static auto* pool = new ImplPool;  // outlives units destroyed at exit
  return *pool;
}

/// A value as error messages show it, in the shell's notation.
void AppendShellValue(BsonValue v, std::string& out) {
  switch (v.type()) {
    case BsonType::kInt32:
      out += std::to_string(v.Int32());
      return;
    case BsonType::kInt64:
      out += std::to_string(v.Int64());
      return;
    case BsonType::kString:
    case BsonType::kSymbol:
      out.append("\"").append(v.String()).append("\"");
      return;
    case BsonType::kNull:
      out += "null";
      return;
    case BsonType::kUndefined:
      out += "undefined";
      return;
    case BsonType::kBool:
      out += v.Bool() ? "true" : "false";
      return;
    case BsonType::kDate:
      out.append("new Date(").append(std::to_string(v.Date().millis)).append(")");
      return;
    case BsonType::kMinKey:
      out += "MinKey";
      return;
    case BsonType::kMaxKey:
      out += "MaxKey";
      return;
    case BsonType::kTimestamp:
      out.append("Timestamp(").append(std::to_string(v.Timestamp() >> 32)).append(", ");
      out.append(std::to_string(v.Timestamp() & 0xFFFFFFFF)).append(")");
      return;
    case BsonType::kObjectId:
      out += "ObjectId('";
      AppendHexDigits(v.ObjectId(), out);
      out += "')";
      return;
    case BsonType::kBinary: {
      out.append("BinData(").append(std::to_string(v.BinarySubtype())).append(", ");
      AppendHexDigits(v.BinaryData(), out);
      out += ")";
      return;
    }
    case BsonType::kDouble: {
      double d = v.Double();
      if (d > -1e15 && d < 1e15 && d == static_cast<double>(static_cast<int64_t>(d)))
        out.append(std::to_string(static_cast<int64_t>(d))).append(".0");
      else
        out += ToRelaxedJson(v);
      return;
    }
    case BsonType::kDocument: {
      out += "{";
      bool first = true;
      for (const BsonElement& e : v.Document()) {
        out.append(first ? " " : ", ").append(e.name).append(": ");
        AppendShellValue(e.value, out);
        first = false;
      }
      out += " }";
      return;
    }
    case BsonType::kArray: {
      out += "[";
      bool first = true;
      for (const BsonElement& e : v.Document()) {
        out += first ? " " : ", ";
        AppendShellValue(e.value, out);
        first = false;
      }
      out += " ]";
      return;
    }
    default:
      out += ToRelaxedJson(v);
  }
}

/// Whether no field of the index can have changed: the top-level elements its paths start in are
/// the same bytes.
bool FieldsUnchanged(const IndexInfo& index, BsonView before, BsonView after) {
  for (const IndexField& f : index.fields) {
    std::string_view top = std::string_view(f.path).substr(0, f.path.find('.'));
    if (!before.Find(top).BinaryEquals(after.Find(top))) return false;
  }
  return true;
}

/// From here on, in bytes, looking for the fields of one index may take a millisecond and more.
constexpr size_t kLongDocuments = 64 << 10;

/// The keys of a stored document. One that cannot be indexed (it is older than the index) has none;
/// only an interrupt is an error, because half of the keys are useless.
Result<void> KeysThatAre(Operation& op, const IndexInfo& index, BsonView doc, KeySet* out) {
  if (ExtractKeys(index, doc, out)) [[likely]]
    return Ok();
  return op.CheckInterruptNow();
}

/// The last check of every stored document: `_id` first (its record's key is made of it, and a diff
/// in the log does not move it) and no larger than a client can read. Its maker has checked both,
/// so a failure is an error of this program, which must not reach the disk.
Result<void> CheckStorable(BsonView doc) {
  if (doc.size() <= static_cast<uint32_t>(kMaxBsonUserSize) && doc.First().name == "_id") [[likely]]
    return Ok();
  if (doc.size() > static_cast<uint32_t>(kMaxBsonUserSize))
    return Error{ErrorCode::kBSONObjectTooLarge, "BSONObj size: " + std::to_string(doc.size()) +
                                                     " is invalid. Size must be between 0 and " +
                                                     std::to_string(kMaxBsonUserSize) + "(16MB)"};
  return Error{ErrorCode::kBadValue, "a document cannot be stored without _id as its first field"};
}

}  // namespace

Error DuplicateKeyError(const CollectionInfo& coll, std::string_view index_name,
                        BsonView key_pattern, BsonView key_value) {
  std::string message = "E11000 duplicate key error collection: " + coll.ns + " index: ";
  message.append(index_name).append(" dup key: ");
  AppendShellValue(key_value.AsValue(), message);
  BsonDocument details = BuildBson([&](BsonBuilder& b) {
    b.Append("keyPattern", key_pattern);
    b.Append("keyValue", key_value);
  });
  return {ErrorCode::kDuplicateKey, std::move(message), details.bytes()};
}

/// That the indexes of a time series may have a new bucket.
static Result<void> CheckNewBucket(WriteUnit::Impl& u, const CollectionInfo& coll, BsonView doc) {
  for (const IndexInfoPtr& index : coll.indexes) {
    if (index->measured == 0) continue;
    if (!u.merges_buckets) {
      MAYFLY_TRY(CheckIndexedArrays(coll, *index, doc, *u.op, !u.keep_short));
    } else if (index->state == IndexState::kBuilding) {
      return Error{ErrorCode::kWriteConflict, "an index on measurements is being built"};
    }
  }
  return Ok();
}

static Error DuplicateId(const CollectionInfo& coll, BsonValue id) {
  const Value shown = Value::String(TooLongToShow(id.size()));
  if (id.size() > kMaxKeySize) id = shown.view();
  return DuplicateKeyError(coll,
                           coll.clustered() ? std::string_view(coll.clustered_index_name) : "_id_",
                           BuildBson([](BsonBuilder& b) { b.Append("_id", 1); }),
                           BuildBson([&](BsonBuilder& b) { b.Append("_id", id); }));
}

WriteUnit::WriteUnit(Storage& storage, Operation& op) : impl_(Pool().Take()) {
  impl_->storage = &storage.impl();
  impl_->op = &op;
  impl_->owner = impl_->storage->NewOwner();
  impl_->logged = impl_->storage->logged;
}
WriteUnit::~WriteUnit() {
  if (!impl_) return;
  impl_->Reset();
  Pool().Give(std::move(impl_));
}
WriteUnit::WriteUnit(WriteUnit&&) noexcept = default;

void WriteUnit::set_no_wait(bool on) { impl_->no_wait = on; }
void WriteUnit::set_merges_buckets() { impl_->merges_buckets = true; }

Result<void> WriteUnit::Insert(const CollectionInfo& given, BsonView given_doc,
                               std::optional<Instant> expire_at) {
  Impl& u = *impl_;
  MAYFLY_TRY(TouchedCollection * touched, u.Touch(given));
  // It moves when something expired is in the way and goes to an archive, which is touched too.
  const size_t place = touched - u.collections.data();
  const BsonView doc = u.Keep(given_doc);
  const CollectionInfo& coll = *touched->coll;
  MAYFLY_TRY(CheckStorable(doc));
  bson_check::Document(doc.bytes(), "an insert");
  BsonValue id = doc.First().value;
  if (coll.is_buckets()) [[unlikely]] {
    MAYFLY_TRY(CheckNewBucket(u, coll, doc));
  }

  // Everything that can fail comes first; then it is staged, which cannot.
  u.record_key.clear();
  int64_t sequence = 0;
  std::list<Locked> victims;  // no deque: even an empty one allocates
  if (coll.capped()) {
    // One unit at a time adds to a capped collection: its order is the order of commits, and a
    // tailing reader never misses a record behind its position.
    u.record_key = IdPrefix(coll.id);
    MAYFLY_TRY(u.Lock(Keyspace::kRecords, u.record_key));
    MAYFLY_TRY(LockCappedVictims(*this, coll, doc.size(), &victims));
    sequence = std::max(coll.counters->last_sequence.load(std::memory_order_relaxed),
                        touched->last_sequence) +
               1;
    u.record_key.clear();
    AppendCappedRecordKey(coll.id, sequence, u.record_key);
  } else {
    if (u.keep_short && id.size() > kInlineIdBytes) [[unlikely]]
      return Error{ErrorCode::kWriteConflict, "such an _id is for a worker thread"};
    AppendRecordKeyOfId(coll.id, id, u.record_key);
    MAYFLY_TRY(u.Lock(Keyspace::kRecords, u.record_key));
    const StagedOp* own = nullptr;
    bool exists = false;
    if (!u.IsAboveAll(*touched, u.record_key)) {
      MAYFLY_TRY(exists, u.Read(Keyspace::kRecords, u.record_key, &u.pinned, &own));
    }
    if (exists) {
      MAYFLY_TRY(bool gone, u.RemoveIfExpired(*this, coll, u.record_key, own));
      if (!gone) return DuplicateId(coll, id);
    }
  }
  std::string_view record_id = RecordIdOf(u.record_key);
  MAYFLY_TRY(u.BeginKeys(coll, doc.size()));
  NewKeys new_keys;
  for (size_t i = 0; i < coll.indexes.size(); ++i) {
    const IndexInfo& index = *coll.indexes[i];
    KeySet& keys = u.after[i];
    keys.Clear();
    if (!index.kind->maintained()) continue;
    MAYFLY_TRY(ExtractNewKeys(index, doc, &keys));
    new_keys.Add(keys.size(), keys.bytes());
    if (new_keys.TooMany()) [[unlikely]]
      return new_keys.Refusal(coll);
    if (!index.unique && !index.prepare_unique) continue;
    MAYFLY_TRY(u.CheckShort(keys.size()));
    for (size_t k = 0; k < keys.size(); ++k) {
      MAYFLY_TRY(u.CheckUnique(this, coll, index, keys.values(k), keys.type_bits(k), record_id));
    }
  }

  MAYFLY_TRY(u.CheckShort());
  char head[kMaxRecordHeader];
  size_t head_size = EncodeRecordHeader(expire_at, head);
  u.StagePut(Keyspace::kRecords, u.record_key, {head, head_size}, doc.bytes(), true);
  std::string_view staged_key = u.ops[static_cast<size_t>(Keyspace::kRecords)].back().key();
  touched = &u.collections[place];
  for (size_t i = 0; i < coll.indexes.size(); ++i) {
    const IndexInfo& index = *coll.indexes[i];
    const KeySet& keys = u.after[i];
    for (size_t k = 0; k < keys.size(); ++k)
      u.StageIndexPut(index, keys.values(k), keys.type_bits(k), record_id);
    if (keys.multikey()) u.StageMultikey(index, keys.multikey());
  }
  u.StageDeadlineChange(coll, u.record_key, std::nullopt, expire_at);
  if (coll.clustered()) {
    // The marks are of all dates, also of those before the epoch, which no rule removes.
    int64_t date = id.IsDate() ? id.Date().millis : 0;
    if (id.IsDate() || DateOfRecord(coll.record_dates(), id, &date))
      u.expiry_notes.push_back(
          {coll.expiry.get(), date,
           coll.expire_after_seconds
               ? SaturatingDeadline(date, *coll.expire_after_seconds + coll.RuleSpanSeconds())
               : SaturatingDeadline(date, INT64_MAX / 1000)});
  }
  touched->counted = true;
  touched->documents += 1;
  touched->bytes += doc.size();
  if (sequence) touched->last_sequence = sequence;
  u.changes.push_back(
      {DocumentChange::kInsert, DeleteCause(), static_cast<uint16_t>(place), staged_key, doc});
  if (u.logged) u.NoteChange();
  for (const Locked& victim : victims) {
    MAYFLY_TRY(Delete(coll, victim, DeleteReason::kCapped));
    touched->first_sequence = CappedSequenceOf(victim.record_key) + 1;
  }
  return Ok();
}

Result<bool> WriteUnit::LockAndRead(const CollectionInfo& coll, std::string_view record_key,
                                    Locked* out) {
  Impl& u = *impl_;
  MAYFLY_TRY(u.Touch(coll));
  MAYFLY_TRY(u.Lock(Keyspace::kRecords, record_key));
  const StagedOp* own;
  MAYFLY_TRY(bool found, u.Read(Keyspace::kRecords, record_key, &out->pinned, &own));
  if (!found) return false;
  out->record_key.assign(record_key);
  if (own) {
    // Header and document were staged apart.
    out->doc = BsonView(own->tail());
    out->expire_at.reset();
    if (own->head_size == kMaxRecordHeader) out->expire_at = LoadTime64(own->head_data + 1);
    return true;
  }
  if (!DecodeRecord(out->pinned.view(), &out->doc, &out->expire_at)) return DamagedRecord(coll);
  return true;
}

Result<void> WriteUnit::LockAndReadMany(const CollectionInfo& coll,
                                        std::span<const std::string_view> record_keys,
                                        std::vector<Locked>* out, int* busy) {
  Impl& u = *impl_;
  MAYFLY_TRY(u.Touch(coll));
  std::vector<std::string_view> keys;
  keys.reserve(record_keys.size());
  std::vector<size_t> places;  // where in `out` the store's answer goes
  size_t first = out->size();
  auto fail = [&](Error e) {
    out->resize(first);
    return e;
  };
  for (std::string_view key : record_keys) {
    if (u.transaction || !u.TryLock(Keyspace::kRecords, key)) {
      if (u.no_wait) {
        ++*busy;
        continue;
      }
      Result<void> locked = u.Lock(Keyspace::kRecords, key);
      if (!locked) return fail(locked.error());
    }
    const StagedOp* own;
    switch (u.FindOwn(Keyspace::kRecords, key, &own)) {
      case Impl::Own::kAbsent:
        continue;
      case Impl::Own::kUnknown:
        keys.push_back(key);
        places.push_back(out->size());
        out->emplace_back().record_key.assign(key);
        continue;
      case Impl::Own::kPresent: {
        Locked& l = out->emplace_back();
        l.record_key.assign(key);
        l.doc = BsonView(own->tail());
        if (own->head_size == kMaxRecordHeader) l.expire_at = LoadTime64(own->head_data + 1);
      }
    }
  }
  std::vector<PinnedValue> values(keys.size());
  const ReadOnce once;
  Result<void> read = u.storage->kv->MultiGet(Keyspace::kRecords, keys, values);
  if (!read) return fail(read.error());
  for (size_t i = 0; i < keys.size(); ++i) {
    Locked& l = (*out)[places[i]];
    if (values[i].view().data() == nullptr) {
      l.record_key.clear();  // gone: taken out below
      continue;
    }
    l.pinned = std::move(values[i]);
    if (!DecodeRecord(l.pinned.view(), &l.doc, &l.expire_at)) return fail(DamagedRecord(coll));
  }
  const auto gone = std::remove_if(out->begin() + static_cast<ptrdiff_t>(first), out->end(),
                                   [](const Locked& l) { return l.record_key.empty(); });
  if (gone == out->end()) return Ok();
  out->erase(gone, out->end());
  // A small document lives inside its place, and has moved with it.
  for (size_t i = first; i < out->size(); ++i) {
    Locked& l = (*out)[i];
    if (l.pinned.view().data() != nullptr && !DecodeRecord(l.pinned.view(), &l.doc, &l.expire_at))
      return fail(DamagedRecord(coll));
  }
  return Ok();
}

Result<void> WriteUnit::Update(const CollectionInfo& given, const Locked& current,
                               BsonView given_next, std::optional<Instant> expire_at) {
  Impl& u = *impl_;
  MAYFLY_TRY(TouchedCollection * touched, u.Touch(given));
  const size_t place = touched - u.collections.data();  // it moves, as in Insert
  const BsonView next = u.Keep(given_next);
  const CollectionInfo& coll = *touched->coll;
  MAYFLY_TRY(CheckStorable(next));
  // An archive may take 3 in place of 3.0: the key of the record is the same.
  const BsonValue id = next.First().value, was = current.doc["_id"];
  if (!id.BinaryEquals(was) && CompareValues(id, was) != 0) [[unlikely]]
    return Error{ErrorCode::kImmutableField, "the _id of a stored document cannot change"};
  bson_check::Document(next.bytes(), "a write");
  std::string_view record_id = RecordIdOf(current.record_key);
  const size_t n = coll.indexes.size();
  MAYFLY_TRY(u.BeginKeys(coll, current.doc.size() + next.size()));
  NewKeys new_keys;
  size_t had = 0;
  for (size_t i = 0; i < n; ++i) {
    const IndexInfo& index = *coll.indexes[i];
    u.before[i].Clear();
    u.after[i].Clear();
    if (!index.kind->maintained()) continue;
    if (!index.has_partial_filter) {
      // Each field is looked for in both documents.
      if (current.doc.size() + next.size() >= kLongDocuments) [[unlikely]] {
        MAYFLY_TRY(u.op->CheckInterruptNow());
      }
      if (FieldsUnchanged(index, current.doc, next)) continue;
    }
    MAYFLY_TRY(KeysThatAre(*u.op, index, current.doc, &u.before[i]));
    MAYFLY_TRY(u.CheckShort());
    MAYFLY_TRY(ExtractNewKeys(index, next, &u.after[i]));
    new_keys.Add(u.after[i].size(), u.after[i].bytes());
    had += u.before[i].bytes();
    // Even if all that it had were among them; what follows would only take more memory.
    if (new_keys.TooLarge() && new_keys.bytes() > had + NewKeys::kMostBytes) [[unlikely]]
      return new_keys.Refusal(coll);
    if (!index.unique && !index.prepare_unique) continue;
    MAYFLY_TRY(u.CheckShort(u.after[i].size()));
    Result<void> unique = Ok();
    DiffKeys(
        u.before[i], u.after[i], [](size_t) {},
        [&](size_t k) {
          if (unique)
            unique = u.CheckUnique(this, coll, index, u.after[i].values(k), u.after[i].type_bits(k),
                                   record_id);
        });
    MAYFLY_TRY(std::move(unique));
  }
  if (new_keys.TooMany()) [[unlikely]] {
    // Most of them may be there already.
    NewKeys added;
    for (size_t i = 0; i < n; ++i) {
      size_t fresh = 0, bytes = 0;
      const KeySet& after = u.after[i];
      if (after.size() > 1)
        DiffKeys(
            u.before[i], after, [](size_t) {},
            [&](size_t k) {
              ++fresh;
              bytes += after.values(k).size() + after.type_bits(k).size();
            });
      added.Add(fresh, bytes);
    }
    if (added.TooMany()) return added.Refusal(coll);
  }
  MAYFLY_TRY(impl_->StageRemovals(coll, record_id));

  for (size_t i = 0; i < n; ++i) {
    const IndexInfo& index = *coll.indexes[i];
    const KeySet& after = u.after[i];
    DiffKeys(
        u.before[i], after, [](size_t) {},
        [&](size_t k) { u.StageIndexPut(index, after.values(k), after.type_bits(k), record_id); });
    if (after.multikey()) u.StageMultikey(index, after.multikey());
  }
  char head[kMaxRecordHeader];
  size_t head_size = EncodeRecordHeader(expire_at, head);
  u.StagePut(Keyspace::kRecords, current.record_key, {head, head_size}, next.bytes(), true);
  std::string_view staged_key = u.ops[static_cast<size_t>(Keyspace::kRecords)].back().key();
  u.StageDeadlineChange(coll, current.record_key, current.expire_at, expire_at);
  touched = &u.collections[place];
  touched->counted = true;
  touched->bytes += static_cast<int64_t>(next.size()) - static_cast<int64_t>(current.doc.size());
  u.changes.push_back(
      {DocumentChange::kUpdate, DeleteCause(), static_cast<uint16_t>(place), staged_key, next});
  if (u.logged) {
    u.NoteChange();
    u.log_scratch.clear();
    // Of a bucket nearly all changes, and half of a change would be a bucket whose control lies.
    if (!u.replacement && !coll.is_buckets()) {
      AppendDocumentDiff(current.doc, next, u.log_scratch);
      u.changes.back().detail = u.arena.Copy(u.log_scratch);
    }
    u.NoteBefore(coll, current.doc);
  }
  return Ok();
}

Result<void> WriteUnit::Delete(const CollectionInfo& given, const Locked& current,
                               const DeleteCause& cause) {
  Impl& u = *impl_;
  MAYFLY_TRY(TouchedCollection * touched, u.Touch(given));
  if (cause.expired()) {
    if (std::optional<ArchiveTarget> archive = ArchiveTargetOf(*touched->coll)) {
      CollectionInfoPtr from = touched->coll;
      MAYFLY_TRY(CopyToArchive(*this, *archive, *from, current.doc));
      MAYFLY_TRY(touched, u.Touch(given));
    }
  }
  const CollectionInfo& coll = *touched->coll;
  const size_t n = coll.indexes.size();
  MAYFLY_TRY(u.BeginKeys(coll, current.doc.size()));
  for (size_t i = 0; i < n; ++i) {
    u.before[i].Clear();
    u.after[i].Clear();
    if (coll.indexes[i]->kind->maintained()) {
      MAYFLY_TRY(KeysThatAre(*u.op, *coll.indexes[i], current.doc, &u.before[i]));
    }
    MAYFLY_TRY(u.CheckShort());
  }
  MAYFLY_TRY(u.StageRemovals(coll, RecordIdOf(current.record_key)));
  u.StageDelete(Keyspace::kRecords, current.record_key, true);
  std::string_view staged_key = u.ops[static_cast<size_t>(Keyspace::kRecords)].back().key();
  u.StageDeadlineChange(coll, current.record_key, current.expire_at, std::nullopt);
  u.StageTombstone(coll, current.record_key, current.doc, cause);
  touched->counted = true;
  touched->documents -= 1;
  touched->bytes -= current.doc.size();
  u.changes.push_back({DocumentChange::kDelete, cause,
                       static_cast<uint16_t>(touched - u.collections.data()), staged_key,
                       BsonView()});
  if (u.logged) {
    u.NoteChange();
    u.log_scratch.clear();
    BsonBuilder(u.log_scratch).Append("_id", current.doc["_id"]).Done();
    u.changes.back().detail = u.arena.Copy(u.log_scratch);
    for (const IndexInfoPtr& i : coll.indexes) {
      if (!cause.expired() || i->id != cause.index) continue;
      DocumentChange& c = u.changes.back();
      c.rule = u.arena.Copy(i->name);
      // The index may be another one, or gone, when the entry is read.
      if (EarliestDate(*i, current.doc, &c.date)) c.field = u.arena.Copy(i->fields[0].path);
    }
    u.NoteBefore(coll, current.doc);
  }
  return Ok();
}

Result<void> WriteUnit::DeleteExpired(const CollectionInfo& coll, const Locked& current,
                                      const DeleteCause& cause) {
  const int64_t bytes = current.doc.size();
  MAYFLY_TRY(Delete(coll, current, cause));
  std::shared_ptr<ExpiryState> state;
  if (cause.reason == DeleteReason::kExpiredDocument) state = coll.document_expiry;
  if (cause.reason == DeleteReason::kExpiredClustered) state = coll.expiry;
  for (const IndexInfoPtr& i : coll.indexes)
    if (i->id == cause.index) state = i->expiry;
  OnCommit([state = std::move(state), policy = impl_->storage->expiry_policy.get(), bytes] {
    if (state) state->removed_on_access.fetch_add(1, std::memory_order_relaxed);
    if (policy->on_removed) policy->on_removed(1, bytes);
  });
  return Ok();
}

Result<void> WriteUnit::Impl::StageRemovals(const CollectionInfo& coll,
                                            std::string_view record_id) {
  // An index that is being built may hold another record under a unique key (the build will fail
  // for it), so whose entry it is has to be looked at first. All look-ups come before the first
  // change.
  size_t n = coll.indexes.size();
  std::vector<std::pair<size_t, size_t>> foreign;
  for (size_t i = 0; i < n; ++i) {
    const IndexInfo& index = *coll.indexes[i];
    Result<void> status = Ok();
    if (transaction && (index.unique || index.prepare_unique)) [[unlikely]] {
      DiffKeys(
          before[i], after[i],
          [&](size_t k) {
            if (status) status = LockFreed(index, before[i].values(k));
          },
          [](size_t) {});
      MAYFLY_TRY(std::move(status));
    }
    if (!index.unique || index.state != IndexState::kBuilding) continue;
    DiffKeys(
        before[i], after[i],
        [&](size_t k) {
          if (!status) return;
          index_key.clear();
          AppendBe32(index_key, index.id);
          index_key.append(before[i].values(k));
          const StagedOp* own;
          Result<bool> found = Read(index.keyspace, index_key, &pinned, &own);
          if (!found) {
            status = found.error();
            return;
          }
          std::string_view id, bits;
          if (found.value() &&
              DecodeUniqueIndexValue(own ? own->tail() : pinned.view(), &id, &bits) &&
              id != record_id)
            foreign.emplace_back(i, k);
        },
        [](size_t) {});
    pinned.Reset();
    MAYFLY_TRY(std::move(status));
  }
  for (size_t i = 0; i < n; ++i) {
    const IndexInfo& index = *coll.indexes[i];
    if (before[i].empty()) continue;
    DiffKeys(
        before[i], after[i],
        [&](size_t k) {
          for (auto& f : foreign)
            if (f.first == i && f.second == k) return;
          StageIndexDelete(index, before[i].values(k), record_id);
        },
        [](size_t) {});
  }
  return Ok();
}

void WriteUnit::Impl::StageTombstone(const CollectionInfo& coll, std::string_view record_key,
                                     BsonView doc, const DeleteCause& cause) {
  // Documents pushed out of a capped collection, or merged, are neither deleted nor expired.
  if (!cause.tombstone || cause.reason == DeleteReason::kCapped ||
      cause.reason == DeleteReason::kMerged ||
      storage->expiry_policy->tombstone_seconds.load(std::memory_order_relaxed) <= 0)
    return;
  BsonValue id = doc["_id"];
  index_key.clear();
  index_value.clear();
  AppendTombstoneKey(op->now, coll.id, index_key);
  if (coll.capped())
    AppendStoredValue(id, false, index_key.size(), index_key);
  else
    index_key.append(RecordIdOf(record_key));
  AppendTombstoneValue(cause, id, index_key, index_value);
  StagePut(Keyspace::kTombstones, index_key, {}, arena.Copy(index_value), false);
}

void WriteUnit::Put(Keyspace ks, std::string_view key, std::string_view value) {
  impl_->StagePut(ks, key, {}, impl_->arena.Copy(value), true);
}

void WriteUnit::Erase(Keyspace ks, std::string_view key) { impl_->StageDelete(ks, key, true); }

void WriteUnit::EraseRange(Keyspace ks, std::string_view begin, std::string_view end) {
  StagedOp o;
  o.kind = StagedOp::kDeleteRange;
  std::string_view b = impl_->arena.Copy(begin), e = impl_->arena.Copy(end);
  o.key_data = b.data();
  o.key_size = static_cast<uint32_t>(b.size());
  o.tail_data = e.data();
  o.tail_size = static_cast<uint32_t>(e.size());
  o.sequence = ++impl_->sequence;
  impl_->ops[static_cast<size_t>(ks)].push_back(o);
  o.head_size = static_cast<uint8_t>(ks);  // in the copy for look-ups: which keyspace
  impl_->ranges.push_back(o);
  impl_->staged_bytes += b.size() + e.size() + 16;
}

Result<bool> WriteUnit::Get(Keyspace ks, std::string_view key, PinnedValue* out) {
  const StagedOp* own;
  MAYFLY_TRY(bool found, impl_->Read(ks, key, out, &own, true));
  if (found && own) {
    std::string value(own->head());
    value.append(own->tail());
    out->Assign(value);
  }
  return found;
}

void WriteUnit::SetLogSession(BsonView lsid, int64_t txn_number) {
  if (!impl_->logged) return;
  impl_->log_session = impl_->arena.Copy(lsid.bytes());
  impl_->txn_number = txn_number;
}
void WriteUnit::SetStatements(std::span<const int32_t> ids) {
  size_t n = 0;
  for (DocumentChange& c : impl_->changes) {
    // Incidental removals (expired, pushed out of a capped collection) belong to no statement.
    if (c.kind == DocumentChange::kDelete && c.cause.reason != DeleteReason::kDeleted) continue;
    if (ids.empty()) return;
    c.stmt_id = ids[std::min(n++, ids.size() - 1)];
  }
}
void WriteUnit::SetReplacement(bool on) { impl_->replacement = on; }
void WriteUnit::LogCommand(std::string_view db, const CollectionInfo* collection, BsonView o,
                           BsonView o2) {
  if (!impl_->logged) return;
  LoggedCommand& c = impl_->commands.emplace_back();
  c.db = impl_->arena.Copy(db);
  c.o = impl_->arena.Copy(o.bytes());
  if (!o2.empty()) c.o2 = impl_->arena.Copy(o2.bytes());
  if (collection != nullptr) {
    c.uuid = collection->uuid;
    c.has_uuid = true;
    if (collection->unreplicated) impl_->local = true;
  }
}
void WriteUnit::SetLocal() { impl_->local = true; }

void WriteUnit::OwnDocuments() { impl_->owns_documents = true; }
void WriteUnit::Attach(Operation& op) { impl_->op = &op; }

std::shared_ptr<OwnWrites> WriteUnit::own_writes() {
  if (!impl_->own_writes) impl_->own_writes = std::make_shared<OwnWrites>(*impl_);
  return impl_->own_writes;
}

WriteUnit::Savepoint WriteUnit::Mark() const {
  const Impl& u = *impl_;
  Savepoint s;
  for (size_t ks = 0; ks < kKeyspaceCount; ++ks)
    s.ops[ks] = static_cast<uint32_t>(u.ops[ks].size());
  s.sequence = u.sequence;
  s.changes = u.changes.size();
  s.commands = u.commands.size();
  s.multikey = u.multikey.size();
  s.on_commit = u.on_commit.size();
  s.expiry_notes = u.expiry_notes.size();
  s.ranges = u.ranges.size();
  s.staged_bytes = u.staged_bytes;
  for (const TouchedCollection& t : u.collections)
    s.collections.push_back({t.counted, t.documents, t.bytes, t.first_sequence, t.last_sequence});
  s.local = u.local;
  return s;
}

void WriteUnit::RollBackTo(const Savepoint& s) {
  Impl& u = *impl_;
  std::array<uint32_t, kKeyspaceCount> sizes;
  std::copy(std::begin(s.ops), std::end(s.ops), sizes.begin());
  if (u.own_writes) u.own_writes->Truncate(sizes);
  for (size_t ks = 0; ks < kKeyspaceCount; ++ks) u.ops[ks].resize(sizes[ks]);
  u.sequence = s.sequence;
  u.changes.erase(u.changes.begin() + static_cast<ptrdiff_t>(s.changes), u.changes.end());
  u.commands.resize(s.commands);
  u.multikey.resize(s.multikey);
  u.on_commit.resize(s.on_commit);
  u.expiry_notes.resize(s.expiry_notes);
  u.ranges.resize(s.ranges);
  if (u.transaction)
    std::erase_if(u.transaction->from_commit, [&](const TransactionUnit::FromCommit& d) {
      return d.record >= sizes[static_cast<size_t>(Keyspace::kRecords)];
    });
  u.staged_bytes = s.staged_bytes;
  // Gates of collections that came later stay shut for others; nothing changes in them.
  for (size_t i = 0; i < u.collections.size(); ++i) {
    TouchedCollection& t = u.collections[i];
    const Savepoint::Counts c =
        i < s.collections.size() ? s.collections[i] : Savepoint::Counts{false, 0, 0, 0, 0};
    t.counted = c.counted;
    t.documents = c.documents;
    t.bytes = c.bytes;
    t.first_sequence = c.first_sequence;
    t.last_sequence = c.last_sequence;
  }
  u.local = s.local;
  // It has positions of removed changes: the next look-up fills it again.
  u.slots.clear();
  u.slots_used = 0;
  u.indexed.fill(0);
}

size_t WriteUnit::MemoryBytes() const {
  size_t bytes = impl_->arena.used() + impl_->slots.capacity() * sizeof(Impl::Slot);
  for (const auto& list : impl_->ops) bytes += list.capacity() * sizeof(StagedOp);
  if (impl_->own_writes) bytes += impl_->own_writes->MemoryBytes();
  if (const auto& t = impl_->transaction) {
    // The approximate size of a node of the map.
    constexpr size_t kOfLatest = 48;
    bytes += t->catalog->MemoryBytes() + t->latest.size() * kOfLatest +
             t->from_commit.capacity() * sizeof(TransactionUnit::FromCommit);
    if (t->kept) bytes += t->kept->documents.capacity() * sizeof(KeptDocument);
  }
  return bytes + impl_->changes.capacity() * sizeof(DocumentChange) +
         impl_->commands.capacity() * sizeof(LoggedCommand) +
         impl_->collections.capacity() * sizeof(TouchedCollection) +
         impl_->locks.capacity() * sizeof(uint64_t);
}

void WriteUnit::OnCommit(std::function<void()> f) { impl_->on_commit.push_back(std::move(f)); }
bool WriteUnit::empty() const { return impl_->empty(); }
size_t WriteUnit::SizeBytes() const { return impl_->staged_bytes; }
int WriteUnit::DocumentCount() const { return static_cast<int>(impl_->changes.size()); }

}  // namespace mayfly
