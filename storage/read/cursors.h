#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "storage/catalog/catalog_types.h"
#include "storage/kv/kv.h"
#include "storage/read/read_view.h"

namespace mayfly {

/// Part of a collection in record-key order (`_id` order; insertion order when capped).
struct RecordScan {
  ReadView view;
  bool backward = false;
  std::string lower;  ///< full record key, inclusive; empty: from the first record
  std::string upper;  ///< full record key, exclusive; empty: to the last record
  bool fill_cache = true;
  size_t max_skipped = 0;  ///< as KvIterOptions::max_skipped, until the first Reposition
  /// For the oplog: the field of `o` in which entries show the deadlines that documents got; empty:
  /// they show none.
  std::string deadline_field;
};

/// Walks records. Views are valid until the next call. Not thread-safe; may be used by one thread
/// after another (a client's cursor between getMores).
class RecordCursor {
 public:
  virtual ~RecordCursor() = default;
  /// Moves to the next record; false at the end.
  virtual Result<bool> Next() = 0;
  // Where the last Next() has come to. Not virtual, because scans ask this of each record.
  std::string_view record_key() const { return record_key_; }
  BsonView doc() const { return doc_; }
  std::optional<Instant> expire_at() const { return expire_at_; }
  /// Gives up the iterator and snapshot at once but remembers the position; the next Next() opens
  /// it again and continues behind it. With a new view (null: now) for tailable cursors, which see
  /// what was written since.
  virtual void Reposition(ReadView view) = 0;

 protected:
  /// For Next(): the bytes are valid until the next call of it.
  void Show(std::string_view record_key, BsonView doc, std::optional<Instant> expire_at) {
    record_key_ = record_key;
    doc_ = doc;
    expire_at_ = expire_at;
  }

 private:
  std::string_view record_key_;
  BsonView doc_;
  std::optional<Instant> expire_at_;
};

/// A range of encoded index keys (without the index's prefix).
struct IndexScan {
  ReadView view;
  bool backward = false;
  std::string lower;  ///< encoded values; inclusive
  std::string upper;  ///< encoded values; exclusive; empty: to the end
  bool fill_cache = true;
  size_t max_skipped = 0;  ///< as KvIterOptions::max_skipped, until the first Reposition
};

/// Index entries in key order, or backward. Not thread-safe. What it shows is valid until the next
/// move.
class IndexCursor {
 public:
  virtual ~IndexCursor() = default;
  /// Moves to the next entry; false at the end. Errors: the store's, or that an entry is damaged.
  /// Checks no operation: callers do that from time to time.
  virtual Result<bool> Next() = 0;
  /// Skips: the next Next() returns the first entry whose encoded values are not below these bytes;
  /// backward, the last one whose encoded values are below them (a prefix of an entry is below it).
  /// Any bytes will do, not just whole values.
  virtual void SeekTo(std::string_view encoded_values) = 0;
  virtual std::string_view encoded_values()
      const = 0;  ///< concatenated EncodeKeyValue of the fields
  virtual std::string_view type_bits() const = 0;
  virtual std::string_view record_key() const = 0;  ///< full key in Keyspace::kRecords
  /// As RecordCursor::Reposition: gives up the iterator and snapshot at once, remembers the last
  /// entry returned, and the next Next() (or SeekTo) opens again at `view` (null: now) and goes on
  /// behind that entry in scan direction. A getMore in the middle of many equal keys so costs one
  /// seek.
  virtual void Reposition(ReadView view) = 0;
};

}  // namespace mayfly
