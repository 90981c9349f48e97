#include "storage/write/log_format.h"

#include <algorithm>
#include <optional>
#include <span>

#include "protocol/bson_builder.h"
#include "protocol/hex.h"
#include "protocol/varint.h"
#include "storage/keys/key_format.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {
namespace {

constexpr uint8_t kHasStatement = 0x80, kHasBefore = 0x40;
/// Instead of kExpiredTtlIndex: the field and the date follow. No DeleteReason has this number.
constexpr char kReasonWithRule = 6;
static_assert(kReasonWithRule > static_cast<int>(DeleteReason::kMerged));
constexpr uint8_t kSessionWrite = 1, kSessionTransaction = 2, kSessionLargeTransaction = 3;

template <class T>
void PutLe(std::string& out, T v) {
  char b[sizeof v];
  StoreLe<T>(b, v);
  out.append(b, sizeof b);
}

/// Reads with bounds; after the first failure everything is empty.
class LogEntryReader {
 public:
  explicit LogEntryReader(std::string_view in) : in_(in) {}
  bool ok() const { return ok_; }
  std::string_view rest() const { return in_; }
  uint8_t Byte() {
    if (in_.empty()) return Fail();
    auto b = static_cast<uint8_t>(in_.front());
    in_.remove_prefix(1);
    return b;
  }
  uint64_t Varint() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t b = Byte();
      if (!ok_) return 0;
      v |= static_cast<uint64_t>(b & 0x7F) << shift;
      if (b < 0x80) return v;
    }
    return Fail();
  }
  uint32_t Varint32() {
    const uint64_t v = Varint();
    if (v > UINT32_MAX) return Fail();
    return static_cast<uint32_t>(v);
  }
  int64_t Zigzag() {
    const uint64_t v = Varint();
    return static_cast<int64_t>(v >> 1) ^ -static_cast<int64_t>(v & 1);
  }
  std::string_view Bytes(uint64_t n) {
    if (n > in_.size()) {
      Fail();
      return {};
    }
    std::string_view s = in_.substr(0, n);
    in_.remove_prefix(n);
    return s;
  }
  std::string_view Text() { return Bytes(Varint()); }
  template <class T>
  T Le() {
    std::string_view s = Bytes(sizeof(T));
    return s.size() == sizeof(T) ? LoadLe<T>(s.data()) : T();
  }
  uint8_t Fail() {
    ok_ = false;
    in_ = {};
    return 0;
  }

 private:
  std::string_view in_;
  bool ok_ = true;
};

Error DamagedLogEntry() {
  return {ErrorCode::kInternalError, "damaged entry in the replication log"};
}

size_t BeginUnit(std::string& out) {
  const size_t start = out.size();
  out.append(20, '\0');  // size, ts, wall
  return start;
}
void EndUnit(std::string& out, size_t start) {
  StoreLe<uint32_t>(out.data() + start, static_cast<uint32_t>(out.size() - start - 4));
}

/// `before_records`: how many effects stand before those of records.
void PutChanges(const WriteUnit::Impl& u, size_t before_records,
                const std::function<int()>& all_read, std::string& out, EncodedUnit* encoded) {
  std::optional<bool> with_rule;
  for (const DocumentChange& c : u.changes) {
    const LogRecord::Kind kind = c.kind == DocumentChange::kInsert   ? LogRecord::kInsert
                                 : c.kind == DocumentChange::kUpdate ? LogRecord::kUpdate
                                                                     : LogRecord::kDelete;
    out.push_back(static_cast<char>(kind | (c.stmt_id >= 0 ? kHasStatement : 0) |
                                    (c.before.empty() ? 0 : kHasBefore)));
    if (c.stmt_id >= 0) PutSigned(out, c.stmt_id);
    PutVarint(out, c.collection);
    if (kind != LogRecord::kDelete) PutVarint(out, before_records + c.effect);
    if (kind == LogRecord::kUpdate) PutText(out, c.detail);
    if (kind == LogRecord::kDelete) {
      PutText(out, c.detail);
      const bool rule = !c.field.empty();
      if (rule && !with_rule) with_rule = !all_read || all_read() >= kLogEntryWithRule;
      out.push_back(rule && *with_rule ? kReasonWithRule : static_cast<char>(c.cause.reason));
      if (c.cause.reason == DeleteReason::kMerged) [[unlikely]]
        encoded->version = std::max(encoded->version, kLogEntryWithMerge);
      if (c.cause.expired()) {
        PutText(out, c.rule);
        PutSigned(out, c.cause.deadline.millis);
      }
      if (rule && *with_rule) {
        PutText(out, c.field);
        PutSigned(out, c.date);
        encoded->version = std::max(encoded->version, kLogEntryWithRule);
      }
    }
    if (!c.before.empty()) {
      PutText(out, c.before);
      encoded->version = std::max(encoded->version, kLogEntryWithBefore);
    }
  }
}

void PutCommands(const WriteUnit::Impl& u, std::string& out) {
  for (const LoggedCommand& c : u.commands) {
    out.push_back(static_cast<char>(LogRecord::kCommand));
    PutText(out, c.db);
    out.push_back(c.has_uuid ? 1 : 0);
    if (c.has_uuid) out.append(reinterpret_cast<const char*>(c.uuid.data()), c.uuid.size());
    PutText(out, c.o);
    PutText(out, c.o2);
  }
}

}  // namespace

void BeginLogEntry(uint64_t origin, uint64_t sequence, std::string& out) {
  out.push_back(static_cast<char>(kLogEntryPlain));
  PutLe(out, origin);
  PutLe(out, sequence);
}

void RequireLogEntryVersion(std::string& entry, uint8_t version) {
  entry[0] = static_cast<char>(std::max(static_cast<uint8_t>(entry[0]), version));
}

void SetUnitTime(char* unit, uint64_t ts, int64_t wall_millis) {
  StoreLe<uint64_t>(unit + 4, ts);
  StoreLe<int64_t>(unit + 12, wall_millis);
}

namespace {

/// `parts`: of a transaction.
void PutSession(const WriteUnit::Impl& u, std::span<const uint32_t> parts, std::string& out) {
  const uint8_t session = u.log_session.empty() ? 0
                          : parts.size() > 1    ? kSessionLargeTransaction
                          : !parts.empty()      ? kSessionTransaction
                                                : kSessionWrite;
  out.push_back(static_cast<char>(session));
  if (session == 0) return;
  PutText(out, u.log_session);
  PutSigned(out, u.txn_number);
  if (session != kSessionLargeTransaction) return;
  PutVarint(out, parts.size());
  for (uint32_t n : parts) PutVarint(out, n);
}

/// `start`: of the unit in `out`.
void PutEffect(const WriteUnit::Impl& u, Keyspace ks, const StagedOp& o, size_t start,
               std::string& out, EncodedUnit* encoded) {
  const LogEffect::Op op = o.kind == StagedOp::kPut      ? LogEffect::kPut
                           : o.kind == StagedOp::kDelete ? LogEffect::kDelete
                                                         : LogEffect::kDeleteRange;
  out.push_back(static_cast<char>(static_cast<size_t>(ks) << 4 | op));
  PutText(out, o.key());
  size_t time = out.size() - o.key_size;
  if (op == LogEffect::kPut) {
    PutVarint(out, o.head_size + size_t{o.tail_size});
    if (ks == Keyspace::kRecords) time = out.size() + 1;
    out.append(o.head()).append(o.tail());
  } else if (op == LogEffect::kDeleteRange) {
    PutText(out, o.tail());
  }
  if (!o.moves) [[likely]]
    return;
  if (ks == Keyspace::kExpiry) time += kDeadlinePrefixSize;
  const auto latest = u.transaction->latest.find(o.sequence);
  encoded->moves.push_back(
      {static_cast<uint32_t>(time - start),
       latest == u.transaction->latest.end() ? Instant{INT64_MAX} : latest->second});
}

}  // namespace

void MoveLogTimes(char* unit, const std::vector<LogMove>& moves, int64_t wall_millis) {
  if (moves.empty()) return;
  const auto was = LoadLe<int64_t>(unit + 12);
  if (wall_millis <= was) return;
  int64_t passed = 0;
  if (__builtin_sub_overflow(wall_millis, was, &passed)) passed = INT64_MAX;
  for (const LogMove& m : moves) {
    char* const at = unit + m.at;
    int64_t later = 0;
    if (__builtin_add_overflow(LoadTime64(at).millis, passed, &later)) later = INT64_MAX;
    StoreBe64(at, static_cast<uint64_t>(std::min(later, m.latest.millis)) ^ kTimeSign);
  }
}

EncodedUnit EncodeLogUnit(const WriteUnit& unit, std::string& out,
                          const std::function<int()>& all_read) {
  const WriteUnit::Impl& u = const_cast<WriteUnit&>(unit).impl();
  const size_t start = BeginUnit(out);
  size_t expired = 0;
  for (const DocumentChange& c : u.changes)
    expired += c.kind == DocumentChange::kDelete && c.cause.expired();
  const size_t records = u.changes.size() + u.commands.size();
  const bool transaction = u.transaction && u.transaction->logged;
  const bool batch = (expired == records && records > 1) || transaction;
  const std::vector<uint32_t> parts =
      transaction ? TransactionParts(unit) : std::vector<uint32_t>();
  const bool large = parts.size() > 1;
  EncodedUnit encoded{static_cast<uint32_t>(large ? parts.size() : batch ? 1 : records)};
  PutVarint(out, encoded.ticks);
  PutVarint(out, u.collections.size());
  for (const TouchedCollection& t : u.collections) {
    PutVarint(out, t.id);
    if (t.coll) {
      out.append(reinterpret_cast<const char*>(t.coll->uuid.data()), t.coll->uuid.size());
      PutText(out, t.coll->ns);
    } else {
      out.append(16, '\0');
      PutText(out, {});
    }
  }
  size_t effects = 0, before_records = 0;
  for (size_t ks = 0; ks < kKeyspaceCount; ++ks) {
    if (ks == static_cast<size_t>(Keyspace::kRecords)) before_records = effects;
    effects += u.ops[ks].size();
  }
  PutVarint(out, effects);
  for (size_t ks = 0; ks < kKeyspaceCount; ++ks)
    for (const StagedOp& o : u.ops[ks])
      PutEffect(u, static_cast<Keyspace>(ks), o, start, out, &encoded);
  size_t counted = 0;
  for (const TouchedCollection& t : u.collections) counted += t.counted;
  PutVarint(out, counted);
  for (const TouchedCollection& t : u.collections) {
    if (!t.counted) continue;
    PutVarint(out, t.id);
    PutSigned(out, t.documents);
    PutSigned(out, t.bytes);
    PutSigned(out, t.last_sequence);
    PutSigned(out, t.first_sequence);
  }
  PutVarint(out, u.multikey.size());
  for (const auto& m : u.multikey) {
    PutVarint(out, m.index->id);
    PutVarint(out, m.bits);
  }
  if (transaction) encoded.version = large ? kLogEntryEnd : kLogEntryWithTransaction;
  PutSession(u, parts, out);
  PutVarint(out, records);
  // A transaction's new collections come before its writes to them; a separate catalog change comes
  // after its writes.
  if (transaction) PutCommands(u, out);
  PutChanges(u, before_records, all_read, out, &encoded);
  if (!transaction) PutCommands(u, out);
  EndUnit(out, start);
  encoded.decoded = effects * sizeof(LogEffect) + records * sizeof(LogRecord);
  return encoded;
}

EncodedUnit EncodeNoopUnit(BsonView o, std::string& out) {
  const size_t start = BeginUnit(out);
  PutVarint(out, 1);  // ticks
  for (int i = 0; i < 4; ++i) PutVarint(out, 0);
  out.push_back(0);
  PutVarint(out, 1);
  out.push_back(static_cast<char>(LogRecord::kNoop));
  PutText(out, o.bytes());
  EndUnit(out, start);
  return {1};
}

void LogUnit::Clear() {
  collections.clear();
  effects.clear();
  counts.clear();
  multikeys.clear();
  records.clear();
  parts.clear();
  lsid = {};
  transaction = false;
}

Result<LogEntryHeader> ReadLogEntryHeader(std::string_view entry) {
  if (entry.size() < kLogEntryHeader) return DamagedLogEntry();
  const auto version = static_cast<uint8_t>(entry[0]);
  if (version < kLogEntryPlain || version > kLogEntryLatest)
    return Error{ErrorCode::kUnsupportedFormat,
                 "an entry of the replication log has format " + std::to_string(version) +
                     "; this version reads " + std::to_string(kLogEntryPlain) + " to " +
                     std::to_string(kLogEntryLatest) + " (" + std::to_string(entry.size()) +
                     " bytes, beginning " + HexDigits(entry.substr(0, 64)) + ")"};
  return LogEntryHeader{LoadLe<uint64_t>(entry.data() + 1), LoadLe<uint64_t>(entry.data() + 9)};
}

Result<bool> SkipLogUnit(std::string_view* rest, uint64_t* ts, uint32_t* ticks, int64_t* wall) {
  if (rest->empty()) return false;
  LogEntryReader r(*rest);
  const auto size = r.Le<uint32_t>();
  LogEntryReader in(r.Bytes(size));
  *ts = in.Le<uint64_t>();
  *wall = in.Le<int64_t>();
  *ticks = in.Varint32();
  if (!r.ok() || !in.ok()) return DamagedLogEntry();
  *rest = r.rest();
  return true;
}

namespace {

/// `in_parts`: how many records those of a large transaction have together. False: damaged.
bool ReadSession(LogEntryReader& r, LogUnit* unit, uint64_t* in_parts) {
  const uint8_t session = r.Byte();
  if (session > kSessionLargeTransaction) return false;
  if (session == 0) return true;
  unit->transaction = session != kSessionWrite;
  unit->lsid = r.Text();
  unit->txn_number = r.Zigzag();
  if (session != kSessionLargeTransaction) return true;
  for (uint64_t n = r.Varint(); n > 0 && r.ok(); --n) {
    unit->parts.push_back(r.Varint32());
    *in_parts += unit->parts.back();
    if (unit->parts.back() == 0) return false;
  }
  return !unit->parts.empty() && unit->parts.size() == unit->ticks;
}

}  // namespace

Result<bool> ReadLogUnit(std::string_view* rest, LogUnit* unit) {
  if (rest->empty()) return false;
  unit->Clear();
  LogEntryReader outer(*rest);
  const auto size = outer.Le<uint32_t>();
  LogEntryReader r(outer.Bytes(size));
  unit->ts = r.Le<uint64_t>();
  unit->wall = r.Le<int64_t>();
  unit->ticks = r.Varint32();
  for (uint64_t n = r.Varint(); n > 0 && r.ok(); --n) {
    LogCollection c;
    c.id = r.Varint32();
    c.uuid = r.Bytes(16);
    c.ns = r.Text();
    unit->collections.push_back(c);
  }
  for (uint64_t n = r.Varint(); n > 0 && r.ok(); --n) {
    LogEffect e;
    const uint8_t op = r.Byte();
    if ((op & 15) > 2 || (op >> 4) >= kKeyspaceCount) return DamagedLogEntry();
    e.op = static_cast<LogEffect::Op>(op & 15);
    e.keyspace = static_cast<Keyspace>(op >> 4);
    e.key = r.Text();
    if (e.op != LogEffect::kDelete) e.value = r.Text();
    unit->effects.push_back(e);
  }
  for (uint64_t n = r.Varint(); n > 0 && r.ok(); --n) {
    LogCount c;
    c.id = r.Varint32();
    c.documents = r.Zigzag();
    c.bytes = r.Zigzag();
    c.last_sequence = r.Zigzag();
    c.first_sequence = r.Zigzag();
    unit->counts.push_back(c);
  }
  for (uint64_t n = r.Varint(); n > 0 && r.ok(); --n) {
    LogMultikey m;
    m.index = r.Varint32();
    m.fields = r.Varint();
    unit->multikeys.push_back(m);
  }
  uint64_t in_parts = 0;
  if (!ReadSession(r, unit, &in_parts)) return DamagedLogEntry();
  for (uint64_t n = r.Varint(); n > 0 && r.ok(); --n) {
    LogRecord c;
    const uint8_t kind = r.Byte();
    c.kind = static_cast<LogRecord::Kind>(kind & ~(kHasStatement | kHasBefore));
    if (kind & kHasStatement) c.stmt_id = static_cast<int32_t>(r.Zigzag());
    switch (c.kind) {
      case LogRecord::kInsert:
      case LogRecord::kUpdate:
        c.collection = r.Varint32();
        c.effect = r.Varint32();
        if (c.effect >= unit->effects.size()) return DamagedLogEntry();
        if (c.kind == LogRecord::kUpdate) c.detail = r.Text();
        break;
      case LogRecord::kDelete: {
        c.collection = r.Varint32();
        c.detail = r.Text();
        const uint8_t reason = r.Byte();
        const bool rule = reason == kReasonWithRule;
        c.reason = rule ? DeleteReason::kExpiredTtlIndex : static_cast<DeleteReason>(reason);
        if (c.reason > DeleteReason::kMerged) return DamagedLogEntry();
        if (DeleteCause(c.reason).expired()) {
          c.rule = r.Text();
          c.deadline = r.Zigzag();
        }
        if (rule) {
          c.field = r.Text();
          c.date = r.Zigzag();
        }
        break;
      }
      case LogRecord::kCommand:
        c.db = r.Text();
        if (r.Byte() == 1) c.uuid = r.Bytes(16);
        c.detail = r.Text();
        c.o2 = r.Text();
        break;
      case LogRecord::kNoop:
        c.detail = r.Text();
        break;
      default:
        return DamagedLogEntry();
    }
    if (kind & kHasBefore) {
      if (c.kind != LogRecord::kUpdate && c.kind != LogRecord::kDelete) return DamagedLogEntry();
      c.before = r.Text();
    }
    if (c.kind <= LogRecord::kDelete && c.collection >= unit->collections.size())
      return DamagedLogEntry();
    unit->records.push_back(c);
  }
  if (!r.ok() || !outer.ok() || !r.rest().empty()) return DamagedLogEntry();
  if (!unit->parts.empty() && in_parts != unit->records.size()) return DamagedLogEntry();
  *rest = outer.rest();
  return true;
}

// --- a unit that is too large for one entry ------------------------------------------------------

namespace {

void BeginFrame(uint8_t version, const LogEntryHeader& unit, std::string& out) {
  out.clear();
  BeginLogEntry(unit.origin, unit.sequence, out);
  out[0] = static_cast<char>(version);
  BeginUnit(out);
}

/// What follows the ticks of the one frame that the entry consists of.
Result<LogEntryReader> OpenFrame(std::string_view entry) {
  MAYFLY_TRY(ReadLogEntryHeader(entry));
  LogEntryReader r(entry.substr(kLogEntryHeader));
  const auto size = r.Le<uint32_t>();
  LogEntryReader in(r.Bytes(size));
  in.Bytes(16);
  in.Varint32();
  if (!r.ok() || !in.ok() || !r.rest().empty()) return DamagedLogEntry();
  return in;
}

}  // namespace

void EncodeLogChunk(const LogEntryHeader& unit, int64_t wall_millis, uint64_t number,
                    std::string_view bytes, std::string& out) {
  BeginFrame(kLogEntryChunk, unit, out);
  out.reserve(out.size() + bytes.size() + 16);
  PutVarint(out, 0);  // ticks
  PutVarint(out, number);
  out.append(bytes);
  EndUnit(out, kLogEntryHeader);
  SetUnitTime(out.data() + kLogEntryHeader, 0, wall_millis);
}

void AppendLogMoves(const std::vector<LogMove>& moves, std::string& unit) {
  const size_t begin = unit.size();
  PutVarint(unit, moves.size());
  uint32_t before = 0;
  for (const LogMove& m : moves) {
    PutVarint(unit, m.at - before);
    before = m.at;
    const bool bounded = m.latest.millis != INT64_MAX;
    unit.push_back(bounded ? 1 : 0);
    if (bounded) AppendTime64(unit, m.latest);
  }
  PutLe(unit, static_cast<uint32_t>(unit.size() - begin));
}

namespace {

/// Takes what AppendLogMoves has put there off the end of `whole`, an entry of the one unit.
Result<std::vector<LogMove>> TakeLogMoves(std::string& whole) {
  const size_t end = whole.size() - 4;  // of a unit: it is longer
  const size_t size = LoadLe<uint32_t>(whole.data() + end);
  if (size > end - kLogEntryHeader - 20) return DamagedLogEntry();
  LogEntryReader in(std::string_view(whole).substr(end - size, size));
  std::vector<LogMove> moves;
  uint64_t at = 0;
  for (uint64_t n = in.Varint(); n > 0 && in.ok(); --n) {
    at += in.Varint32();
    Instant latest{INT64_MAX};
    const uint8_t kind = in.Byte();
    if (kind == 1) {
      const std::string_view time = in.Bytes(8);
      if (in.ok()) latest = LoadTime64(time.data());
    }
    if (kind > 1 || at < 20 || at + 8 > end - size - kLogEntryHeader) return DamagedLogEntry();
    moves.push_back({static_cast<uint32_t>(at), latest});
  }
  if (!in.ok() || !in.rest().empty()) return DamagedLogEntry();
  whole.resize(end - size);
  return moves;
}

}  // namespace

void EncodeLogEnd(const LogEntryHeader& unit, uint32_t ticks, const LogChunks& chunks, bool moves,
                  std::string& out) {
  BeginFrame(moves ? kLogEntryEndMoves : kLogEntryEnd, unit, out);
  PutVarint(out, ticks);
  PutVarint(out, chunks.bytes);
  PutVarint(out, chunks.indexes.size());
  uint64_t before = 0;
  for (uint64_t index : chunks.indexes) {
    PutVarint(out, index - before);
    before = index;
  }
  EndUnit(out, kLogEntryHeader);
}

Result<std::string_view> ReadLogChunk(std::string_view entry, uint64_t* number) {
  if (!IsLogChunk(entry)) return DamagedLogEntry();
  MAYFLY_TRY(LogEntryReader in, OpenFrame(entry));
  *number = in.Varint();
  if (!in.ok()) return DamagedLogEntry();
  return in.rest();
}

Result<LogChunks> ReadLogEnd(std::string_view entry) {
  if (!IsLogEnd(entry)) return DamagedLogEntry();
  MAYFLY_TRY(LogEntryReader in, OpenFrame(entry));
  LogChunks chunks;
  chunks.bytes = in.Varint();
  uint64_t index = 0;
  for (uint64_t n = in.Varint(); n > 0 && in.ok(); --n) {
    const uint64_t distance = in.Varint();
    if (distance == 0 || index + distance < index) return DamagedLogEntry();
    chunks.indexes.push_back(index += distance);
  }
  if (!in.ok() || !in.rest().empty() || chunks.indexes.empty() || chunks.bytes > kMaxLogUnitBytes)
    return DamagedLogEntry();
  return chunks;
}

Result<std::string> JoinLogUnit(
    std::string_view end, const std::function<Result<std::string_view>(uint64_t index)>& chunk) {
  MAYFLY_TRY(const LogEntryHeader unit, ReadLogEntryHeader(end));
  MAYFLY_TRY(const LogChunks chunks, ReadLogEnd(end));
  std::string_view frame = end.substr(kLogEntryHeader);
  uint64_t ts = 0;
  uint32_t ticks = 0;
  int64_t wall = 0;
  MAYFLY_TRY(SkipLogUnit(&frame, &ts, &ticks, &wall));
  std::string whole;
  whole.reserve(kLogEntryHeader + chunks.bytes);
  BeginLogEntry(unit.origin, unit.sequence, whole);
  RequireLogEntryVersion(whole, kLogEntryWithTransaction);
  for (uint64_t i = 0; i < chunks.indexes.size(); ++i) {
    MAYFLY_TRY(const std::string_view entry, chunk(chunks.indexes[i]));
    uint64_t number = 0;
    MAYFLY_TRY(const std::string_view bytes, ReadLogChunk(entry, &number));
    MAYFLY_TRY(const LogEntryHeader of, ReadLogEntryHeader(entry));
    if (of != unit || number != i || whole.size() - kLogEntryHeader + bytes.size() > chunks.bytes)
      return DamagedLogEntry();
    whole.append(bytes);
  }
  const bool moves_times = static_cast<uint8_t>(end[0]) == kLogEntryEndMoves;
  if (whole.size() != kLogEntryHeader + chunks.bytes || chunks.bytes < (moves_times ? 24 : 20))
    return DamagedLogEntry();
  if (moves_times) {
    MAYFLY_TRY(const std::vector<LogMove> moves, TakeLogMoves(whole));
    MoveLogTimes(whole.data() + kLogEntryHeader, moves, wall);
  }
  SetUnitTime(whole.data() + kLogEntryHeader, ts, wall);
  return whole;
}

}  // namespace mayfly
