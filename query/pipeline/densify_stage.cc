#include <algorithm>
#include <cmath>
#include <utility>

#include "protocol/bson_compare.h"
#include "protocol/decimal128.h"
#include "query/expression/date_unit.h"
#include "query/pipeline/partition_sorter.h"
#include "query/pipeline/stage.h"

namespace mayfly {
namespace {

constexpr int64_t kMaxGenerated = 500'000;  // manual: "$densify", "Limitations" of the stage

enum class Bounds : uint8_t { kFull, kPartition, kExplicit };

struct DensifySpec {
  std::string field;
  std::vector<std::string> path;  ///< of `field`
  std::vector<std::vector<std::string>> partition_paths;
  Value step;
  std::optional<DateUnit> unit;
  Bounds bounds = Bounds::kFull;
  Value low, high;  ///< of kExplicit; the upper one does not belong to the range
};

/// start + n · step; nothing beyond what the type can hold.
std::optional<Value> StepFrom(BsonValue start, const DensifySpec& s, int64_t n) {
  const BsonValue step = s.step.view();
  if (start.Is(BsonType::kDate)) {
    int64_t amount = 0;
    if (__builtin_mul_overflow(step.NumberAsInt64(), n, &amount)) return std::nullopt;
    const std::optional<Instant> t = AddDateUnits(start.Date(), *s.unit, amount);
    if (!t) return std::nullopt;
    return Value::Date(*t);
  }
  if (start.Is(BsonType::kDecimal128) || step.Is(BsonType::kDecimal128)) {
    auto decimal = [](BsonValue v) {
      int64_t whole = 0;
      if (v.Is(BsonType::kDecimal128)) return v.Decimal();
      return !v.Is(BsonType::kDouble) && v.ExactInt64(&whole)
                 ? decimal128::FromInt64(whole)
                 : decimal128::FromDouble(v.NumberAsDouble());
    };
    return Value::Decimal(decimal128::Add(
        decimal(start), decimal128::Multiply(decimal(step), decimal128::FromInt64(n))));
  }
  if (start.Is(BsonType::kDouble) || step.Is(BsonType::kDouble))
    return Value::Double(start.NumberAsDouble() + step.NumberAsDouble() * static_cast<double>(n));
  int64_t by = 0, at = 0;
  if (__builtin_mul_overflow(step.NumberAsInt64(), n, &by) ||
      __builtin_add_overflow(start.NumberAsInt64(), by, &at))
    return std::nullopt;
  return MakeInteger(at, start.Is(BsonType::kInt64) || step.Is(BsonType::kInt64));
}

/// Sorts by partition and field, and adds the missing documents before each document.
class DensifyStage final : public PipelineStage {
 public:
  DensifyStage(PipelineContext& context, BsonDocument source, DensifySpec spec, ExpressionPtr field,
               ExpressionPtr partition)
      : PipelineStage(context),
        source_(std::move(source)),
        spec_(std::move(spec)),
        field_(std::move(field)),
        sorter_(std::move(partition)) {}
  std::string_view name() const override { return "$densify"; }
  void Serialize(BsonBuilder& out) const override { out.Append("$densify", source_); }
  StageNeeds AddDependencies(std::set<std::string>* fields) const override {
    sorter_.AddDependencies(fields);
    fields->insert(spec_.field);
    return StageNeeds::kAlso;
  }
  void ExplainStats(BsonBuilder& out) const override { sorter_.ExplainStats(out); }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    if (!sorter_.sorted()) {
      const BsonDocument sort = BuildBson([&](BsonBuilder& b) { b.Append(spec_.field, 1); });
      MAYFLY_TRY(StreamState filled,
                 sorter_.Fill(
                     sort.view(), options(), [this](StreamDocument* in) { return Pull(in); },
                     [this](const StreamDocument& in) { return NoteRange(in); }));
      if (filled == StreamState::kPaused) return filled;
      MAYFLY_TRY(BeginPartition());
    }
    for (;;) {
      MAYFLY_TRY(Check());
      if (ends_partition_) {
        // The missing documents after the partition's last one.
        if (const std::optional<Value> v = NextMissing(nullptr)) return Generate(*v, out);
        if (!sorter_.has_next()) return StreamState::kEof;
        MAYFLY_TRY(BeginPartition());
        continue;
      }
      context_->eval.root = sorter_.document();
      MAYFLY_TRY(Value v, field_->Evaluate(context_->eval));
      if (HasPlace(v.view())) {
        if (start_.missing()) start_ = v.Own();  // of a partition with bounds of its own
        if (const std::optional<Value> missing = NextMissing(&v)) return Generate(*missing, out);
      }
      buffer_ = sorter_.document().bytes();
      MAYFLY_TRY(bool same, sorter_.Advance());
      ends_partition_ = !same;
      *out = {BsonView(buffer_.data()), nullptr};
      return StreamState::kAdvanced;
    }
  }
  void AddKeptByStage(large_memory::Kept* kept) const override { sorter_.AddKept(kept); }

 private:
  /// Keeps the least and the greatest value of the field.
  Result<EvalContext*> NoteRange(const StreamDocument& in) {
    EvalContext& ctx = Eval(in);
    MAYFLY_TRY(Value v, field_->Evaluate(ctx));
    MAYFLY_TRY(CheckType(v));
    if (HasPlace(v.view())) {
      if (least_.missing() || CompareValues(v.view(), least_.view()) < 0) least_ = v.Own();
      if (most_.missing() || CompareValues(v.view(), most_.view()) > 0) most_ = v.Own();
    }
    return &ctx;
  }
  /// Whether there is something before or behind it: NaN is in no range.
  static bool HasPlace(BsonValue v) {
    return !v.IsNullish() && !(v.IsNumber() && std::isnan(v.NumberAsDouble()));
  }

  Result<void> CheckType(const Value& v) const {
    const BsonValue x = v.view();
    if (x.IsNullish()) return Ok();
    if (spec_.unit ? !x.Is(BsonType::kDate) : !x.IsNumber())
      return LocationError(spec_.unit ? 6053600 : 5733201,
                           "$densify field type must be " +
                               std::string(spec_.unit ? "a date, since 'unit' was given"
                                                      : "numeric, or a date with a 'unit'") +
                               ", but it was " + TypeText(v));
    return Ok();
  }

  Result<void> BeginPartition() {
    n_ = 0;
    start_ = spec_.bounds == Bounds::kExplicit ? spec_.low
             : spec_.bounds == Bounds::kFull   ? least_
                                               : Value();
    ends_partition_ = !sorter_.has_next();
    partition_.clear();
    if (!sorter_.has_next()) {
      // Nothing came in at all: an explicit range without partitions is still filled.
      if (spec_.bounds != Bounds::kExplicit || !spec_.partition_paths.empty()) start_ = Value();
      return Ok();
    }
    if (sorter_.partition().IsDocument()) partition_ = sorter_.partition().Document().bytes();
    return Ok();
  }

  /// The next value of the range that comes before `*next` (null: the partition is at its end).
  std::optional<Value> NextMissing(const Value* next) {
    while (!start_.missing()) {
      std::optional<Value> v = StepFrom(start_.view(), spec_, n_);
      if (!v) return std::nullopt;
      if (spec_.bounds == Bounds::kExplicit) {
        if (CompareValues(v->view(), spec_.high.view()) >= 0) return std::nullopt;
      } else if (spec_.bounds == Bounds::kFull) {
        if (CompareValues(v->view(), most_.view()) > 0) return std::nullopt;
      } else if (!next) {
        return std::nullopt;
      }
      const int order = next ? CompareValues(v->view(), next->view()) : -1;
      if (order > 0) return std::nullopt;
      // A step that is lost in a value (an infinity, 2^63 and a thousandth) leads nowhere.
      const std::optional<Value> after = StepFrom(start_.view(), spec_, n_ + 1);
      if (after && CompareValues(after->view(), v->view()) <= 0) return std::nullopt;
      ++n_;
      if (order < 0) return v;
      // The document itself has this one.
    }
    return std::nullopt;
  }

  Result<StreamState> Generate(const Value& v, StreamDocument* out) {
    if (++generated_ > kMaxGenerated)
      return LocationError(5897900, "Generated " + std::to_string(generated_) +
                                        " documents in $densify, which is over the limit of " +
                                        std::to_string(kMaxGenerated) +
                                        ". Increase the step, or narrow the bounds");
    std::string bytes = BuildBson([](BsonBuilder&) {}).bytes();
    auto set = [&](std::span<const std::string> path, BsonValue value) {
      std::string next;
      BsonBuilder b(next);
      SetPath(BsonView(bytes.data()), path, value, b);
      b.Done();
      bytes = std::move(next);
    };
    if (!partition_.empty()) {
      // One field for each path, named by its place.
      const BsonView values(partition_.data());
      for (size_t i = 0; i < spec_.partition_paths.size(); ++i)
        if (const BsonValue x = values[std::to_string(i)]; !x.missing())
          set(spec_.partition_paths[i], x);
    }
    set(spec_.path, v.view());
    buffer_ = std::move(bytes);
    *out = {BsonView(buffer_.data()), nullptr};
    return StreamState::kAdvanced;
  }

  const BsonDocument source_;
  const DensifySpec spec_;
  const ExpressionPtr field_;
  PartitionSorter sorter_;
  Value least_, most_;  ///< of the field, over all documents
  Value start_;         ///< where the range of this partition begins; missing: not known
  int64_t n_ = 0;       ///< steps from there
  int64_t generated_ = 0;
  bool ends_partition_ = false;  ///< its documents have all been handed out
  std::string partition_;        ///< the partition's values, as a document; empty: none
  std::string buffer_;
};

Result<std::vector<std::string>> SplitFieldPath(std::string_view path, std::string_view what) {
  std::vector<std::string> parts;
  if (path.find('\0') != path.npos)
    return LocationError(16411, "FieldPath field names may not contain '\\0'.");
  for (size_t from = 0;;) {
    const size_t dot = std::min(path.find('.', from), path.size());
    const std::string_view part = path.substr(from, dot - from);
    if (part.empty() || part.front() == '$')
      return LocationError(16410, "$densify's '" + std::string(what) +
                                      "' must be the path of a field, but found '" +
                                      std::string(path) + "'");
    parts.emplace_back(part);
    if (dot == path.size()) return parts;
    from = dot + 1;
  }
}

Result<void> ParseRange(BsonView range, DensifySpec* s) {
  BsonValue bounds;
  for (const BsonElement& e : range) {
    if (e.name == "step") {
      if (!e.value.IsNumber())
        return TypeMismatch("BSON field '$densify.range.step' is the wrong type '" +
                            TypeText(e.value) + "', expected types '[int, decimal, double, long']");
      s->step = Value::Copy(e.value);
    } else if (e.name == "unit") {
      if (!e.value.IsString())
        return TypeMismatch("BSON field '$densify.range.unit' is the wrong type '" +
                            TypeText(e.value) + "', expected type 'string'");
      s->unit = ParseDateUnit(e.value.String());
      if (!s->unit)
        return FailedToParse("unknown time unit value: " + std::string(e.value.String()));
    } else if (e.name == "bounds") {
      bounds = e.value;
    } else {
      return Error{ErrorCode::kUnknownField,
                   "BSON field '$densify.range." + std::string(e.name) + "' is an unknown field."};
    }
  }
  if (s->step.missing() || bounds.missing())
    return Error{ErrorCode::kMissingField, std::string("BSON field '$densify.range.") +
                                               (bounds.missing() ? "bounds" : "step") +
                                               "' is missing but a required field"};
  const BsonValue step = s->step.view();
  if (!(step.NumberAsDouble() > 0))
    return LocationError(5733401,
                         "the step parameter in a range statement must be a strictly "
                         "positive numeric value");
  int64_t whole = 0;
  if (s->unit && !step.ExactInt64(&whole))
    return LocationError(6586400,
                         "The step parameter in a range statement must be a whole number "
                         "when densifying a date range");
  if (bounds.IsString()) {
    if (bounds.String() == "full")
      s->bounds = Bounds::kFull;
    else if (bounds.String() == "partition")
      s->bounds = Bounds::kPartition;
    else
      return LocationError(5946802, "Bounds string must either be 'full' or 'partition'");
    return Ok();
  }
  if (!bounds.IsArray())
    return LocationError(5733404,
                         "The bounds in a range expression must be either a string, with "
                         "the value 'full' or 'partition', or an array");
  const std::vector<BsonValue> ends = Elements(bounds);
  if (ends.size() != 2)
    return LocationError(5733403,
                         "A bounding array in a range statement must have exactly two "
                         "elements");
  const bool dates = s->unit.has_value();
  for (const BsonValue& end : ends)
    if (dates ? !end.Is(BsonType::kDate) : !end.IsNumber())
      return LocationError(dates ? 5733402 : 5733406,
                           dates ? "A bounding array must contain either both dates or both "
                                   "numeric types: with 'unit' it holds dates"
                                 : "A bounding array must contain either both dates or both "
                                   "numeric types: without 'unit' it holds numbers");
  if (CompareValues(ends[0], ends[1]) > 0)
    return LocationError(5733402,
                         "the bounds in a range statement must be the string 'full', "
                         "'partition', or an ascending array of two numbers or two dates");
  s->bounds = Bounds::kExplicit;
  s->low = Value::Copy(ends[0]);
  s->high = Value::Copy(ends[1]);
  return Ok();
}

}  // namespace

/// {field: path, partitionByFields: [paths], range: {step, unit, bounds: "full" | "partition" |
/// [low, high]}}
Result<void> ParseDensifyStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument())
    return LocationError(
        5733201, "The $densify stage specification must be an object, found " + TypeText(spec));
  DensifySpec s;
  BsonValue range, fields;
  for (const BsonElement& e : spec.Document()) {
    if (e.name == "field") {
      if (!e.value.IsString())
        return TypeMismatch("BSON field '$densify.field' is the wrong type '" + TypeText(e.value) +
                            "', expected type 'string'");
      s.field = e.value.String();
      MAYFLY_TRY(s.path, SplitFieldPath(s.field, "field"));
    } else if (e.name == "partitionByFields") {
      if (!e.value.IsArray())
        return TypeMismatch("BSON field '$densify.partitionByFields' is the wrong type '" +
                            TypeText(e.value) + "', expected type 'array'");
      fields = e.value;
    } else if (e.name == "range") {
      if (!e.value.IsDocument())
        return TypeMismatch("BSON field '$densify.range' is the wrong type '" + TypeText(e.value) +
                            "', expected type 'object'");
      range = e.value;
    } else {
      return Error{ErrorCode::kUnknownField,
                   "BSON field '$densify." + std::string(e.name) + "' is an unknown field."};
    }
  }
  if (s.field.empty() || range.missing())
    return Error{ErrorCode::kMissingField, std::string("BSON field '$densify.") +
                                               (s.field.empty() ? "field" : "range") +
                                               "' is missing but a required field"};
  MAYFLY_TRY(CheckOptionsOnce("$densify.range", range));
  MAYFLY_TRY(ParseRange(range.Document(), &s));
  ExpressionPtr partition;
  if (!fields.missing() && !fields.Document().empty()) {
    std::string bytes;
    BsonBuilder by(bytes);
    for (const BsonElement& e : fields.Document()) {
      if (!e.value.IsString())
        return TypeMismatch("BSON field '$densify.partitionByFields." + std::string(e.name) +
                            "' is the wrong type '" + TypeText(e.value) +
                            "', expected type 'string'");
      MAYFLY_TRY(std::vector<std::string> path,
                 SplitFieldPath(e.value.String(), "partitionByFields"));
      if (PathsOverlap(e.value.String(), s.field))
        return LocationError(8993000,
                             "BSON field '$densify.partitionByFields' must not contain "
                             "the field to densify, nor a part of it");
      // The client chooses the names of an array's elements: they need not be "0", "1" …
      by.Append(std::to_string(s.partition_paths.size()), "$" + std::string(e.value.String()));
      s.partition_paths.push_back(std::move(path));
    }
    by.Done();
    MAYFLY_TRY(partition, ParseExpression(BsonView(bytes.data()).AsValue(), p.scope));
  }
  if (s.bounds == Bounds::kPartition && !partition)
    return LocationError(5733408,
                         "one may not specify the bounds as 'partition' without specifying a "
                         "non-empty array of partitionByFields. You may have meant to specify "
                         "'full' bounds.");
  const Value path = Value::String("$" + s.field);
  MAYFLY_TRY(ExpressionPtr field, ParseExpression(path.view(), p.scope));
  p.out.push_back(std::make_unique<DensifyStage>(p.context, BsonDocument(spec.Document()),
                                                 std::move(s), std::move(field),
                                                 std::move(partition)));
  return Ok();
}

}  // namespace mayfly
