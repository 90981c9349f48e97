#pragma once
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/instant.h"
#include "storage/keys/key_encoding.h"
#include "storage/kv/kv.h"

// clang-format off
/// Layout of every row on disk. The same grammar is in docs/on-disk-format.md. DO NOT RENUMBER:
/// change kFormatVersion instead, and say how the old rows are read.
///
///   be32, be64   big-endian, so that byte order is numeric order
///   time64       be64 of (milliseconds since 1970 with the sign bit flipped): byte order is time order
///   value        AppendStoredValue (storage/keys/key_encoding.h): self-delimiting, in MongoDB's comparison order,
///                cut where it is very long (version 2)
///   record_id    value of `_id` | capped collections: sequence:be64 (the first record is 1)
///
/// Keyspace::kRecords
///   key := collection:be32 record_id
///   val := flags:u8 [deadline:time64 if flags & kRecordHasDeadline] bson
/// Keyspace::kIndexes, Keyspace::kExpiry (TTL indexes)
///   key := index:be32 value… record_id     val := type_bits                                       not unique
///   key := index:be32 value…               val := varint(size of record_id) record_id type_bits   unique
/// Keyspace::kExpiry (queues of per-document deadlines, one per collection: index id 0)
///   key := 0:be32 collection:be32 deadline:time64 record_id     val := empty
/// Keyspace::kTombstones (storage/write/tombstone.h)
///   key := at:time64 collection:be32 value of `_id`
///   val := reason:u8 [index:be32 deadline:time64 if reason is an expiry] type_bits
/// Keyspace::kCatalog
///   "format"                       val := kFormatVersion as text
///   "counters/" collection:be32    val := documents:le64 bytes:le64 last_sequence:le64
///   "multikey/" index:be32 field:u8   val := empty: that field of the index has met an array
///   (collections, indexes, settings, drops: storage/catalog/catalog_format.h)
///
/// Collection ids and index ids start at 1, go up and are never reused.
// clang-format on
namespace mayfly {

inline constexpr std::string_view kFormatVersion = "2";
/// It had no values that are cut; all else is the same.
inline constexpr std::string_view kFormatBefore = "1";
inline constexpr std::string_view kFormatKey = "format";
inline constexpr std::string_view kCountersPrefix = "counters/";
inline constexpr std::string_view kMultikeyPrefix = "multikey/";
inline constexpr uint32_t kDeadlineQueueId = 0;
inline constexpr uint8_t kRecordHasDeadline =
    1;                                      ///< the other flag bits are 0; a set one is corruption
inline constexpr size_t kIdPrefixSize = 4;  ///< of collection and index ids in front of keys

/// Writes a be32 of the grammar above. REQUIRES: room for 4 bytes at `p`, aligned or not.
inline void StoreBe32(char* p, uint32_t v) {
  v = __builtin_bswap32(v);
  std::memcpy(p, &v, 4);
}
/// Likewise a be64. REQUIRES: room for 8 bytes at `p`.
inline void StoreBe64(char* p, uint64_t v) {
  v = __builtin_bswap64(v);
  std::memcpy(p, &v, 8);
}
/// Reads a be32. REQUIRES: 4 bytes at `p`, aligned or not.
inline uint32_t LoadBe32(const char* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return __builtin_bswap32(v);
}
/// Likewise a be64. REQUIRES: 8 bytes at `p`.
inline uint64_t LoadBe64(const char* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return __builtin_bswap64(v);
}
/// A be32 at the end of `out`, whose old bytes stay: keys are put together piece by piece.
inline void AppendBe32(std::string& out, uint32_t v) {
  char b[4];
  StoreBe32(b, v);
  out.append(b, 4);
}
/// Likewise a be64. A negative number would sort behind all others: see AppendTime64.
inline void AppendBe64(std::string& out, uint64_t v) {
  char b[8];
  StoreBe64(b, v);
  out.append(b, 8);
}
inline constexpr uint64_t kTimeSign = uint64_t{1} << 63;
/// A time64, which sorts times before 1970 before those after it.
inline void AppendTime64(std::string& out, Instant t) {
  AppendBe64(out, static_cast<uint64_t>(t.millis) ^ kTimeSign);
}
inline Instant LoadTime64(const char* p) { return {static_cast<int64_t>(LoadBe64(p) ^ kTimeSign)}; }

/// First key of everything that starts with this id, and the first key behind it.
inline std::string IdPrefix(uint32_t id) {
  std::string s;
  AppendBe32(s, id);
  return s;
}
inline std::string IdPrefixEnd(uint32_t id) { return IdPrefix(id + 1); }

/// The collection or index a key belongs to. REQUIRES: at least 4 bytes.
inline uint32_t KeyId(std::string_view key) { return LoadBe32(key.data()); }
/// What follows the collection id in a record key.
inline std::string_view RecordIdOf(std::string_view record_key) {
  return record_key.substr(kIdPrefixSize);
}

/// The key of a record by its `_id`. REQUIRES: the collection is not capped. `_id`s that compare as
/// equal (1 and 1.0) have one key.
inline void AppendRecordKeyOfId(uint32_t collection, BsonValue id, std::string& out) {
  AppendBe32(out, collection);
  AppendStoredValue(id, false, out.size(), out);
}
/// Whether the key has only the beginning and a hash of its `_id`. REQUIRES: the collection is not
/// capped.
inline bool HasCutId(std::string_view record_id) { return record_id.size() > kMaxKeySize; }
/// The key of a record of a capped collection. `sequence`: 1 or more.
inline void AppendCappedRecordKey(uint32_t collection, int64_t sequence, std::string& out) {
  AppendBe32(out, collection);
  AppendBe64(out, static_cast<uint64_t>(sequence));
}
/// REQUIRES: the key is of a capped collection, and whole (12 bytes).
inline int64_t CappedSequenceOf(std::string_view record_key) {
  return static_cast<int64_t>(LoadBe64(record_key.data() + kIdPrefixSize));
}

/// The header in front of a record's BSON. Returns its size (at most kMaxRecordHeader).
inline constexpr size_t kMaxRecordHeader = 9;
inline size_t EncodeRecordHeader(std::optional<Instant> expire_at, char* out) {
  if (!expire_at) {
    out[0] = 0;
    return 1;
  }
  out[0] = kRecordHasDeadline;
  StoreBe64(out + 1, static_cast<uint64_t>(expire_at->millis) ^ kTimeSign);
  return 9;
}
/// Splits a record's value. False when the bytes cannot be a record (corruption); checks sizes, not
/// the BSON inside.
inline bool DecodeRecord(std::string_view value, BsonView* doc, std::optional<Instant>* expire_at) {
  if (value.empty()) return false;
  uint8_t flags = static_cast<uint8_t>(value[0]);
  size_t head = 1;
  if (flags == 0) {
    expire_at->reset();
  } else {
    if (flags != kRecordHasDeadline || value.size() < kMaxRecordHeader) return false;
    *expire_at = LoadTime64(value.data() + 1);
    head = kMaxRecordHeader;
  }
  if (value.size() < head + 5) return false;
  *doc = BsonView(value.data() + head);
  return doc->size() == value.size() - head;
}

/// Seven bits a byte, the lowest first; the top bit says that more follow.
inline void AppendVarint(std::string& out, uint32_t v) {
  for (; v >= 0x80; v >>= 7) out.push_back(static_cast<char>(v | 0x80));
  out.push_back(static_cast<char>(v));
}
/// False when truncated or longer than 32 bits.
inline bool ReadVarint(std::string_view* in, uint32_t* v) {
  *v = 0;
  for (int shift = 0; shift < 35 && !in->empty(); shift += 7) {
    uint8_t b = static_cast<uint8_t>(in->front());
    in->remove_prefix(1);
    *v |= static_cast<uint32_t>(b & 0x7F) << shift;
    if (b < 0x80) return true;
  }
  return false;
}
/// The value of a unique index entry.
inline void AppendUniqueIndexValue(std::string_view record_id, std::string_view type_bits,
                                   std::string& out) {
  AppendVarint(out, static_cast<uint32_t>(record_id.size()));
  out.append(record_id).append(type_bits);
}
/// Splits such a value. False when it cannot be one. The views point into `value`.
inline bool DecodeUniqueIndexValue(std::string_view value, std::string_view* record_id,
                                   std::string_view* type_bits) {
  uint32_t n;
  if (!ReadVarint(&value, &n) || n > value.size()) return false;
  *record_id = value.substr(0, n);
  *type_bits = value.substr(n);
  return true;
}

/// Everything in a collection's queue of deadlines starts with this.
inline constexpr size_t kDeadlinePrefixSize = 8;
inline std::string DeadlinePrefix(uint32_t collection) {
  std::string s;
  AppendBe32(s, kDeadlineQueueId);
  AppendBe32(s, collection);
  return s;
}
inline std::string DeadlinePrefixEnd(uint32_t collection) { return DeadlinePrefix(collection + 1); }
/// The key of a document in its collection's queue. `record_key`: the full one.
inline void AppendDeadlineKey(Instant deadline, std::string_view record_key, std::string& out) {
  AppendBe32(out, kDeadlineQueueId);
  out.append(record_key.substr(0, kIdPrefixSize));
  AppendTime64(out, deadline);
  out.append(RecordIdOf(record_key));
}
/// Splits a key of a deadline queue. False when it cannot be one.
inline bool DecodeDeadlineKey(std::string_view key, uint32_t* collection, Instant* deadline,
                              std::string_view* record_id) {
  if (key.size() <= kDeadlinePrefixSize + 8 || KeyId(key) != kDeadlineQueueId) return false;
  *collection = LoadBe32(key.data() + 4);
  *deadline = LoadTime64(key.data() + kDeadlinePrefixSize);
  *record_id = key.substr(kDeadlinePrefixSize + 8);
  return true;
}

/// The catalog's row with the counters of a collection.
inline std::string CountersKey(uint32_t collection) {
  std::string k(kCountersPrefix);
  AppendBe32(k, collection);
  return k;
}
/// The catalog's row that marks a field of an index. `field`: its place in the index key, from 0.
inline std::string MultikeyKey(uint32_t index, int field) {
  std::string k(kMultikeyPrefix);
  AppendBe32(k, index);
  k.push_back(static_cast<char>(field));
  return k;
}
/// A "counters/" row, in the order it has on disk (little-endian, as the machine).
struct CounterRow {
  int64_t documents = 0, bytes = 0, last_sequence = 0;
};
inline constexpr size_t kCounterRowSize = 24;
/// Writes kCounterRowSize bytes to `out`.
inline void EncodeCounterRow(const CounterRow& r, char* out) {
  std::memcpy(out, &r, kCounterRowSize);
}
/// False when `value` has another size; the numbers are not checked.
inline bool DecodeCounterRow(std::string_view value, CounterRow* r) {
  if (value.size() != kCounterRowSize) return false;
  std::memcpy(r, value.data(), kCounterRowSize);
  return true;
}

}  // namespace mayfly
