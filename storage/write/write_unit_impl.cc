#include "storage/write/write_unit_impl.h"

#include "storage/read/visibility.h"
#include "storage/write/collection_watch.h"
#include "storage/write/inline_unit.h"

namespace mayfly {
namespace {

constexpr int64_t kLockWaitMicros = 100'000;
constexpr int64_t kGateWaitMicros = 2'000'000;
constexpr size_t kSortFrom = 32;  ///< a unit with this many changes in a keyspace is sorted by key

Error LockConflict() {
  return {ErrorCode::kWriteConflict,
          "Caused by :: Write conflict during plan execution and yielding is disabled. :: Please "
          "retry your operation or "
          "multi-document transaction."};
}

}  // namespace

void Arena::Grow(size_t n) {
  size_t size = std::max<size_t>(n, size_t{16384} << std::min<size_t>(blocks_.size(), 6));
  blocks_.push_back(std::unique_ptr<char[]>(new char[size]));
  next_ = blocks_.back().get();
  left_ = size;
}

void Arena::Reset() {
  blocks_.clear();
  next_ = first_;
  left_ = sizeof first_;
  used_ = 0;
}

// --- locks ---------------------------------------------------------------------------------------

Result<void> WriteUnit::Impl::Lock(Keyspace ks, std::string_view key) {
  uint64_t hash = LockHash(ks, key);
  // Units that block each other wait for different times, so that one of them gets through.
  int64_t wait = no_wait ? 0 : kLockWaitMicros + static_cast<int64_t>(owner * 7919 % 64) * 1000;
  if (transaction && !no_wait) [[unlikely]]
    wait = transaction->lock_wait_micros;
  LockTable::Outcome outcome = storage->locks.TryLock(hash, owner);
  if (outcome == LockTable::Outcome::kBusyTransaction && (transaction || met_transaction)) {
    // It may be held for long: callers that can wait elsewhere do, and two transactions never wait
    // for each other.
    if (met_transaction) *met_transaction = true;
    wait = 0;
  }
  if (outcome >= LockTable::Outcome::kBusy && wait > 0)
    outcome = storage->locks.Lock(hash, owner, wait);
  switch (outcome) {
    case LockTable::Outcome::kTaken:
      locks.push_back(hash);
      return transaction ? CheckUnchanged(ks, key, hash) : Ok();
    case LockTable::Outcome::kHeldAlready:
      return Ok();
    case LockTable::Outcome::kBusy:
    case LockTable::Outcome::kBusyTransaction:
      break;
  }
  if (op) ++op->write_conflicts;
  return LockConflict();
}

Result<void> WriteUnit::Impl::LockFreed(const IndexInfo& index, std::string_view values) {
  index_key.clear();
  AppendBe32(index_key, index.id);
  index_key.append(values);
  const uint64_t hash = LockHash(index.keyspace, index_key);
  LockTable::Outcome outcome = storage->locks.TryLock(hash, owner);
  if (outcome == LockTable::Outcome::kBusy && !no_wait)
    outcome = storage->locks.Lock(hash, owner, transaction->lock_wait_micros);
  if (outcome == LockTable::Outcome::kTaken) locks.push_back(hash);
  if (outcome < LockTable::Outcome::kBusy) return Ok();
  if (op) ++op->write_conflicts;
  return LockConflict();
}

bool WriteUnit::Impl::TryLock(Keyspace ks, std::string_view key) {
  uint64_t hash = LockHash(ks, key);
  switch (storage->locks.TryLock(hash, owner)) {
    case LockTable::Outcome::kTaken:
      locks.push_back(hash);
      return true;
    case LockTable::Outcome::kHeldAlready:
      return true;
    case LockTable::Outcome::kBusyTransaction:
      ++transactions_met;
      break;
    case LockTable::Outcome::kBusy:
      break;
  }
  return false;
}

Result<TouchedCollection*> WriteUnit::Impl::Touch(const CollectionInfo& coll) {
  for (TouchedCollection& t : collections)
    if (t.id == coll.id && t.coll) return &t;
  TouchedCollection* touched = nullptr;
  for (TouchedCollection& t : collections)
    if (t.id == coll.id) touched = &t;  // gate taken by id alone
  bool fresh = touched == nullptr;
  if (fresh) {
    if (transaction && collections.size() >= kMaxTransactionCollections) [[unlikely]]
      return TooManyCollections();
    const int64_t wait = no_wait       ? 0
                         : transaction ? transaction->lock_wait_micros
                                       : kGateWaitMicros;
    if (!storage->gates.LockShared(coll.id, wait, transaction != nullptr))
      return transaction && !no_wait ? Error{ErrorCode::kLockTimeout,
                                             "the definition of " + coll.ns + " is being changed"}
                                     : LockConflict();
    touched = &collections.emplace_back();
    touched->id = coll.id;
    touched->shared = true;
  }
  CollectionInfoPtr made;  // by the transaction itself
  if (transaction) [[unlikely]]
    made = transaction->catalog->FindOwn(coll.id);
  if (made) {
    touched->coll = std::move(made);
  } else if (storage->catalog) {
    touched->coll = storage->catalog->FindById(coll.id);
    Result<void> current = Ok();
    if (!touched->coll)
      current = Error{ErrorCode::kQueryPlanKilled, "collection dropped. ns: " + coll.ns};
    if (transaction) [[unlikely]]
      current = CheckDefinition(touched->coll ? *touched->coll : coll);
    if (!current) {
      if (fresh) {
        storage->gates.UnlockShared(coll.id, transaction != nullptr);
        collections.pop_back();
      }
      return current.error();
    }
  } else {
    touched->coll = CollectionInfoPtr(std::shared_ptr<const void>(), &coll);
  }
  if (logged && touched->coll->unreplicated) [[unlikely]] {
    if (touched->coll->source)
      return Error{ErrorCode::kInvalidNamespace,
                   "cannot write to '" + touched->coll->ns + "': it shows what the server keeps"};
    local = true;
  }
  return touched;
}

Result<void> WriteUnit::Impl::TouchExclusive(const CollectionInfo& coll, int64_t timeout_us) {
  MAYFLY_TRY(TouchExclusiveId(coll.id, timeout_us));
  MAYFLY_TRY(Touch(coll));
  return Ok();
}

Result<void> WriteUnit::Impl::TouchExclusiveId(uint32_t collection, int64_t timeout_us) {
  for (TouchedCollection& t : collections) {
    if (t.id != collection) continue;
    if (t.exclusive) return Ok();
    if (!storage->gates.LockExclusive(collection, timeout_us, t.shared ? 1 : 0))
      return LockConflict();
    t.exclusive = true;
    t.coll.reset();  // looked up again by the next Touch
    return Ok();
  }
  if (!storage->gates.LockExclusive(collection, timeout_us)) return LockConflict();
  TouchedCollection& t = collections.emplace_back();
  t.id = collection;
  t.exclusive = true;
  return Ok();
}

void WriteUnit::Impl::ReleaseLocks() {
  // Transactions go by it, and a member of a set alone has any. The batch's own number, not the
  // latest: a transaction may have begun since the batch, which sees all of this.
  uint64_t changed = 0;
  if (applied && logged && !locks.empty())
    changed = applied_by != 0 ? applied_by : storage->kv->LatestSequence();
  if (transaction && transaction->kept) [[unlikely]]
    storage->kept.Release(transaction->kept, storage->options.clock->Now().millis, applied);
  if (changed != 0 && storage->locks.Watched()) [[unlikely]]
    for (const DocumentChange& c : changes)
      // For an insert the stored state decides: nothing was there before.
      if (c.kind != DocumentChange::kInsert)
        storage->locks.NoteChanged(LockHash(Keyspace::kRecords, c.record_key), changed);
  for (uint64_t hash : locks) storage->locks.Unlock(hash, owner, changed);
  locks.clear();
  for (TouchedCollection& t : collections) {
    if (t.exclusive) storage->gates.UnlockExclusive(t.id);
    if (t.shared) storage->gates.UnlockShared(t.id, transaction != nullptr);
    t.exclusive = t.shared = false;
  }
}

// --- units that must be short --------------------------------------------------------------------

void KeepShort(WriteUnit& unit) {
  unit.set_no_wait(true);
  unit.impl().keep_short = true;
  unit.impl().keys_left = kInlineKeys;
}

Result<void> WriteUnit::Impl::TooLong() {
  return Error{ErrorCode::kWriteConflict, "so many index keys are for a worker thread"};
}

Result<void> WriteUnit::Impl::BeginKeys(const CollectionInfo& coll, size_t bytes) {
  const size_t n = coll.indexes.size();
  if (before.size() < n) before.resize(n);
  if (after.size() < n) after.resize(n);
  int64_t* const budget = keep_short ? &keys_left : nullptr;
  for (size_t i = 0; i < n; ++i) {
    before[i].set_budget(budget);
    after[i].set_budget(budget);
    before[i].set_operation(op);
    after[i].set_operation(op);
  }
  if (!keep_short || n == 0) return Ok();
  uint64_t fields = 0;
  for (const IndexInfoPtr& index : coll.indexes) {
    fields += index->fields.size();
    if (index->has_partial_filter) fields += index->partial_filter.view().size() / 16;
  }
  return fields * bytes <= kInlineFieldBytes ? Ok() : TooLong();
}

// --- staging -------------------------------------------------------------------------------------

void WriteUnit::Impl::StagePut(Keyspace ks, std::string_view key, std::string_view head,
                               std::string_view tail, bool looked_up) {
  std::string_view k = arena.Copy(key), h = arena.Copy(head);
  StagedOp& o = ops[static_cast<size_t>(ks)].emplace_back();
  o.kind = StagedOp::kPut;
  o.looked_up = looked_up;
  o.head_size = static_cast<uint8_t>(h.size());
  o.key_size = static_cast<uint32_t>(k.size());
  o.tail_size = static_cast<uint32_t>(tail.size());
  o.sequence = ++sequence;
  o.key_data = k.data();
  o.head_data = h.data();
  o.tail_data = tail.data();
  staged_bytes += key.size() + head.size() + tail.size() + 16;
}

void WriteUnit::Impl::StageDelete(Keyspace ks, std::string_view key, bool looked_up) {
  std::string_view k = arena.Copy(key);
  StagedOp& o = ops[static_cast<size_t>(ks)].emplace_back();
  o.kind = StagedOp::kDelete;
  o.looked_up = looked_up;
  o.key_size = static_cast<uint32_t>(k.size());
  o.sequence = ++sequence;
  o.key_data = k.data();
  staged_bytes += key.size() + 16;
}

void WriteUnit::Impl::StageIndexPut(const IndexInfo& index, std::string_view values,
                                    std::string_view bits, std::string_view record_id) {
  index_key.clear();
  AppendBe32(index_key, index.id);
  index_key.append(values);
  if (index.unique) {
    index_value.clear();
    AppendUniqueIndexValue(record_id, bits, index_value);
    StagePut(index.keyspace, index_key, {}, arena.Copy(index_value), true);
  } else {
    index_key.append(record_id);
    StagePut(index.keyspace, index_key, {}, arena.Copy(bits), false);
  }
  if (index.expire_after_seconds && index.fields.size() == 1) {
    Instant date;
    if (DecodeDate(values, index.fields[0].descending, &date))
      expiry_notes.push_back({index.expiry.get(), date.millis,
                              SaturatingDeadline(date.millis, *index.expire_after_seconds)});
  }
  if (op) ++op->keys_inserted;
}

void WriteUnit::Impl::StageIndexDelete(const IndexInfo& index, std::string_view values,
                                       std::string_view record_id) {
  index_key.clear();
  AppendBe32(index_key, index.id);
  index_key.append(values);
  if (!index.unique) index_key.append(record_id);
  StageDelete(index.keyspace, index_key, index.unique);
  if (op) ++op->keys_deleted;
}

void WriteUnit::Impl::StageMultikey(const IndexInfo& index, uint64_t bits) {
  bits &= ~index.multikey.load(std::memory_order_acquire);
  for (const MultikeyChange& m : multikey)
    if (m.index == &index) bits &= ~m.bits;
  if (bits) multikey.push_back({&index, bits});
}

namespace {
/// What is larger may have many thousands of index entries.
constexpr size_t kInlineExpired = 64 << 10;
}  // namespace

Result<bool> WriteUnit::Impl::RemoveIfExpired(WriteUnit& unit, const CollectionInfo& coll,
                                              std::string_view key, const StagedOp* own) {
  WriteUnit::Locked l;
  if (own) {
    l.doc = BsonView(own->tail());
    if (own->head_size == kMaxRecordHeader) l.expire_at = LoadTime64(own->head_data + 1);
  } else {
    l.pinned = std::move(pinned);
    if (!DecodeRecord(l.pinned.view(), &l.doc, &l.expire_at)) return DamagedRecord(coll);
  }
  // Marks do not know it yet: a unit of several statements may have written it itself.
  const ReadView view = own_writes ? ReadView().With(unit) : ReadView();
  // Any filter may run, and a large document may have many keys.
  if (keep_short &&
      (storage->self->expiry_policy().HasHolds(coll) || l.doc.size() > kInlineExpired))
    return LockConflict();
  MAYFLY_TRY(std::optional<DeleteCause> cause,
             Visibility(*storage->self, coll, *op, false, view).Expired(l.doc, l.expire_at));
  if (!cause) return false;
  l.record_key.assign(key);
  // The keys that the caller has extracted stay his.
  std::vector<KeySet> callers_before = std::move(before), callers_after = std::move(after);
  before.clear();
  after.clear();
  Result<void> r = unit.DeleteExpired(coll, l, *cause);
  before = std::move(callers_before);
  after = std::move(callers_after);
  if (!r) return r.error();
  return true;
}

Result<bool> WriteUnit::Impl::RemoveExpiredOwner(WriteUnit& unit, const CollectionInfo& coll,
                                                 std::string_view record_id) {
  const ReadView view = own_writes ? ReadView().With(unit) : ReadView();
  if (!Visibility(*storage->self, coll, *op, false, view).MayHide()) return false;
  std::string key = IdPrefix(coll.id);
  key.append(record_id);
  MAYFLY_TRY(Lock(Keyspace::kRecords, key));
  const StagedOp* own;
  MAYFLY_TRY(bool found, Read(Keyspace::kRecords, key, &pinned, &own));
  if (!found) return true;
  return RemoveIfExpired(unit, coll, key, own);
}

Result<void> WriteUnit::Impl::CheckUnique(WriteUnit* unit, const CollectionInfo& coll,
                                          const IndexInfo& index, std::string_view values,
                                          std::string_view bits, std::string_view record_id) {
  index_key.clear();
  AppendBe32(index_key, index.id);
  index_key.append(values);
  MAYFLY_TRY(Lock(index.keyspace, index_key));
  bool taken = false;
  if (index.unique) {
    const StagedOp* own;
    MAYFLY_TRY(bool found, Read(index.keyspace, index_key, &pinned, &own));
    if (found) {
      std::string_view owner_id, ignored;
      if (!DecodeUniqueIndexValue(own ? own->tail() : pinned.view(), &owner_id, &ignored))
        return DamagedEntry(coll, index);
      if (owner_id != record_id) {
        std::string owner(owner_id);
        pinned.Reset();
        bool gone = false;
        if (unit) {
          MAYFLY_TRY(gone, RemoveExpiredOwner(*unit, coll, owner));
        }
        taken = !gone;
      }
    }
    pinned.Reset();
  } else {
    // To become unique: entries with these values that are not ours, whatever the record.
    KvIterOptions o;
    o.lower = index_key;
    auto it = storage->kv->NewIterator(index.keyspace, std::move(o));
    const StagedOp* own;
    for (it->Seek(index_key); it->Valid() && it->key().substr(0, index_key.size()) == index_key;
         it->Next()) {
      if (it->key().substr(index_key.size()) == record_id ||
          FindOwn(index.keyspace, it->key(), &own, true) == Own::kAbsent)
        continue;
      std::string owner(it->key().substr(index_key.size()));
      std::string searched = index_key;  // removing uses the buffer
      bool gone = false;
      if (unit) {
        MAYFLY_TRY(gone, RemoveExpiredOwner(*unit, coll, owner));
      }
      index_key = std::move(searched);
      taken = !gone;
      if (taken) break;
    }
    MAYFLY_TRY(it->status());
    for (const StagedOp& o : ops[static_cast<size_t>(index.keyspace)]) {
      if (taken) break;
      taken = o.kind == StagedOp::kPut && o.key().substr(0, index_key.size()) == index_key &&
              o.key().substr(index_key.size()) != record_id &&
              FindOwn(index.keyspace, o.key(), &own, true) == Own::kPresent;
    }
  }
  if (!taken) return Ok();
  MAYFLY_TRY(BsonDocument key_value, DecodeIndexKey(index, values, bits));
  return DuplicateKeyError(coll, index.name, index.key, key_value);
}

// --- own writes ----------------------------------------------------------------------------------

WriteUnit::Impl::Slot* WriteUnit::Impl::FindSlot(uint32_t hash, size_t ks, std::string_view key) {
  size_t mask = slots.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    Slot& s = slots[i];
    if (s.position == 0) return &s;
    if (s.hash == hash && s.position >> 28 == ks &&
        ops[ks][(s.position & 0xFFFFFFF) - 1].key() == key)
      return &s;
  }
}

void WriteUnit::Impl::Grow() {
  std::vector<Slot> old(std::max<size_t>(64, slots.size() * 2));
  old.swap(slots);
  size_t mask = slots.size() - 1;
  for (const Slot& s : old) {
    if (s.position == 0) continue;
    size_t i = s.hash & mask;
    while (slots[i].position != 0) i = (i + 1) & mask;
    slots[i] = s;
  }
}

void WriteUnit::Impl::FillSlots(size_t ks) {
  auto& list = ops[ks];
  for (uint32_t& i = indexed[ks]; i < list.size(); ++i) {
    const StagedOp& o = list[i];
    if (!o.looked_up) continue;
    if ((slots_used + 1) * 4 >= slots.size() * 3) Grow();
    uint32_t hash = static_cast<uint32_t>(LockHash(static_cast<Keyspace>(ks), o.key()));
    Slot* s = FindSlot(hash, ks, o.key());
    slots_used += s->position == 0;
    *s = {hash, static_cast<uint32_t>(ks << 28 | (i + 1))};
  }
}

WriteUnit::Impl::Own WriteUnit::Impl::FindOwn(Keyspace keyspace, std::string_view key,
                                              const StagedOp** found, bool deep) {
  *found = nullptr;
  size_t ks = static_cast<size_t>(keyspace);
  auto& list = ops[ks];
  if (list.empty()) return Own::kUnknown;
  const StagedOp* hit = nullptr;
  FillSlots(ks);
  if (!slots.empty()) {
    Slot* s = FindSlot(static_cast<uint32_t>(LockHash(keyspace, key)), ks, key);
    if (s->position != 0) hit = &list[(s->position & 0xFFFFFFF) - 1];
  }
  if (!hit && deep) {
    for (auto it = list.rbegin(); it != list.rend() && !hit; ++it)
      if (!it->looked_up && it->kind != StagedOp::kDeleteRange && it->key() == key) hit = &*it;
  }
  for (const StagedOp& r : ranges) {
    if (r.head_size == ks && r.key() <= key && key < r.tail() &&
        (!hit || hit->sequence < r.sequence))
      return Own::kAbsent;
  }
  if (!hit) return Own::kUnknown;
  if (hit->kind == StagedOp::kDelete) return Own::kAbsent;
  *found = hit;
  return Own::kPresent;
}

Result<bool> WriteUnit::Impl::Read(Keyspace ks, std::string_view key, PinnedValue* out,
                                   const StagedOp** own, bool deep) {
  switch (FindOwn(ks, key, own, deep)) {
    case Own::kPresent:
      return true;
    case Own::kAbsent:
      return false;
    case Own::kUnknown:
      break;
  }
  return storage->kv->Get(ks, key, out);
}

bool WriteUnit::Impl::empty() const {
  for (auto& list : ops)
    if (!list.empty()) return false;
  return true;
}

void WriteUnit::Impl::Reset() {
  ReleaseLocks();
  if (own_writes) {
    own_writes->Close();
    own_writes.reset();
  }
  owns_documents = false;
  if (transaction) storage->locks.Watch(-1);
  transaction.reset();
  met_transaction = nullptr;
  transactions_met = 0;
  op = nullptr;
  no_wait = applied = keep_short = sorted = merges_buckets = false;
  applied_by = 0;
  collections.clear();
  for (auto& list : ops) list.clear();
  changes.clear();
  logged = local = replacement = false;
  commands.clear();
  log_session = {};
  txn_number = 0;
  multikey.clear();
  on_commit.clear();
  before_visible.clear();
  expiry_notes.clear();
  arena.Reset();
  sequence = 0;
  staged_bytes = 0;
  ranges.clear();
  slots.clear();
  slots_used = 0;
  indexed.fill(0);
  pinned.Reset();
}

void WatchCollections(Storage& storage, std::string db, std::vector<std::string> names,
                      std::function<void(std::string_view collection)> changed) {
  storage.impl().watch = {std::move(db), std::move(names), std::move(changed)};
}

void WriteUnit::Impl::TellWatch() const {
  const CollectionWatch& watch = storage->watch;
  if (!watch.changed) return;
  for (const TouchedCollection& t : collections) {
    if (t.exclusive) watch.changed({});
    if (t.coll && watch.Covers(t.coll->db, t.coll->name)) watch.changed(t.coll->name);
  }
}

// --- committing ----------------------------------------------------------------------------------

void WriteUnit::Impl::SortForCommit() {
  if (!ranges.empty()) return;
  for (size_t ks = 0; ks < kKeyspaceCount; ++ks) {
    // DocumentChange::effect counts records.
    if (ks == static_cast<size_t>(Keyspace::kRecords) || ops[ks].size() < kSortFrom) continue;
    std::stable_sort(ops[ks].begin(), ops[ks].end(),
                     [](const StagedOp& a, const StagedOp& b) { return a.key() < b.key(); });
  }
  sorted = true;
}

void UnitApplier::Prepare(std::span<WriteUnit> units, KvBatch& batch) {
  counts_.clear();
  for (WriteUnit& u : units) u.impl().BecomesVisible();
  for (size_t ks = 0; ks < kKeyspaceCount; ++ks) {
    auto keyspace = static_cast<Keyspace>(ks);
    auto add = [&](const StagedOp& o) {
      switch (o.kind) {
        case StagedOp::kPut:
          if (o.head_size == 0)
            batch.Put(keyspace, o.key(), o.tail());
          else
            batch.Put(keyspace, o.key(), o.head(), o.tail());
          break;
        case StagedOp::kDelete:
          batch.Delete(keyspace, o.key());
          break;
        case StagedOp::kDeleteRange:
          batch.DeleteRange(keyspace, o.key(), o.tail());
          break;
      }
    };
    for (WriteUnit& u : units) {
      const auto& ops = u.impl().ops[ks];
      if (ops.size() < kSortFrom || !u.impl().ranges.empty() ||
          (u.impl().sorted && keyspace != Keyspace::kRecords)) {
        for (const StagedOp& o : ops) add(o);
        continue;
      }
      // In order of key the store finds each place from the one before: a third less for many at
      // once. Several of one key stay in their order.
      sorted_.clear();
      for (const StagedOp& o : ops) sorted_.push_back(&o);
      const auto lower = [](const StagedOp* a, const StagedOp* b) { return a->key() < b->key(); };
      if (!std::is_sorted(sorted_.begin(), sorted_.end(), lower))
        std::stable_sort(sorted_.begin(), sorted_.end(), lower);
      for (const StagedOp* o : sorted_) add(*o);
    }
  }
  for (WriteUnit& u : units) {
    for (const TouchedCollection& t : u.impl().collections) {
      if (!t.counted) continue;
      auto it = std::find_if(counts_.begin(), counts_.end(),
                             [&](const Count& c) { return c.id == t.id; });
      if (it == counts_.end()) {
        CollectionCounters* c = t.coll->counters.get();
        it = counts_.insert(counts_.end(), {t.id, c, {c->documents, c->bytes, c->last_sequence}});
      }
      it->row.documents += t.documents;
      it->row.bytes += t.bytes;
      it->row.last_sequence = std::max(it->row.last_sequence, t.last_sequence);
    }
    // The flag is up before an entry that needs it can be seen; it may be up for nothing.
    for (const auto& m : u.impl().multikey) {
      m.index->multikey.fetch_or(m.bits, std::memory_order_acq_rel);
      for (int field = 0; field < 64; ++field)
        if (m.bits >> field & 1) multikey_now_.push_back(MultikeyKey(m.index->id, field));
    }
  }
  for (const Count& c : counts_) {
    // What is stored is right already: of most updates.
    if (c.row.documents == c.counters->documents && c.row.bytes == c.counters->bytes &&
        c.row.last_sequence == c.counters->last_sequence)
      continue;
    char key[kCountersPrefix.size() + 4], value[kCounterRowSize];
    std::memcpy(key, kCountersPrefix.data(), kCountersPrefix.size());
    StoreBe32(key + kCountersPrefix.size(), c.id);
    EncodeCounterRow(c.row, value);
    batch.Put(Keyspace::kCatalog, {key, sizeof key}, {value, sizeof value});
  }
  for (const std::string& key : multikey_owed_) batch.Put(Keyspace::kCatalog, key, {});
  for (const std::string& key : multikey_now_) batch.Put(Keyspace::kCatalog, key, {});
}

void UnitApplier::Applied(std::span<WriteUnit> units) {
  for (const Count& c : counts_) {
    c.counters->documents.store(c.row.documents, std::memory_order_relaxed);
    c.counters->bytes.store(c.row.bytes, std::memory_order_relaxed);
    c.counters->last_sequence.store(c.row.last_sequence, std::memory_order_relaxed);
  }
  multikey_owed_.clear();
  multikey_now_.clear();
  for (WriteUnit& u : units) {
    u.impl().applied = true;
    for (const TouchedCollection& t : u.impl().collections)
      if (t.first_sequence > 0)
        t.coll->counters->first_sequence.store(t.first_sequence, std::memory_order_relaxed);
    for (const WriteUnit::Impl::ExpiryNote& n : u.impl().expiry_notes) {
      storage_.expiry_waker.Entered(*n.state, n.millis, n.deadline);
    }
  }
  // After the notes of all: see ExpiryState::RaiseHead.
  for (WriteUnit& u : units) {
    for (auto& f : u.impl().on_commit) f();
    u.impl().TellWatch();
    u.impl().ReleaseLocks();
  }
}

void UnitApplier::Failed(std::span<WriteUnit> units) {
  multikey_owed_.insert(multikey_owed_.end(), multikey_now_.begin(), multikey_now_.end());
  multikey_now_.clear();
  for (WriteUnit& u : units) u.impl().ReleaseLocks();
}

void WriteUnit::Impl::StageDeadlineChange(const CollectionInfo& coll, std::string_view key,
                                          std::optional<Instant> was, std::optional<Instant> is) {
  if (was == is) return;
  if (was) {
    index_key.clear();
    AppendDeadlineKey(*was, key, index_key);
    StageDelete(Keyspace::kExpiry, index_key, false);
  }
  if (is) {
    index_key.clear();
    AppendDeadlineKey(*is, key, index_key);
    StagePut(Keyspace::kExpiry, index_key, {}, {}, false);
    expiry_notes.push_back({coll.document_expiry.get(), is->millis,
                            SaturatingDeadline(is->millis, coll.expiry_options.recover_seconds)});
  }
}

}  // namespace mayfly
