#include "protocol/bson_compare.h"
#include "query/expression/parse_work.h"
#include "query/match/match_internal.h"
#include "query/plan/index_plan_kind.h"
#include "query/plan/planner.h"

namespace mayfly {
namespace {

std::string_view FirstPart(std::string_view path) { return path.substr(0, path.find('.')); }

/// A missing field has the key null. Undefined is the key of an empty array, which is not missing.
bool IncludesMissing(const IntervalList& list) { return list.Contains(Value::Null().view()); }

double ListScore(const IntervalList& list) {
  if (list.IsPoint()) return 3;
  if (list.AllPoints()) return list.intervals.size() < 100 ? 2.5 : 2;
  double score = 1;
  if (list.intervals.size() == 1 && !list.intervals[0].IsFull()) score = 1.5;
  if (list.intervals.size() > 1) score = 0.5;  // a negation: most of the index
  return score;
}

/// Both fields go through the same array, and the keys of a document pair their values element by
/// element. Predicates may then be combined only if they are inside one $elemMatch on that array.
bool MayCombine(const PathPredicate& a, const PathPredicate& b) {
  if (FirstPart(a.path) != FirstPart(b.path)) return true;
  if (a.elem_match == nullptr || a.elem_match != b.elem_match) return false;
  return FirstPart(std::string_view(a.path).substr(a.elem_match_path + 1)) !=
         FirstPart(std::string_view(b.path).substr(b.elem_match_path + 1));
}

struct Chosen {
  const PathPredicate* predicate = nullptr;
  bool multikey = false;
};

}  // namespace

IndexAccess OrdinaryAccess(const IndexInfoPtr& index, uint64_t multikey_fields,
                           const std::vector<const MatchExpression*>& clauses,
                           const std::vector<PathPredicate>& predicates) {
  IndexAccess access;
  access.index = index;
  access.multikey = multikey_fields;
  size_t n = index->fields.size();
  access.bounds.fields.resize(n);
  std::vector<Chosen> chosen;   ///< of each field, once there is one with arrays
  bool requires_field = false;  // some predicate rejects documents without its indexed field
  bool all_points = true;
  double weight = 1;
  for (size_t i = 0; i < n; ++i) {
    IntervalList& list = access.bounds.fields[i];
    // "a.0.b" reaches into an array without making the index multikey. The entry of {a: [2]} is
    // then null, although the document does not match {"a.0.b": null}. So the negation of null
    // gives no bounds here.
    bool multikey = (access.multikey >> std::min<size_t>(i, 63) & 1) ||
                    match::HasNumericPart(index->fields[i].path);
    bool exists = false, bounded = false, whole = false;
    if (!multikey) {
      for (const auto& p : predicates) {
        if (p.path != index->fields[i].path) continue;
        // After an interrupt, the result so far is still correct. The planner finds the interrupt
        // itself.
        if (!ParseWork::Step(1 + list.intervals.size() / 16)) break;
        auto b = BoundsOf(p, false);
        if (!b) continue;
        exists = exists || b->requires_existence;
        whole = whole || b->whole_index;
        if (bounded)
          list.Intersect(b->list);
        else
          list = std::move(b->list);
        bounded = true;
        if (b->exact && p.IsComplete()) access.exact.push_back(p.clause);
      }
    } else {
      // Different elements may satisfy different predicates, so only one predicate sets the bounds.
      if (chosen.empty()) chosen.resize(n);
      const PathPredicate* best = nullptr;
      PredicateBounds best_bounds;
      double best_score = -1;
      for (const auto& p : predicates) {
        if (p.path != index->fields[i].path) continue;
        if (!ParseWork::Step(1 + i)) break;
        auto b = BoundsOf(p, true);
        if (!b) continue;
        exists = exists || b->requires_existence || !IncludesMissing(b->list);
        whole = whole || b->whole_index;
        bool allowed = true;
        for (size_t j = 0; j < i; ++j)
          if (chosen[j].predicate != nullptr && chosen[j].multikey)
            allowed = allowed && MayCombine(*chosen[j].predicate, p);
        if (!allowed) continue;
        double score =
            b->list.IsFull() ? 0 : ListScore(b->list) + (p.elem_match != nullptr ? 0.1 : 0);
        if (score > best_score) {
          best_score = score;
          best = &p;
          best_bounds = std::move(*b);
        }
      }
      if (best != nullptr) {
        bounded = true;
        list = std::move(best_bounds.list);
        if (best_bounds.exact && best->IsComplete()) access.exact.push_back(best->clause);
        chosen[i] = {best, true};
      }
    }
    if (!bounded) list = IntervalList::Full();
    if (exists || (bounded && !IncludesMissing(list))) requires_field = true;
    if (i == 0) access.useful = bounded && (!list.IsFull() || exists || whole);
    all_points = all_points && list.IsPoint();
    if (bounded && !list.IsFull()) access.score += weight * ListScore(list);
    if (!list.IsPoint()) weight *= list.AllPoints() ? 0.9 : 0.3;
    if (list.IsFull()) weight *= 0.1;
  }
  if (index->unique && all_points && !index->has_partial_filter) access.score += 100;
  if (index->sparse && !requires_field) access.safe = false;
  if (index->has_partial_filter) {
    auto partial = ParseMatch(index->partial_filter, {.for_partial_index = true});
    if (!partial || !Implies(clauses, *partial.value())) access.safe = false;
  }
  return access;
}

IndexAccess BuildIdAccess(const std::vector<PathPredicate>& predicates) {
  IndexAccess access;
  access.bounds.fields.push_back(IntervalList::Full());
  IntervalList& list = access.bounds.fields[0];
  bool whole = false;
  for (const auto& p : predicates) {
    if (p.path != "_id") continue;
    if (!ParseWork::Step(1 + list.intervals.size() / 16)) break;
    auto b = BoundsOf(p, false);
    if (!b) continue;
    whole = whole || b->whole_index || b->requires_existence;
    list.Intersect(b->list);
    if (b->exact && p.IsComplete()) access.exact.push_back(p.clause);
  }
  access.useful = whole || !list.IsFull();
  if (access.useful) access.score = (list.IsFull() ? 0 : ListScore(list)) + 0.2;
  if (list.IsPoint()) access.score += 100;
  return access;
}

IntervalList BoundsOnPath(std::string_view path, const std::vector<PathPredicate>& predicates) {
  IntervalList list = IntervalList::Full();
  for (const auto& p : predicates) {
    if (p.path != path) continue;
    if (auto b = BoundsOf(p, false)) list.Intersect(b->list);
  }
  return list;
}

SortProvision OrdinarySort(const IndexAccess& access, const SortPattern& sort, size_t* explode) {
  *explode = 0;
  const auto& parts = sort.parts();
  if (parts.empty()) return SortProvision::kForward;
  if (access.index == nullptr) {  // `_id` is unique: what follows it in the sort does not matter
    if (parts[0].path != "_id" || parts[0].meta != SortPattern::Meta::kNone)
      return SortProvision::kNo;
    return parts[0].descending ? SortProvision::kBackward : SortProvision::kForward;
  }
  if (access.bounds.whole_key_range && access.multikey != 0) return SortProvision::kNo;
  const auto& fields = access.index->fields;
  auto is_multikey = [&](size_t i) -> bool {
    return access.multikey >> std::min<size_t>(i, 63) & 1;
  };
  auto full = [&](size_t i) {
    return access.bounds.whole_key_range || access.bounds.fields[i].IsFull();
  };
  auto point = [&](size_t i) {
    return !access.bounds.whole_key_range && access.bounds.fields[i].IsPoint();
  };
  int direction = 0;  // 0: not known yet
  size_t i = 0, last_exploded = 0;
  double scans = 1;
  for (const auto& part : parts) {
    if (part.meta != SortPattern::Meta::kNone) return SortProvision::kNo;
    bool constant = false;
    for (size_t f = 0; f < fields.size(); ++f)
      if (fields[f].path == part.path && point(f) && !is_multikey(f)) constant = true;
    if (constant) continue;
    while (i < fields.size() && fields[i].path != part.path) {
      if (!point(i)) {
        if (access.bounds.whole_key_range || !access.bounds.fields[i].AllPoints() || direction != 0)
          return SortProvision::kNo;
        scans *= static_cast<double>(access.bounds.fields[i].intervals.size());
        last_exploded = i + 1;
      }
      ++i;
    }
    if (i == fields.size()) return SortProvision::kNo;
    if (is_multikey(i)) {
      // A document sorts by its smallest (or greatest) element, so the scan must see all of its
      // elements.
      if (!full(i)) return SortProvision::kNo;
      for (size_t f = 0; f < fields.size(); ++f)
        if (f != i && !full(f) && FirstPart(fields[f].path) == FirstPart(fields[i].path))
          return SortProvision::kNo;
    }
    int wanted = fields[i].descending == part.descending ? 1 : -1;
    if (direction == 0)
      direction = wanted;
    else if (direction != wanted)
      return SortProvision::kNo;
    ++i;
  }
  if (scans > 200) return SortProvision::kNo;
  *explode = last_exploded;
  return direction < 0 ? SortProvision::kBackward : SortProvision::kForward;
}

}  // namespace mayfly
