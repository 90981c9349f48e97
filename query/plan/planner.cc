#include "query/plan/planner.h"
#include "query/plan/index_plan_kind.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "protocol/bson_compare.h"
#include "query/expression/parse_work.h"
#include "query/match/match_internal.h"

namespace mayfly {
namespace {

constexpr size_t kMaxCandidates = 16;
/// The most scans that one disjunction may become; each takes some kB. With more branches the
/// planner scans the whole collection.
constexpr size_t kMaxBranches = 20'000;
constexpr size_t kMaxDisjunctions = 16;  // that are looked at

Error PlannerError(const PlannerInput& in, std::string_view why,
                   ErrorCode code = ErrorCode::kBadValue) {
  std::string message = "error processing query: ns=";
  message += in.ctx.coll->ns;
  message += " planner returned error :: caused by :: ";
  message += why;
  return {code, std::move(message)};
}

/// One leaf access turned into stages, with what is still to be tested.
class PlanBuilder {
 public:
  explicit PlanBuilder(PlannerInput& in) : in_(in) {
    if (in.filter != nullptr) clauses_ = Clauses(*in.filter);
    for (const auto* c : clauses_)
      if (c->kind == MatchKind::kOr && ParseWork::Step(1 + c->children.size() / 4))
        if (auto as_in = DisjunctionAsIn(*c)) as_in_.emplace(c, std::move(as_in));
    predicates_ = Predicates(clauses_);
  }

  Result<std::vector<CandidatePlan>> Run();

 private:
  struct Leaf {
    PlanStagePtr stage;
    bool has_docs = false;
    std::string signature;
    ResidualFilter by_keys = {};  ///< the clauses of KeyFilter
  };
  /// Whether records are in the order of `_id`, and a range of them can be asked for.
  bool by_id() const { return !in_.ctx.coll->capped(); }
  RecordScanStage::Kind IdKind() const {
    return in_.ctx.coll->clustered() ? RecordScanStage::Kind::kClustered
                                     : RecordScanStage::Kind::kIdIndex;
  }
  std::vector<const MatchExpression*> Residual(
      const std::vector<const MatchExpression*>& exact) const {
    std::vector<const MatchExpression*> out;
    if (exact.size() <= 16) {
      for (const auto* c : clauses_)
        if (std::find(exact.begin(), exact.end(), c) == exact.end()) out.push_back(c);
      return out;
    }
    const std::unordered_set<const MatchExpression*> known(exact.begin(), exact.end());
    for (const auto* c : clauses_)
      if (!known.contains(c)) out.push_back(c);
    return out;
  }
  /// The predicates of CollectPredicates, and those that can be derived from $expr and from
  /// disjunctions on one field.
  std::vector<PathPredicate> Predicates(const std::vector<const MatchExpression*>& clauses) const {
    auto out = CollectPredicates(clauses);
    for (const auto* c : clauses) {
      CollectFromExpr(*c, in_.ctx.eval, &out);
      if (const MatchExpression* in = AsIn(*c)) {
        PathPredicate p{in->path, in, c};
        p.whole = true;
        out.push_back(std::move(p));
      }
    }
    return out;
  }
  const MatchExpression* AsIn(const MatchExpression& clause) const {
    if (clause.kind != MatchKind::kOr) return nullptr;
    const auto found = as_in_.find(&clause);
    return found == as_in_.end() ? nullptr : found->second.get();
  }
  /// Likewise the order of `_id`: without either there is nothing that it could be used for.
  bool ConcernsId() const {
    if (!in_.sort.empty() && in_.sort.parts()[0].path == "_id") return true;
    return std::any_of(predicates_.begin(), predicates_.end(),
                       [](const PathPredicate& p) { return p.path == "_id"; });
  }
  Leaf MakeLeaf(IndexAccess&& access, bool backward, ResidualFilter filter, KeyFilter key_filter,
                bool keys_only);
  /// One scan for each combination of the points of the first `explode` fields.
  void AddScans(const IndexAccess& access, size_t explode, bool backward,
                const KeyFilter& key_filter, std::vector<PlanStagePtr>* scans);
  void Finish(Leaf leaf, ResidualFilter residual, bool sorted, bool covered, double score);
  void AddAccess(IndexAccess&& access, bool forced);
  /// Whether a scan of the whole index answers the query without documents, which is faster than
  /// reading all documents.
  bool KeysSuffice(const IndexAccess& access, std::vector<const MatchExpression*> residual) const;
  void AddCollectionScan(int direction);
  void AddDisjunctions();
  /// How a disjunction is served: a scan for each of its branches.
  struct Branches {
    bool in_order = false;  ///< asked for: every scan comes in the order of the sort
    std::vector<PlanStagePtr> scans;
    std::string signature;
    bool exact = true;      ///< bounds and keys decide every branch
    bool filtered = false;  ///< some branches are decided by keys, where these can
  };
  bool HasAllSortFields(const IndexInfo& index) const;
  /// Whether the filter or the sort uses the first field of the index.
  bool Concerns(const IndexInfo& index) const {
    const std::string& first = index.fields[0].path;
    if (!in_.sort.empty() && in_.sort.parts()[0].path == first) return true;
    return std::any_of(predicates_.begin(), predicates_.end(),
                       [&](const PathPredicate& p) { return p.path == first; });
  }
  bool AddBranches(const MatchExpression& branch,
                   const std::vector<const MatchExpression*>& siblings, Branches* out);
  void AddDisjunction(const MatchExpression& clause, bool in_order);
  Result<void> UseHint(bool* done);
  Result<void> UseMinMax(const IndexInfoPtr& index);

  PlannerInput& in_;
  std::vector<const MatchExpression*> clauses_;
  std::unordered_map<const MatchExpression*, MatchPtr> as_in_;
  std::vector<PathPredicate> predicates_;
  std::vector<CandidatePlan> plans_;
};

PlanBuilder::Leaf PlanBuilder::MakeLeaf(IndexAccess&& access, bool backward, ResidualFilter filter,
                                        KeyFilter key_filter, bool keys_only) {
  Leaf leaf;
  if (access.index == nullptr) {
    leaf.stage = std::make_unique<RecordScanStage>(
        in_.ctx, IdKind(), std::move(access.bounds.fields[0]), backward, std::move(filter), false);
    leaf.has_docs = true;
    leaf.signature = "_id_";
  } else {
    IndexScanStage::Params params;
    params.index = access.index;
    params.multikey = access.multikey;
    params.bounds = std::move(access.bounds);
    params.backward = backward;
    params.count_only = keys_only;
    leaf.by_keys = key_filter.clauses();
    params.filter = std::move(key_filter);
    leaf.stage = PlanKindOf(*access.index).scan(in_.ctx, std::move(params));
    leaf.signature = access.index->name;
  }
  if (backward) leaf.signature += "-";
  return leaf;
}

void PlanBuilder::AddScans(const IndexAccess& access, size_t explode, bool backward,
                           const KeyFilter& key_filter, std::vector<PlanStagePtr>* scans) {
  std::vector<size_t> at(explode, 0);
  while (true) {
    IndexScanStage::Params params;
    params.index = access.index;
    params.multikey = access.multikey;
    params.bounds = access.bounds;
    ParseWork::Made(sizeof(IndexScanStage) + 512 + key_filter.bytes());
    params.backward = backward;
    params.filter = key_filter;
    for (size_t i = 0; i < explode; ++i)
      params.bounds.fields[i].intervals = {access.bounds.fields[i].intervals[at[i]]};
    scans->push_back(PlanKindOf(*access.index).scan(in_.ctx, std::move(params)));
    size_t i = explode;
    while (i > 0 && ++at[i - 1] == access.bounds.fields[i - 1].intervals.size()) at[--i] = 0;
    if (i == 0) break;
  }
}

void PlanBuilder::Finish(Leaf leaf, ResidualFilter residual, bool sorted, bool covered,
                         double score) {
  CandidatePlan plan;
  plan.signature = std::move(leaf.signature);
  plan.score = score;
  PlanStagePtr stage = std::move(leaf.stage);
  if (covered && !leaf.has_docs) stage->SetKeysOnly(true);
  int64_t skip = in_.skip;
  if (!leaf.has_docs && !covered) {
    if (skip > 0 && sorted && residual.empty()) {  // what is skipped need not be read
      stage = std::make_unique<SkipStage>(in_.ctx, std::move(stage), skip, true);
      skip = 0;
    }
    // A sort needs all rows. Without a sort, a limit says how many rows are wanted, provided that
    // each row counts.
    const int64_t wanted = !sorted || in_.limit == 0 ? INT64_MAX
                           : residual.empty()        ? in_.limit + skip
                                                     : 0;
    stage = std::make_unique<FetchStage>(in_.ctx, std::move(stage), std::move(residual), wanted,
                                         std::move(leaf.by_keys));
    plan.has_fetch = true;
  }
  if (!sorted) {
    SorterOptions options = in_.sorter;
    options.limit = in_.limit > 0 ? in_.limit + in_.skip : 0;
    stage = std::make_unique<SortStage>(in_.ctx, std::move(stage), in_.sort, std::move(options),
                                        !in_.sort.needs_metadata());
    plan.has_sort = true;
  }
  if (skip > 0) stage = std::make_unique<SkipStage>(in_.ctx, std::move(stage), skip);
  if (in_.projection != nullptr && (covered || !in_.projection_is_hint)) {
    const char* name = covered                 ? "PROJECTION_COVERED"
                       : in_.simple_projection ? "PROJECTION_SIMPLE"
                                               : "PROJECTION_DEFAULT";
    stage =
        std::make_unique<ProjectionMarkStage>(in_.ctx, std::move(stage), name, in_.projection_spec);
  }
  // A sort with a limit has it in itself.
  if (in_.limit > 0 && sorted)
    stage = std::make_unique<LimitStage>(in_.ctx, std::move(stage), in_.limit);
  plan.root = std::move(stage);
  plans_.push_back(std::move(plan));
}

bool PlanBuilder::KeysSuffice(const IndexAccess& access,
                              std::vector<const MatchExpression*> residual) const {
  if (access.index == nullptr || access.multikey != 0 || !in_.sort.empty() || clauses_.empty())
    return false;
  if (!PlanKindOf(*access.index).keys_hold_values) return false;
  if (!in_.count_only && !CanCover(in_, *access.index, access.multikey)) return false;
  (void)KeyFilter::Take(*access.index, access.multikey, &residual);
  return residual.empty();
}

void PlanBuilder::AddAccess(IndexAccess&& access, bool forced) {
  size_t explode = 0;
  SortProvision sort = ProvidesSort(access, in_.sort, &explode);
  bool wants_sort = !in_.sort.empty();
  bool sorted = sort != SortProvision::kNo;
  if (!forced && !access.safe) return;
  bool backward = sort == SortProvision::kBackward;
  auto residual = Residual(access.exact);
  if (!forced && !access.useful && !(wants_sort && sorted) && !KeysSuffice(access, residual))
    return;
  double score = access.score + (wants_sort && sorted ? 0.4 : 0);
  if (access.index == nullptr) {
    Leaf leaf = MakeLeaf(std::move(access), backward, {std::move(residual)}, {}, false);
    Finish(std::move(leaf), {}, sorted, false, score);
    return;
  }
  KeyFilter key_filter;
  if (!residual.empty() && PlanKindOf(*access.index).keys_hold_values)
    key_filter = KeyFilter::Take(*access.index, access.multikey, &residual,
                                 wants_sort && sorted ? nullptr : &access.bounds);
  bool keys_only = in_.count_only && residual.empty() && sorted;
  bool covered =
      keys_only || (residual.empty() && sorted && CanCover(in_, *access.index, access.multikey));
  if (explode > 0) {
    Leaf leaf;
    std::vector<PlanStagePtr> scans;
    AddScans(access, explode, backward, key_filter, &scans);
    leaf.by_keys = key_filter.clauses();
    leaf.stage = std::make_unique<SortMergeStage>(in_.ctx, std::move(scans), in_.sort);
    leaf.signature = access.index->name + (backward ? "-*" : "*");
    Finish(std::move(leaf), {std::move(residual)}, true, covered, score);
    return;
  }
  Leaf leaf = MakeLeaf(std::move(access), backward, {}, std::move(key_filter), keys_only);
  Finish(std::move(leaf), {std::move(residual)}, sorted, covered, score + (covered ? 0.4 : 0));
}

void PlanBuilder::AddCollectionScan(int direction) {
  Leaf leaf;
  // A collection that is ordered by one field: only the range that the filter allows.
  IntervalList bounds = IntervalList::Full();
  if (in_.ctx.coll->source && !in_.ctx.coll->source_key.empty())
    bounds = BoundsOnPath(in_.ctx.coll->source_key, predicates_);
  leaf.stage = std::make_unique<RecordScanStage>(in_.ctx, RecordScanStage::Kind::kCollection,
                                                 std::move(bounds), direction < 0,
                                                 ResidualFilter{clauses_}, in_.tailable);
  leaf.has_docs = true;
  leaf.signature = direction < 0 ? "$natural-" : "$natural";
  Finish(std::move(leaf), {}, in_.sort.empty(), false, 0);
}

bool PlanBuilder::HasAllSortFields(const IndexInfo& index) const {
  for (const auto& part : in_.sort.parts()) {
    bool found = false;
    for (const auto& f : index.fields) found = found || f.path == part.path;
    if (!found) return false;
  }
  return true;
}

bool PlanBuilder::AddBranches(const MatchExpression& branch,
                              const std::vector<const MatchExpression*>& siblings, Branches* out) {
  if (branch.kind == MatchKind::kAlwaysFalse) return true;
  if (out->scans.size() >= kMaxBranches || !ParseWork::Step(8 + siblings.size())) return false;
  if (branch.kind == MatchKind::kOr) {
    for (const auto& c : branch.children)
      if (!AddBranches(*c, siblings, out)) return false;
    return true;
  }
  auto own = Clauses(branch);
  auto all = own;
  all.insert(all.end(), siblings.begin(), siblings.end());
  auto predicates = Predicates(all);
  std::optional<IndexAccess> best;
  size_t best_explode = 0;
  bool best_backward = false;
  if (by_id() && !out->in_order && in_.MayUseId()) {
    IndexAccess id = BuildIdAccess(predicates);
    if (id.useful) best = std::move(id);
  }
  for (const auto& index : in_.ctx.coll->indexes) {
    if (!in_.MayUse(*index)) continue;
    IndexAccess access = BuildIndexAccess(index, in_.ctx.view.Multikey(*index), all, predicates);
    if (!access.useful || !access.safe || access.bounds.fields[0].IsFull()) continue;
    size_t explode = 0;
    SortProvision order = SortProvision::kForward;
    if (out->in_order) {
      order = ProvidesSort(access, in_.sort, &explode);
      if (order == SortProvision::kNo || !HasAllSortFields(*index)) continue;
    }
    if (best && access.score <= best->score) continue;
    best = std::move(access);
    best_explode = explode;
    best_backward = order == SortProvision::kBackward;
  }
  if (!best) return false;
  // The siblings are tested on documents in any case. With them, a key rules out more of these.
  constexpr size_t kFewClauses = 16;
  std::vector<const MatchExpression*> residual;
  for (const auto* c : all.size() <= kFewClauses ? all : own)
    if (std::find(best->exact.begin(), best->exact.end(), c) == best->exact.end())
      residual.push_back(c);
  KeyFilter key_filter;
  if (best->index != nullptr && !residual.empty() && PlanKindOf(*best->index).keys_hold_values)
    key_filter = KeyFilter::Take(*best->index, best->multikey, &residual,
                                 out->in_order ? nullptr : &best->bounds);
  out->filtered = out->filtered || !key_filter.empty();
  // Take keeps the order: what is left of the branch's own clauses comes first.
  if (!residual.empty() && std::find(own.begin(), own.end(), residual.front()) != own.end())
    out->exact = false;
  if (best->index == nullptr) {
    Leaf leaf = MakeLeaf(std::move(*best), false, {}, {}, false);
    out->scans.push_back(std::move(leaf.stage));
    out->signature += leaf.signature;
  } else {
    AddScans(*best, best_explode, best_backward, key_filter, &out->scans);
    out->signature += best->index->name;
    if (best_backward) out->signature += '-';
    if (best_explode > 0) out->signature += '*';
  }
  out->signature += ',';
  return true;
}

void PlanBuilder::AddDisjunction(const MatchExpression& clause, bool in_order) {
  constexpr size_t kMaxMerged = 200;
  std::vector<const MatchExpression*> siblings;
  for (const auto* s : clauses_)
    if (s != &clause) siblings.push_back(s);
  Branches branches;
  branches.in_order = in_order;
  if (!AddBranches(clause, siblings, &branches) || branches.scans.empty()) return;
  if (in_order && branches.scans.size() > kMaxMerged) return;
  ResidualFilter residual;
  for (const auto* s : clauses_)
    if (s != &clause || !branches.exact) residual.clauses.push_back(s);
  Leaf leaf;
  // A row whose key has not decided its branch must match any branch.
  if (branches.exact && branches.filtered) leaf.by_keys.clauses.push_back(&clause);
  leaf.signature = (in_order ? "merge(" : "or(") + branches.signature + ")";
  const double score = 1.2 / static_cast<double>(branches.scans.size()) + (in_order ? 0.4 : 0);
  if (in_order)
    leaf.stage = std::make_unique<SortMergeStage>(in_.ctx, std::move(branches.scans), in_.sort);
  else
    leaf.stage = std::make_unique<OrStage>(in_.ctx, std::move(branches.scans));
  const bool sorted = in_order || in_.sort.empty();
  const bool keys_only = in_.count_only && residual.empty() && sorted;
  Finish(std::move(leaf), std::move(residual), sorted, keys_only, score);
  if (clauses_.size() == 1) {
    auto& plan = plans_.back();
    plan.root = std::make_unique<SubplanStage>(in_.ctx, std::move(plan.root));
  }
}

void PlanBuilder::AddDisjunctions() {
  size_t looked_at = 0;
  for (const auto* c : clauses_) {
    if (c->kind != MatchKind::kOr || AsIn(*c) != nullptr) continue;
    if (++looked_at > kMaxDisjunctions) break;
    if (!in_.sort.empty()) AddDisjunction(*c, true);
    AddDisjunction(*c, false);
  }
}

Result<void> PlanBuilder::UseMinMax(const IndexInfoPtr& index) {
  auto check = [&](BsonView bound, std::string_view which) -> Result<void> {
    if (bound.empty()) return Ok();
    auto it = bound.begin();
    bool same = true;
    BsonView key = index ? index->key.view() : BsonView();
    if (index) {
      for (const auto& k : key) {
        if (it == bound.end() || it->name != k.name) {
          same = false;
          break;
        }
        ++it;
      }
      same = same && it == bound.end();
    } else {
      same = bound.Count() == 1 && bound.First().name == "_id";
    }
    if (same) return Ok();
    return PlannerError(in_, "The index chosen is not compatible with " + std::string(which),
                        LocationCode(51174));
  };
  MAYFLY_TRY(check(in_.min, "min()"));
  MAYFLY_TRY(check(in_.max, "max()"));
  IndexAccess access;
  access.index = index;
  access.useful = true;
  bool ordered = true;
  if (index) {
    access.multikey = in_.ctx.view.Multikey(*index);
    access.bounds.whole_key_range = true;
    access.bounds.min = in_.min;
    access.bounds.max = in_.max;
    if (!in_.min.view().empty() && !in_.max.view().empty())
      ordered = EncodeWholeKey(*index, in_.min) < EncodeWholeKey(*index, in_.max);
  } else {
    Value low = in_.min.view().empty() ? MinOfType(BsonType::kMinKey)
                                       : Value::Copy(in_.min.view().First().value);
    bool inclusive = in_.max.view().empty();
    Value high =
        inclusive ? MinOfType(BsonType::kMaxKey) : Value::Copy(in_.max.view().First().value);
    ordered = CompareValues(low.view(), high.view()) < 0;
    access.bounds.fields.push_back(IntervalList::Range(low, true, high, inclusive));
  }
  if (!ordered)
    return PlannerError(in_, "The value of min() must be less than the value of max()",
                        LocationCode(51175));
  AddAccess(std::move(access), true);
  return Ok();
}

Result<void> PlanBuilder::UseHint(bool* done) {
  *done = false;
  bool has_range = !in_.min.view().empty() || !in_.max.view().empty();
  if (in_.hint.missing() || (in_.allowed != nullptr && !has_range)) {
    if (!has_range) return Ok();
    return Error{LocationCode(51173),
                 "When using min()/max() a hint of which index to use must be provided"};
  }
  *done = true;
  const CollectionInfo& coll = *in_.ctx.coll;
  std::vector<IndexInfoPtr> found;
  bool id = false;
  auto id_pattern = [&](BsonView v) { return v.Count() == 1 && v.First().name == "_id"; };
  if (in_.hint.IsString()) {
    std::string_view name = in_.hint.String();
    if (auto i = coll.FindIndex(name); i && IsUsable(*i))
      found.push_back(i);
    else if (by_id() && (name == "_id_" || (coll.clustered() && name == coll.clustered_index_name)))
      id = true;
  } else {
    for (const auto& i : coll.indexes)
      if (IsUsable(*i) && CompareDocuments(i->key, in_.hint.Document()) == 0) found.push_back(i);
    if (found.empty() && by_id() && id_pattern(in_.hint.Document()) &&
        in_.hint.Document().First().value.NumberAsInt64() == 1)
      id = true;
  }
  if (found.size() > 1)
    return PlannerError(in_,
                        "Hint matched multiple indexes, must hint by index name. Matched: " +
                            found[0]->name + " and " + found[1]->name,
                        ErrorCode::kIndexNotFound);
  if (found.empty() && !id)
    return PlannerError(in_, "hint provided does not correspond to an existing index");
  if (has_range) return UseMinMax(id ? nullptr : found[0]);
  if (id)
    AddAccess(BuildIdAccess(predicates_), true);
  else
    AddAccess(BuildIndexAccess(found[0], in_.ctx.view.Multikey(*found[0]), clauses_, predicates_),
              true);
  return Ok();
}

Result<std::vector<CandidatePlan>> PlanBuilder::Run() {
  bool hinted = false;
  if (in_.filter != nullptr && in_.filter->kind == MatchKind::kAlwaysFalse && in_.hint.missing()) {
    CandidatePlan plan;
    plan.root = std::make_unique<EofStage>(in_.ctx, "predicateEvalsToFalse");
    plan.signature = "eof";
    plans_.push_back(std::move(plan));
    return std::move(plans_);
  }
  if (in_.natural != 0 || in_.tailable) {
    AddCollectionScan(in_.natural < 0 ? -1 : 1);
    return std::move(plans_);
  }
  MAYFLY_TRY(UseHint(&hinted));
  if (hinted) return std::move(plans_);

  bool any = !clauses_.empty() || !in_.sort.empty();
  if (any) {
    if (by_id() && ConcernsId() && in_.MayUseId()) {
      IndexAccess id = BuildIdAccess(predicates_);
      const bool point = id.bounds.fields[0].IsPoint();
      AddAccess(std::move(id), false);
      if (point && !plans_.empty()) return std::move(plans_);
    }
    for (const auto& index : in_.ctx.coll->indexes) {
      if (!Concerns(*index) || !in_.MayUse(*index)) continue;
      IndexAccess access =
          BuildIndexAccess(index, in_.ctx.view.Multikey(*index), clauses_, predicates_);
      const size_t before = plans_.size();
      const bool one_at_most =
          index->unique && access.bounds.AllSinglePoints() && access.multikey == 0;
      AddAccess(std::move(access), false);
      if (one_at_most && plans_.size() > before) {  // nothing can be better
        plans_.erase(plans_.begin(), plans_.end() - 1);
        return std::move(plans_);
      }
    }
    AddDisjunctions();
  }
  // Some of the steps above stop at an interrupt without an error. It is reported here.
  MAYFLY_TRY(ParseWork::Step());
  if (plans_.empty()) AddCollectionScan(1);
  if (plans_.size() == 1) return std::move(plans_);  // a sort would take memory first
  std::stable_sort(
      plans_.begin(), plans_.end(),
      [](const CandidatePlan& a, const CandidatePlan& b) { return a.score > b.score; });
  if (plans_.size() > kMaxCandidates) plans_.erase(plans_.begin() + kMaxCandidates, plans_.end());
  return std::move(plans_);
}

}  // namespace

bool CanCover(const PlannerInput& in, const IndexInfo& index, uint64_t multikey) {
  if (in.projection == nullptr || !in.projection->coverable() || in.need_record) return false;
  // Elements stand for their array.
  if (multikey != 0 || !PlanKindOf(index).keys_hold_values) return false;
  const auto& fields = index.fields;
  for (size_t i = 0; i < fields.size(); ++i)
    for (size_t j = 0; j < fields.size(); ++j)
      if (i != j && (fields[j].path + ".").starts_with(fields[i].path + ".")) return false;
  const auto& needs = in.projection->needs();
  if (needs.whole_document || needs.expire_at || needs.sort_key || needs.text_score ||
      needs.record_id || needs.paths.empty())
    return false;
  return std::all_of(needs.paths.begin(), needs.paths.end(), [&](const std::string& path) {
    // A number is a position for an index on "a.0", but only a field's name for a projection.
    if (match::HasNumericPart(path)) return false;
    return std::any_of(fields.begin(), fields.end(),
                       [&](const IndexField& f) { return f.path == path; });
  });
}

bool PlannerInput::MayUse(const IndexInfo& index) const {
  return IsUsable(index) && (allowed == nullptr || allowed->Allows(index.name, index.key));
}

bool PlannerInput::MayUseId() const {
  return allowed == nullptr ||
         allowed->Allows(ctx.coll->clustered() ? std::string_view(ctx.coll->clustered_index_name)
                                               : std::string_view("_id_"),
                         BuildBson([](BsonBuilder& b) { b.Append("_id", 1); }));
}

Result<std::vector<CandidatePlan>> EnumeratePlans(PlannerInput& in) {
  return PlanBuilder(in).Run();
}

}  // namespace mayfly
