#include "query/update/expire.h"

#include <cmath>

#include "protocol/bson_builder.h"
#include "protocol/extended_json.h"
#include "protocol/extra_field.h"
#include "protocol/field_once.h"
#include "storage/expiry/expiry_state.h"

namespace mayfly {
namespace {

// The years that date expressions and most languages can show.
constexpr int64_t kFirstMillis = -62'167'219'200'000;  // 0000-01-01
constexpr int64_t kLastMillis = 253'402'300'799'999;   // 9999-12-31T23:59:59.999

Error BadExpire(std::string_view where, std::string_view what, BsonValue v) {
  return {ErrorCode::kBadValue,
          std::string(where) + " " + std::string(what) + ", but it is " + ToRelaxedJson(v)};
}
Error WrongType(std::string_view where, BsonValue v, std::string_view expected) {
  return {ErrorCode::kTypeMismatch, "BSON field '" + std::string(where) + "' is the wrong type '" +
                                        std::string(BsonTypeName(v.type())) + "', expected type '" +
                                        std::string(expected) + "'"};
}

/// The document's own word; nullopt when it says nothing.
Result<std::optional<ExpirySetting>> FromField(BsonValue v, const std::string& field, Instant now) {
  if (v.missing()) return std::optional<ExpirySetting>();
  ExpirySetting s;
  if (v.IsNull()) {
    s.kind = ExpirySetting::Kind::kNever;
    return std::optional(s);
  }
  Result<ExpirySetting> parsed = Error{ErrorCode::kTypeMismatch, ""};
  if (v.IsDate()) {
    parsed = ParseExpireAt(v, field);
  } else if (v.IsNumber()) {
    if (v.NumberAsDouble() == -1) {
      s.kind = ExpirySetting::Kind::kNever;
      return std::optional(s);
    }
    parsed = ParseExpireAfter(v, now, field);
  }
  if (parsed) return std::optional(parsed.value());
  return Error{ErrorCode::kDocumentValidationFailure,
               "Document failed validation: its field '" + field +
                   "' says when it expires (the collection's expiry.field), so it must be a number "
                   "of seconds, a date, null or -1, but it is " +
                   ToRelaxedJson(v)};
}

}  // namespace

Result<int64_t> ParseWholeSeconds(BsonValue v, int64_t max, std::string_view where) {
  if (!v.IsNumber()) return WrongType(where, v, "number");
  const double d = v.NumberAsDouble();
  if (!std::isfinite(d)) return BadExpire(where, "must be a finite number of seconds", v);
  if (d < 0) return BadExpire(where, "cannot be negative", v);
  int64_t n;
  if (d >= 9.2e18)
    return BadExpire(where, "must be at most " + std::to_string(max) + " seconds", v);
  if (!v.ExactInt64(&n)) return BadExpire(where, "must be a whole number of seconds", v);
  if (n > max) return BadExpire(where, "must be at most " + std::to_string(max) + " seconds", v);
  return n;
}

Result<ExpirySetting> ParseExpireAfter(BsonValue v, Instant now, std::string_view where) {
  MAYFLY_TRY(int64_t n, ParseWholeSeconds(v, INT64_MAX, where));
  if (SaturatingDeadline(now.millis, n) > kLastMillis)
    return BadExpire(where, "must not reach beyond the year 9999", v);
  ExpirySetting s;
  s.kind = n == 0 ? ExpirySetting::Kind::kUnset : ExpirySetting::Kind::kAfter;
  s.seconds = n;
  return s;
}

Result<ExpirySetting> ParseExpireAt(BsonValue v, std::string_view where) {
  if (!v.IsDate()) return WrongType(where, v, "date");
  if (v.Date().millis < kFirstMillis || v.Date().millis > kLastMillis)
    return BadExpire(where, "must lie in the years 0 to 9999", v);
  ExpirySetting s;
  s.kind = ExpirySetting::Kind::kAt;
  s.at = v.Date();
  return s;
}

Result<ExpirySetting> ParseExpireOperator(BsonValue v, Instant now) {
  auto shape = [&] {
    return Error{ErrorCode::kFailedToParse,
                 "$expire takes one of {afterSeconds: <number>}, {at: <date>}, {never: true} and "
                 "{preserve: true}, but it is " +
                     ToRelaxedJson(v)};
  };
  if (!v.IsDocument()) return WrongType("$expire", v, "object");
  if (v.Document().Count() != 1) return shape();
  BsonElement e = v.Document().First();
  if (e.name == "afterSeconds") {
    MAYFLY_TRY(ExpirySetting s, ParseExpireAfter(e.value, now, "$expire.afterSeconds"));
    // 0 is "unset", said by an operator: not an update that changes nothing (as with touch).
    if (!s.given()) s.kind = ExpirySetting::Kind::kNever;
    return s;
  }
  if (e.name == "at") return ParseExpireAt(e.value, "$expire.at");
  if (e.name != "never" && e.name != "preserve") return shape();
  if (!e.value.Is(BsonType::kBool))
    return WrongType("$expire." + std::string(e.name), e.value, "bool");
  if (!e.value.Bool()) return shape();
  ExpirySetting s;
  s.kind = e.name == "never" ? ExpirySetting::Kind::kNever : ExpirySetting::Kind::kPreserve;
  return s;
}

Result<BsonView> TakeDeadline(BsonView doc, std::string_view field, ExpirySetting* setting,
                              std::string* scratch) {
  bool any = false, given = false;
  for (const BsonElement& e : doc) {
    any = any || IsLikeExtraField(e.name, field);
    if (e.name != field) continue;
    if (given) return DuplicateField({}, field);
    given = true;
  }
  if (!any) return doc;
  if (const BsonValue at = doc[field]; at.IsNull()) {
    *setting = {.kind = ExpirySetting::Kind::kNever};
  } else if (!at.missing()) {
    MAYFLY_TRY(*setting, ParseExpireAt(at, field));
  }
  scratch->clear();
  BsonBuilder b(*scratch);
  for (const BsonElement& e : doc) {
    if (e.name == field) continue;
    if (IsLikeExtraField(e.name, field))
      b.Append(e.name.substr(0, e.name.size() - 1), e.value);  // the document's own
    else
      b.Append(e);
  }
  b.Done();
  return BsonView(*scratch);
}

Result<ExpirySetting> ParseExpiryFields(BsonValue after, BsonValue at, bool preserve, Instant now,
                                        std::string_view where) {
  if (!after.missing() + !at.missing() + preserve > 1)
    return Error{ErrorCode::kInvalidOptions,
                 std::string(where) +
                     ": expireAfterSeconds, expireAt and preserveExpiry exclude each other, give "
                     "one of them"};
  std::string prefix = std::string(where) + ".";
  if (!after.missing()) return ParseExpireAfter(after, now, prefix + "expireAfterSeconds");
  // As in expiry.field, and before it.
  if (at.IsNull()) return ExpirySetting{.kind = ExpirySetting::Kind::kNever};
  if (!at.missing()) return ParseExpireAt(at, prefix + "expireAt");
  ExpirySetting s;
  if (preserve) s.kind = ExpirySetting::Kind::kPreserve;
  return s;
}

Result<ExpireWhen> ParseExpireWhen(std::string_view word) {
  if (word == "always") return ExpireWhen::kAlways;
  if (word == "nx") return ExpireWhen::kIfNone;
  if (word == "xx") return ExpireWhen::kIfAny;
  if (word == "gt") return ExpireWhen::kIfLater;
  if (word == "lt") return ExpireWhen::kIfEarlier;
  return Error{ErrorCode::kBadValue, "Enumeration value '" + std::string(word) +
                                         "' for field 'touch.when' is not a valid value: it is "
                                         "always, nx, xx, gt or lt"};
}

bool Allows(ExpireWhen when, std::optional<Instant> current, std::optional<Instant> next) {
  const int64_t is = current ? current->millis : INT64_MAX;
  const int64_t would = next ? next->millis : INT64_MAX;
  switch (when) {
    case ExpireWhen::kAlways:
      return true;
    case ExpireWhen::kIfNone:
      return !current;
    case ExpireWhen::kIfAny:
      return current.has_value();
    case ExpireWhen::kIfLater:
      return would > is;
    case ExpireWhen::kIfEarlier:
      return would < is;
  }
  return false;
}

Result<Deadline> ResolveDeadline(const ExpirySetting& setting, const CollectionInfo& coll,
                                 Instant now, BsonView next, const Replaced* before) {
  using Kind = ExpirySetting::Kind;
  if (coll.capped()) {
    if (setting.kind == Kind::kAfter || setting.kind == Kind::kAt)
      return Error{ErrorCode::kInvalidOptions,
                   "documents of the capped collection " + coll.ns + " cannot have an expiration"};
    return Deadline{};
  }
  const ExpiryOptions& options = coll.expiry_options;
  ExpirySetting s = setting;
  if (!options.field.empty()) {
    BsonValue v = next.Find(options.field);
    const bool untouched =
        before && !before->whole && before->doc.Find(options.field).BinaryEquals(v);
    Result<std::optional<ExpirySetting>> said = FromField(v, options.field, now);
    // An older value, from before the option or from a write that bypassed it, does not stop
    // updates of other fields.
    if (!said && !untouched) return said.error();
    if (!s.given() && said && said.value() && !(untouched && options.preserve)) {
      s = *said.value();
      // 0 is "unset", said by the document: not for onUpdate to keep.
      if (!s.given()) s.kind = Kind::kNever;
    }
  }
  if (!s.given() && before && options.preserve) s.kind = Kind::kPreserve;
  if (s.kind == Kind::kPreserve) {
    if (before) return Deadline{before->expire_at, false};
    s.kind = Kind::kUnset;
  }
  int64_t cap = options.max_ttl;
  if (cap == 0 && coll.database_max_ttl)
    cap = coll.database_max_ttl->load(std::memory_order_relaxed);
  Deadline d;
  if (s.kind == Kind::kAfter) {
    d.at = Instant{SaturatingDeadline(now.millis, s.seconds)};
    if (d.at->millis > kLastMillis)
      return Error{ErrorCode::kBadValue, "an expiration must not reach beyond the year 9999, but " +
                                             std::to_string(s.seconds) + " seconds do"};
    d.from_write = true;
  }
  if (s.kind == Kind::kAt) d.at = s.at;
  if (cap > 0) {
    const Instant latest{SaturatingDeadline(now.millis, cap)};
    if (!d.at || d.at->millis > latest.millis) {
      d.clamped = setting.given() || d.at.has_value();
      if (d.at && !d.from_write) d.latest = *d.at;
      d.at = latest;
      d.from_write = true;
    }
  }
  return d;
}

}  // namespace mayfly
