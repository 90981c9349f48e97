#include "query/expression/insert_prepare.h"

#include <atomic>

#include "protocol/bson_builder.h"
#include "protocol/bson_compare.h"
#include "protocol/object_id.h"
#include "query/expression/element_text.h"

namespace mayfly {
namespace {

Result<void> CheckIdFields(BsonView id) {
  for (const BsonElement& e : id) {
    if (e.name.starts_with('$') && e.name != "$ref" && e.name != "$id" && e.name != "$db")
      return Error{ErrorCode::kDollarPrefixedFieldName,
                   "_id fields may not contain '$'-prefixed fields: " + std::string(e.name) +
                       " is not valid for storage."};
    if (e.value.IsDocument() || e.value.IsArray()) {
      MAYFLY_TRY(CheckIdFields(e.value.Document()));
    }
  }
  return Ok();
}

Error SeveralIds() { return {ErrorCode::kBadValue, "can't have multiple _id fields"}; }

}  // namespace

Error DocumentTooDeep() {
  return {ErrorCode::kOverflow,
          "Document exceeds maximum nesting depth of " + std::to_string(kMaxBsonDepth)};
}

Error UpdateTooLarge(bool upsert) {
  return {LocationCode(upsert ? 17420 : 17419),
          (upsert ? "Document to upsert is larger than "
                  : "Resulting document after update is larger than ") +
              std::to_string(kMaxBsonUserSize)};
}

Result<void> CheckIdValue(BsonValue id) {
  switch (id.type()) {
    case BsonType::kArray:
    case BsonType::kRegex:
    case BsonType::kUndefined:
      return Error{ErrorCode::kInvalidIdField,
                   "The '_id' value cannot be of type " + std::string(BsonTypeName(id.type()))};
    case BsonType::kDocument:
      return CheckIdFields(id.Document());
    default:
      return Ok();
  }
}

uint64_t NextTimestamp(Instant now) {
  static std::atomic<uint64_t> last{0};
  int64_t seconds = now.millis / 1000 - (now.millis % 1000 < 0 ? 1 : 0);
  uint64_t first = static_cast<uint64_t>(static_cast<uint32_t>(seconds)) << 32 | 1;
  uint64_t seen = last.load(std::memory_order_relaxed);
  for (;;) {
    uint64_t next = seen >> 32 == first >> 32 ? seen + 1 : first;
    if (last.compare_exchange_weak(seen, next, std::memory_order_relaxed)) return next;
  }
}

int NestingDepth(BsonValue v, int limit) {
  if (!v.IsDocument() && !v.IsArray()) return 0;
  int deepest = 0;
  if (limit > 0) {
    for (const BsonElement& e : v.Document())
      deepest = std::max(deepest, NestingDepth(e.value, limit - 1));
  }
  return deepest + 1;
}

Result<BsonView> PrepareInsert(BsonView doc, Instant now, std::string* scratch,
                               bool keep_empty_timestamps) {
  if (doc.size() > static_cast<uint32_t>(kMaxBsonUserSize))
    return Error{ErrorCode::kBadValue,
                 "object to insert too large. size in bytes: " + std::to_string(doc.size()) +
                     ", max size: " + std::to_string(kMaxBsonUserSize)};
  const auto is_empty = [&](BsonValue v) {
    return v.Is(BsonType::kTimestamp) && v.Timestamp() == 0 && !keep_empty_timestamps;
  };
  BsonElement id;
  bool first = true, id_first = false, empty_timestamp = false;
  for (const BsonElement& e : doc) {
    if (e.name == "_id") {
      if (id.value) return SeveralIds();
      id = e;
      id_first = first;
    } else if (is_empty(e.value)) {
      empty_timestamp = true;
    } else if (e.name == "$expire") {
      // Stored as a field, it would do nothing, and nobody would notice.
      return Error{ErrorCode::kDollarPrefixedFieldName,
                   "a document to insert cannot have the field '$expire': give the command "
                   "expireAfterSeconds or expireAt, or the collection the option expiry.field"};
    }
    first = false;
  }
  if (id.value) {
    MAYFLY_TRY(CheckIdValue(id.value));
  }
  // A level takes 7 bytes at least: most documents need no look at all of their fields.
  if (doc.size() > 7 * kMaxBsonDepth && NestingDepth(doc.AsValue()) > kMaxBsonDepth)
    return DocumentTooDeep();
  if (id_first && !empty_timestamp) return doc;

  scratch->clear();
  scratch->reserve(doc.size() + 17);
  BsonBuilder b(*scratch);
  if (id.value) {
    b.Append(id);
  } else {
    b.AppendObjectId("_id", NewObjectId(now));
  }
  for (const BsonElement& e : doc) {
    if (e.name == "_id") continue;
    if (is_empty(e.value)) {
      b.AppendTimestamp(e.name, NextTimestamp(now));
    } else {
      b.Append(e);
    }
  }
  b.Done();
  return BsonView(scratch->data());
}

Result<BsonView> PrepareReplacement(BsonView next, BsonValue old_id, std::string* scratch,
                                    bool upsert) {
  // First: the walks below are as long as the document.
  if (next.size() > static_cast<uint32_t>(kMaxBsonUserSize)) return UpdateTooLarge(upsert);
  BsonValue id;
  for (const BsonElement& e : next) {
    if (e.name == "_id") {
      if (id) return SeveralIds();
      id = e.value;
    } else if (e.name == "$expire") {
      return Error{ErrorCode::kDollarPrefixedFieldName,
                   "a document cannot have the field '$expire': give the statement "
                   "expireAfterSeconds or expireAt, or the collection the option expiry.field"};
    }
  }
  if (id && !ValuesEqual(id, old_id))
    return Error{ErrorCode::kImmutableField,
                 "After applying the update, the (immutable) field '_id' was found to have been "
                 "altered to " +
                     update::ElementText("_id", id)};
  if (NestingDepth(next.AsValue()) > kMaxBsonDepth) return DocumentTooDeep();
  if (next.First().name == "_id" && id.BinaryEquals(old_id)) return next;
  scratch->clear();
  scratch->reserve(next.size() + old_id.size() + 16);
  BsonBuilder b(*scratch);
  b.Append("_id", old_id);
  for (const BsonElement& e : next)
    if (e.name != "_id") b.Append(e);
  b.Done();
  if (scratch->size() > static_cast<size_t>(kMaxBsonUserSize)) return UpdateTooLarge(upsert);
  return BsonView(scratch->data());
}

}  // namespace mayfly
