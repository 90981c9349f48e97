#include "server/execution/session_records.h"

#include <algorithm>
#include <vector>

#include "protocol/bson_builder.h"
#include "server/base/session_registry.h"
#include "server/execution/retryable_writes.h"
#include "server/execution/session_store.h"
#include "storage/catalog/catalog_open.h"
#include "storage/keys/key_encoding.h"
#include "storage/keys/key_format.h"
#include "storage/storage.h"
#include "storage/write/session_row.h"

namespace mayfly {
namespace {

static_assert(kSessionRowIdBytes == kSessionIdBytes && kSessionRowUidBytes == kSessionUidBytes);

/// Its id in the catalog, which no real collection has.
constexpr uint32_t kId = 0xFFFF'FFF1;

std::string_view IdOfKey(std::string_view key) { return key.substr(kSessionRowPrefix.size()); }
std::string_view UuidOfKey(std::string_view key) { return IdOfKey(key).substr(0, kSessionIdBytes); }

/// `session`: its key.
BsonDocument Describe(std::string_view session, const SessionRow& row) {
  return BuildBson([&](BsonBuilder& b) {
    {
      BsonBuilder id = b.OpenDocument("_id");
      AppendSessionId(id, session);
    }
    b.Append("txnNum", row.number);
    {
      // Of a row that does not know its place: the one that comes before all.
      BsonBuilder at = b.OpenDocument("lastWriteOpTime");
      at.AppendTimestamp("ts", row.ts)
          .Append("t", row.ts == 0 ? int64_t{-1} : static_cast<int64_t>(row.term));
    }
    b.Append("lastWriteDate", Instant{row.last_write});
    if (HoldsCommittedTransaction(row.entries)) b.Append("state", "committed");
  });
}

std::string RecordKey(BsonView doc) {
  std::string key;
  AppendRecordKeyOfId(kId, doc["_id"], key);
  return key;
}

/// The id of the sessions whose record keys may be the first at or behind this one; empty: of any.
/// The id is the first field of each `_id`, so a smaller one has smaller keys.
std::string FirstUuid(std::string_view record_key) {
  if (record_key.size() <= kIdPrefixSize) return {};
  std::string_view rest = record_key.substr(kIdPrefixSize), no_bits;
  const Result<Value> id = DecodeKeyValue(&rest, false, &no_bits);
  if (!id || !id.value().view().IsDocument() || id.value().view().Document().empty()) return {};
  const BsonElement first = id.value().view().Document().First();
  if (first.name != "id" || !first.value.Is(BsonType::kBinary) ||
      first.value.BinarySubtype() != 4 || first.value.BinaryData().size() != kSessionIdBytes)
    return {};
  return std::string(first.value.BinaryData());
}

/// In the order of `_id`, within the bounds of the scan. Sessions of the same id stand together and
/// are put in order here, as the row of one without a user is the first of them.
class SessionCursor final : public RecordCursor {
 public:
  SessionCursor(Storage& storage, RecordScan scan)
      : storage_(storage),
        scan_(std::move(scan)),
        first_(FirstUuid(scan_.lower)),
        last_uuid_(FirstUuid(scan_.upper)) {}

  Result<bool> Next() override {
    for (;;) {
      if (++at_ < same_id_.size()) {
        const std::string& key = same_id_[at_].key;
        // Shown before the cursor was opened anew.
        if (!last_.empty() && (scan_.backward ? key >= last_ : key <= last_)) continue;
        if (key < scan_.lower || (!scan_.upper.empty() && key >= scan_.upper)) continue;
        last_ = key;
        Show(key, same_id_[at_].doc.view(), std::nullopt);
        return true;
      }
      MAYFLY_TRY(const bool more, Load());
      if (!more) return false;
    }
  }
  void Reposition(ReadView view) override {
    rows_.reset();
    same_id_.clear();
    at_ = 0;
    scan_.view = std::move(view);
    scan_.max_skipped = 0;
  }

 private:
  struct Document {
    std::string key;
    BsonDocument doc;
  };

  /// All rows of the id come before it.
  static std::string BehindRows(std::string_view id) {
    return SessionRowKey(id) + std::string(kSessionUidBytes + 1, '\xFF');
  }

  void Step() {
    if (scan_.backward)
      rows_->Prev();
    else
      rows_->Next();
  }

  void Open() {
    KvIterOptions o;
    o.lower = SessionRowKey(first_);
    if (last_uuid_.empty()) {
      o.upper = kSessionRowPrefix;
      ++o.upper.back();
    } else {
      o.upper = BehindRows(last_uuid_);
    }
    o.fill_cache = scan_.fill_cache;
    o.max_skipped = scan_.max_skipped;
    // From the id that was the last one on: there may be more of it.
    if (!id_.empty()) {
      if (scan_.backward)
        o.upper = BehindRows(id_);
      else
        o.lower = SessionRowKey(id_);
    }
    rows_ = scan_.view.NewIterator(storage_.kv(), Keyspace::kCatalog, std::move(o));
    if (scan_.backward)
      rows_->SeekToLast();
    else
      rows_->SeekToFirst();
  }

  /// The sessions of the next id. False: there are none.
  Result<bool> Load() {
    if (!rows_) Open();
    same_id_.clear();
    at_ = static_cast<size_t>(-1);
    size_t chunks = 0;
    for (; rows_->Valid(); Step()) {
      const std::string_view key = rows_->key();
      if (!IsSessionRowKey(key)) {
        // On a thread that others wait for, as with entries that are deleted.
        if (scan_.max_skipped != 0 && ++chunks > scan_.max_skipped)
          return Error{ErrorCode::kInternalError, "too much is kept of one session"};
        continue;
      }
      const std::string_view id = UuidOfKey(key);
      if (same_id_.empty())
        id_ = id;
      else if (id != id_)
        break;
      MAYFLY_TRY(const SessionRow row, DecodeSessionRow(rows_->value()));
      BsonDocument doc = Describe(IdOfKey(key), row);
      std::string record_key = RecordKey(doc);
      same_id_.push_back({std::move(record_key), std::move(doc)});
    }
    MAYFLY_TRY(rows_->status());
    std::sort(same_id_.begin(), same_id_.end(), [&](const Document& a, const Document& b) {
      return scan_.backward ? a.key > b.key : a.key < b.key;
    });
    return !same_id_.empty();
  }

  Storage& storage_;
  RecordScan scan_;
  const std::string first_, last_uuid_;  ///< the bounds' ids
  std::unique_ptr<KvIterator> rows_;
  std::string id_, last_;
  std::vector<Document> same_id_;
  size_t at_ = 0;
};

}  // namespace

std::unique_ptr<RecordCursor> SessionRecords::Scan(RecordScan scan) {
  return std::make_unique<SessionCursor>(storage_, std::move(scan));
}

Result<bool> SessionRecords::Fetch(std::string_view record_key, const ReadView& view,
                                   Storage::Record* out) {
  if (record_key.size() < kIdPrefixSize) return false;
  std::string_view rest = record_key.substr(kIdPrefixSize), no_bits;
  MAYFLY_TRY(const Value id, DecodeKeyValue(&rest, false, &no_bits));
  if (!id.view().IsDocument()) return false;
  const BsonValue uuid = id.view().Document()["id"], uid = id.view().Document()["uid"];
  if (!uuid.Is(BsonType::kBinary) || !uid.Is(BsonType::kBinary)) return false;
  std::string session(uuid.BinaryData());
  if (session.size() != kSessionIdBytes) return false;
  if (uid.BinaryData() != NobodysDigest()) session.append(uid.BinaryData());
  PinnedValue value;
  const std::string key = SessionRowKey(session);
  if (!IsSessionRowKey(key)) return false;
  MAYFLY_TRY(const bool found, view.Get(storage_.kv(), Keyspace::kCatalog, key, &value));
  if (!found) return false;
  MAYFLY_TRY(const SessionRow row, DecodeSessionRow(value.view()));
  const BsonDocument doc = Describe(session, row);
  // It may have been asked for one with other fields besides.
  if (RecordKey(doc.view()) != record_key) return false;
  out->pinned.Assign(doc.view().bytes());
  out->doc = BsonView(out->pinned.view());
  out->expire_at.reset();
  return true;
}

uint64_t SessionRecords::Bytes() {
  std::string end(kSessionRowPrefix);
  ++end.back();
  return storage_.kv().ApproximateBytes(Keyspace::kCatalog, kSessionRowPrefix, end);
}

void ShowSessionRecords(Storage& storage) {
  auto coll = std::make_shared<CollectionInfo>();
  coll->id = kId;
  coll->uuid = {0x74, 0x78, 0x6e, 0x73, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 1};
  coll->db = "config";
  coll->name = "transactions";
  coll->ns = "config.transactions";
  coll->unreplicated = true;
  coll->counters = std::make_shared<CollectionCounters>();
  coll->source = std::make_shared<SessionRecords>(storage);
  storage.member_catalog().AddSource(std::move(coll));
}

}  // namespace mayfly
