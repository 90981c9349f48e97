#include "server/execution/index_spec.h"

#include <algorithm>
#include <cmath>

#include "protocol/extended_json.h"
#include "protocol/utf8.h"
#include "query/match/record_filter.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/expiry_services.h"
#include "storage/storage.h"
#include "ttl/reap_limits.h"

namespace mayfly {
namespace {

Error Cannot(std::string message) { return {ErrorCode::kCannotCreateIndex, std::move(message)}; }

/// Accepts those of MongoDB's kinds of index that this server has.
Result<void> CheckKind(const IndexInfo& i) {
  if (i.kind->maintained()) return Ok();
  if (i.kind->id == IndexKindId::kWildcard)
    return Cannot("wildcard indexes are not supported by this server");
  for (const IndexField& f : i.fields) {
    if (f.special.empty()) continue;
    if (i.kind->id == IndexKindId::kUnknown)
      return Cannot("Unknown index plugin '" + f.special + "'");
    return Cannot("Index type '" + f.special + "' of field '" + f.path +
                  "' is not supported by this server: use 1 or -1");
  }
  return Ok();
}

Error WrongOptionType(std::string_view option, BsonType got, const char* expected) {
  return {ErrorCode::kTypeMismatch, "The field '" + std::string(option) + "' has value of type " +
                                        std::string(BsonTypeName(got)) +
                                        ", which is not convertible to " + expected};
}

}  // namespace

Result<void> CheckIndexName(std::string_view name) {
  if (name.empty()) return Cannot("The index name cannot be empty");
  if (name == "*") return Error{ErrorCode::kBadValue, "The index name '*' is not valid."};
  if (name.find('\0') != std::string_view::npos)
    return Cannot("The index name cannot contain NUL bytes");
  // The name is shown in statistics, in each listing and on the metrics page.
  if (name.size() > kMaxIndexName)
    return Cannot("The index name has " + std::to_string(name.size()) + " bytes: " +
                  std::to_string(kMaxIndexName) + " are allowed. Give the index a shorter name");
  if (!IsUtf8(name)) return Cannot("The index name must be valid UTF-8");
  return Ok();
}

Result<ExpireReads> ParseCollectionExpireReads(BsonValue v, std::string_view where, bool has_rule) {
  if (!has_rule)
    return Error{ErrorCode::kInvalidOptions,
                 "'expireReads' of a collection is for clustered and time-series collections: "
                 "otherwise give it to a TTL index, with createIndexes or collMod.index"};
  return ParseExpireReads(v, where);
}

Result<ExpireReads> ParseExpireReads(BsonValue v, std::string_view where) {
  if (!v.IsString()) return WrongOptionType(where, v.type(), "string");
  if (v.String() == "exact") return ExpireReads::kExact;
  if (v.String() == "lazy") return ExpireReads::kLazy;
  return Error{ErrorCode::kBadValue, "Enumeration value '" + std::string(v.String()) +
                                         "' for field '" + std::string(where) +
                                         "' is not a valid value: it is exact or lazy"};
}

Result<int32_t> ParseExpireAfterSeconds(BsonValue v, std::string_view name) {
  std::string where = "TTL index '" + std::string(name) + "': 'expireAfterSeconds' ";
  if (!v.IsNumber())
    return Cannot(where + "must be a number, but it is of type " +
                  std::string(BsonTypeName(v.type())));
  double d = v.NumberAsDouble();
  if (std::isnan(d))
    return Cannot(where + "must be within the range 0 to 2147483647, but it is NaN");
  if (d < 0 || d >= 2147483648.0)
    return Cannot(where + "must be within the range 0 to 2147483647, but it is " +
                  ToRelaxedJson(v));
  return static_cast<int32_t>(v.NumberAsInt64());
}

namespace {

/// Options of an index specification that IndexInfo does not keep.
struct SpecOptions {
  BsonValue expire;  ///< expireAfterSeconds
  bool clustered = false, reap = false;
  std::vector<std::string_view> ignored;  ///< names that no index has
};

Result<void> CheckName(BsonValue key, BsonValue name) {
  if (key.missing())
    return Error{ErrorCode::kFailedToParse,
                 "The 'key' field is a required property of an index specification"};
  if (!key.IsDocument()) return WrongOptionType("key", key.type(), "object");
  if (name.missing())
    return Error{ErrorCode::kFailedToParse,
                 "The 'name' field is a required property of an index specification"};
  if (!name.IsString()) return WrongOptionType("name", name.type(), "string");
  return CheckIndexName(name.String());
}

Result<bool> Boolean(std::string_view option, BsonValue v) {
  if (!v.Is(BsonType::kBool) && !v.IsNumber()) return WrongOptionType(option, v.type(), "bool");
  return v.Truthy();
}

Result<void> CheckCollation(BsonValue v) {
  if (!v.IsDocument()) return WrongOptionType("collation", v.type(), "object");
  MAYFLY_TRY(ArgReader("createIndexes.indexes.collation", v.Document()).FinishLoose());
  BsonValue locale = v.Document()["locale"];
  if (!locale.IsString() || locale.String() != "simple")
    return Error{
        ErrorCode::kNotImplemented,
        "collation is not supported by this server: leave it out or use {locale: 'simple'}"};
  return Ok();
}

/// Whether it is an option of a kind of index, or of a storage engine, that this server does not
/// have.
bool IsOptionOfOthers(std::string_view o) {
  constexpr std::string_view kOthers[] = {"2dsphereIndexVersion",
                                          "bits",
                                          "bucketSize",
                                          "default_language",
                                          "language_override",
                                          "max",
                                          "min",
                                          "storageEngine",
                                          "textIndexVersion",
                                          "weights",
                                          "wildcardProjection"};
  return std::find(std::begin(kOthers), std::end(kOthers), o) != std::end(kOthers);
}

/// Reads the options into `i` and `out`. `more` receives those that only listIndexes shows.
Result<void> ReadOptions(ExpiryServices& server, BsonView spec, bool ignore_unknown, IndexInfo& i,
                         SpecOptions* out, BsonBuilder& more) {
  for (const BsonElement& e : spec) {
    std::string_view o = e.name;
    if (o == "key" || o == "name") continue;
    // Null means not given: TypeORM, for example, sends it for options that were left out.
    if (e.value.IsNull() && (o == "unique" || o == "sparse" || o == "background" || o == "hidden" ||
                             o == "prepareUnique"))
      continue;
    if (o == "v") {
      if (!e.value.IsNumber()) return WrongOptionType(o, e.value.type(), "int");
      int64_t v = e.value.NumberAsInt64();
      if (v != 1 && v != 2)
        return Cannot("Invalid index specification: index version v=" + std::to_string(v) +
                      " is not supported");
      // Version 1 makes no difference here, but listIndexes shows that it was requested (manual:
      // "createIndexes", `v`).
      if (v == 1) more.Append("v", 1);
    } else if (o == "ns" || o == "dropDups") {
      // Accepted but without meaning since MongoDB 3.0 and 4.2, so not kept.
    } else if (o == "background") {
      // Without meaning since MongoDB 4.2 (manual "createIndexes"), but shown by listIndexes.
      more.Append(e);
    } else if (o == "unique") {
      MAYFLY_TRY(i.unique, Boolean(o, e.value));
    } else if (o == "sparse") {
      MAYFLY_TRY(i.sparse, Boolean(o, e.value));
    } else if (o == "hidden") {
      MAYFLY_TRY(i.hidden, Boolean(o, e.value));
    } else if (o == "prepareUnique") {
      MAYFLY_TRY(i.prepare_unique, Boolean(o, e.value));
    } else if (o == "clustered") {
      MAYFLY_TRY(out->clustered, Boolean(o, e.value));
    } else if (o == "expireAfterSeconds") {
      out->expire = e.value;
    } else if (o == "expireReads") {
      MAYFLY_TRY(i.expire_reads, ParseExpireReads(e.value, o));
    } else if (o == "reap") {
      MAYFLY_TRY(ParseReapLimits(e.value, ErrorCode::kCannotCreateIndex, i.name));
      out->reap = true;
      if (!e.value.Document().empty()) more.Append(e);
    } else if (o == "partialFilterExpression") {
      if (!e.value.IsDocument()) return WrongOptionType(o, e.value.type(), "object");
      i.has_partial_filter = true;
      i.partial_filter = BsonDocument(e.value.Document());
      Result<std::shared_ptr<const RecordFilter>> f =
          CompileRecordFilter(e.value.Document(), true, &server.clock());
      if (!f) return f.error();
      MAYFLY_TRY(CheckRecordFilters());
      i.filter = f.value();
    } else if (o == "collation") {
      MAYFLY_TRY(CheckCollation(e.value));
    } else if (IsOptionOfOthers(o)) {
      return Error{ErrorCode::kInvalidIndexSpecificationOption,
                   "The field '" + std::string(o) +
                       "' is not valid for this kind of index, or not supported by this server. "
                       "Specification: " +
                       ToRelaxedJson(spec)};
    } else if (ignore_unknown) {
      out->ignored.push_back(o);
    } else {
      return Error{
          ErrorCode::kInvalidIndexSpecificationOption,
          "The field '" + std::string(o) +
              "' is not valid for an index specification. Specification: " + ToRelaxedJson(spec)};
    }
  }
  return Ok();
}

/// Checks the specification of {_id: 1}, an index that every collection already has.
Result<void> CheckIdIndex(const CollectionInfo* coll, BsonView spec, const SpecOptions& options) {
  for (const BsonElement& e : spec)
    if (e.name != "key" && e.name != "name" && e.name != "v" && e.name != "ns" &&
        e.name != "background" && e.name != "collation" &&
        std::find(options.ignored.begin(), options.ignored.end(), e.name) ==
            options.ignored.end() &&
        !(e.name == "unique" && coll && coll->clustered()))
      return Error{ErrorCode::kInvalidIndexSpecificationOption,
                   "The field '" + std::string(e.name) +
                       "' is not valid for an _id index specification. Specification: " +
                       ToRelaxedJson(spec)};
  return Ok();
}

/// Rules R11 to R13 and R20 of TTL indexes. `*note` receives what the reply says about an ignored
/// option.
Result<void> SetExpireAfterSeconds(ExpiryServices& server, const CollectionInfo* coll,
                                   BsonView spec, BsonValue expire, IndexInfo& i,
                                   std::string* note) {
  // A clustered and capped collection has a code of its own (docs/expiry.md, "What is refused").
  MAYFLY_TRY(int32_t seconds, ParseExpireAfterSeconds(expire, i.name));
  if (coll && coll->capped()) {
    if (coll->clustered())
      return Error{LocationCode(6049202),
                   "Cannot create a TTL index on a capped clustered collection: " + coll->ns};
    return Cannot("TTL index '" + i.name + "': Cannot create TTL index on a capped collection");
  }
  for (const IndexField& f : i.fields)
    if (f.path == "_id")
      return Error{ErrorCode::kInvalidIndexSpecificationOption,
                   "The field 'expireAfterSeconds' is not valid for an index on _id"};
  if (i.fields.size() > 1) {
    if (server.ttl_settings().compound_indexes.load() == 0)
      return Cannot("TTL index '" + i.name +
                    "': TTL indexes are single-field indexes, compound indexes do not support "
                    "TTL. Index spec: " +
                    ToRelaxedJson(spec));
    *note = "index '" + i.name +
            "' has a compound key: expireAfterSeconds has no effect and was left out "
            "(ttlCompoundIndexes)";
    server.log().Write(LogSeverity::kWarning, LogComponent::kIndex, 5479201,
                       "expireAfterSeconds left out of a compound index",
                       BuildBson([&](BsonBuilder& b) { b.Append("index", i.name); }));
  } else {
    i.expire_after_seconds = seconds;
  }
  return Ok();
}

}  // namespace

Result<IndexInfo> ParseIndexSpec(ExpiryServices& server, const CollectionInfo* coll, BsonView spec,
                                 std::string* note, bool ignore_unknown) {
  // Error messages show the whole specification, and each option is compared with those before it.
  if (spec.Count() > static_cast<int>(kMaxCommandFields))
    return Error{ErrorCode::kBadValue, "An index specification may have no more than " +
                                           std::to_string(kMaxCommandFields) + " fields"};
  // Some readers would take the first of two fields, others the last.
  MAYFLY_TRY(ArgReader("createIndexes.indexes", spec).FinishLoose());
  BsonValue key = spec["key"], name = spec["name"];
  MAYFLY_TRY(CheckName(key, name));
  IndexInfo i;
  i.name = name.String();
  i.key = BsonDocument(key.Document());
  MAYFLY_TRY(i.fields, ParseIndexKey(key.Document()));
  i.kind = &KindOfKey(i.fields);
  MAYFLY_TRY(CheckKind(i));
  const bool is_id_key =
      i.fields.size() == 1 && i.fields[0].path == "_id" && !i.fields[0].descending;
  SpecOptions options;
  std::string extra;
  BsonBuilder more(extra);
  MAYFLY_TRY(ReadOptions(server, spec, ignore_unknown, i, &options, more));
  more.Done();
  i.extra = BsonDocument(std::move(extra));
  if (options.clustered)
    return Cannot(
        "Cannot create a clustered index with createIndexes: it is an option of the create "
        "command");
  if (is_id_key) {
    MAYFLY_TRY(CheckIdIndex(coll, spec, options));
    // This index exists already, under its own name. Drivers send the name that they derive from
    // any key: `_id_1`.
    i.name = "_id_";
    i.extra = BsonDocument();
    return i;
  }
  if (i.name == "_id_")
    return Error{ErrorCode::kBadValue,
                 "The index name '_id_' is reserved for the _id index, which must have key pattern "
                 "{_id: 1}, found key: " +
                     ToRelaxedJson(i.key.view())};
  if (options.reap && (options.expire.missing() || i.fields.size() > 1))
    return Cannot("index '" + i.name +
                  "': reap is an option of TTL indexes: it needs expireAfterSeconds and one field");
  if (i.sparse && i.has_partial_filter)
    return Cannot("cannot mix \"partialFilterExpression\" and \"sparse\" options");
  if (options.expire.missing() && i.expire_reads != ExpireReads::kDefault)
    return Cannot("expireReads is for TTL indexes: index '" + i.name +
                  "' has no expireAfterSeconds");
  if (!options.expire.missing()) {
    MAYFLY_TRY(SetExpireAfterSeconds(server, coll, spec, options.expire, i, note));
  }
  return i;
}

}  // namespace mayfly
