#include <algorithm>

#include "protocol/bson_compare.h"
#include "query/pipeline/partition_sorter.h"
#include "query/pipeline/stage.h"
#include "query/pipeline/window_functions.h"

namespace mayfly {
namespace {

/// One output field.
struct WindowOutput {
  std::vector<std::string> path;
  std::unique_ptr<WindowFunction> function;
};

/// Sorts all documents by partition and sortBy, and then holds one partition after another in
/// memory: its functions look at any of its documents.
class WindowStage final : public PipelineStage {
 public:
  WindowStage(PipelineContext& context, BsonDocument spec, ExpressionPtr partition_by,
              SortPattern sort, std::vector<WindowOutput> outputs)
      : PipelineStage(context),
        spec_(std::move(spec)),
        sort_(std::move(sort)),
        outputs_(std::move(outputs)),
        sorter_(std::move(partition_by)) {}
  std::string_view name() const override { return "$setWindowFields"; }
  void Serialize(BsonBuilder& out) const override { out.Append("$setWindowFields", spec_); }
  StageNeeds AddDependencies(std::set<std::string>* fields) const override {
    sorter_.AddDependencies(fields);
    for (const SortPattern::Part& part : sort_.parts()) fields->insert(part.path);
    for (const WindowOutput& o : outputs_) o.function->AddDependencies(fields);
    return StageNeeds::kAlso;
  }
  void ExplainStats(BsonBuilder& out) const override { sorter_.ExplainStats(out); }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    MAYFLY_TRY(StreamState filled,
               sorter_.Fill(
                   sort_.spec(), options(), [this](StreamDocument* in) { return Pull(in); },
                   [this](const StreamDocument& in) -> Result<EvalContext*> { return &Eval(in); }));
    if (filled == StreamState::kPaused) return filled;
    context_->eval.op = context_->op;
    context_->eval.metadata = nullptr;
    if (next_ >= partition_.size()) {
      MAYFLY_TRY(ReadPartition());
      if (partition_.size() == 0) return StreamState::kEof;
      for (const WindowOutput& o : outputs_) {
        MAYFLY_TRY(o.function->Begin(partition_, context_->eval));
      }
    }
    MAYFLY_TRY(Check());
    const size_t i = next_++;
    std::string bytes(partition_.documents[i].view().bytes());
    for (const WindowOutput& o : outputs_) {
      MAYFLY_TRY(Value v, o.function->At(i, context_->eval));
      buffer_.clear();
      BsonBuilder b(buffer_);
      SetPath(BsonView(bytes.data()), o.path, v.missing() ? Value::Null().view() : v.view(), b);
      b.Done();
      std::swap(bytes, buffer_);
      if (bytes.size() > size_t{4} * kMaxValueBytes) return ValueTooLarge(bytes.size());
    }
    std::swap(bytes, buffer_);
    *out = {BsonView(buffer_.data()), nullptr};
    return StreamState::kAdvanced;
  }

  void AddKeptByStage(large_memory::Kept* kept) const override {
    sorter_.AddKept(kept);
    kept->Add(partition_bytes_, hold_);
  }

 private:
  Result<void> ReadPartition() {
    partition_.documents.clear();
    hold_.Release();
    next_ = 0;
    size_t memory = 0;
    for (bool same = true; sorter_.has_next();) {
      MAYFLY_TRY(Check());
      partition_.documents.emplace_back(sorter_.document());
      memory += sorter_.document().size() + sizeof(BsonDocument);
      MAYFLY_TRY(hold_.Set(memory));
      partition_bytes_ = memory;
      if (memory > options().memory_limit)
        return Error{ErrorCode::kExceededMemoryLimit,
                     "a partition of $setWindowFields used too much memory. Memory limit: " +
                         std::to_string(options().memory_limit) + " bytes"};
      MAYFLY_TRY(same, sorter_.Advance());
      if (!same) break;
    }
    return Ok();
  }

  const BsonDocument spec_;
  const SortPattern sort_;
  const std::vector<WindowOutput> outputs_;
  PartitionSorter sorter_;
  WindowPartition partition_;
  large_memory::Hold hold_;
  size_t next_ = 0, partition_bytes_ = 0;
  std::string buffer_;
};

/// A dotted path of an output field. Errors: FailedToParse 9.
Result<std::vector<std::string>> SplitOutputPath(std::string_view path) {
  if (path.find('\0') != path.npos)
    return LocationError(16411, "FieldPath field names may not contain '\\0'.");
  std::vector<std::string> parts;
  for (size_t from = 0;;) {
    const size_t dot = std::min(path.find('.', from), path.size());
    const std::string_view part = path.substr(from, dot - from);
    if (part.empty())
      return LocationError(40353,
                           "FieldPath '" + std::string(path) + "' must not have an empty part");
    if (part.front() == '$')
      return LocationError(16410,
                           "FieldPath field names may not start with '$'. Consider using "
                           "$getField or $setField.");
    parts.emplace_back(part);
    if (dot == path.size()) return parts;
    from = dot + 1;
  }
}

}  // namespace

/// {partitionBy: expression, sortBy: {…}, output: {path: {$function: …, window: {…}}, …}}
Result<void> ParseSetWindowFieldsStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument())
    return FailedToParse("the $setWindowFields stage specification must be an object, found " +
                         TypeText(spec));
  BsonValue partition_by, output;
  SortPattern sort;
  for (const BsonElement& e : spec.Document()) {
    if (e.name == "partitionBy") {
      partition_by = e.value;
    } else if (e.name == "sortBy") {
      if (!e.value.IsDocument())
        return TypeMismatch("BSON field '$setWindowFields.sortBy' is the wrong type '" +
                            TypeText(e.value) + "', expected type 'object'");
      if (e.value.Document().empty()) continue;
      MAYFLY_TRY(sort, SortPattern::Parse(e.value.Document()));
      if (sort.needs_metadata()) return FailedToParse("$setWindowFields cannot sort by $meta");
    } else if (e.name == "output") {
      if (!e.value.IsDocument())
        return TypeMismatch("BSON field '$setWindowFields.output' is the wrong type '" +
                            TypeText(e.value) + "', expected type 'object'");
      output = e.value;
    } else {
      return Error{ErrorCode::kUnknownField, "BSON field '$setWindowFields." + std::string(e.name) +
                                                 "' is an unknown field."};
    }
  }
  if (output.missing())
    return Error{ErrorCode::kMissingField,
                 "BSON field '$setWindowFields.output' is missing but a required field"};
  ExpressionPtr partition;
  if (!partition_by.missing()) {
    MAYFLY_TRY(partition, ParseExpression(partition_by, p.scope));
  }
  std::vector<WindowOutput> outputs;
  std::vector<std::string_view> paths;
  for (const BsonElement& e : output.Document()) {
    WindowOutput o;
    MAYFLY_TRY(o.path, SplitOutputPath(e.name));
    for (std::string_view other : paths)
      if (PathsOverlap(other, e.name))
        return LocationError(40176,
                             "specification contains two conflicting paths. Cannot specify "
                             "both '" +
                                 std::string(e.name) + "' and '" + std::string(other) + "'");
    paths.push_back(e.name);
    MAYFLY_TRY(o.function, WindowFunction::Parse(e.name, e.value, sort, p.scope));
    outputs.push_back(std::move(o));
  }
  p.out.push_back(std::make_unique<WindowStage>(p.context, BsonDocument(spec.Document()),
                                                std::move(partition), std::move(sort),
                                                std::move(outputs)));
  return Ok();
}

namespace {

/// The partition and sort of $fill are checked here, since $setWindowFields does not see them when
/// no output has a method.
Result<void> CheckFillOrder(StageParser& p, BsonValue partition_by, BsonValue partition_fields,
                            BsonValue sort_by) {
  if (!partition_by.missing()) {
    MAYFLY_TRY(ParseExpression(partition_by, p.scope));
  }
  if (!partition_fields.missing()) {
    for (const BsonElement& f : partition_fields.Document()) {
      if (!f.value.IsString())
        return TypeMismatch("BSON field '$fill.partitionByFields." + std::string(f.name) +
                            "' is the wrong type '" + TypeText(f.value) +
                            "', expected type 'string'");
      MAYFLY_TRY(SplitOutputPath(f.value.String()));
    }
  }
  if (sort_by.missing()) return Ok();
  if (!sort_by.IsDocument())
    return TypeMismatch("BSON field '$fill.sortBy' is the wrong type '" + TypeText(sort_by) +
                        "', expected type 'object'");
  if (sort_by.Document().empty()) return Ok();
  MAYFLY_TRY(SortPattern::Parse(sort_by.Document()));
  return Ok();
}

}  // namespace

/// {partitionBy or partitionByFields, sortBy, output: {field: {value: e} or {method: "linear" or
/// "locf"}}} is a $setWindowFields of the methods and a $set of the values.
Result<void> ParseFillStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument())
    return FailedToParse("The $fill stage specification must be an object, found " +
                         TypeText(spec));
  BsonValue partition_by, partition_fields, sort_by, output;
  for (const BsonElement& e : spec.Document()) {
    if (e.name == "partitionBy") {
      if (!e.value.IsDocument() && !e.value.IsString())
        return TypeMismatch("BSON field '$fill.partitionBy' is the wrong type '" +
                            TypeText(e.value) + "', expected types '[string, object]'");
      partition_by = e.value;
    } else if (e.name == "partitionByFields") {
      if (!e.value.IsArray())
        return TypeMismatch("BSON field '$fill.partitionByFields' is the wrong type '" +
                            TypeText(e.value) + "', expected type 'array'");
      partition_fields = e.value;
    } else if (e.name == "sortBy") {
      sort_by = e.value;
    } else if (e.name == "output") {
      output = e.value;
    } else {
      return Error{ErrorCode::kUnknownField,
                   "BSON field '$fill." + std::string(e.name) + "' is an unknown field."};
    }
  }
  if (output.missing())
    return Error{ErrorCode::kMissingField,
                 "BSON field '$fill.output' is missing but a required field"};
  if (!output.IsDocument())
    return TypeMismatch("BSON field '$fill.output' is the wrong type '" + TypeText(output) +
                        "', expected type 'object'");
  if (output.Document().empty())
    return LocationError(6050203, "$fill's 'output' must contain at least one field");
  if (!partition_by.missing() && !partition_fields.missing())
    return LocationError(6050204,
                         "Maximum one of 'partitionBy' and 'partitionByFields can be specified in "
                         "$fill'");
  MAYFLY_TRY(CheckFillOrder(p, partition_by, partition_fields, sort_by));
  std::string window_bytes, value_bytes;
  BsonBuilder windows(window_bytes), values(value_bytes);
  for (const BsonElement& e : output.Document()) {
    BsonValue value, method;
    MAYFLY_TRY(CheckOptionsOnce("$fill.output", e.value));
    if (e.value.IsDocument()) {
      for (const BsonElement& o : e.value.Document()) {
        if (o.name == "value")
          value = o.value;
        else if (o.name == "method")
          method = o.value;
        else
          return Error{ErrorCode::kUnknownField, "BSON field '$fill.output." + std::string(o.name) +
                                                     "' is an unknown field."};
      }
    }
    if (value.missing() == method.missing())
      return LocationError(6050202,
                           "Each $fill output specification must have exactly one of the "
                           "fields: 'method' or 'value'");
    const std::string path = "$" + std::string(e.name);
    if (!method.missing()) {
      if (!method.IsString() || (method.String() != "linear" && method.String() != "locf"))
        return LocationError(6050202, "Method must be either locf or linear");
      if (method.String() == "linear" && sort_by.missing())
        return LocationError(6050201, "$fill with the method 'linear' needs 'sortBy'");
      BsonBuilder f = windows.OpenDocument(e.name);
      f.Append(method.String() == "locf" ? "$locf" : "$linearFill", path);
    } else {
      BsonBuilder f = values.OpenDocument(e.name);
      BsonArrayBuilder either = f.OpenArray("$ifNull");
      either.Append(path);
      either.Append(value);
    }
  }
  windows.Done();
  values.Done();
  if (!BsonView(window_bytes.data()).empty()) {
    const BsonDocument stage = BuildBson([&](BsonBuilder& b) {
      if (!partition_by.missing()) b.Append("partitionBy", partition_by);
      if (!partition_fields.missing()) {
        BsonBuilder by = b.OpenDocument("partitionBy");
        for (const BsonElement& f : partition_fields.Document())
          by.Append(f.name, "$" + std::string(f.value.String()));
      }
      if (!sort_by.missing()) b.Append("sortBy", sort_by);
      b.Append("output", BsonView(window_bytes.data()));
    });
    StageParser inner = p;
    inner.stage = "$setWindowFields";
    MAYFLY_TRY(ParseSetWindowFieldsStage(inner, stage.view().AsValue()));
  }
  if (!BsonView(value_bytes.data()).empty()) {
    StageParser inner = p;
    inner.stage = "$addFields";
    MAYFLY_TRY(ParseProjectStage(inner, BsonView(value_bytes.data()).AsValue()));
  }
  return Ok();
}

}  // namespace mayfly
