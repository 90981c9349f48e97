#include "query/pipeline/partition_sorter.h"

#include "protocol/bson_compare.h"
#include "query/expression/operator.h"
#include "query/pipeline/pipeline.h"

namespace mayfly {

void PartitionSorter::ExplainStats(BsonBuilder& out) const {
  out.Append("usedDisk", sorter_ != nullptr && sorter_->spills() > 0);
  out.Append("spills", sorter_ != nullptr ? sorter_->spills() : int64_t{0});
}

Result<void> PartitionSorter::Begin(BsonView sort, const PipelineOptions& options) {
  // Sorts documents {p: {v: partition}, d: document}. Within the document `p`, the partition is one
  // value, whatever its type.
  const BsonDocument spec = BuildBson([&](BsonBuilder& b) {
    b.Append("p", 1);
    for (const BsonElement& e : sort) b.Append("d." + std::string(e.name), e.value);
  });
  MAYFLY_TRY(SortPattern pattern, SortPattern::Parse(spec));
  sorter_ = std::make_unique<Sorter>(std::move(pattern), options.Sorting());
  return Ok();
}

Result<void> PartitionSorter::Add(const StreamDocument& in, EvalContext& ctx) {
  Value partition;
  if (by_) {
    MAYFLY_TRY(partition, by_->Evaluate(ctx));
    if (partition.view().IsArray())
      return Error{ErrorCode::kTypeMismatch,
                   "An expression used to partition cannot evaluate to value of type array"};
  }
  const BsonDocument wrapped = BuildBson([&](BsonBuilder& b) {
    BsonBuilder p = b.OpenDocument("p");
    if (partition.missing())
      p.AppendNull("v");
    else
      p.Append("v", partition.view());
    p.Done();
    b.Append("d", in.doc);
  });
  return sorter_->Add(wrapped);
}

Result<void> PartitionSorter::Finish() {
  MAYFLY_TRY(sorter_->Finish());
  sorted_ = true;
  return Read();
}

Result<void> PartitionSorter::Read() {
  StreamDocument out;
  MAYFLY_TRY(has_next_, sorter_->Next(&out));
  if (!has_next_) return Ok();
  document_ = BsonDocument(out.doc["d"].Document());
  partition_ = Value::Copy(out.doc["p"].Document()["v"]);
  return Ok();
}

Result<bool> PartitionSorter::Advance() {
  const Value before = std::move(partition_);
  MAYFLY_TRY(Read());
  return has_next_ && CompareValues(before.view(), partition_.view()) == 0;
}

}  // namespace mayfly
