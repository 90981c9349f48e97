#include <set>

#include "protocol/bson_compare.h"
#include "protocol/database_name.h"
#include "protocol/object_id.h"
#include "protocol/seeded_hash.h"
#include "query/expression/element_text.h"
#include "query/expression/insert_prepare.h"
#include "query/expression/parse_work.h"
#include "query/pipeline/stage.h"
#include "storage/catalog/namespace.h"

namespace mayfly {
namespace {

constexpr size_t kBatchBytes = 1 << 20;
constexpr size_t kBatchDocuments = 1000;

Error NotAttached() {
  return Error{ErrorCode::kInternalError, "the pipeline is not attached to an operation"};
}

/// `doc` with an `_id`: its own, or a new ObjectId in front.
BsonDocument WithId(BsonView doc, Instant now) {
  if (doc.Has("_id")) return BsonDocument(doc);
  return BuildBson([&](BsonBuilder& b) {
    b.AppendObjectId("_id", NewObjectId(now));
    b.AppendAll(doc);
  });
}

struct Target {
  std::string db, collection;
  std::optional<BsonDocument> series;  ///< `timeseries` of $out
};

/// "coll" or {db: …, coll: …}.
Result<Target> ParseTarget(BsonValue v, const PipelineOptions& options, const std::string& what) {
  Target t{options.db, "", {}};
  if (v.IsString()) {
    t.collection = v.String();
  } else if (v.IsDocument()) {
    MAYFLY_TRY(CheckOptionsOnce(what, v));
    for (const BsonElement& e : v.Document()) {
      if (e.name == "timeseries" && what == "$out") {
        if (!e.value.IsDocument())
          return TypeMismatch("BSON field '$out.timeseries' is the wrong type '" +
                              TypeText(e.value) + "', expected type 'object'");
        if (options.check_series != nullptr) {
          MAYFLY_TRY(options.check_series(e.value.Document()));
        }
        t.series = BsonDocument(e.value.Document());
        continue;
      }
      if (e.name != "db" && e.name != "coll")
        return Error{ErrorCode::kUnknownField,
                     "BSON field '" + what + "." + std::string(e.name) + "' is an unknown field."};
      if (!e.value.IsString())
        return TypeMismatch("BSON field '" + what + "." + std::string(e.name) +
                            "' is the wrong type '" + TypeText(e.value) +
                            "', expected type 'string'");
      (e.name == "db" ? t.db : t.collection) = e.value.String();
    }
  } else {
    return LocationError(
        what == "$out" ? 16990 : 51178,
        what + " only supports a string or object argument, but found " + TypeText(v));
  }
  if (!ValidateNamespace(t.db, t.collection))
    return Error{ErrorCode::kInvalidNamespace,
                 "Invalid " + what + " target namespace, " + JoinNamespace(t.db, t.collection)};
  if (t.collection.starts_with("system.") || IsConfigOrLocal(t.db))
    return LocationError(
        what == "$out" ? 17385 : 31319,
        "Cannot " + what + " to special collection: " + JoinNamespace(t.db, t.collection));
  return t;
}

/// Between stages documents may be larger, and expressions can nest deeper, than what a client
/// could send or read. Looked at before the document is copied.
Result<void> CheckStorable(BsonView doc) {
  if (doc.size() > static_cast<uint32_t>(kMaxBsonUserSize))
    return Error{ErrorCode::kBSONObjectTooLarge, "BSONObj size: " + std::to_string(doc.size()) +
                                                     " is invalid. Size must be between 0 and " +
                                                     std::to_string(kMaxBsonUserSize) + "(16MB)"};
  if (NestingDepth(doc.AsValue()) <= kMaxBsonDepth) return Ok();
  return DocumentTooDeep();
}

class WriterStage : public PipelineStage {
 public:
  WriterStage(PipelineContext& context, Target target)
      : PipelineStage(context), target_(std::move(target)) {}
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kWhole; }
  void AddNamespaces(std::set<std::string>* namespaces) const override {
    namespaces->insert(JoinNamespace(target_.db, target_.collection));
  }

 protected:
  Target target_;
  bool done_ = false;
};

class OutStage final : public WriterStage {
 public:
  using WriterStage::WriterStage;
  std::string_view name() const override { return "$out"; }
  void Serialize(BsonBuilder& out) const override {
    BsonBuilder sub = out.OpenDocument("$out");
    sub.Append("coll", target_.collection).Append("db", target_.db);
    if (target_.series) sub.Append("timeseries", *target_.series);
  }

 protected:
  Result<StreamState> GetNext(StreamDocument*) override {
    if (done_) return StreamState::kEof;
    if (!context_->env || !context_->op) return NotAttached();
    std::optional<BsonView> series;
    if (target_.series) series = target_.series->view();
    MAYFLY_TRY(context_->env->BeginOut(*context_->op, target_.db, target_.collection, series));
    Result<void> written = WriteAll();
    if (written) written = context_->env->CommitOut(*context_->op);
    if (!written) {
      context_->env->AbandonOut();
      return written.error();
    }
    done_ = true;
    return StreamState::kEof;
  }

 private:
  Result<void> WriteAll() {
    std::vector<BsonDocument> batch;
    size_t bytes = 0;
    auto flush = [&]() -> Result<void> {
      if (batch.empty()) return Ok();
      std::vector<BsonView> views(batch.begin(), batch.end());
      MAYFLY_TRY(context_->env->WriteOut(*context_->op, views));
      batch.clear();
      bytes = 0;
      return Ok();
    };
    while (true) {
      StreamDocument in;
      MAYFLY_TRY(StreamState state, Pull(&in));
      if (state != StreamState::kAdvanced) break;
      MAYFLY_TRY(CheckStorable(in.doc));
      // bounded: by kBatchBytes
      batch.push_back(WithId(in.doc, context_->eval.now));
      bytes += in.doc.size();
      if (batch.size() >= kBatchDocuments || bytes >= kBatchBytes) {
        MAYFLY_TRY(flush());
      }
    }
    return flush();
  }
};

enum class WhenMatched : uint8_t { kReplace, kKeepExisting, kMerge, kFail, kPipeline };
enum class WhenNotMatched : uint8_t { kInsert, kDiscard, kFail };
constexpr std::string_view kMatchedNames[] = {"replace", "keepExisting", "merge", "fail",
                                              "pipeline"};
constexpr std::string_view kNotMatchedNames[] = {"insert", "discard", "fail"};

struct MergeSpec {
  Target target;
  std::vector<std::string> on{"_id"};
  bool on_given = false;
  WhenMatched matched = WhenMatched::kMerge;
  WhenNotMatched not_matched = WhenNotMatched::kInsert;
  BsonDocument pipeline;  ///< array bytes
  std::vector<std::pair<std::string, ExpressionPtr>> let;
};

class MergeStage final : public WriterStage {
 public:
  MergeStage(PipelineContext& context, MergeSpec spec)
      : WriterStage(context, spec.target), spec_(std::move(spec)) {
    for (auto& path : spec_.on) on_paths_.push_back(ParseFieldPath(path).value());
  }
  std::string_view name() const override { return "$merge"; }
  void Serialize(BsonBuilder& out) const override {
    BsonBuilder sub = out.OpenDocument("$merge");
    BsonBuilder into = sub.OpenDocument("into");
    into.Append("db", target_.db).Append("coll", target_.collection);
    into.Done();
    if (spec_.on.size() == 1) {
      sub.Append("on", spec_.on[0]);
    } else {
      BsonArrayBuilder on = sub.OpenArray("on");
      for (auto& path : spec_.on) on.Append(path);
    }
    if (spec_.matched == WhenMatched::kPipeline)
      sub.AppendArray("whenMatched", spec_.pipeline);
    else
      sub.Append("whenMatched", kMatchedNames[static_cast<size_t>(spec_.matched)]);
    if (!spec_.let.empty()) {
      BsonBuilder let = sub.OpenDocument("let");
      for (auto& [name, e] : spec_.let) e->Serialize(let, name);
    }
    sub.Append("whenNotMatched", kNotMatchedNames[static_cast<size_t>(spec_.not_matched)]);
  }

 protected:
  Result<StreamState> GetNext(StreamDocument*) override {
    if (done_) return StreamState::kEof;
    if (!context_->env || !context_->op) return NotAttached();
    MAYFLY_TRY(
        context_->env->CheckMergeFields(*context_->op, target_.db, target_.collection, spec_.on));
    while (true) {
      StreamDocument in;
      MAYFLY_TRY(StreamState state, Pull(&in));
      if (state == StreamState::kPaused) return state;
      if (state == StreamState::kEof) break;
      MAYFLY_TRY(MergeDocument(in));
    }
    done_ = true;
    return StreamState::kEof;
  }

 private:
  Result<void> MergeDocument(const StreamDocument& in) {
    MAYFLY_TRY(CheckStorable(in.doc));
    BsonDocument doc = WithId(in.doc, context_->eval.now);
    bool own_id = in.doc.Has("_id");
    std::string query_bytes;
    BsonBuilder query(query_bytes);
    for (size_t i = 0; i < spec_.on.size(); ++i) {
      BsonValue v = doc.view().AsValue();
      for (auto& part : on_paths_[i]) {
        if (v.IsArray())
          return LocationError(
              51132,
              "$merge write error: 'on' field cannot be missing, null, undefined or an array: " +
                  spec_.on[i]);
        v = v.IsDocument() ? v.Document().Find(part) : BsonValue();
      }
      if (v.IsNullish() || v.IsArray())
        return LocationError(
            51132,
            "$merge write error: 'on' field cannot be missing, null, undefined or an array: " +
                spec_.on[i]);
      query.Append(spec_.on[i], v);
    }
    query.Done();
    std::vector<std::pair<std::string, Value>> variables;
    if (spec_.matched == WhenMatched::kPipeline) {
      StreamDocument self{doc.view(), in.metadata};
      for (auto& [name, e] : spec_.let) {
        MAYFLY_TRY(Value v, e->Evaluate(Eval(self)));
        MAYFLY_TRY(CheckNesting(v.view()));
        // bounded: by the variables of the stage; large values count by themselves
        variables.emplace_back(name, std::move(v).Own());
      }
      variables.emplace_back("new", Value::Copy(doc.view().AsValue()));
    }
    MergeDecision decide = [&](std::optional<BsonView> existing) {
      return Decide(existing, doc, own_id, variables);
    };
    return context_->env->MergeOne(*context_->op, target_.db, target_.collection,
                                   BsonView(query_bytes.data()), decide);
  }

  /// `existing` with the fields of `doc`: they replace fields of the same name, or come after all.
  /// It never searches one for each field of the other: both may have a million.
  Result<BsonDocument> MergeFields(BsonView existing, BsonView doc, bool own_id) {
    struct Given {
      BsonValue value;
      bool taken = false;
    };
    ClientViewMap<Given> given;
    ParseWork work(context_->op);
    constexpr size_t kPerField = 64;  // bytes of a node of the map
    for (const BsonElement& e : doc) {
      if (e.name == "_id" && !own_id) continue;
      ParseWork::Made(kPerField);
      MAYFLY_TRY(ParseWork::Step());
      given.try_emplace(e.name, Given{e.value});  // bounded: ParseWork counts it
    }
    std::string bytes;
    BsonBuilder b(bytes);
    for (const BsonElement& e : existing) {
      MAYFLY_TRY(ParseWork::Step());
      const auto other = given.find(e.name);
      b.Append(e.name, other == given.end() ? e.value : other->second.value);
      if (other != given.end()) other->second.taken = true;
    }
    for (const BsonElement& e : doc) {
      MAYFLY_TRY(ParseWork::Step());
      const auto other = given.find(e.name);
      if (other != given.end() && !other->second.taken) b.Append(e);
    }
    b.Done();
    return BsonDocument(std::move(bytes));
  }

  /// As an insert of the document would fail: on the unique index of the `on` fields.
  Error Duplicate(BsonView existing) const {
    BsonDocument pattern = BuildBson([&](BsonBuilder& b) {
      for (const std::string& path : spec_.on) b.Append(path, int32_t{1});
    });
    BsonDocument value = BuildBson([&](BsonBuilder& b) {
      for (const std::string& path : spec_.on) b.Append(path, existing.FindPath(path));
    });
    std::string index;
    // bounded: by the fields of an index
    for (const std::string& path : spec_.on) index += (index.empty() ? "" : "_") + path + "_1";
    if (spec_.on.size() == 1 && spec_.on[0] == "_id") index = "_id_";
    BsonDocument details = BuildBson(
        [&](BsonBuilder& b) { b.Append("keyPattern", pattern).Append("keyValue", value); });
    return {
        ErrorCode::kDuplicateKey,
        "E11000 duplicate key error collection: " + JoinNamespace(target_.db, target_.collection) +
            " index: " + index + " dup key: " + update::ValueText(value.view().AsValue()),
        details.bytes()};
  }

  Result<std::optional<BsonDocument>> Decide(
      std::optional<BsonView> existing, const BsonDocument& doc, bool own_id,
      const std::vector<std::pair<std::string, Value>>& variables) {
    using Answer = std::optional<BsonDocument>;
    if (!existing) {
      switch (spec_.not_matched) {
        case WhenNotMatched::kInsert:
          break;
        case WhenNotMatched::kDiscard:
          return Answer();
        case WhenNotMatched::kFail:
          return Error{
              LocationCode(13113),
              "$merge could not find a matching document in the target collection for at least "
              "one document in the source collection"};
      }
      return Answer(doc);  // an insert takes the incoming document, not the pipeline's view of it
    }
    BsonValue id = (*existing)["_id"];
    BsonDocument next;
    switch (spec_.matched) {
      case WhenMatched::kKeepExisting:
        return Answer();
      case WhenMatched::kFail:
        return Duplicate(*existing);
      case WhenMatched::kReplace:
        next = own_id ? doc : BuildBson([&](BsonBuilder& b) {
          b.Append("_id", id);
          for (const BsonElement& e : doc.view())
            if (e.name != "_id") b.Append(e);
        });
        break;
      case WhenMatched::kMerge: {
        MAYFLY_TRY(next, MergeFields(*existing, doc.view(), own_id));
        break;
      }
      case WhenMatched::kPipeline: {
        SubPipelineSpec sub{.stage = "$merge",
                            .db = target_.db,
                            .collection = target_.collection,
                            .variables = variables};
        MAYFLY_TRY(auto pipeline, ParseSubPipeline(spec_.pipeline, *context_, sub));
        std::vector<BsonDocument> input;
        input.emplace_back(*existing);  // bounded: one document
        pipeline->context().eval.now = context_->eval.now;
        pipeline->context().eval.cluster_time = context_->eval.cluster_time;
        pipeline->SetSource(std::make_unique<VectorSource>(std::move(input)));
        pipeline->Attach(context_->op, context_->env);
        StreamDocument result;
        MAYFLY_TRY(StreamState state, pipeline->Next(&result));
        if (state != StreamState::kAdvanced) return Answer();
        // Before it is copied; the place of its _id is for who stores it.
        if (result.doc.size() > static_cast<uint32_t>(kMaxBsonUserSize))
          return UpdateTooLarge(false);
        next = BsonDocument(result.doc);
        break;
      }
    }
    const BsonValue next_id = next.view()["_id"];
    if (next_id && !next_id.BinaryEquals(id) && CompareValues(next_id, id) != 0)
      return Error{ErrorCode::kImmutableField,
                   "$merge failed to update the matching document, did you attempt to modify the "
                   "_id or the shard key? :: "
                   "caused by :: Performing an update on the path '_id' would modify the immutable "
                   "field '_id'"};
    return Answer(std::move(next));
  }

  MergeSpec spec_;
  std::vector<std::vector<std::string>> on_paths_;
};

Result<void> CheckWritesAllowed(StageParser& p) {
  if (p.context.options.allow_writes) return Ok();
  return Error{ErrorCode::kInvalidOptions, std::string(p.stage) + " cannot be used here"};
}

/// `on`: a field or a list of fields.
Result<void> ParseOn(BsonValue v, MergeSpec* merge) {
  merge->on.clear();
  merge->on_given = true;
  std::set<std::string_view> seen;
  auto add = [&](BsonValue field) -> Result<void> {
    MAYFLY_TRY(ParseWork::Step());
    if (!field.IsString())
      return LocationError(
          51134, "$merge 'on' array elements must be strings, but found " + TypeText(field));
    MAYFLY_TRY(ParseFieldPath(field.String()));
    if (!seen.insert(field.String()).second)
      return LocationError(
          31465, "Found a duplicate field '" + std::string(field.String()) + "' in $merge 'on'");
    merge->on.emplace_back(field.String());
    return Ok();
  };
  if (v.IsString()) return add(v);
  if (!v.IsArray())
    return LocationError(
        51186, "$merge 'on' field  must be either a string or an array of strings, but found " +
                   TypeText(v));
  for (const BsonElement& field : v.Document()) {
    MAYFLY_TRY(add(field.value));
  }
  if (merge->on.empty())
    return LocationError(51187,
                         "If explicitly specifying $merge 'on', must include at least one field");
  return Ok();
}

Result<void> ParseWhenMatched(BsonValue v, MergeSpec* merge) {
  if (v.IsArray()) {
    merge->matched = WhenMatched::kPipeline;
    merge->pipeline = BsonDocument(v.Document());
    return Ok();
  }
  if (!v.IsString())
    return LocationError(
        51191, "$merge 'whenMatched' field  must be either a string or an array, but found " +
                   TypeText(v));
  size_t i = 0;
  while (i < 4 && kMatchedNames[i] != v.String()) ++i;
  if (i == 4)
    return Error{ErrorCode::kBadValue,
                 "Enumeration value '" + std::string(v.String()) +
                     "' for field '$merge.whenMatched' is not a valid value."};
  merge->matched = static_cast<WhenMatched>(i);
  return Ok();
}

Result<void> ParseWhenNotMatched(BsonValue v, MergeSpec* merge) {
  size_t i = 0;
  while (i < 3 && !(v.IsString() && kNotMatchedNames[i] == v.String())) ++i;
  if (i == 3)
    return Error{ErrorCode::kBadValue,
                 "Enumeration value '" + (v.IsString() ? std::string(v.String()) : ValueText(v)) +
                     "' for field '$merge.whenNotMatched' is not a valid value."};
  merge->not_matched = static_cast<WhenNotMatched>(i);
  return Ok();
}

Result<void> ParseMergeFields(BsonView spec, MergeSpec* merge, BsonValue* into, BsonValue* let) {
  for (const BsonElement& e : spec) {
    if (e.name == "into") {
      *into = e.value;
    } else if (e.name == "on") {
      MAYFLY_TRY(ParseOn(e.value, merge));
    } else if (e.name == "let") {
      *let = e.value;
    } else if (e.name == "whenMatched") {
      MAYFLY_TRY(ParseWhenMatched(e.value, merge));
    } else if (e.name == "whenNotMatched") {
      MAYFLY_TRY(ParseWhenNotMatched(e.value, merge));
    } else {
      return Error{ErrorCode::kUnknownField,
                   "BSON field '$merge." + std::string(e.name) + "' is an unknown field."};
    }
  }
  if (into->missing())
    return Error{ErrorCode::kMissingField,
                 "BSON field '$merge.into' is missing but a required field"};
  return Ok();
}

std::string NameOf(WhenMatched m) { return std::string(kMatchedNames[static_cast<size_t>(m)]); }

Result<void> ParseMergeVariables(BsonValue let, VariableScope& scope, MergeSpec* merge) {
  if (let.missing()) return Ok();
  if (merge->matched != WhenMatched::kPipeline)
    return LocationError(51199, "Cannot use 'let' variables with 'whenMatched: " +
                                    NameOf(merge->matched) + "' mode");
  if (!let.IsDocument())
    return TypeMismatch("BSON field '$merge.let' is the wrong type '" + TypeText(let) +
                        "', expected type 'object'");
  MAYFLY_TRY(CheckOptionsOnce("$merge.let", let));
  for (const BsonElement& e : let.Document()) {
    MAYFLY_TRY(CheckVariableName(e.name));
    MAYFLY_TRY(ExpressionPtr x, ParseExpression(e.value, scope));
    merge->let.emplace_back(e.name, std::move(x));
  }
  return Ok();
}

/// That whenMatched's pipeline could run; it is parsed again for each document.
Result<void> CheckMergePipeline(const MergeSpec& merge, const PipelineContext& context) {
  if (merge.matched != WhenMatched::kPipeline) return Ok();
  constexpr std::string_view kAllowed[] = {"$addFields", "$set",         "$project",
                                           "$unset",     "$replaceRoot", "$replaceWith"};
  for (const BsonElement& e : merge.pipeline.view()) {
    std::string_view name = e.value.IsDocument() ? e.value.Document().First().name : "";
    if (std::find(std::begin(kAllowed), std::end(kAllowed), name) == std::end(kAllowed))
      return Error{ErrorCode::kInvalidOptions,
                   std::string(name) + " is not allowed to be used within an update"};
  }
  SubPipelineSpec sub{
      .stage = "$merge", .db = merge.target.db, .collection = merge.target.collection};
  for (auto& [name, e] : merge.let) sub.variables.emplace_back(name, Value());
  sub.variables.emplace_back("new", Value());
  MAYFLY_TRY(ParseSubPipeline(merge.pipeline, context, sub));
  return Ok();
}

}  // namespace

Result<void> ParseOutStage(StageParser& p, BsonValue spec) {
  MAYFLY_TRY(CheckWritesAllowed(p));
  MAYFLY_TRY(Target target, ParseTarget(spec, p.context.options, "$out"));
  p.out.push_back(std::make_unique<OutStage>(p.context, std::move(target)));
  return Ok();
}

Result<void> ParseMergeStage(StageParser& p, BsonValue spec) {
  MAYFLY_TRY(CheckWritesAllowed(p));
  MergeSpec merge;
  BsonValue into = spec, let;
  if (spec.IsDocument()) {
    into = {};
    MAYFLY_TRY(ParseMergeFields(spec.Document(), &merge, &into, &let));
  } else if (!spec.IsString()) {
    return LocationError(
        51182, "$merge requires a string or object argument, but found " + TypeText(spec));
  }
  MAYFLY_TRY(merge.target, ParseTarget(into, p.context.options, "$merge"));
  const bool keeps =
      merge.matched == WhenMatched::kKeepExisting || merge.matched == WhenMatched::kFail;
  if (keeps && merge.not_matched != WhenNotMatched::kInsert)
    return LocationError(
        51181, "Combination of {whenMatched: " + NameOf(merge.matched) + ", whenNotMatched: " +
                   std::string(kNotMatchedNames[static_cast<size_t>(merge.not_matched)]) +
                   "} is not supported");
  MAYFLY_TRY(ParseMergeVariables(let, p.scope, &merge));
  MAYFLY_TRY(CheckMergePipeline(merge, p.context));
  p.out.push_back(std::make_unique<MergeStage>(p.context, std::move(merge)));
  return Ok();
}

}  // namespace mayfly
