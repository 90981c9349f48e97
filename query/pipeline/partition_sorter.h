#pragma once
#include <memory>
#include <string>

#include "query/sort/sorter.h"

namespace mayfly {

struct PipelineOptions;

/// Sorts documents by the value of an expression, their partition, and by a sort pattern within it;
/// beyond the memory limit on disk. Fill (or Begin, Add…, Finish), then document() and Advance().
/// One thread.
class PartitionSorter {
 public:
  /// `by` null: one partition.
  explicit PartitionSorter(ExpressionPtr by) : by_(std::move(by)) {}
  /// The fields that the partition's expression reads; those of the sort pattern are not added.
  void AddDependencies(std::set<std::string>* fields) const {
    if (by_) by_->AddDependencies(fields);
  }
  /// Appends usedDisk and spills, also before Begin().
  void ExplainStats(BsonBuilder& out) const;

  /// What is in memory; nothing before Begin().
  void AddKept(large_memory::Kept* kept) const {
    if (sorter_) sorter_->AddKept(kept);
  }

  bool sorted() const { return sorted_; }
  /// Begins if it has not, adds each document that `next` gives (a Pull of the stage) and finishes:
  /// kEof, or kPaused, to be called again with the same arguments. `look` sees each document and
  /// returns the context to evaluate it in. Errors: theirs, and those of the three.
  template <class Next, class Look>
  Result<StreamState> Fill(BsonView sort, const PipelineOptions& options, Next&& next,
                           Look&& look) {
    if (!sorter_) {
      MAYFLY_TRY(Begin(sort, options));
    }
    while (!sorted_) {
      StreamDocument in;
      MAYFLY_TRY(StreamState state, next(&in));
      if (state == StreamState::kPaused) return state;
      if (state == StreamState::kEof) {
        MAYFLY_TRY(Finish());
      } else {
        MAYFLY_TRY(EvalContext * ctx, look(in));
        MAYFLY_TRY(Add(in, *ctx));
      }
    }
    return StreamState::kEof;
  }
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
