#include <algorithm>

#include "protocol/bson_compare.h"
#include "query/expression/parse_work.h"
#include "query/pipeline/accumulator.h"
#include "query/pipeline/granularity.h"
#include "query/pipeline/stage.h"

namespace mayfly {
namespace {

/// Is it something to compute ("$path" or {$op: …}) rather than a constant?
bool IsComputed(BsonValue v) {
  if (v.IsString()) return v.String().starts_with('$');
  return v.IsDocument() && v.Document().First().name.starts_with('$');
}

Result<void> AppendStage(StageParser& p, std::string_view stage, BsonView spec) {
  StageParser inner = p;
  inner.stage = stage;
  return FindStage(stage)->parse(inner, spec[stage]);
}

}  // namespace

/// {$sortByCount: e} is {$group: {_id: e, count: {$sum: 1}}} and {$sort: {count: -1}}.
Result<void> ParseSortByCountStage(StageParser& p, BsonValue spec) {
  if (!IsComputed(spec)) {
    if (spec.IsDocument())
      return LocationError(40147,
                           "the sortByCount field must be defined as a $-prefixed path or an "
                           "expression inside an object");
    return LocationError(spec.IsString() ? 40148 : 40149,
                         "the sortByCount field must be defined as a $-prefixed path or an "
                         "expression inside an object");
  }
  BsonDocument group = BuildBson([&](BsonBuilder& b) {
    BsonBuilder g = b.OpenDocument("$group");
    g.Append("_id", spec);
    BsonBuilder count = g.OpenDocument("count");
    count.Append("$sum", 1);
  });
  BsonDocument sort = BuildBson([&](BsonBuilder& b) {
    BsonBuilder s = b.OpenDocument("$sort");
    s.Append("count", -1);
  });
  MAYFLY_TRY(AppendStage(p, "$group", group));
  return AppendStage(p, "$sort", sort);
}

namespace {

/// The options of a $bucket as they were written, and its boundaries.
struct BucketOptions {
  BsonValue by, boundaries, otherwise, output;
  std::vector<Value> bounds;

  Result<void> Read(BsonView spec);
  Result<void> ParseBounds(VariableScope& scope);
  Result<void> CheckDefault(VariableScope& scope) const;
  BsonDocument Group() const;
  void AppendBranch(size_t i, BsonArrayBuilder& branches) const;
};

Result<void> BucketOptions::Read(BsonView spec) {
  for (const BsonElement& e : spec) {
    if (e.name == "groupBy") {
      if (!IsComputed(e.value))
        return LocationError(40202,
                             "The $bucket 'groupBy' field must be defined as a $-prefixed path or "
                             "an expression, but found: " +
                                 ValueText(e.value));
      by = e.value;
    } else if (e.name == "boundaries") {
      boundaries = e.value;
    } else if (e.name == "default") {
      otherwise = e.value;
    } else if (e.name == "output") {
      if (!e.value.IsDocument())
        return LocationError(
            40196,
            "The $bucket 'output' field must be an object, but found type: " + TypeText(e.value));
      MAYFLY_TRY(CheckOptionsOnce("$bucket.output", e.value));
      output = e.value;
    } else {
      return LocationError(40197, "Unrecognized option to $bucket: " + std::string(e.name) + ".");
    }
  }
  if (by.missing() || boundaries.missing())
    return LocationError(40198, "$bucket requires 'groupBy' and 'boundaries' to be specified.");
  if (!boundaries.IsArray())
    return LocationError(
        40200,
        "The $bucket 'boundaries' field must be an array, but found type: " + TypeText(boundaries));
  return Ok();
}

/// Constants of one type, in ascending order.
Result<void> BucketOptions::ParseBounds(VariableScope& scope) {
  for (const BsonElement& e : boundaries.Document()) {
    MAYFLY_TRY(ExpressionPtr x, ParseExpression(e.value, scope));
    if (!x->Constant())
      return LocationError(
          40191,
          "The $bucket 'boundaries' field must be an array of constant values, but found value: " +
              ValueText(e.value));
    MAYFLY_TRY(ParseWork::Step());
    ParseWork::Made(sizeof(Value) + e.value.size());
    bounds.push_back(*x->Constant());
  }
  if (bounds.size() < 2)
    return LocationError(40192,
                         "The $bucket 'boundaries' field must have at least 2 values, but found " +
                             std::to_string(bounds.size()) + " value(s).");
  for (size_t i = 1; i < bounds.size(); ++i) {
    if (CanonicalTypeOrder(bounds[i - 1].type()) != CanonicalTypeOrder(bounds[i].type()))
      return LocationError(40193,
                           "All values in the 'boundaries' option to $bucket must have the same "
                           "type. Found conflicting types " +
                               TypeText(bounds[i - 1]) + " and " + TypeText(bounds[i]) + ".");
    if (CompareValues(bounds[i - 1].view(), bounds[i].view()) >= 0)
      return LocationError(40194,
                           "The 'boundaries' option to $bucket must be sorted, but elements " +
                               std::to_string(i - 1) + " and " + std::to_string(i) +
                               " are not in ascending order");
  }
  return Ok();
}

/// The default is the `_id` of a bucket too: it must not be that of another.
Result<void> BucketOptions::CheckDefault(VariableScope& scope) const {
  if (otherwise.missing()) return Ok();
  MAYFLY_TRY(ExpressionPtr x, ParseExpression(otherwise, scope));
  if (!x->Constant())
    return LocationError(40195,
                         "The $bucket 'default' field must be a constant expression, but found: " +
                             ValueText(otherwise));
  BsonValue v = x->Constant()->view();
  if (CanonicalTypeOrder(v.type()) == CanonicalTypeOrder(bounds[0].type()) &&
      CompareValues(v, bounds[0].view()) >= 0 && CompareValues(v, bounds.back().view()) < 0)
    return LocationError(40199,
                         "The $bucket 'default' field must be less than the lowest boundary or "
                         "greater than or equal to the highest boundary.");
  return Ok();
}

/// {case: {$and: [{$gte: [by, low]}, {$lt: [by, high]}]}, then: low}
void BucketOptions::AppendBranch(size_t i, BsonArrayBuilder& branches) const {
  BsonBuilder branch = branches.OpenDocument();
  BsonBuilder when = branch.OpenDocument("case");
  BsonArrayBuilder both = when.OpenArray("$and");
  for (size_t side = 0; side < 2; ++side) {
    BsonBuilder compare = both.OpenDocument();
    BsonArrayBuilder operands = compare.OpenArray(side == 0 ? "$gte" : "$lt");
    operands.Append(by);
    BsonBuilder literal = operands.OpenDocument();
    literal.Append("$literal", bounds[i + side].view());
  }
  both.Done();
  when.Done();
  BsonBuilder literal = branch.OpenDocument("then");
  literal.Append("$literal", bounds[i].view());
}

BsonDocument BucketOptions::Group() const {
  return BuildBson([&](BsonBuilder& b) {
    BsonBuilder g = b.OpenDocument("$group");
    BsonBuilder id = g.OpenDocument("_id");
    BsonBuilder sw = id.OpenDocument("$switch");
    BsonArrayBuilder branches = sw.OpenArray("branches");
    for (size_t i = 0; i + 1 < bounds.size(); ++i) AppendBranch(i, branches);
    branches.Done();
    if (!otherwise.missing()) sw.Append("default", otherwise);
    sw.Done();
    id.Done();
    if (output.missing()) {
      BsonBuilder count = g.OpenDocument("count");
      count.Append("$sum", 1);
    } else {
      g.AppendAll(output.Document());
    }
  });
}

}  // namespace

/// $bucket is a $group by a $switch over the boundaries, and a $sort by `_id`.
Result<void> ParseBucketStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument())
    return LocationError(40201, "Argument to $bucket stage must be an object, but found type: " +
                                    TypeText(spec) + ".");
  BucketOptions options;
  MAYFLY_TRY(options.Read(spec.Document()));
  MAYFLY_TRY(options.ParseBounds(p.scope));
  MAYFLY_TRY(options.CheckDefault(p.scope));
  BsonDocument sort = BuildBson([&](BsonBuilder& b) {
    BsonBuilder s = b.OpenDocument("$sort");
    s.Append("_id", 1);
  });
  MAYFLY_TRY(AppendStage(p, "$group", options.Group()));
  return AppendStage(p, "$sort", sort);
}

namespace {

/// Sorts all documents by the value and cuts them into buckets of about one size; equal values stay
/// together.
class BucketAutoStage final : public PipelineStage {
 public:
  BucketAutoStage(PipelineContext& context, ExpressionPtr by, int32_t buckets,
                  std::vector<AccumulatorField> fields, std::optional<Granularity> granularity)
      : PipelineStage(context),
        by_(std::move(by)),
        buckets_(buckets),
        fields_(std::move(fields)),
        granularity_(granularity) {}
  std::string_view name() const override { return "$bucketAuto"; }
  void Serialize(BsonBuilder& out) const override {
    BsonBuilder sub = out.OpenDocument("$bucketAuto");
    by_->Serialize(sub, "groupBy");
    sub.Append("buckets", buckets_);
    if (granularity_) sub.Append("granularity", granularity_->name());
    BsonBuilder output = sub.OpenDocument("output");
    for (auto& f : fields_) f.Serialize(output);
  }
  StageNeeds AddDependencies(std::set<std::string>* paths) const override {
    by_->AddDependencies(paths);
    for (auto& f : fields_) f.AddDependencies(paths);
    return StageNeeds::kOnly;
  }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override {
    MAYFLY_TRY(StreamState state, SortInput());
    if (state == StreamState::kPaused) return state;
    if (!has_next_) return StreamState::kEof;
    Bucket bucket;
    MAYFLY_TRY(FillBucket(bucket));
    MAYFLY_TRY(MakeResult(bucket));
    *out = {BsonView(buffer_.data()), nullptr};
    return StreamState::kAdvanced;
  }

 private:
  /// One bucket: its least and its greatest value, and what its documents add up to.
  struct Bucket {
    Value low, high;
    std::vector<AccumulatorPtr> states;
  };

  /// Takes the whole input, once. kPaused: to be called again; else everything is sorted.
  Result<StreamState> SortInput() {
    if (!sorter_) {
      BsonDocument by = BuildBson([](BsonBuilder& b) { b.Append("k", 1); });
      MAYFLY_TRY(SortPattern pattern, SortPattern::Parse(by));
      sorter_ = std::make_unique<Sorter>(std::move(pattern), options().Sorting());
    }
    while (!sorted_) {
      StreamDocument in;
      MAYFLY_TRY(StreamState state, Pull(&in));
      if (state == StreamState::kPaused) return state;
      if (state == StreamState::kEof) {
        MAYFLY_TRY(sorter_->Finish());
        sorted_ = true;
        MAYFLY_TRY(has_next_, ReadNext());
        break;
      }
      MAYFLY_TRY(AddToSorter(in));
    }
    return StreamState::kAdvanced;
  }

  Result<void> AddToSorter(const StreamDocument& in) {
    MAYFLY_TRY(Value key, by_->Evaluate(Eval(in)));
    if (granularity_) {
      MAYFLY_TRY(Granularity::Check(key.view()));
    }
    // An array is one value here, not its elements: it is kept in a document of its own.
    BsonDocument wrapped = BuildBson([&](BsonBuilder& b) {
      BsonBuilder k = b.OpenDocument("k");
      if (key.missing())
        k.AppendNull("v");
      else
        k.Append("v", key.view());
      k.Done();
      b.Append("d", in.doc);
    });
    return sorter_->Add(wrapped, in.metadata);
  }

  /// How many documents the next bucket is to have.
  int64_t NextSize() const {
    const int64_t total = sorter_->documents_sorted();
    // Boundaries of a series shift documents from bucket to bucket; the size they begin with stays
    // (manual).
    if (granularity_) return std::max<int64_t>(1, (total + buckets_ / 2) / buckets_);
    // The sizes differ by one at most, the greater ones in front.
    return std::max<int64_t>(
        1, (total - taken_by_plan_ + (buckets_ - made_)) / (buckets_ - made_ + 1));
  }

  Result<void> FillBucket(Bucket& bucket) {
    ++made_;
    const int64_t size = NextSize();
    const bool last = made_ == buckets_;
    bucket.low = bucket.high = next_key_;
    for (auto& f : fields_) {
      MAYFLY_TRY(AccumulatorPtr state, f.Make(BsonValue(), context_->eval));
      bucket.states.push_back(std::move(state));
    }
    int64_t n = 0, memory = 0;
    Value end;  // of a bucket whose boundaries keep to a series: the first value behind it
    auto belongs = [&] {
      if (last || n < size) return true;
      if (CompareValues(next_key_.view(), bucket.high.view()) == 0) return true;
      if (!granularity_) return false;
      if (end.missing()) end = granularity_->RoundUp(bucket.high.view());
      return CompareValues(next_key_.view(), end.view()) < 0;
    };
    while (has_next_ && belongs()) {
      MAYFLY_TRY(AddToBucket(bucket, &memory));
      bucket.high = next_key_;
      ++n;
      MAYFLY_TRY(Check());
      MAYFLY_TRY(has_next_, ReadNext());
    }
    taken_by_plan_ += n;
    return Ok();
  }

  Result<void> AddToBucket(Bucket& bucket, int64_t* memory) {
    BsonDocument doc(next_doc_);
    StreamDocument in{doc.view(), nullptr};
    EvalContext& ctx = Eval(in);
    for (size_t i = 0; i < fields_.size(); ++i) {
      Value v;
      if (fields_[i].argument) {
        MAYFLY_TRY(v, fields_[i].argument->Evaluate(ctx));
      }
      key_.clear();
      if (fields_[i].sort_by) {
        MAYFLY_TRY(fields_[i].sort_by->AppendKey(in.doc, nullptr, key_));
      }
      MAYFLY_TRY(bucket.states[i]->Add(v, key_, memory));
    }
    return Ok();
  }

  /// The bucket as a document, in `buffer_`.
  Result<void> MakeResult(Bucket& bucket) {
    buffer_.clear();
    BsonBuilder b(buffer_);
    BsonBuilder id = b.OpenDocument("_id");
    if (granularity_) {
      id.Append("min",
                made_ == 1 ? granularity_->RoundDown(bucket.low.view()).view() : last_end_.view());
      last_end_ = granularity_->RoundUp(bucket.high.view());
      id.Append("max", last_end_.view());
    } else {
      id.Append("min", bucket.low.view());
      // The next bucket's least, but for the last.
      id.Append("max", has_next_ ? next_key_.view() : bucket.high.view());
    }
    id.Done();
    for (size_t i = 0; i < fields_.size(); ++i) {
      MAYFLY_TRY(Value v, bucket.states[i]->Finish());
      b.Append(fields_[i].name, v.view());
      if (buffer_.size() > size_t{4} * kMaxValueBytes) return ValueTooLarge(buffer_.size());
    }
    b.Done();
    return Ok();
  }
  void AddKeptByStage(large_memory::Kept* kept) const override {
    if (sorter_) sorter_->AddKept(kept);
  }

  Result<bool> ReadNext() {
    StreamDocument sorted;
    MAYFLY_TRY(bool more, sorter_->Next(&sorted));
    if (!more) return false;
    next_key_ = Value::Copy(sorted.doc["k"].Document()["v"]);
    next_doc_ = sorted.doc["d"].Document().ToString();
    return true;
  }
  ExpressionPtr by_;
  int32_t buckets_;
  std::vector<AccumulatorField> fields_;
  std::optional<Granularity> granularity_;
  Value last_end_;  ///< where the bucket before ends
  std::unique_ptr<Sorter> sorter_;
  bool sorted_ = false, has_next_ = false;
  Value next_key_;
  std::string next_doc_, key_, buffer_;
  int64_t taken_by_plan_ = 0;
  int32_t made_ = 0;
};

}  // namespace

Result<void> ParseBucketAutoStage(StageParser& p, BsonValue spec) {
  if (!spec.IsDocument())
    return LocationError(40240, "The argument to $bucketAuto must be an object, but found type: " +
                                    TypeText(spec) + ".");
  ExpressionPtr by;
  std::optional<int32_t> buckets;
  std::optional<Granularity> granularity;
  std::vector<AccumulatorField> fields;
  bool output = false;
  for (const BsonElement& e : spec.Document()) {
    if (e.name == "groupBy") {
      if (!IsComputed(e.value))
        return LocationError(40239,
                             "The $bucketAuto 'groupBy' field must be defined as a $-prefixed path "
                             "or an expression object, but found: " +
                                 ValueText(e.value));
      MAYFLY_TRY(by, ParseExpression(e.value, p.scope));
    } else if (e.name == "buckets") {
      int32_t n;
      if (!e.value.IsNumber())
        return LocationError(
            40241, "The $bucketAuto 'buckets' field must be a numeric value, but found type: " +
                       TypeText(e.value));
      if (!ExactInt32(e.value, &n))
        return LocationError(40242,
                             "The $bucketAuto 'buckets' field must be representable as a 32-bit "
                             "integer, but found " +
                                 ValueText(e.value));
      if (n <= 0)
        return LocationError(40243,
                             "The $bucketAuto 'buckets' field must be greater than 0, but found: " +
                                 std::to_string(n));
      buckets = n;
    } else if (e.name == "output") {
      if (!e.value.IsDocument())
        return LocationError(40244,
                             "The $bucketAuto 'output' field must be an object, but found type: " +
                                 TypeText(e.value));
      MAYFLY_TRY(CheckOptionsOnce("$bucketAuto.output", e.value));
      output = true;
      for (const BsonElement& f : e.value.Document()) {
        MAYFLY_TRY(AccumulatorField field, AccumulatorField::Parse(f.name, f.value, p.scope));
        fields.push_back(std::move(field));
      }
    } else if (e.name == "granularity") {
      if (!e.value.IsString())
        return LocationError(
            40261, "The $bucketAuto 'granularity' field must be a string, but found type: " +
                       TypeText(e.value));
      MAYFLY_TRY(granularity, Granularity::Parse(e.value.String()));
    } else {
      return LocationError(40245,
                           "Unrecognized option to $bucketAuto: " + std::string(e.name) + ".");
    }
  }
  if (!by || !buckets)
    return LocationError(40246, "$bucketAuto requires 'groupBy' and 'buckets' to be specified.");
  if (!output) {
    BsonDocument count = BuildBson([](BsonBuilder& b) {
      BsonBuilder sum = b.OpenDocument("count");
      sum.Append("$sum", 1);
    });
    MAYFLY_TRY(AccumulatorField field,
               AccumulatorField::Parse("count", count.view()["count"], p.scope));
    fields.push_back(std::move(field));
  }
  p.out.push_back(std::make_unique<BucketAutoStage>(p.context, std::move(by), *buckets,
                                                    std::move(fields), granularity));
  return Ok();
}

}  // namespace mayfly
