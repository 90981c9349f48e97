#include "server/execution/find_args.h"

#include "server/dispatch/arg_reader.h"
#include "server/execution/aggregate.h"

namespace mayfly {
namespace {

/// Errors: BadValue 2. False: `sort` is no $natural sort.
Result<bool> CheckNatural(BsonView sort) {
  if (!sort.Has("$natural")) return false;
  if (sort.Count() != 1)
    return Error{ErrorCode::kBadValue, "Cannot include '$natural' in compound sort"};
  int64_t direction = 0;
  if (!sort.First().value.ExactInt64(&direction) || (direction != 1 && direction != -1))
    return Error{ErrorCode::kBadValue,
                 "$natural sort cannot be set to a value other than -1 or 1."};
  return true;
}

/// None, or one of the natural order.
bool IsNaturalHint(BsonValue hint) {
  return hint.missing() ||
         (hint.IsDocument() && (hint.Document().empty() || hint.Document().Has("$natural")));
}

}  // namespace

Result<FindArgs> ParseFind(const CommandRequest& req) {
  ArgReader in(req);
  FindArgs a;
  a.collection = in.Collection();
  a.filter = in.DocumentOr("filter");
  a.projection = in.DocumentOr("projection");
  a.sort = in.DocumentOr("sort");
  a.hint = in.Any("hint");
  a.skip = in.NonNegativeOr("skip", 0);
  a.limit = in.NonNegativeOr("limit", 0);
  if (in.Has("batchSize")) a.batch_size = in.NonNegativeOr("batchSize", 0);
  a.single_batch = in.LooseBoolOr("singleBatch", false);
  a.tailable = in.LooseBoolOr("tailable", false);
  a.await_data = in.LooseBoolOr("awaitData", false);
  a.no_cursor_timeout = in.LooseBoolOr("noCursorTimeout", false);
  a.return_key = in.LooseBoolOr("returnKey", false);
  a.show_record_id = in.LooseBoolOr("showRecordId", false);
  a.allow_disk_use = in.LooseBoolOr("allowDiskUse", true);
  a.include_expired = in.BoolOr("includeExpired", false);
  a.min = in.DocumentOr("min");
  a.max = in.DocumentOr("max");
  a.let = in.DocumentOr("let");
  in.SimpleCollation();
  // unused: of sharded clusters; this server has all results
  in.LooseBoolOr("allowPartialResults", false);
  in.LooseBoolOr("oplogReplay", false);  // unused: without effect since 4.4
  MAYFLY_TRY(in.Finish());
  if (a.await_data && !a.tailable)
    return Error{ErrorCode::kFailedToParse,
                 "Cannot set 'awaitData' without also setting 'tailable'"};
  if (a.tailable && a.single_batch)
    return Error{ErrorCode::kInvalidOptions, "Cannot use 'tailable' with 'singleBatch'"};
  if (!a.hint.missing() && !a.hint.IsString() && !a.hint.IsDocument())
    return Error{ErrorCode::kFailedToParse, "Hint must be a string or an object"};
  // As a hint it means the same. It also works for the pipeline of a view, where it cannot be a
  // stage.
  if (!a.sort.empty()) {
    if (const Result<bool> natural = CheckNatural(a.sort);
        natural && natural.value() && a.min.empty() && a.max.empty() && IsNaturalHint(a.hint))
      a.hint = a.sort.AsValue();
  }
  return a;
}

AggregateSpec FindArgs::OnView(std::string_view db, BsonView pipeline) const {
  AggregateSpec s;
  s.db = db;
  s.collection = collection;
  s.pipeline = pipeline;
  s.let = let;
  s.hint = hint;
  if (s.hint.IsDocument() && s.hint.Document().empty()) s.hint = {};
  s.allow_disk_use = allow_disk_use;
  s.include_expired = include_expired;
  return s;
}

QuerySpec FindArgs::ToSpec(CollectionInfoPtr coll, std::string_view ns) const {
  QuerySpec s;
  s.coll = std::move(coll);
  s.ns = ns;
  s.filter = filter;
  s.projection = projection;
  s.sort = sort;
  s.hint = hint;
  if (s.hint.IsDocument() && s.hint.Document().empty()) s.hint = {};
  s.min = min;
  s.max = max;
  s.skip = skip;
  s.limit = limit;
  s.batch_hint = limit > 0 ? limit : batch_size.value_or(0);
  s.tailable = tailable;
  s.await_data = await_data;
  s.return_key = return_key;
  s.show_record_id = show_record_id;
  s.allow_disk_use = allow_disk_use;
  s.include_expired = include_expired;
  s.let = let;
  s.allow_where = true;
  return s;
}

Result<BsonDocument> FindArgs::ToPipeline() const {
  auto refuse = [](const char* option) {
    return Error{ErrorCode::kInvalidPipelineOperator,
                 std::string("Option ") + option +
                     " not supported in aggregation: it cannot be used on a view"};
  };
  if (tailable) return refuse("tailable");
  if (return_key) return refuse("returnKey");
  if (show_record_id) return refuse("showRecordId");
  if (!min.empty()) return refuse("min");
  if (!max.empty()) return refuse("max");
  MAYFLY_TRY(const bool natural, CheckNatural(sort));
  if (natural && !IsNaturalHint(hint))
    return Error{ErrorCode::kBadValue, "Cannot use a hint of an index with a $natural sort"};
  std::string bytes;
  BsonArrayBuilder stages(bytes);
  if (!filter.empty()) stages.OpenDocument().Append("$match", filter);
  if (!sort.empty() && !natural) stages.OpenDocument().Append("$sort", sort);
  if (skip > 0) stages.OpenDocument().Append("$skip", skip);
  if (limit > 0) stages.OpenDocument().Append("$limit", limit);
  if (!projection.empty()) stages.OpenDocument().Append("$project", projection);
  stages.Done();
  return BsonDocument(std::move(bytes));
}

namespace {

Result<void> CheckFindHint(BsonValue hint) {
  if (hint.missing() || hint.IsString() || hint.IsDocument()) return Ok();
  return Error{ErrorCode::kFailedToParse, "hint must be either a string or nested object"};
}

}  // namespace

BsonDocument CountArgs::ToPipeline() const {
  std::string bytes;
  BsonArrayBuilder stages(bytes);
  if (!query.empty()) stages.OpenDocument().Append("$match", query);
  if (skip > 0) stages.OpenDocument().Append("$skip", skip);
  if (limit > 0) stages.OpenDocument().Append("$limit", limit);
  stages.OpenDocument().Append("$count", "n");
  stages.Done();
  return BsonDocument(std::move(bytes));
}

BsonDocument DistinctArgs::ToPipeline(std::string_view meta_field) const {
  const std::string path = "$" + std::string(key);
  std::string bytes;
  BsonArrayBuilder stages(bytes);
  if (!query.empty()) stages.OpenDocument().Append("$match", query);
  if (!meta_field.empty() && key.starts_with(meta_field) &&
      (key.size() == meta_field.size() || key[meta_field.size()] == '.')) {
    // Each meta value once, which a time series takes from its buckets. A point without one keeps
    // none.
    {
      BsonBuilder stage = stages.OpenDocument();
      BsonBuilder group = stage.OpenDocument("$group");
      group.OpenDocument("_id").Append(meta_field, "$" + std::string(meta_field));
    }
    BsonBuilder stage = stages.OpenDocument();
    stage.OpenDocument("$replaceRoot").Append("newRoot", "$_id");
  }
  // Arrays along the path and at its end stand for their elements, as in the command.
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('.', end + 1);
    const std::string prefix = path.substr(0, end);
    stages.OpenDocument()
        .OpenDocument("$unwind")
        .Append("path", prefix)
        .Append("preserveNullAndEmptyArrays", true);
    if (end == std::string::npos) break;
    // An array in an array is no step of a path in the command, but one in a stage.
    auto stage = stages.OpenDocument();
    auto match = stage.OpenDocument("$match");
    auto expr = match.OpenDocument("$expr");
    auto both = expr.OpenArray("$eq");
    both.OpenDocument().Append("$type", prefix);
    both.Append("object");
  }
  {
    auto stage = stages.OpenDocument();
    auto group = stage.OpenDocument("$group");
    group.AppendNull("_id");
    group.OpenDocument("values").Append("$addToSet", path);
  }
  stages.Done();
  return BsonDocument(std::move(bytes));
}

Result<CountArgs> ParseCount(const CommandRequest& req) {
  ArgReader in(req);
  CountArgs a;
  a.collection = in.Collection();
  a.query = in.DocumentOr("query");
  a.hint = in.Any("hint");
  a.limit = in.Int64Or("limit", 0);
  a.skip = in.Int64Or("skip", 0);
  in.SimpleCollation();
  in.Ignore("fields");  // unused: old clients send it; the manual gives it no meaning
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CheckFindHint(a.hint));
  if (a.skip < 0)
    return Error{LocationCode(51024), "BSON field 'skip' value must be >= 0, actual value '" +
                                          std::to_string(a.skip) + "'"};
  if (a.limit == INT64_MIN) return Error{ErrorCode::kBadValue, "limit is out of range"};
  if (a.limit < 0) a.limit = -a.limit;
  return a;
}

Result<DistinctArgs> ParseDistinct(const CommandRequest& req) {
  ArgReader in(req);
  DistinctArgs a;
  a.collection = in.Collection();
  a.key = in.String("key");
  if (a.key.find('\0') != std::string_view::npos)
    in.Fail({LocationCode(31032), "Key field cannot contain an embedded null byte"});
  a.query = in.DocumentOr("query");
  a.hint = in.Any("hint");
  in.SimpleCollation();
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CheckFindHint(a.hint));
  return a;
}

}  // namespace mayfly
