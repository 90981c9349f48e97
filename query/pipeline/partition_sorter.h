#pragma once
#include <memory>
#include <string>

#include "query/sort/sorter.h"

namespace mayfly {

struct PipelineOptions;

/// Sorts documents by the value of an expression, their partition, and by a sort pattern within it;
/// beyond the memory limit on disk. Begin, Add…, Finish, then document() and Advance(). One thread.
class PartitionSorter {
 public:
  /// `by` null: one partition.
  explicit PartitionSorter(ExpressionPtr by) : by_(std::move(by)) {}
  void AddDependencies(std::set<std::string>* fields) const {
    if (by_) by_->AddDependencies(fields);
  }
  void ExplainStats(BsonBuilder& out) const;

  void AddKept(large_memory::Kept* kept) const {
    if (sorter_) sorter_->AddKept(kept);
  }

  bool begun() const { return sorter_ != nullptr; }
  bool sorted() const { return sorted_; }
  /// `sort`: a sort specification without $meta; may be empty.
  Result<void> Begin(BsonView sort, const PipelineOptions& options);
  /// `ctx` looks at the document. Errors: TypeMismatch 14 for a partition that is an array.
  Result<void> Add(const StreamDocument& in, EvalContext& ctx);
  /// After this the first document is there, if there is any.
  Result<void> Finish();

  bool has_next() const { return has_next_; }
  /// The document at hand, and the value of its partition; valid until Advance().
  BsonView document() const { return document_.view(); }
  BsonValue partition() const { return partition_.view(); }
  /// The next document; false when that begins another partition, or there is none.
  Result<bool> Advance();

 private:
  Result<void> Read();

  const ExpressionPtr by_;
  std::unique_ptr<Sorter> sorter_;
  bool sorted_ = false, has_next_ = false;
  BsonDocument document_;
  Value partition_;
};

}  // namespace mayfly
