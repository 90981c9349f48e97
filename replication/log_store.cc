#include "replication/log_store.h"

#include <bit>
#include <cstring>

#include "replication/byte_text.h"
#include "storage/keys/key_format.h"

namespace mayfly {
namespace {

constexpr std::string_view kState("\x00", 1), kEntries("\x01", 1), kSegments("\x02", 1);
constexpr size_t kEntryHead = 13;

std::string StateKey(std::string_view name) { return std::string(kState).append(name); }
std::string IndexKey(std::string_view prefix, uint64_t index) {
  std::string k(prefix);
  AppendBe64(k, index);
  return k;
}

Error Damaged(std::string_view what) {
  return {ErrorCode::kInternalError,
          "the replication log is damaged (" + std::string(what) + "): resync this member"};
}

class StoredLogCursor final : public LogCursor {
 public:
  StoredLogCursor(KvStore& kv, uint64_t first, uint64_t last, bool fill_cache) : first_(first) {
    KvIterOptions o;
    o.lower = IndexKey(kEntries, first);
    o.upper = IndexKey(kEntries, last + 1);
    o.fill_cache = fill_cache;
    it_ = kv.NewIterator(Keyspace::kOplog, std::move(o));
  }
  void Seek(uint64_t index) override {
    it_->Seek(IndexKey(kEntries, std::max(index, first_)));
    Load();
  }
  void SeekToLast() override {
    it_->SeekToLast();
    Load();
  }
  void Next() override {
    it_->Next();
    Load();
  }
  void Prev() override {
    it_->Prev();
    Load();
  }
  bool Valid() const override { return valid_; }
  CommittedEntry entry() const override { return ToCommitted(entry_); }
  Result<void> status() const override {
    if (damaged_) return Damaged("an entry cannot be read");
    return it_->status();
  }

 private:
  void Load() {
    valid_ = false;
    if (!it_->Valid() || it_->key().size() != 9) return;
    if (!DecodeLogEntry(it_->value(), &entry_)) {
      damaged_ = true;
      return;
    }
    entry_.index = LoadBe64(it_->key().data() + 1);
    valid_ = true;
  }
  const uint64_t first_;
  std::unique_ptr<KvIterator> it_;
  LogEntry entry_;
  bool valid_ = false, damaged_ = false;
};

}  // namespace

bool DecodeLogEntry(std::string_view value, LogEntry* out) {
  uint32_t size = 0;
  if (value.empty()) return false;
  out->type = static_cast<uint8_t>(value[0]);
  value.remove_prefix(1);
  if (out->type > LogEntry::kConfChangeV2 || !TakeNumber(&value, &out->term) ||
      !TakeNumber(&value, &size) || size > value.size())
    return false;
  out->context = value.substr(0, size);
  out->data = value.substr(size);
  return true;
}

CommittedEntry ToCommitted(const LogEntry& e) {
  CommittedEntry c;
  c.position = {e.term, e.index};
  if (e.type == LogEntry::kNormal && e.context.empty() && !e.data.empty()) {
    c.data = e.data;
    return c;
  }
  c.kind = CommittedEntry::Kind::kNoop;
  ConsensusConfiguration configuration;
  // The payload is at the end of the encoded configuration.
  if (!e.context.empty() && DecodeConfiguration(e.context, &configuration)) {
    c.kind = CommittedEntry::Kind::kConfiguration;
    c.data = e.context.substr(e.context.size() - configuration.payload.size());
  }
  return c;
}

std::string EncodeConfiguration(const ConsensusConfiguration& c) {
  std::string out(1, '\x01');
  std::string id = c.set_id;
  id.resize(12, '\0');
  out.append(id);
  AppendNumber(out, static_cast<uint16_t>(c.members.size()));
  for (const ConsensusMember& m : c.members) {
    AppendNumber(out, m.id);
    out.push_back(m.voter ? 1 : 0);
    AppendNumber(out, std::bit_cast<uint64_t>(m.priority));
    AppendNumber(out, static_cast<uint16_t>(m.address.size()));
    out.append(m.address);
  }
  return out.append(c.payload);
}

bool DecodeConfiguration(std::string_view in, ConsensusConfiguration* out) {
  uint16_t n = 0;
  if (in.size() < 15 || in[0] != 1) return false;
  out->set_id = in.substr(1, 12);
  in.remove_prefix(13);
  if (!TakeNumber(&in, &n)) return false;
  out->members.clear();
  for (uint16_t i = 0; i < n; ++i) {
    ConsensusMember m;
    uint64_t bits = 0;
    uint16_t size = 0;
    if (!TakeNumber(&in, &m.id) || in.empty()) return false;
    m.voter = in[0] != 0;
    in.remove_prefix(1);
    if (!TakeNumber(&in, &bits) || !TakeNumber(&in, &size) || size > in.size()) return false;
    m.priority = std::bit_cast<double>(bits);
    m.address = in.substr(0, size);
    in.remove_prefix(size);
    out->members.push_back(std::move(m));
  }
  out->payload = in;
  return true;
}

Result<std::unique_ptr<LogStore>> LogStore::Open(KvStore& kv) {
  std::unique_ptr<LogStore> store(new LogStore(kv));
  MAYFLY_TRY(store->Load());
  return store;
}

Result<void> LogStore::Load() {
  PinnedValue v;
  std::string_view in;
  auto row = [&](std::string_view name) -> Result<bool> {
    MAYFLY_TRY(bool found, kv_.Get(Keyspace::kOplog, StateKey(name), &v));
    in = found ? v.view() : std::string_view();
    return found;
  };
  MAYFLY_TRY(bool known, row("format"));
  if (known && (in.size() != 1 || in < kLogFormatFirst || in > kLogFormatVersion))
    return Error{ErrorCode::kUnsupportedFormat,
                 "the replication log has format " + std::string(in.substr(0, 32)) +
                     ", this version knows " + std::string(kLogFormatFirst) + " to " +
                     std::string(kLogFormatVersion) + ": run the version that wrote it"};
  const bool upgrade = known && in != kLogFormatVersion;
  MAYFLY_TRY(bool has_node, row("node"));
  if (has_node && !TakeNumber(&in, &node_)) return Damaged("node");
  MAYFLY_TRY(bool has_hard, row("hard_state"));
  if (has_hard && !(TakeNumber(&in, &hard_.term) && TakeNumber(&in, &hard_.vote) &&
                    TakeNumber(&in, &hard_.commit)))
    return Damaged("hard_state");
  MAYFLY_TRY(bool has_trimmed, row("trimmed"));
  if (has_trimmed && !(TakeNumber(&in, &trimmed_.index) && TakeNumber(&in, &trimmed_.term)))
    return Damaged("trimmed");
  MAYFLY_TRY(bool has_applied, row("applied"));
  if (has_applied) {
    LogPosition p;
    if (!(TakeNumber(&in, &p.index) && TakeNumber(&in, &p.term))) return Damaged("applied");
    conf_state_ = in;
    Applied(p);
  }
  MAYFLY_TRY(bool has_configuration, row("configuration"));
  if (has_configuration) configuration_ = in;

  first_ = trimmed_.index + 1;
  last_ = trimmed_.index;
  KvIterOptions o;
  o.lower = kEntries;
  o.upper = kSegments;
  auto it = kv_.NewIterator(Keyspace::kOplog, std::move(o));
  it->SeekToLast();
  MAYFLY_TRY(it->status());
  if (it->Valid()) {
    if (it->key().size() != 9) return Damaged("key of an entry");
    last_ = std::max<uint64_t>(last_, LoadBe64(it->key().data() + 1));
  }
  if (hard_.commit > last_ || applied().index > last_) return Damaged("entries are missing");

  KvIterOptions s;
  s.lower = kSegments;
  s.upper = "\x03";
  it = kv_.NewIterator(Keyspace::kOplog, std::move(s));
  segments_.push_back({first_, 0, {}});
  uint64_t total = 0;
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    std::string_view value = it->value();
    Segment next;
    uint64_t bytes = 0;
    if (it->key().size() != 9 || value.size() != 16) return Damaged("segment");
    next.first = LoadBe64(it->key().data() + 1);
    if (next.first <= first_) continue;
    segments_.back().ended = LoadTime64(value.data());
    std::memcpy(&bytes, value.data() + 8, 8);
    segments_.back().bytes = bytes;
    total += bytes;
    segments_.push_back(next);
  }
  MAYFLY_TRY(it->status());
  segments_.back().bytes = kv_.ApproximateBytes(
      Keyspace::kOplog, IndexKey(kEntries, segments_.back().first), std::string(kSegments));
  bytes_ = total + segments_.back().bytes;
  if (!upgrade) return Ok();
  auto batch = kv_.NewBatch();
  batch->Put(Keyspace::kOplog, StateKey("format"), kLogFormatVersion);
  return kv_.Write(*batch, true);
}

LogPosition LogStore::applied() const {
  std::lock_guard l(applied_mutex_);
  return applied_;
}

Result<void> LogStore::MakeNodeId(NodeId id) {
  auto batch = kv_.NewBatch();
  std::string value;
  AppendNumber(value, id);
  batch->Put(Keyspace::kOplog, StateKey("format"), kLogFormatVersion);
  batch->Put(Keyspace::kOplog, StateKey("node"), value);
  MAYFLY_TRY(kv_.Write(*batch, true));
  node_ = id;
  return Ok();
}

void LogStore::StageAppend(KvBatch& batch, std::span<const LogEntry> entries, Instant now) {
  if (entries.empty()) return;
  const uint64_t had = last_.load(std::memory_order_relaxed);
  const uint64_t has = entries.back().index;
  if (had > has)
    batch.DeleteRange(Keyspace::kOplog, IndexKey(kEntries, has + 1), IndexKey(kEntries, had + 1));
  while (segments_.size() > 1 && segments_.back().first > entries.front().index) {
    batch.Delete(Keyspace::kOplog, IndexKey(kSegments, segments_.back().first));
    segments_.pop_back();
  }
  uint64_t written = 0;
  for (const LogEntry& e : entries) {
    if (segments_.back().bytes >= segment_bytes_ && e.index > segments_.back().first) {
      segments_.back().ended = now;
      std::string value;
      AppendTime64(value, now);
      AppendNumber(value, segments_.back().bytes);
      batch.Put(Keyspace::kOplog, IndexKey(kSegments, e.index), value);
      segments_.push_back({e.index, 0, now});
    }
    key_.assign(kEntries);
    AppendBe64(key_, e.index);
    head_.assign(1, static_cast<char>(e.type));
    AppendNumber(head_, e.term);
    AppendNumber(head_, static_cast<uint32_t>(e.context.size()));
    head_.append(e.context);
    batch.Put(Keyspace::kOplog, key_, head_, e.data);
    const uint64_t size = key_.size() + head_.size() + e.data.size();
    segments_.back().bytes += size;
    written += size;
  }
  bytes_.fetch_add(written, std::memory_order_relaxed);
  last_.store(has, std::memory_order_release);
}

void LogStore::StageHardState(KvBatch& batch, const HardState& hard) {
  std::string value;
  AppendNumber(value, hard.term);
  AppendNumber(value, hard.vote);
  AppendNumber(value, hard.commit);
  batch.Put(Keyspace::kOplog, StateKey("hard_state"), value);
  hard_ = hard;
}

void LogStore::StageApplied(KvBatch& batch, LogPosition position, std::string_view conf_state,
                            std::string_view configuration) {
  if (!conf_state.empty()) conf_state_ = conf_state;
  if (!configuration.empty()) {
    configuration_ = configuration;
    batch.Put(Keyspace::kOplog, StateKey("configuration"), configuration_);
  }
  std::string value;
  AppendNumber(value, position.index);
  AppendNumber(value, position.term);
  batch.Put(Keyspace::kOplog, StateKey("applied"), value, conf_state_);
}

void LogStore::Applied(LogPosition position) {
  std::lock_guard l(applied_mutex_);
  applied_ = position;
}

void LogStore::StageReset(KvBatch& batch, LogPosition position) {
  batch.DeleteRange(Keyspace::kOplog, kEntries, "\x03");
  std::string value;
  AppendNumber(value, position.index);
  AppendNumber(value, position.term);
  batch.Put(Keyspace::kOplog, StateKey("trimmed"), value);
  StageOpenUnits(batch, {});
  trimmed_ = position;
  segments_.assign(1, {position.index + 1, 0, {}});
  bytes_ = 0;
  first_ = position.index + 1;
  last_ = position.index;
}

void LogStore::StageTruncate(KvBatch& batch, uint64_t index) {
  batch.DeleteRange(Keyspace::kOplog, IndexKey(kEntries, index), std::string(kSegments));
  while (segments_.size() > 1 && segments_.back().first >= index) {
    batch.Delete(Keyspace::kOplog, IndexKey(kSegments, segments_.back().first));
    segments_.pop_back();
  }
  last_ = index - 1;
}

Result<void> LogStore::Read(uint64_t low, uint64_t high, uint64_t max_bytes,
                            const std::function<void(const LogEntry&)>& emit) {
  KvIterOptions o;
  o.lower = IndexKey(kEntries, low);
  o.upper = IndexKey(kEntries, high);
  o.fill_cache = false;  // read once, by a member that lags behind
  auto it = kv_.NewIterator(Keyspace::kOplog, std::move(o));
  uint64_t bytes = 0, next = low;
  for (it->SeekToFirst(); it->Valid() && (next == low || bytes < max_bytes); it->Next(), ++next) {
    LogEntry e;
    if (it->key().size() != 9 || !DecodeLogEntry(it->value(), &e)) return Damaged("entry");
    e.index = LoadBe64(it->key().data() + 1);
    if (e.index != next) return Damaged("a gap at " + std::to_string(next));
    bytes += it->value().size();
    emit(e);
  }
  MAYFLY_TRY(it->status());
  if (next == low && low < high) return Damaged("no entry " + std::to_string(low));
  return Ok();
}

Result<uint64_t> LogStore::Term(uint64_t index) {
  if (index == trimmed_.index) return trimmed_.term;
  PinnedValue v;
  LogEntry e;
  MAYFLY_TRY(bool found, kv_.Get(Keyspace::kOplog, IndexKey(kEntries, index), &v));
  if (!found) return Error{ErrorCode::kNoSuchKey, "no log entry " + std::to_string(index)};
  if (!DecodeLogEntry(v.view(), &e)) return Damaged("entry " + std::to_string(index));
  return e.term;
}

std::unique_ptr<LogCursor> LogStore::Cursor(bool all) {
  return std::make_unique<StoredLogCursor>(kv_, first_index(), all ? last_index() : applied().index,
                                           !all);
}

Result<std::string> ReadOpenUnits(KvStore& kv) {
  PinnedValue v;
  MAYFLY_TRY(bool found, kv.Get(Keyspace::kOplog, StateKey("open_units"), &v));
  return found ? std::string(v.view()) : std::string();
}

void StageOpenUnits(KvBatch& batch, std::string_view row) {
  if (row.empty())
    batch.Delete(Keyspace::kOplog, StateKey("open_units"));
  else
    batch.Put(Keyspace::kOplog, StateKey("open_units"), row);
}

Result<std::optional<ArchivedRow>> ReadArchived(KvStore& kv) {
  PinnedValue v;
  std::optional<ArchivedRow> row;
  MAYFLY_TRY(bool found, kv.Get(Keyspace::kOplog, StateKey("archived"), &v));
  if (!found) return row;
  std::string_view in = v.view();
  uint8_t version = 0;
  ArchivedRow& r = row.emplace();
  if (!TakeNumber(&in, &version) || version != 1 || !TakeNumber(&in, &r.node) ||
      !TakeNumber(&in, &r.position.index) || !TakeNumber(&in, &r.position.term) ||
      !TakeNumber(&in, &r.cut) || in.size() != 1)
    return Damaged("archived");
  r.history_lost = in[0] != 0;
  return row;
}

void StageArchived(KvBatch& batch, const ArchivedRow& row) {
  std::string value(1, '\x01');
  AppendNumber(value, row.node);
  AppendNumber(value, row.position.index);
  AppendNumber(value, row.position.term);
  AppendNumber(value, row.cut);
  value.push_back(row.history_lost ? 1 : 0);
  batch.Put(Keyspace::kOplog, StateKey("archived"), value);
}

uint64_t LogStore::TrimPoint(uint64_t max_bytes, int64_t min_age_ms, uint64_t keep_from,
                             Instant now) const {
  uint64_t left = bytes_.load(std::memory_order_relaxed), point = 0;
  for (size_t i = 0; i + 1 < segments_.size() && left > max_bytes; ++i) {
    const Segment& s = segments_[i];
    if (segments_[i + 1].first > keep_from || now.millis - s.ended.millis < min_age_ms) break;
    left -= std::min(left, s.bytes);
    point = segments_[i + 1].first;
  }
  return point;
}

void LogStore::StageTrim(KvBatch& batch, uint64_t first, uint64_t term) {
  batch.DeleteRange(Keyspace::kOplog, IndexKey(kEntries, first_), IndexKey(kEntries, first));
  batch.DeleteRange(Keyspace::kOplog, std::string(kSegments), IndexKey(kSegments, first + 1));
  std::string value;
  AppendNumber(value, first - 1);
  AppendNumber(value, term);
  batch.Put(Keyspace::kOplog, StateKey("trimmed"), value);
  while (segments_.size() > 1 && segments_[1].first <= first) {
    bytes_.fetch_sub(std::min(bytes_.load(), segments_.front().bytes), std::memory_order_relaxed);
    segments_.erase(segments_.begin());
  }
  trimmed_ = {term, first - 1};
  first_.store(first, std::memory_order_release);
}

Result<std::optional<ConsensusConfiguration>> ReadStoredConfiguration(KvStore& kv) {
  MAYFLY_TRY(std::unique_ptr<LogStore> store, LogStore::Open(kv));
  std::optional<ConsensusConfiguration> out;
  if (store->stored_configuration().empty()) return out;
  if (!DecodeConfiguration(store->stored_configuration(), &out.emplace()))
    return Damaged("configuration");
  return out;
}

Result<void> ForgetSet(KvStore& kv) {
  auto batch = kv.NewBatch();
  batch->DeleteRange(Keyspace::kOplog, kState, "\x03");
  return kv.Write(*batch, true);
}

}  // namespace mayfly
