#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"

namespace mayfly {

/// One change of the target. All are idempotent: the state of a document, or that it is gone.
struct LinkOperation {
  enum class Kind : uint8_t { kPut, kDelete };
  enum class Why : uint8_t { kCopied, kWritten, kDeleted, kExpired };
  Kind kind = Kind::kPut;
  Why why = Why::kWritten;
  std::string ns;         ///< "db.collection"
  BsonDocument filter;    ///< names the document by `_id`, and what else must hold
  BsonDocument document;  ///< kPut: as a whole
  BsonDocument version;   ///< kPut with a version field: {v: date}
  bool echo = false;      ///< kPut: the link in the other direction has brought it from the target
  BsonValue expire_at() const { return deadline.view()["at"]; }
  BsonDocument deadline;  ///< {at: date}; {at: null}: none; empty: nothing is said of it
  size_t Bytes() const { return filter.bytes().size() + document.bytes().size() + ns.size() + 64; }
};

/// The `_id` that an operation's filter names.
BsonValue IdOfFilter(BsonView filter);

/// What a link has done since it was made.
struct LinkCounters {
  int64_t copied = 0, written = 0, deleted = 0, expired = 0;
  int64_t refused = 0;    ///< documents that the target did not take; in kLinkDatabase.refused
  int64_t not_newer = 0;  ///< with a version field: what the target has already, or newer
  int64_t copies_begun = 0;
};

}  // namespace mayfly
