#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/instant.h"
#include "protocol/large_memory.h"
#include "query/expression/expression.h"
#include "query/match/match_expression.h"
#include "query/update/expire.h"

namespace mayfly {

/// The three forms of an update: {$set: …}, a whole document, an array of stages.
enum class UpdateKind : uint8_t { kOperators, kReplacement, kPipeline };

/// Settings of the statement around an update.
struct UpdateOptions {
  bool multi = false;   ///< a replacement is refused then (FailedToParse 9)
  bool upsert = false;  ///< MakeUpsert() may be called
  /// Timestamp(0,0) in a replacement is stored as it is, not as the current timestamp.
  bool keep_empty_timestamps = false;
};

/// One update statement, parsed once and applied to many documents. Immutable after parsing; owns
/// every byte it refers to, and a large one counts as large memory for as long as it lives.
/// Threads: any, with an EvalContext each.
class Update {
 public:
  /// `u`: a document whose first field name starts with '$' is a set of operators, any other
  /// document a replacement, an array a pipeline. `array_filters`: the statement's arrayFilters, in
  /// order. `scope`: the command's `let` (pipelines only use it). Errors: FailedToParse 9 (unknown
  /// modifier, unused array filter, other types of `u`), BadValue 2, TypeMismatch 14,
  /// ConflictingUpdateOperators 40, DollarPrefixedFieldName 52, EmptyFieldName 56, those of
  /// ParseWork, and an operator's own codes.
  static Result<std::unique_ptr<Update>> Parse(BsonValue u, std::span<const BsonView> array_filters,
                                               VariableScope& scope,
                                               const UpdateOptions& options = {});
  virtual ~Update() = default;

  /// The result of Apply for one document.
  struct Outcome {
    bool modified =
        false;  ///< false: the update leaves every byte as it was (nModified does not count it)
    std::string bytes;  ///< the new document when modified; empty otherwise
  };
  /// Applies the update to `old`, a stored document. `positional_index`: from
  /// MatchExpression::MatchesWithPosition, -1 for none. `is_insert`: $setOnInsert acts. `ctx.now`
  /// is the time of $currentDate and $$NOW; ctx.variables is only used by pipelines (ctx.root is
  /// overwritten by them). Errors: BadValue 2, TypeMismatch 14, Overflow 15, PathNotViable 28,
  /// CannotBackfillArray 34, ConflictingUpdateOperators 40 (two paths that meet through `$` or
  /// `$[id]`), ImmutableField 66, Location17419 (larger than 16 MiB), pipelines their own.
  Result<Outcome> Apply(BsonView old, int positional_index, bool is_insert, EvalContext& ctx) const;
  /// The same into a buffer of the caller's, so that a loop needs no allocation: true and the new
  /// document as the whole of `*out`, or false and `*out` unspecified.
  virtual Result<bool> ApplyTo(BsonView old, int positional_index, bool is_insert, EvalContext& ctx,
                               std::string* out) const = 0;

  /// The document an upsert that matched nothing inserts: the equality fields of `filter` (may be
  /// null: none), then the update with $setOnInsert; `_id` generated when absent, checked, and
  /// first. Not yet in need of PrepareInsert. Errors: as Apply; NotSingleValueField 54 when the
  /// filter names a path twice, InvalidIdField 53.
  Result<std::string> MakeUpsert(const MatchExpression* filter, Instant now,
                                 EvalContext& ctx) const;

  UpdateKind kind() const { return kind_; }
  /// The setting of `$expire`; kUnset without it. The caller applies it: the deadline is not part
  /// of the document.
  const ExpirySetting& expiry() const { return expiry_; }
  /// True when a path uses `$`: the caller must match with MatchesWithPosition.
  bool NeedsPosition() const { return needs_position_; }
  /// True when the update may change what an index on the dotted path `indexed_path` holds. Array
  /// positions count for nothing on either side. Replacements and pipelines may change everything.
  bool MayAffect(std::string_view indexed_path) const;
  /// The dotted paths that operators write, as given ("a.$[].b", "c.0"). Empty for replacements and
  /// pipelines, which may write anything.
  const std::vector<std::string>& touched_paths() const { return touched_paths_; }

 protected:
  explicit Update(UpdateKind kind) : kind_(kind) {}
  /// The document MakeUpsert starts from.
  virtual Result<std::string> UpsertBase(const MatchExpression* filter) const;

  UpdateKind kind_;
  bool needs_position_ = false;
  ExpirySetting expiry_;
  std::vector<std::string> touched_paths_;

 private:
  large_memory::Hold held_;  ///< of what it was parsed into
};

/// Refuses operators not allowed in the filter of an upsert, whether or not it finds a document:
/// `$expr`, which gives no fields for the document to insert (manual of update, "Upsert"). `filter`
/// has been parsed. Errors: QueryFeatureNotAllowed 224.
Result<void> CheckUpsertFilter(BsonView filter);

}  // namespace mayfly
