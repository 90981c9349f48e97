#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "protocol/hex.h"
#include "storage/catalog/index_keys.h"
#include "storage/core/storage_impl.h"
#include "storage/keys/key_format.h"
#include "storage/storage.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {
namespace {

constexpr size_t kMaxReported = 1000;  ///< entries, records or messages a list

/// The first bytes of a key.
std::string Hex(std::string_view bytes) { return HexDigits(bytes.substr(0, 64)); }

/// A set of rows as a count and two sums of hashes: equal for equal sets, whatever the order, and
/// in practice only then.
struct RowSet {
  int64_t count = 0;
  uint64_t sum1 = 0, sum2 = 0;
  void Add(std::string_view key, std::string_view value) {
    uint64_t h = std::hash<std::string_view>()(key);
    uint64_t v = std::hash<std::string_view>()(value);
    ++count;
    sum1 += Mix(h + Mix(v));
    sum2 += Mix(h * 0x9E3779B97F4A7C15u ^ Mix(v + key.size()));
  }
  bool operator==(const RowSet&) const = default;

 private:
  static uint64_t Mix(uint64_t x) {  // the finaliser of SplitMix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
};

/// Checks one collection at one snapshot. The first pass reads records and indexes once each and
/// compares what the indexes hold with what the documents ask for as sets; only when an index
/// differs does a second pass look for which entries.
class Validation {
 public:
  Validation(Storage& storage, Operation& op, bool full) : storage_(storage), op_(op), full_(full) {
    keys_.set_operation(&op);
  }

  Result<void> Run(CollectionInfoPtr given) {
    const FilteringFor filtering(&op_);
    if (given->source) return ScanSource(std::move(given));
    MAYFLY_TRY(TakeSnapshot(*given));
    for (const IndexInfoPtr& i : coll_->indexes) {
      if (i->state == IndexState::kBuilding) {
        Say(warnings_, "Index " + i->name + " is being built and was not checked");
        continue;
      }
      indexes_.push_back({i, {}, {}, {}});
    }
    MAYFLY_TRY(ScanRecords(
        [this](std::string_view key, std::string_view value) { CheckRecord(key, value); }));
    for (IndexCheck& c : indexes_) {
      MAYFLY_TRY(ScanIndex(c));
    }
    MAYFLY_TRY(ScanDeadlines());
    for (IndexCheck& c : indexes_) {
      if (c.expected == c.actual) continue;
      size_t before = missing_.size() + extra_.size();
      MAYFLY_TRY(FindMissing(c));
      MAYFLY_TRY(FindExtra(c));
      c.errors.push_back("Index " + c.index->name + " has " + std::to_string(c.actual.count) +
                         " entries, its documents ask for " + std::to_string(c.expected.count) +
                         "; " + std::to_string(missing_.size() + extra_.size() - before) +
                         " differ");
      Say(errors_, c.errors.back());
    }
    if (!(expected_deadlines_ == actual_deadlines_))
      Say(errors_, "The queue of document deadlines has " +
                       std::to_string(actual_deadlines_.count) +
                       " entries of this collection, its documents ask for " +
                       std::to_string(expected_deadlines_.count));
    if (records_ != counted_documents_)
      Say(errors_, "The collection counts " + std::to_string(counted_documents_) +
                       " documents but has " + std::to_string(records_));
    if (invalid_ == 0 && bytes_ != counted_bytes_)
      Say(errors_, "The collection counts " + std::to_string(counted_bytes_) + " bytes but has " +
                       std::to_string(bytes_));
    if (non_compliant_ > 0)
      Say(warnings_, "Detected one or more documents not compliant with the collection's schema.");
    return Ok();
  }

  void Report(BsonBuilder& b) {
    b.Append("ns", coll_->ns);
    b.AppendBinary("uuid", 4,
                   {reinterpret_cast<const char*>(coll_->uuid.data()), coll_->uuid.size()});
    b.Append("nInvalidDocuments", invalid_).Append("nNonCompliantDocuments", non_compliant_);
    b.Append("nrecords", records_);
    bool id_is_implicit = !coll_->capped();
    b.Append("nIndexes", static_cast<int32_t>(indexes_.size() + (id_is_implicit ? 1 : 0)));
    {
      auto keys = b.OpenDocument("keysPerIndex");
      if (id_is_implicit) keys.Append(IdIndexName(), records_);
      for (auto& c : indexes_) keys.Append(c.index->name, c.actual.count);
    }
    {
      auto details = b.OpenDocument("indexDetails");
      if (id_is_implicit) details.OpenDocument(IdIndexName()).Append("valid", id_valid_);
      for (auto& c : indexes_) {
        auto d = details.OpenDocument(c.index->name);
        d.Append("valid", c.errors.empty());
        if (!c.errors.empty()) {
          auto list = d.OpenArray("errors");
          for (auto& e : c.errors) list.Append(e);
        }
      }
    }
    b.Append("valid", errors_.empty()).Append("repaired", false);
    AppendList(b, "warnings", warnings_);
    AppendList(b, "errors", errors_);
    AppendList(b, "extraIndexEntries", extra_);
    AppendList(b, "missingIndexEntries", missing_);
    AppendList(b, "corruptRecords", corrupt_);
  }

 private:
  struct IndexCheck {
    IndexInfoPtr index;
    RowSet expected, actual;
    std::vector<std::string> errors;
  };

  static void AppendList(BsonBuilder& b, std::string_view name,
                         const std::vector<std::string>& list) {
    auto a = b.OpenArray(name);
    for (auto& s : list) a.Append(s);
  }
  static void AppendList(BsonBuilder& b, std::string_view name,
                         const std::vector<BsonDocument>& list) {
    auto a = b.OpenArray(name);
    for (auto& d : list) a.Append(d);
  }
  static void Say(std::vector<std::string>& list, std::string text) {
    if (list.size() < kMaxReported) list.push_back(std::move(text));
  }
  std::string_view IdIndexName() const {
    return coll_->clustered() && !coll_->clustered_index_name.empty()
               ? std::string_view(coll_->clustered_index_name)
               : std::string_view("_id_");
  }

  /// With the gate held no write unit is half-way between the store and the counters.
  Result<void> TakeSnapshot(const CollectionInfo& given) {
    const LockWait waits(op_);
    for (;;) {
      WriteUnit unit(storage_, op_);
      Result<void> r = unit.impl().TouchExclusive(given, kExclusiveWaitMicros);
      if (!r && r.error().code == ErrorCode::kQueryPlanKilled)
        return Error{ErrorCode::kNamespaceNotFound,
                     "Collection '" + given.ns + "' does not exist to validate."};
      if (!r && r.error().code == ErrorCode::kWriteConflict) {
        MAYFLY_TRY(op_.CheckInterruptNow());
        continue;
      }
      MAYFLY_TRY(std::move(r));
      coll_ = storage_.catalog().FindById(given.id);
      view_ = ReadView(storage_.kv().Snapshot());
      counted_documents_ = coll_->counters->documents;
      counted_bytes_ = coll_->counters->bytes;
      return Ok();
    }
  }

  /// For documents that are made while they are read (RecordSource): nothing is stored or counted
  /// that they could differ from.
  Result<void> ScanSource(CollectionInfoPtr coll) {
    coll_ = std::move(coll);
    const auto cursor = storage_.ScanRecords(
        coll_, {.view = ReadView(storage_.kv().Snapshot()), .fill_cache = false});
    for (;;) {
      MAYFLY_TRY(op_.CheckInterruptNow());
      const Result<bool> more = cursor->Next();
      if (!more) {
        id_valid_ = false;
        Say(errors_, more.error().message);
      }
      if (!more || !more.value()) return Ok();
      ++records_;
      ++op_.docs_examined;
      if (!ValidateBson(cursor->doc().bytes(), false))
        Corrupt(cursor->record_key(), "invalid BSON");
    }
  }

  /// Calls `f(key, value)` for all keys of `ks` that start with this id.
  template <class F>
  Result<void> Scan(Keyspace ks, uint32_t id, F&& f) {
    return Scan(ks, IdPrefix(id), IdPrefixEnd(id), std::forward<F>(f));
  }
  template <class F>
  Result<void> Scan(Keyspace ks, std::string lower, std::string upper, F&& f) {
    KvIterOptions o;
    o.lower = std::move(lower);
    o.upper = std::move(upper);
    o.fill_cache = false;
    auto it = view_.NewIterator(storage_.kv(), ks, std::move(o));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      // With the time: what an interrupt has cut short in `f` is no finding.
      MAYFLY_TRY(op_.CheckInterruptNow());
      f(it->key(), it->value());
    }
    MAYFLY_TRY(op_.CheckInterruptNow());
    return it->status();
  }
  template <class F>
  Result<void> ScanRecords(F&& f) {
    return Scan(Keyspace::kRecords, coll_->id, std::forward<F>(f));
  }

  /// The row of one index entry, as key_format.h lays it out, in row_key_ and row_value_.
  void MakeRow(const IndexInfo& index, const KeySet& keys, size_t k, std::string_view record_id) {
    row_key_.clear();
    row_value_.clear();
    AppendBe32(row_key_, index.id);
    row_key_.append(keys.values(k));
    if (index.unique) {
      AppendUniqueIndexValue(record_id, keys.type_bits(k), row_value_);
    } else {
      row_key_.append(record_id);
      row_value_.append(keys.type_bits(k));
    }
  }

  void Corrupt(std::string_view key, const char* what) {
    ++invalid_;
    id_valid_ = false;
    Say(errors_, "Record " + Hex(key) + ": " + what);
    Say(corrupt_, Hex(key));
  }

  void CheckRecord(std::string_view key, std::string_view value) {
    ++records_;
    ++op_.docs_examined;
    BsonView doc;
    std::optional<Instant> expire_at;
    if (!DecodeRecord(value, &doc, &expire_at)) return Corrupt(key, "damaged header or length");
    if (!ValidateBson(doc.bytes(), false)) return Corrupt(key, "invalid BSON");
    BsonElement id = doc.First();
    if (id.name != "_id") return Corrupt(key, "_id is not the first field");
    bytes_ += doc.size();
    if (coll_->capped()) {
      if (key.size() != kIdPrefixSize + 8)
        return Corrupt(key, "not the key of a capped collection");
    } else {
      row_key_.clear();
      AppendRecordKeyOfId(coll_->id, id.value, row_key_);
      if (row_key_ != key) return Corrupt(key, "key does not belong to its _id");
    }
    if (full_ && !ValidateBson(doc.bytes(), true)) {
      ++non_compliant_;
    } else if (coll_->validator_filter && !coll_->validator_filter->Matches(doc)) {
      ++non_compliant_;
    }
    std::string_view record_id = RecordIdOf(key);
    for (IndexCheck& c : indexes_) {
      Result<void> r = ExtractKeys(*c.index, doc, &keys_);
      if (!r) {
        Say(c.errors, "Record " + Hex(key) + " cannot be indexed: " + r.error().message);
        Say(errors_, "Index " + c.index->name + ": " + c.errors.back());
        continue;
      }
      if (keys_.multikey() & ~c.index->multikey.load(std::memory_order_acquire)) {
        Say(c.errors, "Index is not marked multikey but record " + Hex(key) + " has an array");
        Say(errors_, "Index " + c.index->name + ": " + c.errors.back());
      }
      for (size_t k = 0; k < keys_.size(); ++k) {
        MakeRow(*c.index, keys_, k, record_id);
        c.expected.Add(row_key_, row_value_);
      }
    }
    if (expire_at) {
      row_key_.clear();
      AppendDeadlineKey(*expire_at, key, row_key_);
      expected_deadlines_.Add(row_key_, {});
    }
  }

  Result<void> ScanIndex(IndexCheck& c) {
    return Scan(c.index->keyspace, c.index->id, [&](std::string_view key, std::string_view value) {
      ++op_.keys_examined;
      c.actual.Add(key, value);
    });
  }

  Result<void> ScanDeadlines() {
    return Scan(
        Keyspace::kExpiry, DeadlinePrefix(coll_->id), DeadlinePrefixEnd(coll_->id),
        [&](std::string_view key, std::string_view value) { actual_deadlines_.Add(key, value); });
  }

  BsonDocument DescribeEntry(const IndexInfo& index, std::string_view record_id, BsonValue id,
                             std::string_view values, std::string_view bits) {
    return BuildBson([&](BsonBuilder& b) {
      b.Append("indexName", index.name).Append("recordId", Hex(record_id));
      b.Append("idKey", id);
      if (auto key = DecodeIndexKey(index, values, bits)) {
        b.Append("indexKey", key.value());
      } else {
        b.Append("indexKeyBytes", Hex(values));
      }
    });
  }

  Result<void> FindMissing(IndexCheck& c) {
    Result<void> status = Ok();
    MAYFLY_TRY(ScanRecords([&](std::string_view key, std::string_view value) {
      BsonView doc;
      std::optional<Instant> expire_at;
      if (!status || !DecodeRecord(value, &doc, &expire_at) || !ValidateBson(doc.bytes(), false))
        return;
      if (!ExtractKeys(*c.index, doc, &keys_)) return;
      for (size_t k = 0; k < keys_.size(); ++k) {
        MakeRow(*c.index, keys_, k, RecordIdOf(key));
        Result<bool> found = view_.Get(storage_.kv(), c.index->keyspace, row_key_, &pinned_);
        if (!found) {
          status = found.error();
          return;
        }
        if (found.value() && pinned_.view() == row_value_) continue;
        if (missing_.size() < kMaxReported)
          missing_.push_back(DescribeEntry(*c.index, RecordIdOf(key), doc.First().value,
                                           keys_.values(k), keys_.type_bits(k)));
      }
    }));
    return status;
  }

  Result<void> FindExtra(IndexCheck& c) {
    Result<void> status = Ok();
    std::string record_key;
    MAYFLY_TRY(
        Scan(c.index->keyspace, c.index->id, [&](std::string_view key, std::string_view value) {
          if (!status || extra_.size() >= kMaxReported) return;
          std::string_view rest = key.substr(kIdPrefixSize), values = rest, record_id, bits = value;
          size_t size = 0;
          for (const IndexField& f : c.index->fields) {
            const size_t n = StoredValueLength(rest, size, f.descending);
            if (n == 0) break;
            size += n;
          }
          values = rest.substr(0, size);
          if (c.index->unique) {
            DecodeUniqueIndexValue(value, &record_id, &bits);
          } else {
            record_id = rest.substr(size);
          }
          record_key = IdPrefix(coll_->id);
          record_key.append(record_id);
          Result<bool> found = view_.Get(storage_.kv(), Keyspace::kRecords, record_key, &pinned_);
          if (!found) {
            status = found.error();
            return;
          }
          BsonView doc;
          std::optional<Instant> expire_at;
          BsonValue id;
          if (found.value() && DecodeRecord(pinned_.view(), &doc, &expire_at) &&
              ValidateBson(doc.bytes(), false)) {
            id = doc.First().value;
            if (ExtractKeys(*c.index, doc, &keys_)) {
              for (size_t k = 0; k < keys_.size(); ++k) {
                MakeRow(*c.index, keys_, k, record_id);
                if (row_key_ == key && row_value_ == value) return;
              }
            }
          }
          extra_.push_back(DescribeEntry(*c.index, record_id, id, values, bits));
        }));
    return status;
  }

  Storage& storage_;
  Operation& op_;
  const bool full_;
  CollectionInfoPtr coll_;
  ReadView view_;
  std::vector<IndexCheck> indexes_;
  KeySet keys_;
  PinnedValue pinned_;
  std::string row_key_, row_value_;
  RowSet expected_deadlines_, actual_deadlines_;
  int64_t records_ = 0, bytes_ = 0, invalid_ = 0, non_compliant_ = 0;
  int64_t counted_documents_ = 0, counted_bytes_ = 0;
  bool id_valid_ = true;
  std::vector<std::string> warnings_, errors_, corrupt_;
  std::vector<BsonDocument> extra_, missing_;
};

}  // namespace

Result<void> Storage::Validate(Operation& op, CollectionInfoPtr coll, bool full,
                               BsonBuilder& reply) {
  MAYFLY_TRY(CheckUse(*coll, CollectionUse::kValidate));
  Validation validation(*this, op, full);
  MAYFLY_TRY(validation.Run(std::move(coll)));
  validation.Report(reply);
  return Ok();
}

}  // namespace mayfly
