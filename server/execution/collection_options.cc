#include "server/execution/collection_options.h"

#include "protocol/database_name.h"
#include "protocol/extended_json.h"
#include "query/match/record_filter.h"
#include "query/update/expire.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/data_services.h"
#include "storage/catalog/namespace.h"

namespace mayfly {

Result<void> SetValidator(DataServices& server, CollectionInfo& c,
                          std::optional<BsonView> validator, std::optional<std::string_view> level,
                          std::optional<std::string_view> action) {
  std::string now_level = c.validator.view().empty() && !level
                              ? "strict"
                              : (c.options.view()["validationLevel"].IsString()
                                     ? std::string(c.options.view()["validationLevel"].String())
                                     : "strict");
  if (level) {
    if (*level != "off" && *level != "strict" && *level != "moderate")
      return Error{ErrorCode::kBadValue, "Enumeration value '" + std::string(*level) +
                                             "' for field 'validationLevel' is not a valid value."};
    now_level = *level;
    c.validation_moderate = *level == "moderate";
  }
  if (action) {
    if (*action != "error" && *action != "warn" && *action != "errorAndLog")
      return Error{ErrorCode::kBadValue,
                   "Enumeration value '" + std::string(*action) +
                       "' for field 'validationAction' is not a valid value."};
    c.validation_warn_only = *action == "warn";
  }
  if (validator && !validator->empty() && IsInternalDatabase(c.db))
    return Error{ErrorCode::kInvalidOptions, "Document validators are not allowed on collection " +
                                                 JoinNamespace(c.db, c.name) + " in the " + c.db +
                                                 " internal database: use another database"};
  if (validator) c.validator = BsonDocument(*validator);
  c.validator_filter = nullptr;
  if (!c.validator.view().empty()) {
    Result<std::shared_ptr<const RecordFilter>> f =
        CompileRecordFilter(c.validator, false, &server.clock());
    if (!f) return f.error();
    if (validator) {
      MAYFLY_TRY(CheckRecordFilters());
    }
    if (now_level != "off") c.validator_filter = f.value();
  }
  return Ok();
}

bool LogsFailedValidation(const CollectionInfo& coll) {
  if (coll.validation_warn_only) return true;
  const BsonValue action = coll.options.view()["validationAction"];
  return action.IsString() && action.String() == "errorAndLog";
}

Result<int64_t> ParseCollectionExpiry(std::string_view kind, BsonValue v, Instant now) {
  auto bad = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidOptions,
                 "'expireAfterSeconds' of a " + std::string(kind) + " collection " + why};
  };
  if (!v.IsNumber())
    return bad("must be a number, but is of type " + std::string(BsonTypeName(v.type())));
  const double d = v.NumberAsDouble();
  if (d != d) return bad("must be a number, but is NaN");
  if (d < 0) return bad("must not be negative, but is " + ToRelaxedJson(v));
  const int64_t n = v.NumberAsInt64();
  int64_t millis;
  if (d >= 9.2e18 || __builtin_mul_overflow(n, int64_t{1000}, &millis))
    return bad("is too large: " + ToRelaxedJson(v) + " seconds overflow milliseconds");
  if (millis > now.millis)
    return bad("must be within the time since 1970, but is " + ToRelaxedJson(v));
  return n;
}

Result<void> ParseExpiryOptions(BsonView given, bool change, ExpiryOptions* options) {
  const char* where = change ? "collMod.expiry" : "create.expiry";
  const std::string prefix = std::string(where) + ".";
  ArgReader in(where, given);
  BsonValue field = in.Any("field"), max = in.Any("maxTTL"), recover = in.Any("recoverSeconds");
  auto on_update = in.OptString("onUpdate");
  MAYFLY_TRY(in.Finish());
  if (change && !max.missing())
    return Error{ErrorCode::kInvalidOptions,
                 "a collection's maxTTL is fixed when it is created: make another collection, or "
                 "set one for the database with setDatabaseExpiry"};
  ExpiryOptions o = *options;
  if (change && field.IsNull()) {
    o.field.clear();
  } else if (!field.missing()) {
    if (!field.IsString()) return in.WrongType("field", field.type(), "string");
    std::string_view name = field.String();
    if (name.empty() || name == "_id" || name.starts_with('$') ||
        name.find('.') != std::string_view::npos || name.find('\0') != std::string_view::npos)
      return Error{ErrorCode::kBadValue,
                   prefix +
                       "field must be the name of a top-level field other than _id, but it is '" +
                       std::string(name) + "'"};
    o.field = name;
  }
  if (!max.missing()) {
    MAYFLY_TRY(o.max_ttl, ParseWholeSeconds(max, INT32_MAX, prefix + "maxTTL"));
  }
  if (!recover.missing()) {
    MAYFLY_TRY(o.recover_seconds, ParseWholeSeconds(recover, INT32_MAX, prefix + "recoverSeconds"));
  }
  if (on_update) {
    if (*on_update != "preserve" && *on_update != "reset")
      return Error{ErrorCode::kBadValue,
                   "Enumeration value '" + std::string(*on_update) + "' for field '" + prefix +
                       "onUpdate' is not a valid value: it is reset or preserve"};
    o.preserve = *on_update == "preserve";
  }
  *options = std::move(o);
  return Ok();
}

BsonDocument DescribeExpiryOptions(const ExpiryOptions& o) {
  return BuildBson([&](BsonBuilder& b) {
    if (!o.field.empty()) b.Append("field", o.field);
    if (o.max_ttl != 0) b.Append("maxTTL", o.max_ttl);
    if (o.preserve) b.Append("onUpdate", "preserve");
    if (o.recover_seconds != 0) b.Append("recoverSeconds", o.recover_seconds);
  });
}

Result<bool> ParsePreImages(std::string_view command, std::string_view db, BsonView given) {
  const std::string where = std::string(command) + ".changeStreamPreAndPostImages";
  ArgReader in(where, given);
  const std::optional<bool> enabled = in.OptBool("enabled");
  MAYFLY_TRY(in.Finish());
  if (!enabled)
    return Error{ErrorCode::kMissingField,
                 "BSON field '" + where + ".enabled' is missing but a required field"};
  if (*enabled && IsInternalDatabase(db))
    return Error{ErrorCode::kInvalidOptions, "Cannot create pre-images in the '" + std::string(db) +
                                                 "' database: it has no change streams"};
  return *enabled;
}

void AppendPreImages(BsonBuilder& options) {
  options.OpenDocument("changeStreamPreAndPostImages").Append("enabled", true);
}

}  // namespace mayfly
