#include "query/plan/find_executor.h"

#include "protocol/bson_compare.h"
#include "protocol/extra_field.h"
#include "protocol/shown_namespace.h"
#include "query/expression/parse_work.h"
#include "query/plan/query_state.h"
#include "storage/catalog/index_keys.h"
#include "storage/keys/key_encoding.h"

namespace mayfly {
namespace {

constexpr int64_t kMaxTrialWorks = 10000;
constexpr int64_t kMaxTrialResults = 101;
constexpr size_t kMaxTrialBytes = size_t{32} << 20;
constexpr int64_t kReplanFactor = 10;

bool IsSimpleProjection(BsonView spec) {
  for (const auto& e : spec) {
    if (e.name.find('.') != std::string_view::npos) return false;
    if (!e.value.IsNumber() && !e.value.Is(BsonType::kBool)) return false;
  }
  return true;
}

/// Whether the plan begins with a scan of records that has reached its end.
bool ScanHasEnded(const PlanStage& root) {
  const PlanStage* leaf = &root;
  while (!leaf->children().empty()) leaf = leaf->children()[0].get();
  const auto* scan = dynamic_cast<const RecordScanStage*>(leaf);
  return scan != nullptr && scan->finished();
}

}  // namespace

OwnedRow OwnedRow::Copy(const Row& row) {
  OwnedRow r;
  r.record_key = row.record_key;
  r.has_doc = row.has_doc;
  if (row.has_doc) r.doc = row.doc.bytes();
  r.expire_at = row.expire_at;
  r.index = row.index;
  r.by_id = row.by_id;
  r.key_values = row.key_values;
  r.type_bits = row.type_bits;
  if (row.metadata != nullptr) {
    r.metadata = *row.metadata;
    r.metadata->sort_key = std::move(r.metadata->sort_key).Own();
    r.metadata->record_id = std::move(r.metadata->record_id).Own();
    r.metadata->index_key = std::move(r.metadata->index_key).Own();
  }
  return r;
}

Row OwnedRow::View() const {
  Row r;
  r.record_key = record_key;
  r.has_doc = has_doc;
  if (has_doc) r.doc = BsonView(doc);
  r.expire_at = expire_at;
  r.index = index;
  r.by_id = by_id;
  r.key_values = key_values;
  r.type_bits = type_bits;
  r.metadata = metadata ? &*metadata : nullptr;
  return r;
}

FindExecutor::FindExecutor(Storage& storage, Operation& op) : storage_(storage) {
  ctx_.storage = &storage;
  Use(op);
}
FindExecutor::~FindExecutor() = default;

void FindExecutor::Use(Operation& op) {
  ctx_.op = &op;
  ctx_.eval.op = &op;
  clock_ = &op.clock();
  reads_earlier_ = op.view != nullptr;
}

void FindExecutor::AddKept(large_memory::Kept* kept) const {
  if (winner_.root) winner_.root->AddKept(kept);
}

size_t FindExecutor::KeptBytes() const {
  size_t bytes = held_.bytes() + covered_doc_.capacity() + projected_.capacity();
  for (const OwnedRow& row : buffer_) bytes += sizeof row + row.bytes();
  return bytes;
}

Result<void> FindExecutor::ParseSort(BsonView sort, BsonValue hint, bool range) {
  PlannerInput& in = *input_;
  if (!sort.empty()) {
    bool natural = sort.Has("$natural");
    if (natural) {
      int64_t direction = 0;
      if (sort.Count() != 1)
        return Error{ErrorCode::kBadValue, "Cannot include '$natural' in compound sort"};
      if (!sort["$natural"].ExactInt64(&direction) || (direction != 1 && direction != -1))
        return Error{ErrorCode::kBadValue,
                     "$natural sort cannot be set to a value other than -1 or 1."};
      in.natural = static_cast<int>(direction);
    } else {
      MAYFLY_TRY(in.sort, SortPattern::Parse(sort));
      for (const BsonElement& e : sort)
        if (e.value.IsDocument())
          if (BsonValue meta = e.value.Document()["$meta"];
              meta.IsString() && meta.String() == "textScore")
            return Error{LocationCode(40218),
                         "query requires text score metadata, but it is not available"};
    }
  }
  if (hint.missing() || (hint.IsDocument() && hint.Document().empty())) {
    if (in.natural == 0 || !range) return Ok();
    return Error{LocationCode(51173),
                 "When using min()/max() a hint of which index to use must be provided"};
  }
  if (!hint.IsString() && !hint.IsDocument())
    return Error{ErrorCode::kFailedToParse, "hint must be either a string or nested object"};
  if (hint.IsDocument() && hint.Document().Has("$natural")) {
    int64_t direction = 0;
    if (hint.Document().Count() != 1 || !hint.Document()["$natural"].ExactInt64(&direction) ||
        (direction != 1 && direction != -1))
      return Error{ErrorCode::kBadValue,
                   "$natural hint cannot be set to a value other than -1 or 1."};
    if (range)
      return Error{ErrorCode::kBadValue,
                   "min and max are bounds of an index: they cannot be used with a $natural hint"};
    if (in.natural == 0) in.natural = static_cast<int>(direction);
    return Ok();
  }
  if (in.natural != 0)
    return Error{ErrorCode::kBadValue, "Cannot use a hint of an index with a $natural sort"};
  hint_ = Value::Copy(hint);
  in.hint = hint_.view();
  return Ok();
}

Result<void> FindExecutor::Parse(QuerySpec& spec) {
  ctx_.coll = spec.coll;
  include_expired_ = spec.include_expired;
  if (ctx_.op->view != nullptr) ctx_.view = *ctx_.op->view;
  SetVisibility();
  ctx_.fill_cache = spec.fill_cache;
  ctx_.timing = spec.explain;
  ctx_.eval.now = ctx_.op->now;
  ctx_.eval.cluster_time = ctx_.op->cluster_time;
  ns_ = spec.coll != nullptr ? spec.coll->ns : std::string(spec.ns);
  explain_ = spec.explain;
  tailable_ = spec.tailable;
  return_key_ = spec.return_key;
  show_record_id_ = spec.show_record_id;
  ctx_.deadline_field = spec.deadline_field;
  batch_hint_ = spec.batch_hint;
  input_ = std::make_unique<PlannerInput>(ctx_);
  PlannerInput& in = *input_;

  VariableScope* scope = spec.scope;
  if (spec.variables != nullptr) ctx_.eval.variables = *spec.variables;
  bool expressions = !spec.projection.empty() || !spec.let.empty() ||
                     spec.filter.bytes().find("$expr") != std::string_view::npos;
  if (scope == nullptr && expressions) scope = &scope_.emplace();
  if (!spec.let.empty()) {
    MAYFLY_TRY(EvaluateLet(spec.let, *ctx_.op, scope, &ctx_.eval.variables));
  }
  const bool handed_in = spec.match != nullptr;
  if (handed_in) {
    match_ = std::move(spec.match);
  } else if (!spec.filter.empty()) {
    MAYFLY_TRY(auto parsed,
               ParseMatch(spec.filter, {.scope = scope, .allow_where = spec.allow_where}));
    match_ = std::move(parsed);
  }
  in.filter = match_.get();
  in.projection_is_hint = spec.projection_is_hint;
  if (!spec.projection.empty()) {
    MAYFLY_TRY(projection_, ParseFindProjection(spec.projection, match_.get(), *scope));
    if (projection_->identity()) {
      projection_ = nullptr;
    } else {
      in.projection = projection_.get();
      in.projection_spec = BsonDocument(spec.projection);
      in.simple_projection = IsSimpleProjection(spec.projection);
    }
  }
  if (scope != nullptr) {
    MAYFLY_TRY(scope->CheckConstants());
  }
  // A filter that is handed in parsed may use the system variables, even without a `let`. One that
  // was parsed here without a scope has no expressions.
  size_t slots = scope != nullptr ? static_cast<size_t>(scope->slots()) : handed_in ? 6 : 0;
  if (ctx_.eval.variables.size() < slots) ctx_.eval.variables.resize(slots);
  MAYFLY_TRY(ParseSort(spec.sort, spec.hint, !spec.min.empty() || !spec.max.empty()));
  in.min = BsonDocument(spec.min);
  in.max = BsonDocument(spec.max);
  if (spec.skip < 0 || spec.limit < 0)
    return Error{ErrorCode::kBadValue, "skip and limit must be non-negative"};
  in.skip = spec.skip;
  in.limit = spec.limit;
  in.tailable = spec.tailable;
  in.need_record = return_key_ || show_record_id_ || !ctx_.deadline_field.empty();
  const auto needs = [this](bool ProjectionNeeds::*what) {
    return projection_ != nullptr && projection_->needs().*what;
  };
  want_record_id_ = spec.want_record_id || needs(&ProjectionNeeds::record_id);
  want_index_key_ = spec.want_index_key || needs(&ProjectionNeeds::index_key);
  ctx_.keep_keys = return_key_ || want_index_key_;
  in.sorter.memory_limit = spec.memory_limit;
  in.sorter.allow_disk_use = spec.allow_disk_use;
  in.sorter.temp_dir = std::move(spec.spill_directory);
  want_sort_key_ = spec.want_sort_key || needs(&ProjectionNeeds::sort_key);
  if (want_sort_key_ && in.sort.empty())
    return Error{LocationCode(40218), "query requires sort key metadata, but it is not available"};
  if (tailable_) {
    if (!in.sort.empty() || in.natural < 0)
      return Error{ErrorCode::kBadValue,
                   "error processing query: ns=" + ns_ +
                       " cannot use tailable option with a sort other than {$natural: 1}"};
    if (ctx_.coll != nullptr && !ctx_.coll->capped())
      return Error{ErrorCode::kBadValue, "error processing query: ns=" + ns_ +
                                             " tailable cursor requested on non capped collection"};
  }
  return Ok();
}

Result<void> FindExecutor::Open(QuerySpec spec, bool count_only, const PlanChooser& choose) {
  ParseWork work(ctx_.op);
  started_micros_ = ctx_.op->clock().MonotonicMicros();
  BsonValue id;
  point_read_ = IsPointRead(spec, &id);
  Value id_value = point_read_ ? Value::Copy(id) : Value();
  MAYFLY_TRY(Parse(spec));
  input_->count_only = count_only || spec.keys_only || spec.count_only;
  if (ctx_.coll != nullptr && !point_read_ && ctx_.op->view == nullptr && !TakeView()) {
    // The collection was dropped before anything was read.
    ctx_.coll = nullptr;
  }
  if (ctx_.coll == nullptr) {
    winner_.root = std::make_unique<EofStage>(ctx_);
    tailable_ = false;
  } else if (point_read_) {
    PlanStagePtr stage = std::make_unique<RecordScanStage>(ctx_, RecordScanStage::Kind::kIdLookup,
                                                           IntervalList::Point(std::move(id_value)),
                                                           false, ResidualFilter{}, false);
    if (projection_ != nullptr && !spec.projection_is_hint)
      stage = std::make_unique<ProjectionMarkStage>(
          ctx_, std::move(stage),
          input_->simple_projection ? "PROJECTION_SIMPLE" : "PROJECTION_DEFAULT",
          input_->projection_spec);
    winner_.root = std::move(stage);
  } else {
    if (QueryState::Of(storage_).filters.any()) [[unlikely]]
      input_->allowed = QueryState::Of(storage_).filters.Find(
          ctx_.coll->uuid,
          QueryShape(match_.get(), input_->sort.spec().view(),
                     spec.projection_is_hint ? BsonView() : input_->projection_spec.view()));
    if (!PlanShortcut(spec) && (!choose || !choose(*this))) {
      MAYFLY_TRY(Plan());
    }
  }
  planning_micros_ = ctx_.op->clock().MonotonicMicros() - started_micros_;
  return work.Keep(&parsed_hold_);
}

bool FindExecutor::PlanShortcut(const QuerySpec& spec) {
  const PlannerInput& in = *input_;
  if (spec.count_only && in.natural == 0 && in.hint.missing() && !include_expired_ &&
      in.min.view().empty() && in.max.view().empty() && ctx_.coll->source == nullptr &&
      (match_ == nullptr || match_->kind == MatchKind::kAlwaysTrue)) {
    winner_.root = std::make_unique<CounterStage>(ctx_, in.skip, in.limit);
    return true;
  }
  if (spec.one_per.empty()) return false;
  one_per_ = PlanDistinctScan(*input_,
                              {.path = spec.one_per, .of_group = true, .last = spec.one_per_last});
  if (one_per_) winner_ = std::move(one_per_->plan);
  return one_per_.has_value();
}

void FindExecutor::MakeShape() {
  if (!shape_.empty()) return;
  shape_ = QueryShape(match_ != nullptr ? &*match_ : nullptr, input_->sort.spec().view(),
                      input_->projection_spec.view());
  if (input_->count_only) shape_.push_back('c');
}

Result<void> FindExecutor::Plan() {
  MAYFLY_TRY(auto plans, EnumeratePlans(*input_));
  if (plans.size() == 1) {
    winner_ = std::move(plans[0]);
    return Ok();
  }
  MakeShape();
  if (!explain_) {
    MAYFLY_TRY(bool done, TryCached(plans));
    if (done) return Ok();
    if (plans.empty()) {  // the cached one used up its own; the others start afresh too
      MAYFLY_TRY(plans, EnumeratePlans(*input_));
    }
  }
  return Race(std::move(plans));
}

Result<void> FindExecutor::Trial(std::vector<CandidatePlan>& plans,
                                 std::vector<TrialResult>& results, int64_t max_works,
                                 bool stop_at_first) {
  int64_t wanted = kMaxTrialResults;
  if (input_->limit > 0) wanted = std::min(wanted, input_->limit);
  if (batch_hint_ > 0) wanted = std::min(wanted, batch_hint_);
  results.resize(plans.size());
  ctx_.step = true;
  bool stop = false;
  size_t bytes = 0;
  for (int64_t round = 0; round < max_works && !stop; ++round) {
    bool alive = false;
    for (size_t i = 0; i < plans.size(); ++i) {
      TrialResult& r = results[i];
      if (r.error) continue;
      alive = true;
      Row row;
      ++r.works;
      Result<StageState> state = plans[i].root->Work(&row);
      if (!state) {
        // A killed operation ends. Any other error only removes this plan from the race.
        if (auto ok = ctx_.op->CheckInterrupt(); !ok) return ok.error();
        r.error = std::move(state).error();
        continue;
      }
      if (state.value() == StageState::kEof) {
        r.eof = true;
        stop = true;
      } else if (state.value() == StageState::kAdvanced) {
        ++r.advanced;
        r.rows.push_back(OwnedRow::Copy(row));
        r.bytes += r.rows.back().bytes();
        bytes += r.rows.back().bytes();
        if (r.advanced >= wanted || bytes > kMaxTrialBytes) stop = true;
      }
      if (stop && stop_at_first) break;
    }
    if (!alive) break;
  }
  ctx_.step = false;
  for (size_t i = 0; i < plans.size(); ++i) {
    TrialResult& r = results[i];
    if (r.error) {
      r.score = -1;
      continue;
    }
    double works = static_cast<double>(std::max<int64_t>(r.works, 1));
    double bonus = std::min(1.0 / (10 * works), 1e-4);
    r.score = 1 + static_cast<double>(r.advanced) / works + (plans[i].has_fetch ? 0 : bonus) +
              (plans[i].has_sort ? 0 : bonus) + (r.eof ? 1 : 0);
  }
  return Ok();
}

Result<bool> FindExecutor::TryCached(std::vector<CandidatePlan>& plans) {
  auto entry = QueryState::Of(storage_).plans.Find(ctx_.coll, shape_);
  if (!entry) return false;
  size_t at = 0;
  while (at < plans.size() && plans[at].signature != entry->signature) ++at;
  if (at == plans.size()) return false;
  std::vector<CandidatePlan> one;
  one.push_back(std::move(plans[at]));
  std::vector<TrialResult> results;
  MAYFLY_TRY(Trial(one, results, std::max<int64_t>(entry->works * kReplanFactor, 100), true));
  TrialResult& r = results[0];
  int64_t wanted = std::min(kMaxTrialResults, input_->limit > 0 ? input_->limit : kMaxTrialResults);
  if (batch_hint_ > 0) wanted = std::min(wanted, batch_hint_);
  if (r.error || !(r.eof || r.advanced >= wanted || r.bytes > kMaxTrialBytes)) {
    QueryState::Of(storage_).plans.Remove(ctx_.coll, shape_);
    plans.clear();
    return false;
  }
  winner_ = std::move(one[0]);
  buffer_ = std::move(r.rows);
  trial_eof_ = r.eof;
  from_cache_ = true;
  return true;
}

/// The first results may come from a part of the collection that says nothing of the rest. Where
/// all of them are wanted and another plan did about as well, one that visits much less of its
/// index is taken.
size_t FindExecutor::PreferSmaller(const std::vector<CandidatePlan>& plans,
                                   const std::vector<TrialResult>& results, size_t best) const {
  constexpr uint64_t kMuchLess = 4;
  if (input_->limit > 0 || results[best].eof) return best;
  const auto bytes = [&](size_t i) -> std::optional<uint64_t> {
    const PlanStage* leaf = plans[i].root.get();
    while (leaf->children().size() == 1) leaf = leaf->children()[0].get();
    const auto* scan = dynamic_cast<const IndexScanStage*>(leaf);
    return scan != nullptr ? scan->ApproximateBytes() : std::nullopt;
  };
  const auto yield = [&](size_t i) {
    return static_cast<double>(results[i].advanced) / static_cast<double>(results[i].works);
  };
  std::optional<uint64_t> least = bytes(best);
  if (!least) return best;
  const double enough = yield(best) / 2;
  *least /= kMuchLess;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (results[i].error || plans[i].has_sort != plans[best].has_sort || yield(i) < enough)
      continue;
    const std::optional<uint64_t> b = bytes(i);
    if (!b || *b >= *least) continue;
    least = b;
    best = i;
  }
  return best;
}

Result<void> FindExecutor::Race(std::vector<CandidatePlan> plans) {
  ctx_.op->from_multi_planner = true;
  std::vector<TrialResult> results;
  MAYFLY_TRY(Trial(plans, results, kMaxTrialWorks, true));
  size_t best = 0;
  for (size_t i = 1; i < plans.size(); ++i)
    if (results[i].score > results[best].score) best = i;
  if (results[best].error) return *results[best].error;
  best = PreferSmaller(plans, results, best);
  buffer_ = std::move(results[best].rows);
  trial_eof_ = results[best].eof;
  if (results[best].advanced > 0 && !explain_) {
    PlanCache::Entry entry;
    entry.signature = plans[best].signature;
    entry.works = results[best].works;
    entry.created_millis = ctx_.op->now.millis;
    entry.shape_hash = ShapeHash(shape_);
    entry.created_from = BuildBson([&](BsonBuilder& b) {
      auto query = b.OpenDocument("query");
      if (match_ != nullptr) match_->Serialize(query);
      query.Done();
      b.Append("sort", input_->sort.spec());
      b.Append("projection", input_->projection_spec);
    });
    QueryState::Of(storage_).plans.Put(ctx_.coll, shape_, std::move(entry));
  }
  if (explain_) {
    winner_trial_ = BuildBson([&](BsonBuilder& b) { plans[best].root->Explain(true, b); });
    plans[best].root->AddExamined(&trial_keys_, &trial_docs_);
    trial_.push_back(std::move(results[best]));
  }
  for (size_t i = 0; i < plans.size(); ++i) {
    if (i == best) continue;
    plans[i].root->Save();
    if (!explain_) continue;
    results[i].rows.clear();
    trial_.push_back(std::move(results[i]));
    rejected_.push_back(std::move(plans[i]));
  }
  winner_ = std::move(plans[best]);
  return Ok();
}

Result<PlanExecutor::State> FindExecutor::Next() {
  if (winner_.has_sort) ctx_.op->has_sort_stage = true;
  if (std::exchange(pushed_back_, false)) return State::kAdvanced;
  projected_valid_ = false;
  for (;;) {
    if (!buffer_.empty()) {
      held_ = std::move(buffer_.front());
      buffer_.pop_front();
      row_ = held_.View();
    } else if (trial_eof_) {
      eof_ = true;
      return State::kEof;
    } else {
      while (true) {
        Result<StageState> state = winner_.root->Work(&row_);
        if (!state) return std::move(state).error();
        if (state.value() == StageState::kEof) {
          if (tailable_ && ScanHasEnded(*winner_.root)) tailable_ = false;
          if (!tailable_) eof_ = true;
          return State::kEof;
        }
        if (state.value() == StageState::kAdvanced) break;
      }
    }
    // Rows that a trial or a sort has kept since an earlier batch may have changed or expired.
    if (!resumed_) break;
    MAYFLY_TRY(bool there, StillVisible());
    if (there) break;
    MAYFLY_TRY(ctx_.op->CheckInterrupt());
  }
  if (one_per_) {
    Value value;
    MAYFLY_TRY(std::string_view same, one_per_->Prefix(row_, &value));
    one_per_->scan->SkipValues(same);
  }
  ++returned_;
  ++ctx_.op->n_returned;
  if (!row_.has_doc && !input_->count_only) {
    MAYFLY_TRY(LoadCovered());
  }
  MAYFLY_TRY(SetMetadata());
  return State::kAdvanced;
}

Result<int64_t> FindExecutor::CountRest(int64_t most) {
  // First: its rows stand for no document, so none of them could be looked at again.
  if (auto* counter = dynamic_cast<CounterStage*>(winner_.root.get())) {
    const int64_t before = std::exchange(pushed_back_, false) ? 1 : 0;
    MAYFLY_TRY(const int64_t rest, counter->TakeAll());
    return std::min(before + rest, most);
  }
  int64_t n = 0;
  // Rows of a trial; those of an earlier batch must be looked at again.
  while (n < most && (pushed_back_ || resumed_ || !buffer_.empty() || trial_eof_)) {
    MAYFLY_TRY(State state, Next());
    if (state == State::kEof) return n;
    ++n;
  }
  const int64_t told = n;  // Next has counted these
  ctx_.counts_only = dynamic_cast<RecordScanStage*>(winner_.root.get()) != nullptr;
  while (n < most) {
    Row row;
    MAYFLY_TRY(StageState state, winner_.root->Work(&row));
    if (state == StageState::kEof) {
      eof_ = true;
      break;
    }
    if (state == StageState::kAdvanced) ++n;
  }
  ctx_.counts_only = false;
  returned_ += n - told;
  ctx_.op->n_returned += n - told;
  return n;
}

void FindExecutor::SetVisibility() {
  if (ctx_.coll == nullptr) return;
  ctx_.visible = Visibility(storage_, *ctx_.coll, *ctx_.op, include_expired_, ctx_.view);
  ctx_.check_keys = ctx_.visible.MayHide();
}

Result<bool> FindExecutor::StillVisible() {
  auto shows = [&](BsonView doc, std::optional<Instant> expire_at) -> Result<bool> {
    if (ctx_.visible.Shows(doc, expire_at)) return true;
    MAYFLY_TRY(ctx_.visible.Stopped());
    return false;
  };
  if (row_.has_doc) return shows(row_.doc, row_.expire_at);
  if (!ctx_.check_keys || ctx_.coll == nullptr) return true;
  MAYFLY_TRY(bool found, storage_.Fetch(*ctx_.coll, row_.record_key, &covered_record_, ctx_.view));
  if (!found) return false;
  return shows(covered_record_.doc, covered_record_.expire_at);
}

Result<void> FindExecutor::SetMetadata() {
  if (row_.metadata != nullptr) metadata_ = *row_.metadata;
  metadata_.expire_at = row_.expire_at;
  // Done here and not in the sort, because an index may have provided the order.
  if (want_sort_key_) {
    MAYFLY_TRY(metadata_.sort_key, input_->sort.KeyValues(row_.doc, &metadata_));
  }
  if (want_record_id_) metadata_.record_id = RecordId();
  if (want_index_key_) {
    std::string bytes;
    BsonBuilder b(bytes);
    MAYFLY_TRY(AppendIndexKey(b));
    b.Done();
    metadata_.index_key = BsonView(bytes).empty() ? Value() : Value::Document(std::move(bytes));
  }
  return Ok();
}

Value FindExecutor::RecordId() const {
  // Behind the collection's number: the encoded `_id`, or the insertion number when capped.
  const std::string_view id = row_.record_key.substr(std::min<size_t>(4, row_.record_key.size()));
  if (ctx_.coll->capped() && id.size() == 8) {
    uint64_t n = 0;
    for (unsigned char c : id) n = n << 8 | c;
    return Value::Int64(static_cast<int64_t>(n));
  }
  const BsonDocument holder = BuildBson([&](BsonBuilder& b) { b.AppendBinary("", 0, id); });
  return Value::Copy(holder.view().First().value);
}

Result<void> FindExecutor::AppendIndexKey(BsonBuilder& out) const {
  if (row_.index == nullptr) {
    if (row_.by_id) out.Append("_id", row_.doc["_id"]);
    return Ok();
  }
  MAYFLY_TRY(const BsonDocument key, DecodeIndexKey(*row_.index, row_.key_values, row_.type_bits));
  out.AppendAll(key);
  return Ok();
}

/// Builds the document that a covered projection sees from the fields of the key. A field that is
/// null in the key may be missing in the document; the document is then read to decide.
Result<void> FindExecutor::LoadCovered() {
  std::vector<Value> values;
  std::string_view key = row_.key_values, bits = row_.type_bits;
  // Since an earlier batch the index may have met its first array: keys are then elements.
  bool sure = row_.index != nullptr && (!resumed_ || ctx_.view.Multikey(*row_.index) == 0) &&
              !HasCutValue(*row_.index, key);
  if (sure) {
    for (const auto& f : row_.index->fields) {
      MAYFLY_TRY(Value v, DecodeKeyValue(&key, f.descending, &bits));
      if (v.view().IsNullish()) sure = false;
      values.push_back(std::move(v));
    }
  }
  if (!sure) {
    ++ctx_.op->docs_examined;
    MAYFLY_TRY(bool found,
               storage_.Fetch(*ctx_.coll, row_.record_key, &covered_record_, ctx_.view));
    if (!found) return Error{ErrorCode::kInternalError, "index entry without a document"};
    MAYFLY_TRY(ctx_.op->Charge(covered_record_.doc.size()));
    row_.doc = covered_record_.doc;
    row_.has_doc = true;
    return Ok();
  }
  covered_doc_.clear();
  BsonBuilder b(covered_doc_);
  AppendKeyFields(row_.index->fields, values, b);
  b.Done();
  row_.doc = BsonView(covered_doc_);
  row_.has_doc = true;
  return Ok();
}

Result<void> FindExecutor::Project(BsonBuilder& out) {
  if (ctx_.deadline_field.empty() || return_key_) return ProjectFields(out);
  // Whatever the document has, its deadline is beside it.
  std::string bytes;
  {
    BsonBuilder own(bytes);
    MAYFLY_TRY(ProjectFields(own));
  }
  AppendBesideExtraField(BsonView(bytes), ctx_.deadline_field, out);
  if (row_.expire_at)
    out.Append(ctx_.deadline_field, *row_.expire_at);
  else if (ctx_.coll && !ctx_.coll->expiry_options.field.empty())
    out.AppendNull(ctx_.deadline_field);  // persisted: the restore must not ask expiry.field
  return Ok();
}

Result<void> FindExecutor::ProjectFields(BsonBuilder& out) {
  if (return_key_) {
    MAYFLY_TRY(AppendIndexKey(out));
    // All that a projection says beside returnKey.
    if (want_sort_key_ && projection_ != nullptr)
      for (const BsonElement& e : input_->projection_spec.view())
        if (e.value.IsDocument() && e.value.Document().Count() == 1)
          if (BsonValue meta = e.value.Document()["$meta"];
              meta.IsString() && meta.String() == "sortKey")
            out.Append(e.name, metadata_.sort_key.view());
  } else if (projection_ != nullptr) {
    ctx_.eval.metadata = &metadata_;
    MAYFLY_TRY(projection_->Apply(row_.doc, ctx_.eval, out));
  } else {
    out.AppendAll(row_.doc);
  }
  // Not beside the fields of a key: returnKey wins over showRecordId, as in MongoDB.
  if (show_record_id_ && !return_key_) out.Append("$recordId", RecordId().view());
  return Ok();
}

Result<BsonView> FindExecutor::doc() {
  if (!Projects()) return row_.doc;
  if (!projected_valid_) {
    projected_.clear();
    BsonBuilder b(projected_);
    MAYFLY_TRY(Project(b));
    b.Done();
    projected_valid_ = true;
  }
  return BsonView(projected_);
}

bool FindExecutor::MayGrow() const {
  if (return_key_ || show_record_id_ || !ctx_.deadline_field.empty()) return true;
  return Projects() && !projection_->coverable() && !input_->simple_projection;
}

Result<void> FindExecutor::AppendResult(BsonArrayBuilder& batch) {
  if (!Projects()) {
    batch.Append(row_.doc);
    return Ok();
  }
  if (projected_valid_) {
    batch.Append(BsonView(projected_));
    return Ok();
  }
  auto out = batch.OpenDocument();
  return Project(out);
}

Result<bool> FindExecutor::FillBatch(BsonArrayBuilder& batch, int64_t max_documents,
                                     size_t max_bytes) {
  if (Projects()) return PlanExecutor::FillBatch(batch, max_documents, max_bytes);
  // Documents as they are stored: all that is to be asked of each is its size.
  while (max_documents == 0 || batch.count() < max_documents) {
    MAYFLY_TRY(State state, Next());
    if (state == State::kEof) return !tailable_;
    if (batch.count() > 0 && batch.size() + row_.doc.size() > max_bytes) {
      PushBack();
      return false;
    }
    batch.Append(row_.doc);
  }
  return IsEof();
}

void FindExecutor::SaveState() {
  if (pushed_back_) {
    held_ = OwnedRow::Copy(row_);
    row_ = held_.View();
  }
  winner_.root->Save();
  covered_record_.pinned.Reset();
  // Without a look at the operation: it may be over.
  if (ctx_.coll != nullptr && ctx_.coll->is_buckets() && held_snapshot_ == nullptr &&
      !reads_earlier_ && ctx_.view.snapshot() != nullptr && !IsEof()) [[unlikely]]
    held_snapshot_ = QueryState::Of(storage_).held.Hold(ctx_.view.snapshot(), *clock_);
  ctx_.view = ReadView();
}

Result<void> FindExecutor::TakeHeldView() {
  KvSnapshotPtr snapshot = held_snapshot_->Get();
  if (snapshot == nullptr)
    return Error{ErrorCode::kSnapshotTooOld,
                 "the cursor over the time series " + ShownNamespace(ctx_.coll->ns) +
                     " was open for too long: read faster, begin anew, or raise the parameter "
                     "timeSeriesCursorLifeSecs"};
  ctx_.view = ReadView::OfEarlierBatch(std::move(snapshot));
  return Ok();
}

Result<void> FindExecutor::TakeView() {
  for (;;) {
    if (held_snapshot_ == nullptr) ctx_.view = ReadView(storage_.kv().Snapshot());
    // Everything that the definition names is in the snapshot, unless it was dropped before. In
    // that case the catalog has changed by now.
    if (!ctx_.coll->superseded.load(std::memory_order_acquire)) [[likely]]
      return Ok();
    CollectionInfoPtr now = storage_.catalog().FindById(ctx_.coll->id);
    if (now == nullptr) return Error{ErrorCode::kNamespaceNotFound, "collection dropped"};
    ctx_.coll = std::move(now);
    SetVisibility();
  }
}

Result<void> FindExecutor::CheckPlanLives(const PlanStage& stage) {
  if (const IndexInfo* index = stage.index()) {
    const bool there = std::any_of(ctx_.coll->indexes.begin(), ctx_.coll->indexes.end(),
                                   [&](const IndexInfoPtr& i) {
                                     return i->id == index->id && i->state == IndexState::kReady;
                                   });
    if (!there)
      return Error{ErrorCode::kQueryPlanKilled,
                   "query plan killed :: index '" + index->name + "' dropped"};
  }
  for (const PlanStagePtr& child : stage.children()) {
    MAYFLY_TRY(CheckPlanLives(*child));
  }
  return Ok();
}

Result<void> FindExecutor::RestoreState(Operation& op) {
  Use(op);
  resumed_ = true;
  if (op.view != nullptr) ctx_.view = *op.view;
  if (held_snapshot_ != nullptr) [[unlikely]] {
    MAYFLY_TRY(TakeHeldView());
  }
  SetVisibility();
  if (ctx_.coll != nullptr && op.view == nullptr) {
    const CollectionInfoPtr before = ctx_.coll;
    if (!TakeView())
      return Error{ErrorCode::kQueryPlanKilled, "collection dropped. ns: " + before->ns};
    if (ctx_.coll != before) {
      if (ctx_.coll->ns != before->ns)
        return Error{ErrorCode::kQueryPlanKilled,
                     "collection renamed from '" + before->ns + "' to '" + ctx_.coll->ns + "'"};
      MAYFLY_TRY(CheckPlanLives(*winner_.root));
    }
  }
  winner_.root->Restore();
  return Ok();
}

bool FindExecutor::IsEof() const {
  if (pushed_back_) return false;
  if (eof_ || ctx_.coll == nullptr) return true;
  if (tailable_) return false;
  if (trial_eof_ && buffer_.empty()) return true;
  if (input_->limit > 0 && returned_ >= input_->limit) return true;
  return point_read_ && returned_ > 0;
}

}  // namespace mayfly
