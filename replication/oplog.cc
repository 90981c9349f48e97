#include "replication/oplog.h"

#include <algorithm>
#include <optional>
#include <span>

#include "protocol/bson_builder.h"
#include "protocol/extra_field.h"
#include "protocol/large_memory.h"
#include "protocol/system_names.h"
#include "replication/open_units.h"
#include "storage/catalog/namespace.h"
#include "storage/keys/key_format.h"

namespace mayfly {
namespace {

/// Mayfly's own field in a delete by expiry: the rule, and the time at which the document was due;
/// of a TTL index, where the entry has them, also its field and the date there that this time
/// counts from.
void AppendExpiry(const LogRecord& r, BsonBuilder& out) {
  if (r.kind != LogRecord::kDelete || !IsExpiry(r)) return;
  BsonBuilder e = out.OpenDocument("expiry");
  e.Append("reason", ExpiryReasonName(r.reason));
  if (!r.rule.empty()) e.Append("rule", r.rule);
  e.Append("expireAt", Instant{r.deadline});
  if (!r.field.empty()) e.Append("field", r.field).Append("date", Instant{r.date});
}

/// The deadline of a document, for a client that sees it in a field. null: it has none, whatever
/// the collection's expiry.field would make of it where the entry is applied. Points have none, and
/// a document that would become too large for the client stays as it is.
void AppendDeadline(std::string_view ns, BsonView doc, std::optional<Instant> expire_at,
                    std::string_view field, BsonBuilder& o) {
  if (field.empty()) return;
  if (expire_at)
    o.Append(field, *expire_at);
  else if (doc.size() + static_cast<int64_t>(field.size()) + 2 <= kMaxBsonUserSize &&
           !SplitNamespace(ns).collection.starts_with(kBucketsPrefix))
    o.AppendNull(field);
}

void AppendDocument(std::string_view ns, BsonView doc, std::optional<Instant> expire_at,
                    std::string_view field, BsonBuilder& o) {
  if (field.empty()) {
    o.AppendAll(doc);
    return;
  }
  AppendBesideExtraField(doc, field, o);
  AppendDeadline(ns, doc, expire_at, field, o);
}

/// op, ns, ui, o, o2: what an entry and an operation inside applyOps have in common.
/// `deadline_field`: RecordScan's.
void AppendOperation(const LogUnit& u, const LogRecord& r, std::string_view deadline_field,
                     BsonBuilder& out) {
  std::optional<Instant> expire_at;
  auto names = [&](const LogCollection& c) {
    out.Append("ns", c.ns);
    out.AppendBinary("ui", 4, c.uuid);
  };
  switch (r.kind) {
    case LogRecord::kInsert: {
      const BsonView doc = LoggedDocument(u, r, &expire_at);
      out.Append("op", "i");
      names(u.collections[r.collection]);
      {
        BsonBuilder o = out.OpenDocument("o");
        AppendDocument(u.collections[r.collection].ns, doc, expire_at, deadline_field, o);
      }
      out.OpenDocument("o2").Append("_id", doc["_id"]);
      break;
    }
    case LogRecord::kUpdate: {
      const BsonView doc = LoggedDocument(u, r, &expire_at);
      out.Append("op", "u");
      names(u.collections[r.collection]);
      {
        BsonBuilder o = out.OpenDocument("o");
        if (r.detail.empty()) {
          AppendDocument(u.collections[r.collection].ns, doc, expire_at, deadline_field, o);
        } else {
          o.Append("$v", 2).Append("diff", BsonView(r.detail));
          AppendDeadline(u.collections[r.collection].ns, BsonView(r.detail), expire_at,
                         deadline_field, o);
        }
      }
      out.OpenDocument("o2").Append("_id", doc["_id"]);
      break;
    }
    case LogRecord::kDelete:
      out.Append("op", "d");
      names(u.collections[r.collection]);
      out.Append("o", BsonView(r.detail));
      AppendExpiry(r, out);
      break;
    case LogRecord::kCommand:
      out.Append("op", "c").Append("ns", std::string(r.db) + ".$cmd");
      if (!r.uuid.empty()) out.AppendBinary("ui", 4, r.uuid);
      out.Append("o", BsonView(r.detail));
      if (!r.o2.empty()) out.Append("o2", BsonView(r.o2));
      break;
    case LogRecord::kNoop:
      out.Append("op", "n").Append("ns", "").Append("o", BsonView(r.detail));
      break;
  }
}

void AppendPlace(uint64_t ts, uint64_t term, int64_t wall, BsonBuilder& out) {
  out.AppendTimestamp("ts", ts).Append("t", static_cast<int64_t>(term)).Append("v", int64_t{2});
  out.Append("wall", Instant{wall});
}

/// The entry `part` of a unit that is shown as one `applyOps` or, a large transaction, as a chain
/// of them, each with the place of the one before it.
BsonDocument ApplyOps(const LogUnit& u, std::span<const LogRecord> records, size_t part,
                      uint64_t term, std::string_view deadline_field) {
  const bool chain = u.parts.size() > 1, last = part + 1 >= u.parts.size();
  return BuildBson([&](BsonBuilder& b) {
    if (u.transaction) b.Append("lsid", BsonView(u.lsid)).Append("txnNumber", u.txn_number);
    b.Append("op", "c").Append("ns", "admin.$cmd");
    {
      BsonBuilder o = b.OpenDocument("o");
      {
        BsonArrayBuilder ops = o.OpenArray("applyOps");
        for (const LogRecord& r : records) {
          BsonBuilder d = ops.OpenDocument();
          AppendOperation(u, r, deadline_field, d);
        }
      }
      if (chain && last)
        o.Append("count", static_cast<int64_t>(u.records.size()));
      else if (chain)
        o.Append("partialTxn", true);
    }
    AppendPlace(u.ts + part, term, u.wall, b);
    if (!u.transaction) return;
    BsonBuilder previous = b.OpenDocument("prevOpTime");
    if (part == 0)
      previous.AppendTimestamp("ts", 0).Append("t", int64_t{-1});
    else
      previous.AppendTimestamp("ts", u.ts + part - 1).Append("t", static_cast<int64_t>(term));
  });
}

uint64_t TsOfKey(std::string_view key) { return LoadBe64(key.data() + kIdPrefixSize); }

class OplogCursor final : public RecordCursor {
 public:
  OplogCursor(Consensus& consensus, uint32_t collection, RecordScan scan)
      : consensus_(consensus),
        collection_(collection),
        backward_(scan.backward),
        deadline_field_(std::move(scan.deadline_field)) {
    // A key has eight bytes behind the id. An exclusive bound may be one byte longer or shorter.
    auto bound = [](const std::string& key, uint64_t otherwise) {
      if (key.size() < kIdPrefixSize + 8) return otherwise;
      const uint64_t ts = TsOfKey(key);
      return key.size() > kIdPrefixSize + 8 && ts != UINT64_MAX ? ts + 1 : ts;
    };
    lower_ = bound(scan.lower, 0);
    upper_ = bound(scan.upper, UINT64_MAX);
  }

  Result<bool> Next() override {
    for (;;) {
      // Other documents of the current entry.
      if (at_ + 1 < static_cast<int64_t>(documents_.size())) {
        ++at_;
        const uint64_t ts = documents_[static_cast<size_t>(at_)].first;
        last_ = ts;
        begun_ = true;
        key_.clear();
        AppendBe32(key_, collection_);
        AppendBe64(key_, ts);
        Show(key_, documents_[static_cast<size_t>(at_)].second.view(), std::nullopt);
        return true;
      }
      documents_.clear();
      at_ = -1;
      if (!log_) {
        log_ = consensus_.ReadLog();
        MAYFLY_TRY(Seek());
      } else if (!(first_ && log_->Valid())) {
        if (!log_->Valid()) return false;
        if (backward_)
          log_->Prev();
        else
          log_->Next();
      }
      first_ = false;
      // Entries that show no document are skipped.
      bool loaded = false;
      for (; log_->Valid() && !loaded;) {
        uint64_t first, last;
        const CommittedEntry e = log_->entry();
        if (TimesOfEntry(e, &first, &last)) {
          if (!backward_ && first >= upper_) return false;
          if (backward_ && last < lower_) return false;
          MAYFLY_TRY(Load(e));
          if (!documents_.empty()) {
            loaded = true;
            break;
          }
        }
        if (backward_)
          log_->Prev();
        else
          log_->Next();
      }
      if (!loaded) {
        MAYFLY_TRY(log_->status());
        return false;
      }
    }
  }
  void Reposition(ReadView) override {
    log_.reset();
    documents_.clear();
    hold_.Release();
    at_ = -1;
    // Continues behind the last document that was returned.
    if (!begun_) return;
    if (backward_)
      upper_ = std::min(upper_, last_);
    else
      lower_ = std::max(lower_, last_ + 1);
  }

 private:
  /// Moves to the first entry of the range, in the direction of the scan.
  Result<void> Seek() {
    first_ = true;
    if (backward_ && upper_ == UINT64_MAX) {
      log_->SeekToLast();
      return log_->status();
    }
    MAYFLY_TRY(SeekOplog(*log_, backward_ ? upper_ : lower_));
    if (backward_ && !log_->Valid()) log_->SeekToLast();
    return log_->status();
  }

  Result<void> Load(const CommittedEntry& e) {
    documents_.clear();
    at_ = -1;
    if (IsLogChunk(e.data)) return Ok();
    std::string_view data = e.data;
    std::string whole;
    hold_.Release();
    if (IsLogEnd(data)) {
      MAYFLY_TRY(const LogChunks chunks, ReadLogEnd(data));
      // The bytes, and documents made of them.
      MAYFLY_TRY(hold_.Set(2 * chunks.bytes));
      Result<std::string> joined = JoinFromLog(data, *consensus_.ReadLog());
      // The log begins in the midst of the unit, which is as gone as what is before it. A scan that
      // has shown something before it must not go on as if there had been nothing between.
      if (!joined && IsTrimmed(joined.error())) {
        if (!begun_ || backward_) return Ok();
        return Error{ErrorCode::kCappedPositionLost,
                     "CollectionScan died due to position in capped collection being deleted."};
      }
      MAYFLY_TRY(whole, std::move(joined));
      data = whole;
    }
    MAYFLY_TRY(ForEachOplogDocument(
        data, e.position.term,
        [&](uint64_t ts, BsonDocument doc) {
          if (ts >= lower_ && ts < upper_) documents_.emplace_back(ts, std::move(doc));
        },
        deadline_field_));
    if (backward_) std::reverse(documents_.begin(), documents_.end());
    return Ok();
  }

  Consensus& consensus_;
  const uint32_t collection_;
  const bool backward_;
  const std::string deadline_field_;
  uint64_t lower_, upper_;
  std::unique_ptr<LogCursor> log_;
  bool first_ = false, begun_ = false;
  uint64_t last_ = 0;
  std::vector<std::pair<uint64_t, BsonDocument>> documents_;
  large_memory::Hold hold_;  ///< of documents_, when they are of a large unit
  int64_t at_ = -1;
  std::string key_;
};

}  // namespace

std::string_view ExpiryReasonName(DeleteReason r) {
  switch (r) {
    case DeleteReason::kExpiredTtlIndex:
      return "ttlIndex";
    case DeleteReason::kExpiredDocument:
      return "document";
    case DeleteReason::kExpiredClustered:
      return "clustered";
    case DeleteReason::kDeleted:
    case DeleteReason::kCapped:
    case DeleteReason::kMerged:
      break;
  }
  return "deleted";
}

bool IsExpiry(const LogRecord& r) { return DeleteCause(r.reason).expired(); }

BsonView LoggedDocument(const LogUnit& u, const LogRecord& r, std::optional<Instant>* expire_at) {
  BsonView doc;
  std::optional<Instant> deadline;
  if (!DecodeRecord(u.effects[r.effect].value, &doc, &deadline)) return BsonView();
  if (expire_at != nullptr) *expire_at = deadline;
  return doc;
}

bool TimesOfEntry(const CommittedEntry& e, uint64_t* first, uint64_t* last) {
  if (e.kind != CommittedEntry::Kind::kData || e.data.size() < kLogEntryHeader) return false;
  std::string_view rest = e.data.substr(kLogEntryHeader);
  bool any = false;
  for (;;) {
    uint64_t ts;
    uint32_t ticks;
    int64_t wall;
    auto more = SkipLogUnit(&rest, &ts, &ticks, &wall);
    if (!more || !more.value()) return any;
    if (ticks == 0) continue;
    if (!any) *first = ts;
    *last = ts + ticks - 1;
    any = true;
  }
}

Result<void> SeekOplog(LogCursor& log, uint64_t target) {
  log.Seek(0);
  MAYFLY_TRY(log.status());
  if (!log.Valid()) return Ok();
  uint64_t low = log.entry().position.index;
  if (target == 0) return Ok();
  log.SeekToLast();
  uint64_t high = log.Valid() ? log.entry().position.index + 1 : low;
  // The first index whose entry (or the next one that has times) ends at or after `target`.
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    log.Seek(middle);
    uint64_t first = 0, last = 0;
    bool found = false;
    while (log.Valid() && !(found = TimesOfEntry(log.entry(), &first, &last))) log.Next();
    MAYFLY_TRY(log.status());
    if (found && last < target)
      low = std::max(middle, log.entry().position.index) + 1;
    else
      high = middle;
  }
  log.Seek(low);
  return log.status();
}

Result<void> ForEachOplogDocument(std::string_view entry, uint64_t term,
                                  const std::function<void(uint64_t ts, BsonDocument doc)>& f,
                                  std::string_view deadline_field) {
  MAYFLY_TRY(ReadLogEntryHeader(entry));
  std::string_view rest = entry.substr(kLogEntryHeader);
  LogUnit u;
  for (;;) {
    MAYFLY_TRY(bool more, ReadLogUnit(&rest, &u));
    if (!more) return Ok();
    if (u.ticks == 0) continue;
    if (u.IsBatch()) {
      const size_t parts = std::max<size_t>(u.parts.size(), 1);
      for (size_t part = 0, first = 0; part < parts; ++part) {
        const size_t n = u.parts.empty() ? u.records.size() : u.parts[part];
        f(u.ts + part,
          ApplyOps(u, std::span(u.records).subspan(first, n), part, term, deadline_field));
        first += n;
      }
      continue;
    }
    uint64_t ts = u.ts;
    for (const LogRecord& r : u.records) {
      f(ts, BuildBson([&](BsonBuilder& b) {
          if (!u.lsid.empty() && r.kind <= LogRecord::kDelete)
            b.Append("lsid", BsonView(u.lsid)).Append("txnNumber", u.txn_number);
          AppendOperation(u, r, deadline_field, b);
          if (r.stmt_id) b.Append("stmtId", *r.stmt_id);
          AppendPlace(ts, term, u.wall, b);
        }));
      ++ts;
    }
  }
}

std::unique_ptr<RecordCursor> OplogSource::Scan(RecordScan scan) {
  return std::make_unique<OplogCursor>(consensus_, collection_id_, std::move(scan));
}

Result<bool> OplogSource::Fetch(std::string_view record_key, const ReadView&,
                                Storage::Record* out) {
  if (record_key.size() != kIdPrefixSize + 8) return false;
  RecordScan scan;
  scan.lower = std::string(record_key);
  scan.upper = scan.lower + '\0';
  OplogCursor cursor(consensus_, collection_id_, std::move(scan));
  MAYFLY_TRY(bool found, cursor.Next());
  if (!found) return false;
  out->pinned.Assign(cursor.doc().bytes());
  out->doc = BsonView(out->pinned.view());
  out->expire_at.reset();
  return true;
}

uint64_t OplogSource::Bytes() { return consensus_.Status().log_bytes; }

int64_t OplogSource::Count() {
  constexpr int64_t kExact = 1000;
  std::unique_ptr<LogCursor> log = consensus_.ReadLog();
  log->SeekToLast();
  if (!log->Valid()) return 0;
  const uint64_t last = log->entry().position.index;
  int64_t entries = 0, documents = 0;
  uint64_t index = last;
  for (; log->Valid() && entries < kExact; log->Prev(), ++entries) {
    const CommittedEntry e = log->entry();
    index = e.position.index;
    if (e.kind != CommittedEntry::Kind::kData || e.data.size() < kLogEntryHeader) continue;
    std::string_view rest = e.data.substr(kLogEntryHeader);
    for (;;) {
      uint64_t ts;
      uint32_t ticks;
      int64_t wall;
      auto more = SkipLogUnit(&rest, &ts, &ticks, &wall);
      if (!more || !more.value()) break;
      documents += ticks;
    }
  }
  // In a longer log, the newest entries are used to estimate how many documents an entry has.
  const uint64_t first = consensus_.Status().first.index;
  if (first == 0 || index <= first || entries == 0) return documents;
  return documents +
         static_cast<int64_t>(static_cast<double>(index - first) * static_cast<double>(documents) /
                              static_cast<double>(entries));
}

}  // namespace mayfly
