#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "query/match/match_expression.h"
#include "query/sort/document_source.h"
#include "query/sort/sorter.h"

namespace mayfly {

class Pipeline;
class PipelineStage;

/// What the front of a pipeline asks of the collection it reads: a find. Applied in this order:
/// filter, sort, skip, limit. The planner serves it with an index where it can. What is in here is
/// no longer a stage of the pipeline.
struct SourceRequest {
  BsonDocument filter;  ///< empty: all
  MatchPtr match;       ///< `filter`, parsed; null: all
  BsonDocument sort;    ///< empty: any order
  int64_t skip = 0;
  int64_t limit = 0;  ///< 0: none
  /// Top-level fields the rest reads; absent: whole documents. Empty set: not even one (a count).
  /// A licence to answer from an index alone, not a demand to cut documents down.
  std::optional<std::set<std::string>> fields;
  bool needs_metadata = false;  ///< `$meta` is used: the source fills DocumentMetadata
  bool needs_sort_key = false;  ///< likewise with what it was sorted by
  bool needs_record_id = false, needs_index_key = false;  ///< likewise with these
  /// Values of the variables that `match` may use ($expr), by VariableId.
  std::vector<Value> variables;
  /// The same with their names, for a source that parses `filter` again (a view).
  std::vector<std::pair<std::string, Value>> named_variables;
};

/// What a merge does with one incoming document; given the document that is there (or none),
/// answers what to store instead (or nothing to leave things as they are).
using MergeDecision =
    std::function<Result<std::optional<BsonDocument>>(std::optional<BsonView> existing)>;

/// What a pipeline needs from the world around it; implemented by the layer that runs commands. One
/// command's thread. Names of databases are filled in; collections may not exist (they are then
/// empty).
class PipelineEnvironment {
 public:
  virtual ~PipelineEnvironment() = default;
  /// Documents of another collection or view ($lookup, $unionWith, $graphLookup). `request` as the
  /// planner gets it.
  virtual Result<std::unique_ptr<DocumentSource>> OpenSource(Operation& op, std::string_view db,
                                                             std::string_view collection,
                                                             SourceRequest request) = 0;
  /// Whether a query on this field of a collection can use an index; false makes $lookup read the
  /// collection once and keep it in a hash table.
  virtual bool HasIndexOn(std::string_view db, std::string_view collection,
                          std::string_view field) {
    (void)db, (void)collection, (void)field;
    return true;
  }
  /// The documents of a stage that is about the server or a collection's state: `$collStats`,
  /// `$indexStats`, `$currentOp`, `$listLocalSessions`, `$listSessions`, `$planCacheStats`. `spec`
  /// is the stage's argument, checked to be a document.
  virtual Result<std::vector<BsonDocument>> StageDocuments(Operation& op, std::string_view stage,
                                                           std::string_view db,
                                                           std::string_view collection,
                                                           BsonView spec) = 0;

  /// The next documents of `$tombstones`, oldest first; none: the end. `position` is empty at first
  /// and the environment's between calls. `collection` empty: the whole database.
  virtual Result<std::vector<BsonDocument>> Tombstones(Operation& op, std::string_view db,
                                                       std::string_view collection, BsonView spec,
                                                       std::string* position) {
    (void)op, (void)db, (void)collection, (void)spec, (void)position;
    return std::vector<BsonDocument>();
  }

  // $out: replaces a collection as a whole. Written to a temporary collection that CommitOut
  // renames (indexes and options of the old one kept); a failed or killed pipeline calls
  // AbandonOut.
  virtual Result<void> BeginOut(Operation& op, std::string_view db,
                                std::string_view collection) = 0;
  virtual Result<void> WriteOut(Operation& op, std::span<const BsonView> documents) = 0;
  virtual Result<void> CommitOut(Operation& op) = 0;
  virtual void AbandonOut() = 0;

  /// $merge: Ok when a unique index (or `_id`) has exactly these fields, in any order; else
  /// Location51183.
  virtual Result<void> CheckMergeFields(Operation& op, std::string_view db,
                                        std::string_view collection,
                                        std::span<const std::string> on) = 0;
  /// One document of $merge: finds the document equal to `query` ({field: value, …}, matched by the
  /// unique index), asks `decide`, and stores its answer, all in one write unit (retried on
  /// conflict, so `decide` may be called again).
  virtual Result<void> MergeOne(Operation& op, std::string_view db, std::string_view collection,
                                BsonView query, const MergeDecision& decide) = 0;
};

/// Settings of one aggregate command.
struct PipelineOptions {
  std::string db;
  std::string collection;  ///< empty: `aggregate: 1`
  bool allow_disk_use = true;
  size_t memory_limit = size_t{100}
                        << 20;  ///< bytes a blocking stage may hold before it spills or fails
  SpillPlace temp_dir;          ///< spill files of all stages and sub-pipelines
  Instant now;                  ///< $$NOW while `let` is evaluated
  uint64_t cluster_time = 0;    ///< $$CLUSTER_TIME likewise
  BsonView let;                 ///< the command's `let`: name → constant expression
  /// Variables with values, beside those of `let`: SourceRequest::named_variables of a pipeline on
  /// a view.
  std::vector<std::pair<std::string, Value>> variables;
  bool allow_writes = true;    ///< $out, $merge
  bool change_stream = false;  ///< the stages behind $changeStream, which is the source
};

/// State that the stages of a pipeline share while it runs.
struct PipelineContext {
  Operation* op = nullptr;  ///< of the command that runs now
  PipelineEnvironment* env = nullptr;
  EvalContext eval;  ///< variables; `root` is set by each stage
  PipelineOptions options;
  /// Variables given from outside: the command's `let`, and in a sub-pipeline those around it.
  std::vector<std::pair<std::string, Value>> variables;
  int depth = 0;       ///< of sub-pipelines
  bool timed = false;  ///< explain: stages measure the time they take
};

/// A parsed pipeline, and then a running one. Parse, TakeSource, SetSource, Attach, Next … One
/// thread at a time.
///
///   auto pipeline = Pipeline::Parse(array, options);
///   SourceRequest request = pipeline->TakeSource();   // only when NeedsSource()
///   pipeline->SetSource(planner.Open(std::move(request)));
///   pipeline->Attach(&op, &env);
///   while (pipeline->Next(&document) == kAdvanced) …
class Pipeline final : public DocumentSource {
 public:
  ~Pipeline() override;
  /// Errors: MongoDB's for an unknown stage (Location40324), a stage object without exactly one
  /// field (Location40323), stages in the wrong place, and whatever a stage's own argument can do
  /// wrong. Copies all it needs of `stages`.
  static Result<std::unique_ptr<Pipeline>> Parse(BsonView stages, const PipelineOptions& options);

  /// The error of a constant expression, once: `{$divide: [1, 0]}` fails also where there is no
  /// document. Not part of Parse: a view may be defined with one.
  Result<void> CheckConstants();

  /// False for pipelines whose first stage makes its own documents ($documents, $currentOp,
  /// $collStats …).
  bool NeedsSource() const;
  /// Lifts the leading $match, $sort, $skip, $limit off and tells what the rest reads. Once, before
  /// SetSource.
  SourceRequest TakeSource();
  void SetSource(std::unique_ptr<DocumentSource> source);
  /// The operation and environment of the command that runs now (again for each getMore). Both
  /// outlive it.
  void Attach(Operation* op, PipelineEnvironment* env);

  /// kPaused only from tailable sources. Pipelines that end in $out or $merge write everything and
  /// give kEof.
  Result<StreamState> Next(StreamDocument* out) override;
  void SetOperation(Operation* op) override;
  void SaveState() override;
  void AddKept(large_memory::Kept* kept) const override;

  /// True when the last stage is $out or $merge; `*db` and `*collection` (may be null) get its
  /// target.
  bool WritesTo(std::string* db, std::string* collection) const;
  /// The collections other than its own that it reads or writes ("db.collection"), sub-pipelines
  /// included.
  std::set<std::string> InvolvedNamespaces() const;
  bool empty() const { return stages_.empty(); }
  /// The stages that are left, one document each, as explain's `stages` shows them after `$cursor`.
  void ExplainStages(BsonArrayBuilder& out, int verbosity) const;
  /// Stages measure from now on the time they take, for ExplainStages. Before the first Next().
  void MeasureTime() { context_->timed = true; }
  /// The stages as a pipeline again.
  void Serialize(BsonArrayBuilder& out) const;

  PipelineContext& context() { return *context_; }
  VariableScope& scope() { return scope_; }

 private:
  friend class PipelineParser;
  Pipeline();
  void Link();

  std::unique_ptr<PipelineContext> context_;
  VariableScope scope_;
  std::vector<std::unique_ptr<PipelineStage>> stages_;
  std::unique_ptr<DocumentSource> source_;
  bool linked_ = false;
};

}  // namespace mayfly
