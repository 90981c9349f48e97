#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "storage/catalog/catalog_types.h"
#include "storage/kv/kv.h"
#include "storage/write/write_unit.h"

// clang-format off
/// An entry of a replica set's log: the effects of one or several write units on the keyspaces, and what `local.oplog.rs` shows of them.
/// A document is in it once: the oplog's `o` of an insert is the value of the effect. Applying needs no look-up in the store. The same
/// grammar is in docs/on-disk-format.md. DO NOT RENUMBER: add a version instead.
///
///   entry       := version:u8  origin:le64 sequence:le64  unit*           version: 1, 2 if a record has its `before`, 3 if a unit is a transaction,
///                                      7 if a record's reason is 5, 8 if one is 6
///                                      origin: random, of the process that proposed it; sequence: its count of proposals
///                | 4:u8 origin:le64 sequence:le64 frame                   a chunk: a part of the bytes of a unit, whose parts and end
///                                      have the same origin and sequence; body := number:varint bytes; number: 0, 1, …; ticks: 0;
///                                      number 2^64 - 1, without bytes: the unit of these chunks is given up and never ends
///                | 5:u8 origin:le64 sequence:le64 frame                   the end: the unit of these chunks happens here, at this time
///                                      body := bytes:varint n:varint first:varint (distance:varint){n - 1}
///                                      bytes: of the unit; first: index of the log of chunk 0; distance: from the one before
///                | 6:u8 origin:le64 sequence:le64 frame                   likewise; the unit is followed by `moves`, which counts in `bytes`
///   moves       := n:varint (distance:varint kind:u8 [latest:time64])* size:le32 (of what is before it in `moves`)
///                                      times in the unit that count from its end, each a time64 so far behind the one before: by how much
///                                      `wall` of the end is later than that of the unit, they are later; kind: 0, or 1: than `latest` never
///   frame       := size:le32 (of what follows)  ts:le64 wall:le64 ticks:varint  body
///   unit        := size:le32 (of what follows)  ts:le64 wall:le64 ticks:varint  collections effects counts multikeys session records
///                                      ts: seconds since 1970 << 32 | increment, of the first record; the n-th has ts + n; ticks: how many
///                                      wall: milliseconds since 1970
///   collections := n:varint (id:varint uuid:16 bytes ns:text)*
///   effects     := n:varint (op:u8 key:text [value:text | end:text])*      op: keyspace << 4 | 0 put, 1 delete, 2 delete the range
///   counts      := n:varint (id:varint documents:zigzag bytes:zigzag last_sequence:zigzag first_sequence:zigzag)*
///                                      what is added to the counters; sequences: 0 or the new value (capped collections)
///   multikeys   := n:varint (index:varint fields:varint)*                  bit i: field i has met an array
///   session     := 0:u8 | 1:u8 lsid:text txn_number:zigzag                  1: of a retryable write, 2: of a transaction, whose
///                  | 2:u8 lsid:text txn_number:zigzag                       records are one `applyOps`; 3: one each of so many
///                  | 3:u8 lsid:text txn_number:zigzag n:varint records:varint{n}     (n = ticks; only in chunks)
///   records     := n:varint record*
///   record      := kind:u8 (| 80: a statement number follows the kind, | 40: the document as it was before ends the record)
///                  [stmt_id:zigzag] body [before:text]
///     01 insert  body := collection:varint effect:varint                   places in the lists above
///     02 update  body := collection:varint effect:varint diff:text         empty: a replacement
///     03 delete  body := collection:varint id:text reason:u8 [rule:text deadline:zigzag if expired [field:text date:zigzag if 6]]
///                                      id: {_id: …}; rule: the index's name; reason, deadline: DeleteCause, or 6: as 1,
///                                      with the field of the index and the document's date from which the deadline counts
///     04 command body := db:text has_uuid:u8 [uuid:16 bytes] o:text o2:text
///     05 no-op   body := o:text
///   text        := size:varint bytes
///   varint      := little-endian base 128; zigzag: signed, as 2n or -2n - 1
// clang-format on
namespace mayfly {

/// An entry has the lowest version that can express it, so that members of earlier versions can
/// read what they know; they refuse unknown entries by this number.
inline constexpr uint8_t kLogEntryPlain = 1, kLogEntryWithBefore = 2, kLogEntryWithTransaction = 3,
                         kLogEntryChunk = 4, kLogEntryEnd = 5, kLogEntryEndMoves = 6,
                         kLogEntryWithMerge = 7, kLogEntryWithRule = 8;
/// What this version reads.
inline constexpr uint8_t kLogEntryLatest = kLogEntryWithRule;
inline constexpr size_t kLogEntryHeader = 17;
/// The most bytes that one unit takes in the log, in chunks.
inline constexpr size_t kMaxLogUnitBytes = size_t{384} << 20;

/// A time64 in the bytes of a unit that counts from its time in the log.
struct LogMove {
  uint32_t at;     ///< where, from the unit's beginning
  Instant latest;  ///< that it may become
};
/// EncodeLogUnit's facts about the appended unit.
struct EncodedUnit {
  uint32_t ticks = 0;
  uint8_t version = kLogEntryPlain;  ///< that its entry must have at least: RequireLogEntryVersion
  size_t decoded = 0;                ///< bytes that its lists take once it is read (LogUnit)
  /// In order; so far they count from the unit's `wall`.
  std::vector<LogMove> moves = {};
};
/// Moves these times to the one at which the unit happens, unless that is earlier. `unit`: its bytes, before SetUnitTime.
void MoveLogTimes(char* unit, const std::vector<LogMove>& moves, int64_t wall_millis);
/// Appends the unit (with `size`). `ts` is to be set with SetUnitTime before it is proposed.
/// `all_read`: the version that every member reads; asked once at most, and only where a record has
/// a form that earlier ones do not read. Null: the latest.
EncodedUnit EncodeLogUnit(const WriteUnit& unit, std::string& out,
                          const std::function<int()>& all_read = nullptr);
/// A unit that changes nothing: {msg: …} in the oplog.
EncodedUnit EncodeNoopUnit(BsonView o, std::string& out);
/// `unit`: where EncodeLogUnit began to append.
void SetUnitTime(char* unit, uint64_t ts, int64_t wall_millis);
void BeginLogEntry(uint64_t origin, uint64_t sequence, std::string& out);
/// A unit that needs `version` is in this entry.
void RequireLogEntryVersion(std::string& entry, uint8_t version);

/// Views into the entry.
struct LogEffect {
  enum Op : uint8_t { kPut = 0, kDelete = 1, kDeleteRange = 2 };
  Op op;
  Keyspace keyspace;
  std::string_view key, value;
};
/// A collection that the unit's records name by its position.
struct LogCollection {
  uint32_t id;
  std::string_view uuid, ns;
};
/// What is added to the counters of a collection.
struct LogCount {
  uint32_t id;
  int64_t documents, bytes, last_sequence, first_sequence;
};
/// Fields of an index that have met an array, as bits.
struct LogMultikey {
  uint32_t index;
  uint64_t fields;
};
/// One change in the oplog. Which members are set depends on `kind`.
struct LogRecord {
  enum Kind : uint8_t { kInsert = 1, kUpdate = 2, kDelete = 3, kCommand = 4, kNoop = 5 };
  Kind kind;
  std::optional<int32_t> stmt_id;
  uint32_t collection = 0, effect = 0;
  std::string_view detail;  ///< diff, id, o
  std::string_view o2, db, uuid, rule;
  std::string_view before;  ///< of an update or delete: the document as it was; empty: not kept
  DeleteReason reason = DeleteReason::kDeleted;
  int64_t deadline = 0;  ///< of a delete by expiry
  /// Of one by a TTL index: its field, and the document's date there (milliseconds). Empty: the entry
  /// was written while a member might not have read it.
  std::string_view field;
  int64_t date = 0;
};
/// One unit, decoded; views into the entry.
struct LogUnit {
  uint64_t ts = 0;
  int64_t wall = 0;
  uint32_t ticks = 0;
  uint64_t term = 0;  ///< of its entry: not in its bytes, known to who applies it
  std::vector<LogCollection> collections;
  std::vector<LogEffect> effects;
  std::vector<LogCount> counts;
  std::vector<LogMultikey> multikeys;
  std::string_view lsid;  ///< empty: none
  int64_t txn_number = 0;
  bool transaction = false;  ///< all of it is one, of `lsid` and `txn_number`
  /// For a large transaction: how many records each of its `applyOps` has, one per tick. Empty: all
  /// are in one.
  std::vector<uint32_t> parts;
  std::vector<LogRecord> records;
  /// For the next unit: keeps the memory of the lists. Does not touch `ts`, `wall` and `ticks`,
  /// which every unit has.
  void Clear();
  /// What the lists take.
  size_t ListBytes() const {
    const auto of = [](const auto& list) { return list.capacity() * sizeof list[0]; };
    return of(collections) + of(effects) + of(counts) + of(multikeys) + of(parts) + of(records);
  }
  /// One `applyOps`: a transaction, or several deletes by expiry.
  bool IsBatch() const { return transaction || (ticks == 1 && records.size() > 1); }
};

/// Who proposed the entry, and as which of its proposals.
struct LogEntryHeader {
  uint64_t origin = 0, sequence = 0;
  bool operator==(const LogEntryHeader&) const = default;
};
/// Errors: InternalError 1 when it is damaged, UnsupportedFormat 12 of a version that is not known here.
Result<LogEntryHeader> ReadLogEntryHeader(std::string_view entry);
/// Takes the next unit off `rest` (what follows the header). False at the end. Checks every length, not the BSON.
/// REQUIRES: it is no entry of a chunk or an end.
Result<bool> ReadLogUnit(std::string_view* rest, LogUnit* unit);
/// Only its ts and ticks, without reading the rest; also of a chunk (which takes none) and of an end.
Result<bool> SkipLogUnit(std::string_view* rest, uint64_t* ts, uint32_t* ticks, int64_t* wall);

// --- a unit that is too large for one entry -------------------------------------------------------------------------
/// What ends it: where its chunks are in the log, in order, and how many bytes they have together.
struct LogChunks {
  uint64_t bytes = 0;
  std::vector<uint64_t> indexes;
};
/// Whether an entry is a chunk, by its version. Of whatever bytes.
inline bool IsLogChunk(std::string_view entry) {
  return !entry.empty() && static_cast<uint8_t>(entry[0]) == kLogEntryChunk;
}
/// Likewise, an end.
inline bool IsLogEnd(std::string_view entry) {
  return !entry.empty() && (static_cast<uint8_t>(entry[0]) == kLogEntryEnd ||
                            static_cast<uint8_t>(entry[0]) == kLogEntryEndMoves);
}
/// Appends the chunks' list of times that move, for an end of this kind.
void AppendLogMoves(const std::vector<LogMove>& moves, std::string& unit);
/// The number of the entry that abandons a unit: its chunks then have no meaning. For a member of
/// an earlier version, it is one more chunk of a unit that never ends.
inline constexpr uint64_t kLogChunkGivenUp = UINT64_MAX;
/// Makes `out` the entry of chunk `number`. `unit`: the same in all entries of the unit.
void EncodeLogChunk(const LogEntryHeader& unit, int64_t wall_millis, uint64_t number,
                    std::string_view bytes, std::string& out);
/// Makes `out` the entry that ends it; SetUnitTime on what follows the header. `ticks`: as EncodeLogUnit says.
/// `moves`: AppendLogMoves is in the chunks.
void EncodeLogEnd(const LogEntryHeader& unit, uint32_t ticks, const LogChunks& chunks, bool moves,
                  std::string& out);
/// Errors: InternalError 1 when it is damaged or no chunk.
Result<std::string_view> ReadLogChunk(std::string_view entry, uint64_t* number);
/// Errors: InternalError 1 when it is damaged or no end.
Result<LogChunks> ReadLogEnd(std::string_view entry);
/// The unit that `end` ends, as an entry of this unit alone. `chunk` gives the entry at an index of the log, whose bytes
/// are good until its next call. Errors: InternalError 1 when chunks and end do not belong together, those of `chunk`.
Result<std::string> JoinLogUnit(
    std::string_view end, const std::function<Result<std::string_view>(uint64_t index)>& chunk);

}  // namespace mayfly
