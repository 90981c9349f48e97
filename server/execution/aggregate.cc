#include "server/execution/aggregate.h"

#include "protocol/bson_compare.h"
#include "query/expression/parse_work.h"
#include "query/pipeline/view_boundary.h"
#include "server/dispatch/expiry_services.h"
#include "server/dispatch/redacted_command.h"
#include "server/execution/aggregate_stages.h"
#include "server/execution/change_stream_cursor.h"
#include "server/execution/out_writer.h"
#include "server/execution/series_definition.h"
#include "server/execution/transaction_rules.h"
#include "server/execution/view_definition.h"
#include "server/execution/write_ops.h"
#include "storage/catalog/namespace.h"

namespace mayfly {
namespace {

/// The executor of a plan, as the source of a pipeline.
class ExecutorSource final : public DocumentSource {
 public:
  ExecutorSource(std::unique_ptr<PlanExecutor> executor, Operation* op)
      : executor_(std::move(executor)), op_(op) {}
  Result<StreamState> Next(StreamDocument* out) override {
    if (saved_) {
      MAYFLY_TRY(executor_->RestoreState(*op_));
      saved_ = false;
    }
    MAYFLY_TRY(PlanExecutor::State state, executor_->Next());
    if (state == PlanExecutor::State::kEof)
      return executor_->tailable() ? StreamState::kPaused : StreamState::kEof;
    // The projection only allows a plan to answer from an index alone. A document that was read is
    // passed on whole, without a copy.
    out->doc = executor_->input_doc();
    if (out->doc.empty()) {
      MAYFLY_TRY(out->doc, executor_->doc());
    }
    out->metadata = &executor_->metadata();
    return StreamState::kAdvanced;
  }
  Result<std::optional<int64_t>> CountRest() override {
    if (saved_) {
      MAYFLY_TRY(executor_->RestoreState(*op_));
      saved_ = false;
    }
    MAYFLY_TRY(int64_t n, executor_->CountRest());
    return std::optional<int64_t>(n);
  }
  void SetOperation(Operation* op) override {
    if (op == op_) return;
    op_ = op;
    if (!saved_) {
      executor_->SaveState();
      saved_ = true;
    }
  }
  void SaveState() override {
    if (saved_) return;
    executor_->SaveState();
    saved_ = true;
  }
  void AddKept(large_memory::Kept* kept) const override {
    kept->bytes += executor_->KeptBytes();
    executor_->AddKept(kept);
  }
  PlanExecutor& executor() { return *executor_; }

 private:
  std::unique_ptr<PlanExecutor> executor_;
  Operation* op_;
  bool saved_ = false;
};

/// A pipeline that feeds another one: a view that $lookup reads, for example.
class OwnedPipeline final : public DocumentSource {
 public:
  OwnedPipeline(std::unique_ptr<Pipeline> pipeline, PipelineEnvironment* env)
      : pipeline_(std::move(pipeline)), env_(env) {}
  Result<StreamState> Next(StreamDocument* out) override {
    MAYFLY_TRY(StreamState state, pipeline_->Next(out));
    if (state == StreamState::kAdvanced) without_sort_key_.Apply(out);
    return state;
  }
  void SetOperation(Operation* op) override { pipeline_->Attach(op, env_); }
  void SaveState() override { pipeline_->SaveState(); }
  void AddKept(large_memory::Kept* kept) const override {
    kept->Add(0, pipeline_->parsed_hold());
    pipeline_->AddKept(kept);
  }

 private:
  std::unique_ptr<Pipeline> pipeline_;
  PipelineEnvironment* env_;
  WithoutSortKey without_sort_key_;
};

/// Behind a view there are no keys, neither of an index, which the view's reader chooses by a
/// filter or a hint, nor of a record, which is made of its `_id`: the view may leave these out.
void HideKeys(SourceRequest* request) {
  request->needs_index_key = false;
  request->needs_record_id = false;
}

/// Whether {$meta: "sortKey"} is somewhere in these stages, in whatever place. It is also found
/// where it is a mere value, which costs no more than a plan that is not as good.
bool ReadsSortKey(BsonView stages) {
  using namespace std::string_view_literals;
  return stages.bytes().find("\x02$meta\0\x08\0\0\0sortKey\0"sv) != std::string_view::npos;
}

class Environment final : public PipelineEnvironment {
 public:
  Environment(ExpiryServices& server, const AggregateSpec& spec)
      : server_(server),
        clients_(spec.clients),
        include_expired_(spec.include_expired),
        allow_disk_use_(spec.allow_disk_use),
        bypass_validation_(spec.bypass_validation),
        out_(server, spec.bypass_validation) {}
  /// Whether expired documents are shown, either by request or because the clock is not trusted.
  bool ShowsAllExpired() const {
    return include_expired_ || server_.storage().expiry_policy().suspended;
  }
  /// Likewise, or because a document may be held: stages do not know which collection it is of.
  bool MayShowExpired() const {
    return ShowsAllExpired() || server_.storage().expiry_policy().HasHolds();
  }

  /// A view is among what is read: who may read it need not see all that it reads.
  void OpensView() { opened_view_ = true; }
  /// An error without what it may quote of documents that have credentials, if a view is among what
  /// is read. Which of the two had the document is not looked at: stages of the view and of the
  /// command may be one by now.
  Error Shown(Error error) const {
    constexpr ErrorCode kOfTheServer[] = {
        ErrorCode::kInterrupted, ErrorCode::kMaxTimeMSExpired, ErrorCode::kInterruptedAtShutdown,
        ErrorCode::kWriteConflict, ErrorCode::kExceededMemoryLimit};
    if (!opened_view_ || !reads_credentials_ ||
        std::ranges::find(kOfTheServer, error.code) != std::end(kOfTheServer))
      return error;
    return {error.code,
            "the message is not shown, because a view is read here and credentials are, so it may "
            "have some: run the view's pipeline on its collection"};
  }

  Result<std::unique_ptr<DocumentSource>> OpenSource(Operation& op, std::string_view db,
                                                     std::string_view collection,
                                                     SourceRequest request) override {
    return Open(op, db, collection, std::move(request), {}, 0, nullptr);
  }

  Result<std::unique_ptr<DocumentSource>> Open(Operation& op, std::string_view db,
                                               std::string_view collection, SourceRequest request,
                                               BsonValue hint, int depth, bool explain_only,
                                               std::unique_ptr<PlanExecutor>* taken) {
    explain_ = explain_only;
    return Open(op, db, collection, std::move(request), hint, depth, taken);
  }

  Result<std::unique_ptr<DocumentSource>> Open(Operation& op, std::string_view db,
                                               std::string_view collection, SourceRequest request,
                                               BsonValue hint, int depth,
                                               std::unique_ptr<PlanExecutor>* taken) {
    MAYFLY_TRY(CollectionInfoPtr coll,
               FindCollection(server_.storage().catalog(), op, db, collection));
    if (coll && coll->is_view()) {
      if (depth >= kMaxViewDepth)
        return Error{ErrorCode::kViewDepthLimitExceeded,
                     "View depth limit exceeded; maximum depth is 20"};
      return OpenView(op, *coll, std::move(request), depth);
    }
    if (HoldsCredentials(db, collection)) {
      reads_credentials_ = true;
      op.reads_credentials.store(true, std::memory_order_relaxed);
    }
    std::string ns = JoinNamespace(db, collection);
    QuerySpec spec;
    spec.coll = coll;
    spec.ns = ns;
    spec.filter = request.filter;
    if (request.match)
      spec.match = std::shared_ptr<const MatchExpression>(std::move(request.match));
    if (!request.count) spec.sort = request.sort;
    spec.skip = request.skip;
    spec.limit = request.limit;
    spec.batch_hint = request.batch_hint;
    spec.hint = hint;
    spec.include_expired = include_expired_;
    spec.allow_disk_use = allow_disk_use_;
    spec.memory_limit = server_.settings().sort_bytes();
    spec.explain = explain_;
    spec.want_sort_key = request.needs_sort_key;
    spec.want_record_id = request.needs_record_id;
    spec.want_index_key = request.needs_index_key;
    // The variables have their values already. A scope of the right size stands in for their names.
    VariableScope scope;
    while (static_cast<size_t>(scope.slots()) < request.variables.size()) scope.Define("_");
    spec.scope = &scope;
    spec.variables = &request.variables;
    BsonDocument projection;
    spec.one_per = request.one_per;
    spec.one_per_last = request.one_per_last;
    spec.count_only = request.count;
    spec.keys_only = request.fields && request.fields->empty() && !request.needs_metadata;
    if (!spec.keys_only && request.fields && !request.needs_metadata) {
      projection = MakeProjection(*request.fields);
      spec.projection = projection;
    }
    std::unique_ptr<PlanExecutor> executor;
    if (request.bucket_order) {
      MAYFLY_TRY(executor, OpenInOrder(op, spec, *request.bucket_order));
    }
    if (!executor) {
      MAYFLY_TRY(executor, MakeFindExecutor(server_.storage(), op, std::move(spec)));
    }
    if (taken) {
      *taken = std::move(executor);
      return std::unique_ptr<DocumentSource>();
    }
    return std::unique_ptr<DocumentSource>(
        std::make_unique<ExecutorSource>(std::move(executor), &op));
  }

  bool HasIndexOn(std::string_view db, std::string_view collection,
                  std::string_view field) override {
    CollectionInfoPtr coll = server_.storage().catalog().Find(db, collection);
    if (!coll) return false;
    if (coll->is_view() || (field == "_id" && !coll->capped())) return true;
    for (const IndexInfoPtr& i : coll->indexes)
      if (i->state == IndexState::kReady && !i->hidden && !i->has_partial_filter && !i->sparse &&
          i->fields[0].path == field)
        return true;
    return false;
  }

  Result<std::optional<std::vector<Value>>> LeadingValues(Operation& op, std::string_view db,
                                                          std::string_view collection,
                                                          std::string_view first,
                                                          std::string_view second) override {
    constexpr size_t kMostValues = 100'000, kMostBytes = 16 << 20;
    const CollectionInfoPtr coll = server_.storage().catalog().Find(db, collection);
    IndexInfoPtr index;
    if (coll)
      for (const IndexInfoPtr& i : coll->indexes)
        if (i->state == IndexState::kReady && !i->hidden && !i->has_partial_filter && !i->sparse &&
            i->fields.size() > 1 && i->fields[0].path == first && i->fields[1].path == second &&
            i->multikey.load() == 0)
          index = i;
    if (!index) return std::optional<std::vector<Value>>();
    QuerySpec spec;
    spec.coll = coll;
    spec.ns = coll->ns;
    spec.hint = index->key.view().AsValue();
    spec.include_expired = include_expired_;
    MAYFLY_TRY(std::unique_ptr<DistinctExecutor> distinct,
               MakeDistinctExecutor(server_.storage(), op, spec, first));
    std::optional<std::vector<Value>> values{std::in_place};
    size_t bytes = 0;
    MAYFLY_TRY(distinct->Run([&](BsonValue v) -> Result<void> {
      if (!values) return Ok();
      bytes += v.size();
      values->push_back(Value::Copy(v));
      if (values->size() > kMostValues || bytes > kMostBytes) values.reset();
      return Ok();
    }));
    return values;
  }

  Result<std::vector<BsonDocument>> StageDocuments(Operation& op, std::string_view stage,
                                                   std::string_view db, std::string_view collection,
                                                   BsonView spec) override {
    return AggregateStageDocuments(server_, clients_, op, stage, db, collection, spec);
  }

  Result<std::vector<BsonDocument>> Tombstones(Operation& op, std::string_view db,
                                               std::string_view collection, BsonView spec,
                                               std::string* position) override {
    return AggregateTombstones(server_, op, db, collection, spec, position);
  }

  Result<void> BeginOut(Operation& op, std::string_view db, std::string_view collection,
                        std::optional<BsonView> series) override {
    return out_.Begin(op, db, collection, series);
  }
  Result<void> WriteOut(Operation&, std::span<const BsonView> documents) override {
    return out_.Write(documents);
  }
  Result<void> CommitOut(Operation& op) override { return out_.Commit(op); }
  void AbandonOut() override { out_.Abandon(); }

  Result<void> CheckMergeFields(Operation&, std::string_view db, std::string_view collection,
                                std::span<const std::string> on) override {
    CollectionInfoPtr coll = server_.storage().catalog().Find(db, collection);
    // Also if no document comes.
    if (coll && coll->is_series())
      return Error{ErrorCode::kCommandNotSupportedOnView,
                   "$merge into a time-series collection is not supported: write to an ordinary "
                   "collection"};
    if (on.size() == 1 && on[0] == "_id") return Ok();
    if (coll)
      for (const IndexInfoPtr& i : coll->indexes) {
        if (!i->unique || i->state != IndexState::kReady || i->has_partial_filter || i->sparse ||
            i->fields.size() != on.size())
          continue;
        bool all = true;
        for (const IndexField& f : i->fields)
          all &= std::find(on.begin(), on.end(), f.path) != on.end();
        if (all) return Ok();
      }
    return Error{LocationCode(51183),
                 "Cannot find index to verify that join fields will be unique"};
  }

  Result<void> MergeOne(Operation& op, std::string_view db, std::string_view collection,
                        BsonView query, const MergeDecision& decide) override {
    WriteCommand command(WriteServicesOf(server_), op, db, collection);
    command.set_bypass_validation(bypass_validation_);
    MAYFLY_TRY(command.Open());
    return command.Merge(query, decide);
  }

 private:
  /// The buckets in this order if they come so without being sorted, else null.
  Result<std::unique_ptr<PlanExecutor>> OpenInOrder(Operation& op, const QuerySpec& spec,
                                                    const BucketOrder& order) {
    const int direction = order.descending ? -1 : 1;
    const BsonDocument by_floor =
        BuildBson([&](BsonBuilder& b) { b.Append(order.floor, direction); });
    const BsonDocument by_id = BuildBson([&](BsonBuilder& b) { b.Append("_id", direction); });
    // Only an index that begins with the metaField has both, and few buckets of many.
    for (const BsonDocument* sort : {&by_floor, &by_id}) {
      if (sort == &by_id ? !order.by_id : spec.filter.empty()) continue;
      QuerySpec ordered = spec;
      ordered.sort = *sort;
      MAYFLY_TRY(std::unique_ptr<PlanExecutor> executor,
                 MakeFindExecutor(server_.storage(), op, std::move(ordered)));
      if (executor->HasSort()) continue;
      *order.kept = true;
      return executor;
    }
    return std::unique_ptr<PlanExecutor>();
  }

  static BsonDocument MakeProjection(const std::set<std::string>& fields) {
    return BuildBson([&](BsonBuilder& b) {
      bool id = false;
      std::string_view last;
      for (const std::string& f : fields) {
        if (f == "_id") id = true;
        // A path below one that is already included adds nothing (the list is sorted, so it comes
        // right after it).
        if (!last.empty() && f.size() > last.size() && f.starts_with(last) && f[last.size()] == '.')
          continue;
        b.Append(f, 1);
        last = f;
      }
      if (!id) b.Append("_id", 0);
      if (fields.empty()) b.Append("_", 1);
    });
  }

  Result<std::unique_ptr<DocumentSource>> OpenView(Operation& op, const CollectionInfo& view,
                                                   SourceRequest request, int depth) {
    OpensView();
    std::string bytes;
    BsonArrayBuilder stages(bytes);
    BsonDocument of_series;
    if (view.is_series()) {
      of_series = SeriesReadPipeline(server_.storage().catalog(), server_.storage().expiry_policy(),
                                     view, op.now, ShowsAllExpired());
    } else {
      MAYFLY_TRY(CheckTransactionView(op, view.view_pipeline));
    }
    const BsonView own = view.is_series() ? of_series.view() : view.view_pipeline.view();
    for (const BsonElement& e : own) stages.Append(e.value);
    if (!request.filter.view().empty()) stages.OpenDocument().Append("$match", request.filter);
    if (!request.sort.view().empty()) stages.OpenDocument().Append("$sort", request.sort);
    if (request.skip > 0) stages.OpenDocument().Append("$skip", request.skip);
    if (request.limit > 0) stages.OpenDocument().Append("$limit", request.limit);
    stages.Done();
    PipelineOptions options;
    options.db = view.db;
    options.collection = view.view_on;
    options.allow_writes = false;
    options.allow_disk_use = allow_disk_use_;
    options.memory_limit =
        static_cast<size_t>(server_.settings().internal_document_source_group_max_bytes.load());
    options.now = op.now;
    options.cluster_time = op.cluster_time;
    options.rewrite_series = server_.settings().internal_query_rewrite_time_series.load();
    options.variables = std::move(request.named_variables);
    if (!view.is_series() && ReadsSortKey(BsonView(bytes))) options.view_ends = {own.Count()};
    std::unique_ptr<Pipeline> pipeline;
    {
      ParseWork work(&op);
      MAYFLY_TRY(pipeline, Pipeline::Parse(BsonView(bytes), options));
    }
    if (pipeline->NeedsSource()) {
      SourceRequest inner = pipeline->TakeSource(request.fields ? &*request.fields : nullptr);
      // The collection behind the view needs it too.
      inner.needs_metadata = inner.needs_metadata || request.needs_metadata;
      HideKeys(&inner);
      MAYFLY_TRY(std::unique_ptr<DocumentSource> source,
                 Open(op, view.db, view.view_on, std::move(inner), {}, depth + 1, nullptr));
      pipeline->SetSource(std::move(source));
    }
    pipeline->Attach(&op, this);
    return std::unique_ptr<DocumentSource>(
        std::make_unique<OwnedPipeline>(std::move(pipeline), this));
  }

  ExpiryServices& server_;
  ServerContext* const clients_;
  const bool include_expired_, allow_disk_use_, bypass_validation_;
  bool explain_ = false, opened_view_ = false, reads_credentials_ = false;
  OutWriter out_;
};

/// A pipeline between batches.
class PipelineCursor final : public ServerCursor {
 public:
  PipelineCursor(std::unique_ptr<Environment> env, std::unique_ptr<Pipeline> pipeline)
      : env_(std::move(env)), pipeline_(std::move(pipeline)) {}
  /// As MongoDB does, errors say whether they occurred in the aggregate command's own batch or in a
  /// later one.
  Result<void> NextBatch(Operation& op, int64_t batch_size, size_t max_bytes,
                         BsonArrayBuilder& batch) override {
    Result<void> done = FillBatch(op, batch_size, max_bytes, batch);
    if (!done) {
      Error error = env_->Shown(std::move(done).error());
      error.message.insert(0, later_ ? "Executor error during getMore :: caused by :: "
                                     : "PlanExecutor error during aggregation :: caused by :: ");
      done = std::move(error);
    }
    later_ = true;
    return done;
  }
  bool Exhausted() const override { return exhausted_ && !held_; }
  void Park() override { pipeline_->SaveState(); }

 private:
  size_t KeptBytes() const override { return held_ ? held_->view().size() : 0; }
  void AddKept(large_memory::Kept* kept) const override { pipeline_->AddKept(kept); }
  Result<void> FillBatch(Operation& op, int64_t batch_size, size_t max_bytes,
                         BsonArrayBuilder& batch) {
    pipeline_->Attach(&op, env_.get());
    for (int64_t n = 0; n < batch_size;) {
      if (held_) {
        batch.Append(*held_);
        held_.reset();
        ++n;
        continue;
      }
      StreamDocument d;
      MAYFLY_TRY(StreamState state, pipeline_->Next(&d));
      if (state == StreamState::kEof) exhausted_ = true;
      if (state != StreamState::kAdvanced) break;
      // A document that a stage has kept since an earlier batch may have expired by now.
      if (d.metadata && d.metadata->expire_at && d.metadata->expire_at->millis <= op.now.millis &&
          !env_->MayShowExpired())
        continue;
      if (d.doc.size() > static_cast<uint32_t>(kMaxBsonUserSize))
        return Error{ErrorCode::kBSONObjectTooLarge,
                     "BSONObj size: " + std::to_string(d.doc.size()) +
                         " is invalid. Size must be between 0 and 16793600(16MB)"};
      if (batch.count() > 0 && batch.size() + d.doc.size() + 16 > max_bytes) {
        held_ = BsonDocument(d.doc);
        break;
      }
      batch.Append(d.doc);
      ++n;
    }
    return Ok();
  }

  std::unique_ptr<Environment> env_;
  std::unique_ptr<Pipeline> pipeline_;
  std::optional<BsonDocument> held_;
  bool exhausted_ = false, later_ = false;
};

}  // namespace

std::vector<CollectionInfoPtr> LeftoversOfOut(Catalog& catalog) {
  std::vector<CollectionInfoPtr> left = catalog.ListAll();
  // Buckets go with their time series.
  std::erase_if(left, [](const CollectionInfoPtr& c) { return !c->temporary || c->is_buckets(); });
  return left;
}

void DropLeftoversOfOut(ExpiryServices& server, const std::vector<CollectionInfoPtr>& left) {
  for (const CollectionInfoPtr& coll : left) {
    Operation op(server.clock());
    auto dropped = server.storage().catalog().Drop(op, coll->db, coll->name);
    server.log().Write(LogSeverity::kInfo, LogComponent::kStorage, 9000113,
                       "Dropped the temporary collection of an operation that did not finish",
                       BuildBson([&](BsonBuilder& b) {
                         b.Append("namespace", coll->ns);
                         if (!dropped) b.Append("error", dropped.error().message);
                       }));
  }
}

Result<ResolvedView> ResolveView(Catalog& catalog, const Operation& op, std::string_view db,
                                 std::string_view collection, const ExpiryPolicy& policy,
                                 bool include_expired) {
  ResolvedView r;
  r.collection = collection;
  std::vector<BsonDocument> pipelines;
  size_t bytes_of_all = 0;
  bool of_series = false;  // the innermost
  for (int depth = 0;; ++depth) {
    MAYFLY_TRY(CollectionInfoPtr coll, FindCollection(catalog, op, db, r.collection));
    if (!coll || !coll->is_view()) break;
    if (depth >= kMaxViewDepth)
      return Error{ErrorCode::kViewDepthLimitExceeded,
                   "View depth limit exceeded; maximum depth is " + std::to_string(kMaxViewDepth)};
    r.is_view = true;
    r.collection = coll->view_on;
    BsonDocument own = coll->view_pipeline;
    of_series = coll->is_series();
    if (of_series) {
      own = SeriesReadPipeline(catalog, policy, *coll, op.now, include_expired);
    } else {
      MAYFLY_TRY(CheckTransactionView(op, own));
    }
    bytes_of_all += own.view().size();
    if (bytes_of_all > kMaxBsonUserSize)
      return Error{ErrorCode::kViewPipelineMaxSizeExceeded,
                   "View pipeline exceeds maximum size; the pipelines of views on views may have " +
                       std::to_string(kMaxBsonUserSize) + " bytes together"};
    pipelines.push_back(std::move(own));
  }
  if (!r.is_view) return r;
  std::string bytes;
  BsonArrayBuilder all(bytes);
  int stages = 0;
  for (auto it = pipelines.rbegin(); it != pipelines.rend(); ++it) {
    const int before = stages;
    for (const BsonElement& e : it->view()) {
      all.Append(e.value);
      ++stages;
    }
    if (stages > before && !(of_series && it == pipelines.rbegin())) r.view_ends.push_back(stages);
  }
  all.Done();
  r.pipeline = BsonDocument(std::move(bytes));
  return r;
}

namespace {

/// Whether a pipeline on a time series begins with a stage about what is stored.
bool AsksBuckets(Catalog& catalog, const AggregateSpec& spec, BsonValue first) {
  if (!first.IsDocument()) return false;
  const std::string_view stage = first.Document().First().name;
  const StageRow* row = FindStage(stage);
  // A stage that is refused everywhere keeps its own error.
  const bool refused = row != nullptr && (row->flags & kStageFirst) && row->parse == nullptr;
  if (stage != "$collStats" && stage != "$indexStats" && stage != "$ttlForecast" &&
      stage != "$planCacheStats" && stage != "$tombstones" && !refused)
    return false;
  const CollectionInfoPtr named = catalog.Find(spec.db, spec.collection);
  return named && named->is_series();
}

/// ParseWork::bytes and kept_bytes of a pipeline.
struct Parsed {
  size_t bytes = 0, kept = 0;
};

/// Parses, resolves views, opens the source (or, for explain, hands out its executor).
Result<std::unique_ptr<Pipeline>> Prepare(ExpiryServices& server, Operation& op,
                                          const AggregateSpec& spec, Environment& env, bool explain,
                                          std::unique_ptr<PlanExecutor>* taken,
                                          std::string* plan_summary, Parsed* parsed = nullptr) {
  MAYFLY_TRY(ResolvedView resolved,
             ResolveView(server.storage().catalog(), op, spec.db, spec.collection,
                         server.storage().expiry_policy(), env.ShowsAllExpired()));
  // Also if its first stage makes its own documents.
  if (resolved.is_view) env.OpensView();
  std::string joined;
  bool joins_view = false;
  BsonView stages = spec.pipeline;
  const BsonValue first = spec.pipeline.First().value;
  BsonDocument hint;
  BsonValue hint_value = spec.hint;
  const bool asks_buckets =
      resolved.is_view && AsksBuckets(server.storage().catalog(), spec, first);
  if (resolved.is_view && !asks_buckets && !hint_value.missing()) {
    Catalog& catalog = server.storage().catalog();
    const CollectionInfoPtr named = catalog.Find(spec.db, spec.collection);
    const CollectionInfoPtr buckets =
        named && named->is_series() ? BucketsOf(catalog, *named) : nullptr;
    if (buckets) {
      MAYFLY_TRY(hint_value, BucketHint(*buckets, hint_value, &hint));
    }
  }
  if (asks_buckets) {
    // The statistics of a time series are those of its buckets: without the pipeline. Its indexes
    // are shown as they were made.
    if (first.Document().First().name == "$indexStats") resolved.collection = spec.collection;
  } else if (resolved.is_view && first.IsDocument() &&
             first.Document().First().name == "$collStats") {
    resolved.collection = spec.collection;  // the statistics of the view itself are wanted
  } else if (resolved.is_view) {
    joins_view = true;
    BsonArrayBuilder all(joined);
    for (const BsonElement& e : resolved.pipeline.view()) all.Append(e.value);
    for (const BsonElement& e : spec.pipeline) all.Append(e.value);
    all.Done();
    stages = BsonView(joined);
  }
  PipelineOptions options;
  options.db = spec.db;
  options.collection = resolved.collection;
  options.allow_disk_use = spec.allow_disk_use;
  options.memory_limit =
      static_cast<size_t>(server.settings().internal_document_source_group_max_bytes.load());
  options.let = spec.let;
  options.now = op.now;
  options.cluster_time = op.cluster_time;
  options.rewrite_series = server.settings().internal_query_rewrite_time_series.load();
  // A boundary keeps filters from moving into the view, so there is one only where it matters.
  if (joins_view && ReadsSortKey(stages)) options.view_ends = std::move(resolved.view_ends);
  options.check_series = [](BsonView given) -> Result<void> {
    MAYFLY_TRY(ParseSeriesOptions(given, "$out.timeseries"));
    return Ok();
  };
  ParseWork work(&op);
  MAYFLY_TRY(std::unique_ptr<Pipeline> pipeline, Pipeline::Parse(stages, options));
  MAYFLY_TRY(pipeline->CheckConstants());
  pipeline->Attach(&op, &env);
  if (!pipeline->NeedsSource()) pipeline->NarrowUnpacking(nullptr);
  if (pipeline->NeedsSource()) {
    if (spec.collection.empty())
      return Error{ErrorCode::kInvalidNamespace,
                   "{aggregate: 1} is not valid for a pipeline that reads a collection: its first "
                   "stage must make its own documents"};
    SourceRequest request = pipeline->TakeSource();
    if (resolved.is_view) HideKeys(&request);
    std::unique_ptr<PlanExecutor> executor;
    MAYFLY_TRY(std::unique_ptr<DocumentSource> source,
               env.Open(op, spec.db, resolved.collection, std::move(request), hint_value, 0,
                        explain, &executor));
    if (executor && plan_summary) *plan_summary = executor->PlanSummary();
    if (taken && executor) {
      *taken = std::move(executor);
    } else {
      if (executor) source = std::make_unique<ExecutorSource>(std::move(executor), &op);
      pipeline->SetSource(std::move(source));
    }
  }
  if (parsed != nullptr) *parsed = {work.bytes(), work.kept_bytes()};
  return pipeline;
}

}  // namespace

Result<std::unique_ptr<ServerCursor>> OpenPipeline(ExpiryServices& server, Operation& op,
                                                   const AggregateSpec& spec,
                                                   std::string* plan_summary, bool* writes) {
  if (IsChangeStream(server, spec.pipeline)) return OpenChangeStream(server, op, spec);
  auto env = std::make_unique<Environment>(server, spec);
  Parsed parsed;
  auto prepared = Prepare(server, op, spec, *env, false, nullptr, plan_summary, &parsed);
  // Plans that compete read documents already.
  if (!prepared) return env->Shown(std::move(prepared).error());
  std::unique_ptr<Pipeline> pipeline = std::move(prepared).value();
  if (writes) *writes = pipeline->WritesTo(nullptr, nullptr);
  std::unique_ptr<ServerCursor> cursor =
      std::make_unique<PipelineCursor>(std::move(env), std::move(pipeline));
  MAYFLY_TRY(cursor->HoldParsed(parsed.bytes, parsed.kept));
  return cursor;
}

static Result<void> Explain(ExpiryServices& server, Operation& op, const AggregateSpec& spec,
                            ExplainVerbosity verbosity, Environment& env, BsonBuilder& reply) {
  std::unique_ptr<PlanExecutor> executor;
  std::string summary;
  MAYFLY_TRY(std::unique_ptr<Pipeline> pipeline,
             Prepare(server, op, spec, env, true, &executor, &summary));
  const bool run = verbosity != ExplainVerbosity::kQueryPlanner;
  if (executor && pipeline->empty()) {
    if (run) {
      MAYFLY_TRY(executor->RunToEnd());
    }
    return executor->Explain(verbosity, {}, reply);
  }
  if (run && pipeline->WritesTo(nullptr, nullptr))
    return Error{LocationCode(51029),
                 "explain of a pipeline that ends in $out or $merge is possible with verbosity "
                 "'queryPlanner' only: the others would write"};
  PlanExecutor* plan = executor.get();
  if (run) {
    // Runs to the end, so that every stage has its statistics.
    pipeline->MeasureTime();
    if (executor) pipeline->SetSource(std::make_unique<ExecutorSource>(std::move(executor), &op));
    for (;;) {
      StreamDocument d;
      MAYFLY_TRY(StreamState state, pipeline->Next(&d));
      if (state != StreamState::kAdvanced) break;
    }
  }
  reply.Append("explainVersion", "1");
  BsonArrayBuilder stages = reply.OpenArray("stages");
  if (plan) {
    BsonBuilder first = stages.OpenDocument();
    BsonBuilder cursor = first.OpenDocument("$cursor");
    MAYFLY_TRY(plan->AppendQueryPlanner({}, verbosity, cursor));
    if (run) {
      MAYFLY_TRY(plan->AppendExecutionStats({}, verbosity, cursor));
    }
  }
  pipeline->ExplainStages(stages, static_cast<int>(verbosity));
  return Ok();
}

Result<void> ExplainPipeline(ExpiryServices& server, Operation& op, const AggregateSpec& spec,
                             ExplainVerbosity verbosity, BsonBuilder& reply) {
  if (IsChangeStream(server, spec.pipeline)) return ExplainChangeStream(server, op, spec, reply);
  Environment env(server, spec);
  Result<void> done = Explain(server, op, spec, verbosity, env, reply);
  if (!done) done = env.Shown(std::move(done).error());
  return done;
}

}  // namespace mayfly
