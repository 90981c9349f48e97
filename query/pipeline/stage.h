#pragma once
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_check.h"
#include "query/expression/nesting.h"
#include "query/expression/operator.h"
#include "query/expression/options_once.h"
#include "query/pipeline/pipeline.h"
#include "storage/operation.h"

namespace mayfly {

/// The fields that a stage needs of its input documents.
enum class StageNeeds : uint8_t {
  kAlso,   ///< the reported fields, and whatever the stages behind it need
  kOnly,   ///< the reported fields and nothing else
  kWhole,  ///< everything
};

/// One stage: pulls from its input and hands on. Made by the parser, linked by the Pipeline. One
/// thread at a time.
class PipelineStage : public DocumentSource {
 public:
  explicit PipelineStage(PipelineContext& context) : context_(&context) {}

  /// As explain shows it, with its "$": "$match". Lives at least as long as the stage.
  virtual std::string_view name() const = 0;
  /// Appends `$name: specification` to an open document.
  virtual void Serialize(BsonBuilder& out) const = 0;
  /// Adds the dotted paths that the stage reads; says whether those are all it needs.
  virtual StageNeeds AddDependencies(std::set<std::string>* fields) const = 0;
  /// As the first stage after a source: its requests besides fields. Not asked where metadata is
  /// read.
  virtual void AskSource(SourceRequest* request) const { (void)request; }
  /// Makes its own documents (has no input).
  virtual bool is_source() const { return false; }
  /// Whether what comes out may nest deeper than what comes in. False: it never does, or the stage
  /// looks itself.
  virtual bool deepens() const { return true; }
  /// Adds "db.collection" of what it reads and writes besides its input.
  virtual void AddNamespaces(std::set<std::string>* namespaces) const { (void)namespaces; }
  /// The command changed: pass the operation on to pipelines within.
  virtual void OnAttach() {}
  /// For explain with executionStats: beside the specification.
  virtual void ExplainStats(BsonBuilder& out) const { (void)out; }

  void SetInput(DocumentSource* input) { input_ = input; }
  void SetOperation(Operation*) final {}  // the context has it
  /// GetNext() with the common work of all stages: it is counted and timed, and a document that is
  /// too deep (if the stage deepens) or too large for the remaining memory is an error.
  Result<StreamState> Next(StreamDocument* out) final {
    Result<StreamState> r = context_->timed ? TimedNext(out) : GetNext(out);
    if (r && r.value() == StreamState::kAdvanced) {
      ++returned_;
      bson_check::Document(out->doc.bytes(), "a stage");
      if (out->doc.size() >= LeastBytesOfDeeper(kMaxValueDepth) && deepens() &&
          NestsDeeper(out->doc.AsValue(), kMaxValueDepth)) [[unlikely]]
        return NestedTooDeep();
      if (out->doc.size() >= large_memory::kLarge) [[unlikely]]
        return Large(out->doc.size());
    }
    return r;
  }
  int64_t returned() const { return returned_; }
  int64_t micros() const { return micros_; }  ///< with its inputs; measured for explain only
  /// The largest document that came by, since the stage may have a copy, and what AddKeptByStage
  /// says.
  void AddKept(large_memory::Kept* kept) const final {
    kept->Add(largest_, hold_);
    AddKeptByStage(kept);
  }

 protected:
  virtual Result<StreamState> GetNext(StreamDocument* out) = 0;
  /// What the stage itself keeps of its input, and pipelines within.
  virtual void AddKeptByStage(large_memory::Kept* kept) const { (void)kept; }
  /// The next document of the input.
  Result<StreamState> Pull(StreamDocument* out) {
    MAYFLY_TRY(Check());
    return input_->Next(out);
  }
  Result<void> Check() {
    return context_->op ? context_->op->CheckInterrupt() : Result<void>(Ok());
  }
  /// The evaluation context, looking at `doc`.
  EvalContext& Eval(const StreamDocument& in) {
    context_->eval.root = in.doc;
    context_->eval.metadata = in.metadata;
    return context_->eval;
  }
  const PipelineOptions& options() const { return context_->options; }

  PipelineContext* context_;
  DocumentSource* input_ = nullptr;
  int64_t returned_ = 0, micros_ = 0;

 private:
  Result<StreamState> TimedNext(StreamDocument* out) {
    const int64_t begin = context_->op->clock().MonotonicMicros();
    Result<StreamState> r = GetNext(out);
    micros_ += context_->op->clock().MonotonicMicros() - begin;
    return r;
  }
  /// Every stage may have a copy of a document that comes by: the largest of each stage counts.
  Result<StreamState> Large(size_t bytes) {
    if (bytes > kMaxDocument) return ValueTooLarge(bytes);
    if (bytes > largest_) {
      MAYFLY_TRY(hold_.Set(bytes));
      largest_ = bytes;
    }
    return StreamState::kAdvanced;
  }
  /// Between stages documents may be larger than a stored one (manual: "Aggregation Pipeline
  /// Limits"). What two stages can build together still fits BSON's length field.
  static constexpr size_t kMaxDocument = 4 * kMaxValueBytes;
  large_memory::Hold hold_;
  size_t largest_ = 0;
};
using StagePtr = std::unique_ptr<PipelineStage>;

/// What a stage's parser works with.
struct StageParser {
  Pipeline& pipeline;
  PipelineContext& context;
  VariableScope& scope;
  std::vector<StagePtr>& out;
  std::string_view stage;  ///< the name as written
};

/// Where a stage may stand.
enum StageFlags : uint32_t {
  kStageNone = 0,
  kStageFirst = 1 << 0,  ///< only as the first one
  kStageLast = 1 << 1,   ///< only as the last one, and not in sub-pipelines
  kStageNotInFacet = 1 << 2,
  kStageCollectionless = 1 << 3,      ///< works with (only) `aggregate: 1`
  kStageAlsoCollectionless = 1 << 6,  ///< works with `aggregate: 1` too
  kStageAdmin = 1 << 4,               ///< only against the admin database
  kStageChangeStream = 1 << 5,        ///< may stand behind $changeStream
  kStageOptions = 1 << 7,             ///< takes options by name, each of them once
};

/// One row of the stage table, sorted by name. A row without `parse` is known and refused.
struct StageRow {
  std::string_view name;
  uint32_t flags = 0;
  Result<void> (*parse)(StageParser& p, BsonValue spec) = nullptr;
  std::string_view text;
  ErrorCode refused = ErrorCode::kNotImplemented;  ///< rows without `parse`
  std::string_view why = "";
};
/// Rows of a table that lives as long as the process. Null: there is none of that name.
const StageRow* FindStage(std::string_view name);
std::span<const StageRow> AllStages();

// Parsers of the table's rows, by file.
Result<void> ParseMatchStage(StageParser& p, BsonValue spec);  // flow_stages.cc
Result<void> ParseProjectStage(
    StageParser& p, BsonValue spec);  // project_stages.cc: $project $addFields $set $unset
Result<void> ParseReplaceRootStage(StageParser& p, BsonValue spec);  // $replaceRoot $replaceWith
Result<void> ParseRedactStage(StageParser& p, BsonValue spec);
Result<void> ParseLimitStage(StageParser& p, BsonValue spec);
Result<void> ParseSkipStage(StageParser& p, BsonValue spec);
Result<void> ParseCountStage(StageParser& p, BsonValue spec);
Result<void> ParseSortStage(StageParser& p, BsonValue spec);
Result<void> ParseSampleStage(StageParser& p, BsonValue spec);
Result<void> ParseUnwindStage(StageParser& p, BsonValue spec);
Result<void> ParseGroupStage(StageParser& p, BsonValue spec);        // group_stage.cc
Result<void> ParseSortByCountStage(StageParser& p, BsonValue spec);  // bucket_stages.cc
Result<void> ParseBucketStage(StageParser& p, BsonValue spec);
Result<void> ParseBucketAutoStage(StageParser& p, BsonValue spec);
Result<void> ParseSetWindowFieldsStage(StageParser& p, BsonValue spec);  // window_stage.cc
Result<void> ParseFillStage(StageParser& p, BsonValue spec);
Result<void> ParseDensifyStage(StageParser& p, BsonValue spec);    // densify_stage.cc
Result<void> ParseFacetStage(StageParser& p, BsonValue spec);      // facet_stage.cc
Result<void> ParseLookupStage(StageParser& p, BsonValue spec);     // lookup_stage.cc
Result<void> ParseUnionWithStage(StageParser& p, BsonValue spec);  // union_stage.cc
Result<void> ParseGraphLookupStage(StageParser& p, BsonValue spec);
Result<void> ParseDocumentsStage(StageParser& p, BsonValue spec);  // source_stages.cc
Result<void> ParseEnvironmentStage(StageParser& p,
                                   BsonValue spec);  // $collStats $indexStats $currentOp …
Result<void> ParseTombstonesStage(StageParser& p, BsonValue spec);
Result<void> ParseUnpackStage(StageParser& p, BsonValue spec);  // unpack_stage.cc
Result<void> ParseOutStage(StageParser& p, BsonValue spec);     // out_stages.cc
Result<void> ParseMergeStage(StageParser& p, BsonValue spec);

// --- stages that the optimiser knows ---

/// $match. Owns the filter's bytes, which the compiled filter refers to.
class PipelineMatch final : public PipelineStage {
 public:
  PipelineMatch(PipelineContext& context, BsonDocument filter, MatchPtr match)
      : PipelineStage(context), filter_(std::move(filter)), match_(std::move(match)) {}
  std::string_view name() const override { return "$match"; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override { out.Append("$match", filter_); }
  StageNeeds AddDependencies(std::set<std::string>* fields) const override;
  BsonView filter() const { return filter_; }
  MatchPtr TakeMatch() { return std::move(match_); }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override;

 private:
  BsonDocument filter_;
  MatchPtr match_;
};

/// The fields that a filter reads. False when that cannot be told (all of the document may be
/// read).
bool MatchDependencies(const MatchExpression& match, std::set<std::string>* fields);

/// $sort: reads all of its input before the first document comes out. `limit`: only so many are
/// kept, 0: all.
class PipelineSort final : public PipelineStage {
 public:
  PipelineSort(PipelineContext& context, SortPattern pattern)
      : PipelineStage(context), pattern_(std::move(pattern)) {}
  std::string_view name() const override { return "$sort"; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override;
  StageNeeds AddDependencies(std::set<std::string>* fields) const override;
  void ExplainStats(BsonBuilder& out) const override;
  const SortPattern& pattern() const { return pattern_; }
  int64_t limit() const { return limit_; }
  void set_limit(int64_t n) { limit_ = n; }
  /// Documents come with their sort key as metadata: something behind reads {$meta: "sortKey"}.
  void WantSortKey() { want_sort_key_ = true; }
  bool wants_sort_key() const { return want_sort_key_; }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override;
  void AddKeptByStage(large_memory::Kept* kept) const override {
    if (sorter_) sorter_->AddKept(kept);
  }

 private:
  SortPattern pattern_;
  int64_t limit_ = 0;
  bool want_sort_key_ = false, sorted_ = false;
  std::unique_ptr<Sorter> sorter_;
};

/// $limit.
class PipelineLimit final : public PipelineStage {
 public:
  PipelineLimit(PipelineContext& context, int64_t limit) : PipelineStage(context), limit_(limit) {}
  std::string_view name() const override { return "$limit"; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override { out.Append("$limit", limit_); }
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kAlso; }
  int64_t limit() const { return limit_; }
  void set_limit(int64_t n) { limit_ = n; }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override;

 private:
  int64_t limit_, seen_ = 0;
};

/// $skip.
class PipelineSkip final : public PipelineStage {
 public:
  PipelineSkip(PipelineContext& context, int64_t skip) : PipelineStage(context), skip_(skip) {}
  std::string_view name() const override { return "$skip"; }
  bool deepens() const override { return false; }
  void Serialize(BsonBuilder& out) const override { out.Append("$skip", skip_); }
  StageNeeds AddDependencies(std::set<std::string>*) const override { return StageNeeds::kAlso; }
  int64_t skip() const { return skip_; }
  void set_skip(int64_t n) { skip_ = n; }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override;

 private:
  int64_t skip_, seen_ = 0;
};

/// $unwind of the array at `path` (`dotted`: the same, joined). `index`: the field that gets the
/// element's position; `preserve`: preserveNullAndEmptyArrays.
class PipelineUnwind final : public PipelineStage {
 public:
  PipelineUnwind(PipelineContext& context, std::vector<std::string> path, std::string dotted,
                 std::optional<std::string> index, bool preserve)
      : PipelineStage(context),
        path_(std::move(path)),
        dotted_(std::move(dotted)),
        index_(std::move(index)),
        preserve_(preserve) {}
  std::string_view name() const override { return "$unwind"; }
  bool deepens() const override { return index_.has_value(); }
  void Serialize(BsonBuilder& out) const override;
  StageNeeds AddDependencies(std::set<std::string>* fields) const override {
    fields->insert(dotted_);
    return StageNeeds::kAlso;
  }
  /// May it change what is at `path`?
  bool Touches(std::string_view path) const;
  const std::string& dotted() const { return dotted_; }
  const std::optional<std::string>& index() const { return index_; }
  /// REQUIRES: index().
  std::vector<std::string> index_path() const;
  bool preserve() const { return preserve_; }

 protected:
  Result<StreamState> GetNext(StreamDocument* out) override;

 private:
  void Emit(BsonValue replacement, std::optional<int64_t> index, StreamDocument* out);
  std::vector<std::string> path_;
  std::string dotted_;
  std::optional<std::string> index_;
  bool preserve_;
  std::string input_copy_;  ///< the document being unwound: the input may reuse its own buffer
  DocumentMetadata metadata_;
  bool has_metadata_ = false;
  BsonView::Iterator next_;
  bool unwinding_ = false;
  int64_t position_ = 0;
  std::string buffer_;
};

/// $project, $addFields, $set, $unset.
class PipelineProject;
/// As a PipelineProject: may it change what is at `path`? Nothing when the stage is none.
std::optional<bool> ProjectionTouches(const PipelineStage& stage, std::string_view path);

/// As a PipelineProject: the field whose value its top-level field `field` gets. Empty: none.
std::string ProjectionRenamedFrom(const PipelineStage& stage, std::string_view field);
/// Whether the stage is a $group.
bool IsGroup(const PipelineStage& stage);
/// Whether the stage is a $group of everything that shows nothing but parts of its first document.
bool ReadsFirstOnly(const PipelineStage& stage);
/// As a $group: the path in its input whose value is at `path` of what comes out, for paths in
/// `_id`. Empty: none, or the stage is no $group.
std::string GroupedFrom(const PipelineStage& stage, std::string_view path);

/// A $lookup absorbs the following $unwind of its `as`. False if the stages are different.
bool AbsorbUnwind(PipelineStage& lookup, const PipelineUnwind& unwind);
/// As a $lookup: may it change what is at `path`? Nothing when the stage is none.
std::optional<bool> LookupTouches(const PipelineStage& stage, std::string_view path);

/// Whether one dotted path is the other or lies in it, either way.
bool PathsOverlap(std::string_view a, std::string_view b);

// --- helpers ---

/// Appends `doc` with the value at `path` (through sub-documents) set to `value`, or taken out when
/// it is missing.
void SetPath(BsonView doc, std::span<const std::string> path, BsonValue value, BsonBuilder& out);

/// A pipeline within a stage. `variables`: names and values that its expressions may use besides
/// the parent's.
struct SubPipelineSpec {
  std::string stage;           ///< of the stage it is in, for messages
  std::string db, collection;  ///< empty collection: makes its own documents
  std::vector<std::pair<std::string, Value>> variables;
  bool in_facet = false;
};
/// Parses with the parent's variables; OpenSubPipeline is to follow before the first document.
/// Stages that write are refused. Errors: those of Pipeline::Parse.
Result<std::unique_ptr<Pipeline>> ParseSubPipeline(BsonView stages, const PipelineContext& parent,
                                                   const SubPipelineSpec& spec);
/// Opens its source through the environment (when it needs one) and attaches it.
Result<void> OpenSubPipeline(Pipeline& pipeline, const PipelineContext& parent);

/// Documents held in memory, as an input.
class VectorSource final : public DocumentSource {
 public:
  explicit VectorSource(std::vector<BsonDocument> docs) : docs_(std::move(docs)) {
    for (const BsonDocument& d : docs_) bytes_ += sizeof d + d.view().size();
  }
  Result<StreamState> Next(StreamDocument* out) override {
    if (next_ >= docs_.size()) return StreamState::kEof;
    *out = {docs_[next_++].view(), nullptr};
    return StreamState::kAdvanced;
  }
  void SetOperation(Operation*) override {}
  void AddKept(large_memory::Kept* kept) const override { kept->bytes += bytes_; }

 private:
  std::vector<BsonDocument> docs_;
  size_t next_ = 0, bytes_ = 0;
};

/// "pipeline" arrays of stages' arguments. Errors: TypeMismatch 14.
Result<void> CheckStageArray(BsonValue v, std::string_view what);

}  // namespace mayfly
