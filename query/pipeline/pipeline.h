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

/// In what order buckets of a time series are to come: of their lower bounds.
struct BucketOrder {
  std::string floor;  ///< the path of the lower bound
  bool descending = false;
  bool by_id = false;  ///< the order of `_id` is the same
  /// The source writes here whether they do.
  std::shared_ptr<bool> kept;
};

/// The front of a pipeline as a request to its collection: a find. Applied in this order: filter,
/// sort, skip, limit. The planner serves it with an index if possible. Its parts are no longer
/// stages of the pipeline.
struct SourceRequest {
  BsonDocument filter;  ///< empty: all
  MatchPtr match;       ///< `filter`, parsed; null: all
  BsonDocument sort;    ///< empty: any order
  int64_t skip = 0;
  int64_t limit = 0;  ///< 0: none
  /// Top-level fields the rest reads; absent: whole documents. Empty set: not even one (a count).
  /// A licence to answer from an index alone, not a demand to cut documents down.
  std::optional<std::set<std::string>> fields;
  /// The reader only counts the documents (DocumentSource::CountRest).
  bool count = false;
  /// As QuerySpec::one_per: what a `$group` asks for that reads one document of each value.
  std::string one_per;
  bool one_per_last = false;
  int64_t batch_hint = 0;       ///< how many will be taken first; 0: not known
  bool needs_metadata = false;  ///< `$meta` is used: the source fills DocumentMetadata
  bool needs_sort_key = false;  ///< likewise with what it was sorted by
  bool needs_record_id = false, needs_index_key = false;  ///< likewise with these
  /// Optional, with `sort` empty: an order that an index or the records already have.
  std::optional<BucketOrder> bucket_order;
  /// Values of the variables that `match` may use ($expr), by VariableId.
  std::vector<Value> variables;
  /// The same with their names, for a source that parses `filter` again (a view).
  std::vector<std::pair<std::string, Value>> named_variables;
};

/// A merge's decision for one incoming document; given the existing document (or none), returns the
/// document to store instead (or nothing, to change nothing).
using MergeDecision =
    std::function<Result<std::optional<BsonDocument>>(std::optional<BsonView> existing)>;

/// A pipeline's interface to its environment; the layer that runs commands implements it. One
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
  /// Each value at `first` once, from an index that begins with `first` and `second` and has each
  /// document once; nothing if there is none, or if the values are too many to be kept.
  virtual Result<std::optional<std::vector<Value>>> LeadingValues(Operation& op,
                                                                  std::string_view db,
                                                                  std::string_view collection,
                                                                  std::string_view first,
                                                                  std::string_view second) {
    (void)op, (void)db, (void)collection, (void)first, (void)second;
    return std::optional<std::vector<Value>>();
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
  /// `series`: the options of the time series that it is to be; nothing: what is there stays of its
  /// kind.
  virtual Result<void> BeginOut(Operation& op, std::string_view db, std::string_view collection,
                                std::optional<BsonView> series) = 0;
  virtual Result<void> WriteOut(Operation& op, std::span<const BsonView> documents) = 0;
  virtual Result<void> CommitOut(Operation& op) = 0;
  virtual void AbandonOut() = 0;

  /// $merge, before its first document: Ok when a unique index (or `_id`) has exactly these fields,
  /// in any order; else Location51183. CommandNotSupportedOnView 166: nothing merges there.
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
  bool rewrite_series = true;  ///< time series: filters, fields and orders are asked of buckets
  /// Says what is wrong with `timeseries` of $out; null: nobody looks.
  Result<void> (*check_series)(BsonView) = nullptr;
  bool change_stream = false;  ///< the stages behind $changeStream, which is the source
  /// After how many stages the pipeline of a view ends, ascending: what only stages within the view
  /// may know of its documents does not pass. Not of sub-pipelines.
  std::vector<int> view_ends;

  /// Those of a sorter in a stage. `limit`: 0 for all documents.
  SorterOptions Sorting(int64_t limit = 0) const {
    return {.limit = limit,
            .memory_limit = memory_limit,
            .allow_disk_use = allow_disk_use,
            .temp_dir = temp_dir};
  }
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

/// A parsed pipeline, and then a running one. Parse, TakeSource, SetSource, Attach, Next … A large
/// one counts as large memory for as long as it lives. One thread at a time.
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
  /// `wanted`: the top-level fields that are read of what comes out; null: all.
  SourceRequest TakeSource(const std::set<std::string>* wanted = nullptr);
  void SetSource(std::unique_ptr<DocumentSource> source);
  /// Points of a time series are unpacked with the fields that are read of them. TakeSource does so
  /// by itself; once.
  void NarrowUnpacking(const std::set<std::string>* wanted);
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

  /// What it was parsed into, as far as it is large. Stages within are not asked again.
  const large_memory::Hold& parsed_hold() const { return parsed_hold_; }

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
  large_memory::Hold parsed_hold_;
  bool linked_ = false;
};

}  // namespace mayfly
