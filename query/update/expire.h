#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/instant.h"
#include "storage/catalog/catalog_types.h"

namespace mayfly {

/// A write's setting for the expiration of its documents (docs/expiry.md, "Per-document expiry").
struct ExpirySetting {
  enum class Kind : uint8_t {
    kUnset,     ///< nothing: reset to none, then maxTTL applies (docs/expiry.md C9)
    kAfter,     ///< `seconds` from the write
    kAt,        ///< at `at`
    kNever,     ///< none, so far as maxTTL allows
    kPreserve,  ///< what the document had
  };
  Kind kind = Kind::kUnset;
  int64_t seconds = 0;  ///< > 0
  Instant at{};

  bool given() const { return kind != Kind::kUnset; }
};

/// Whether a deadline is changed, depending on the present one (Redis EXPIRE; a document that never
/// expires has the latest deadline of all).
enum class ExpireWhen : uint8_t { kAlways, kIfNone, kIfAny, kIfLater, kIfEarlier };

/// `expireAfterSeconds: v`; `where` names the field in messages. 0 is kUnset (docs/expiry.md C23).
/// Errors: TypeMismatch 14 when not a number; BadValue 2 when negative, not finite, not whole, or
/// reaching beyond the year 9999 from `now`.
Result<ExpirySetting> ParseExpireAfter(BsonValue v, Instant now, std::string_view where);
/// `expireAt: v`. Errors: TypeMismatch 14 when not a date; BadValue 2 outside the years 0 to 9999.
Result<ExpirySetting> ParseExpireAt(BsonValue v, std::string_view where);
/// The argument of `$expire`: {afterSeconds: n} | {at: date} | {never: true} | {preserve: true}.
/// Errors: as above; FailedToParse 9 for another shape.
Result<ExpirySetting> ParseExpireOperator(BsonValue v, Instant now);
/// The fields of a write command or statement, missing where not given. `at` null: the document has
/// no deadline, whatever expiry.field says. Errors: as above;
/// InvalidOptions 72 when more than one is given.
Result<ExpirySetting> ParseExpiryFields(BsonValue after, BsonValue at, bool preserve, Instant now,
                                        std::string_view where);
/// The deadline that a document carries in the field that dumps have for it (`field`, a date; null:
/// none). Sets `*setting`, and answers the document without the field, which it makes in
/// `*scratch`, with own fields of such names as they are (protocol/extra_field.h); one that has
/// none of these is answered as it is, and leaves the setting alone.
/// Errors: TypeMismatch 14 for another type, BadValue 2 as ParseExpireAt, 40413 for two.
Result<BsonView> TakeDeadline(BsonView doc, std::string_view field, ExpirySetting* setting,
                              std::string* scratch);
/// "always", "nx", "xx", "gt", "lt". Errors: BadValue 2.
Result<ExpireWhen> ParseExpireWhen(std::string_view word);

/// What a document gets.
struct Deadline {
  std::optional<Instant> at;
  bool clamped = false;  ///< maxTTL made it earlier than asked for
  /// `at` is so much time behind the write. It moves with the time of the write, up to `latest`.
  bool from_write = false;
  Instant latest{INT64_MAX};
};

/// The document that a write replaces.
struct Replaced {
  BsonView doc;
  std::optional<Instant> expire_at;
  bool whole = false;  ///< a replacement: says all there is to say about the document
};

/// The deadline that a write gives a document (docs/expiry.md C24 with the rule for its gap,
/// C3-C9). `before`: null for an insert. Errors: DocumentValidationFailure 121 for a value of the
/// collection's `expiry.field` that says nothing about expiration; InvalidOptions 72 for a setting
/// on a capped collection.
Result<Deadline> ResolveDeadline(const ExpirySetting& setting, const CollectionInfo& coll,
                                 Instant now, BsonView next, const Replaced* before);

/// True if only writes with an explicit setting give a deadline in this collection: checked
/// first.
inline bool HasNoExpiry(const CollectionInfo& coll) {
  return (!coll.expiry_options.set() &&
          (!coll.database_max_ttl ||
           coll.database_max_ttl->load(std::memory_order_relaxed) == 0)) ||
         coll.is_buckets();
}

/// Whether `when` lets a document's deadline go from `current` to `next`.
bool Allows(ExpireWhen when, std::optional<Instant> current, std::optional<Instant> next);

/// A number of seconds that a setting can hold: whole, finite, 0 to `max`. Errors: TypeMismatch 14,
/// BadValue 2.
Result<int64_t> ParseWholeSeconds(BsonValue v, int64_t max, std::string_view where);

}  // namespace mayfly
