#include "query/pipeline/optimize.h"

#include <algorithm>

namespace mayfly {
namespace {

template <class T>
T* As(StagePtr& stage) {
  return dynamic_cast<T*>(stage.get());
}

/// May `stage` change what is at `path`? Nothing when documents cannot be matched before it at all.
std::optional<bool> Touches(const PipelineStage& stage, std::string_view path) {
  if (auto touched = ProjectionTouches(stage, path)) return touched;
  if (auto* unwind = dynamic_cast<const PipelineUnwind*>(&stage)) return unwind->Touches(path);
  return LookupTouches(stage, path);
}

/// The path in a stage's input that has what is at `path` behind it; empty when there is none.
std::string InputPath(const PipelineStage& stage, std::string_view path) {
  if (IsGroup(stage)) return GroupedFrom(stage, path);
  if (const std::optional<bool> touched = Touches(stage, path); touched && !*touched)
    return std::string(path);
  const size_t dot = path.find('.');
  std::string from = ProjectionRenamedFrom(stage, path.substr(0, dot));
  if (!from.empty() && dot != std::string_view::npos) from += path.substr(dot);
  return from;
}

/// Whether a condition on the key of a group is equivalent for each of its documents. These have
/// equal keys, but perhaps of different types, and the key is null where they have no field.
bool SameForEqualValues(BsonValue condition) {
  if (!condition.Is(BsonType::kDocument)) return true;
  for (const BsonElement& e : condition.Document()) {
    if (!e.name.starts_with('$')) return true;  // a value
    static constexpr std::string_view kSame[] = {"$eq",  "$ne", "$gt",  "$gte", "$lt",
                                                 "$lte", "$in", "$nin", "$not"};
    if (std::find(std::begin(kSame), std::end(kSame), e.name) == std::end(kSame)) return false;
    if (e.name == "$not" && !SameForEqualValues(e.value)) return false;
  }
  return true;
}

/// A filter on a stage's output as an equivalent filter on its input; nothing if it reads a value
/// that the stage computes.
std::optional<BsonDocument> BeforeStage(const PipelineStage& stage, BsonView filter) {
  bool possible = true;
  BsonDocument out = BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : filter) {
      if (!possible) return;
      if ((e.name == "$and" || e.name == "$or" || e.name == "$nor") && e.value.IsArray()) {
        BsonArrayBuilder members = b.OpenArray(e.name);
        for (const BsonElement& m : e.value.Document()) {
          std::optional<BsonDocument> one;
          if (m.value.IsDocument()) one = BeforeStage(stage, m.value.Document());
          possible = possible && one.has_value();
          if (!possible) return;
          members.Append(*one);
        }
        continue;
      }
      const std::string path = e.name.starts_with('$') ? std::string() : InputPath(stage, e.name);
      possible = !path.empty() && (!IsGroup(stage) || SameForEqualValues(e.value));
      if (possible) b.Append(path, e.value);
    }
  });
  if (!possible) return std::nullopt;
  return out;
}

class Optimizer {
 public:
  Optimizer(std::vector<StagePtr>& stages, PipelineContext& context, VariableScope& scope)
      : stages_(stages), context_(context), scope_(scope) {}

  Result<void> Run() {
    // Each rule moves a filter or a limit forward or removes a stage, so this ends; the bound is
    // against mistakes.
    for (size_t rounds = 0; rounds < 4 * stages_.size() * stages_.size() + 16; ++rounds) {
      MAYFLY_TRY(bool changed, Pass());
      if (!changed) break;
    }
    return Ok();
  }

 private:
  void Erase(size_t i) { stages_.erase(stages_.begin() + static_cast<ptrdiff_t>(i)); }

  Result<bool> Pass() {
    for (size_t i = 0; i + 1 < stages_.size(); ++i) {
      MAYFLY_TRY(bool changed, Pair(i));
      if (changed) return true;
    }
    return false;
  }

  Result<bool> Pair(size_t i) {
    StagePtr &a = stages_[i], &b = stages_[i + 1];
    if (auto* match = As<PipelineMatch>(b)) return MatchBehind(i, *match);
    if (auto* limit = As<PipelineLimit>(b)) {
      if (auto* first = As<PipelineLimit>(a)) {
        first->set_limit(std::min(first->limit(), limit->limit()));
        Erase(i + 1);
        return true;
      }
      if (auto* sort = As<PipelineSort>(a)) {
        sort->set_limit(sort->limit() > 0 ? std::min(sort->limit(), limit->limit())
                                          : limit->limit());
        Erase(i + 1);
        return true;
      }
      if (auto* skip = As<PipelineSkip>(a)) {
        // A sort before the skip needs no more than both.
        auto* sort = i > 0 ? As<PipelineSort>(stages_[i - 1]) : nullptr;
        int64_t both;
        if (sort && !__builtin_add_overflow(skip->skip(), limit->limit(), &both) &&
            (sort->limit() == 0 || sort->limit() > both)) {
          sort->set_limit(both);
          Erase(i + 1);
          return true;
        }
        return false;
      }
    }
    if (auto* sort = As<PipelineSort>(a); sort && sort->limit() != 1 && ReadsFirstOnly(*b)) {
      sort->set_limit(1);
      return true;
    }
    if (auto* unwind = As<PipelineUnwind>(b); unwind && AbsorbUnwind(*a, *unwind)) {
      Erase(i + 1);
      return true;
    }
    if (auto* skip = As<PipelineSkip>(b)) {
      if (auto* first = As<PipelineSkip>(a)) {
        int64_t sum;
        if (__builtin_add_overflow(first->skip(), skip->skip(), &sum)) return false;
        first->set_skip(sum);
        Erase(i + 1);
        return true;
      }
      if (auto* limit = As<PipelineLimit>(a); limit && limit->limit() > skip->skip()) {
        // limit 10, skip 3 = skip 3, limit 7: in this order a find can do both.
        limit->set_limit(limit->limit() - skip->skip());
        std::swap(a, b);
        return true;
      }
    }
    if (auto* sort = As<PipelineSort>(b)) {
      if (const std::optional<BsonDocument> before = SortBefore(*a, *sort)) {
        MAYFLY_TRY(SortPattern pattern, SortPattern::Parse(*before));
        auto moved = std::make_unique<PipelineSort>(context_, std::move(pattern));
        moved->set_limit(sort->limit());
        b = std::move(moved);
        std::swap(a, b);
        return true;
      }
    }
    // One document in, one out: cut off before computing.
    if ((As<PipelineLimit>(b) || As<PipelineSkip>(b)) && ProjectionTouches(*a, "_id").has_value()) {
      std::swap(a, b);
      return true;
    }
    return false;
  }

  /// A sort that keeps a few documents goes before a projection that leaves its fields alone or
  /// only renames them: only those few are then projected, and an index may have them in order.
  /// Its pattern there; nothing if it stays.
  static std::optional<BsonDocument> SortBefore(const PipelineStage& stage,
                                                const PipelineSort& sort) {
    if (sort.limit() == 0 || sort.pattern().needs_metadata()) return std::nullopt;
    if (!ProjectionTouches(stage, "_id").has_value()) return std::nullopt;
    std::set<std::string> fields;
    stage.AddDependencies(&fields);
    for (const std::string& field : fields)
      if (field.starts_with(kMetaDependency)) return std::nullopt;
    std::set<std::string> paths;
    bool possible = true;
    BsonDocument pattern = BuildBson([&](BsonBuilder& b) {
      for (const auto& part : sort.pattern().parts()) {
        const std::string path = InputPath(stage, part.path);
        // A field under two names could not be in the pattern twice.
        possible = possible && !path.empty() &&
                   paths.insert(path).second;  // bounded: by the parts of the sort
        if (!possible) return;
        b.Append(path, part.descending ? -1 : 1);
      }
    });
    if (!possible) return std::nullopt;
    return pattern;
  }

  Result<bool> MatchBehind(size_t i, PipelineMatch& match) {
    StagePtr &a = stages_[i], &b = stages_[i + 1];
    if (auto* first = As<PipelineMatch>(a)) {
      std::vector<BsonDocument> both;
      SplitConjuncts(first->filter(), both);
      SplitConjuncts(match.filter(), both);
      MAYFLY_TRY(a, MakeMatch(both, context_, scope_));
      Erase(i + 1);
      return true;
    }
    if (auto* sort = As<PipelineSort>(a)) {
      if (sort->limit() > 0) return false;
      std::swap(a, b);
      return true;
    }
    if (!Touches(*a, "_id").has_value() && !IsGroup(*a)) return false;
    // Conditions on fields that the stage does not change, or only renames, move before
    // it.
    std::vector<BsonDocument> all, before, behind;
    bool renamed = false;
    SplitConjuncts(match.filter(), all);
    for (auto& conjunct : all) {
      MAYFLY_TRY(MatchPtr parsed, ParseMatch(conjunct, {.scope = &scope_}));
      std::set<std::string> fields;
      bool safe = MatchDependencies(*parsed, &fields);
      safe = safe && !IsGroup(*a);
      for (auto& field : fields)
        safe = safe && !field.starts_with(kMetaDependency) && !*Touches(*a, field);
      if (!safe)
        if (std::optional<BsonDocument> moved = BeforeStage(*a, conjunct)) {
          before.push_back(std::move(*moved));
          renamed = true;
          continue;
        }
      (safe ? before : behind).push_back(std::move(conjunct));
    }
    if (before.empty()) return false;
    if (behind.empty() && renamed) {
      MAYFLY_TRY(b, MakeMatch(before, context_, scope_));
    }
    if (behind.empty()) {
      std::swap(a, b);
      return true;
    }
    MAYFLY_TRY(StagePtr front, MakeMatch(before, context_, scope_));
    MAYFLY_TRY(b, MakeMatch(behind, context_, scope_));
    stages_.insert(stages_.begin() + static_cast<ptrdiff_t>(i), std::move(front));
    return true;
  }

  std::vector<StagePtr>& stages_;
  PipelineContext& context_;
  VariableScope& scope_;
};

}  // namespace

void SplitConjuncts(BsonView filter, std::vector<BsonDocument>& out) {
  for (const BsonElement& e : filter) {
    if (e.name == "$and" && e.value.IsArray()) {
      for (const BsonElement& member : e.value.Document())
        if (member.value.IsDocument()) SplitConjuncts(member.value.Document(), out);
      continue;
    }
    out.push_back(BuildBson([&](BsonBuilder& b) { b.Append(e); }));
  }
}

Result<StagePtr> MakeMatch(const std::vector<BsonDocument>& conjuncts, PipelineContext& context,
                           VariableScope& scope) {
  BsonDocument filter;
  if (conjuncts.size() == 1) {
    filter = conjuncts[0];
  } else if (!conjuncts.empty()) {
    filter = BuildBson([&](BsonBuilder& b) {
      BsonArrayBuilder all = b.OpenArray("$and");
      for (auto& c : conjuncts) all.Append(c);
    });
  }
  MAYFLY_TRY(MatchPtr match, ParseMatch(filter, {.scope = &scope}));
  return StagePtr(std::make_unique<PipelineMatch>(context, std::move(filter), std::move(match)));
}

Result<void> OptimizeStages(std::vector<StagePtr>& stages, PipelineContext& context,
                            VariableScope& scope) {
  return Optimizer(stages, context, scope).Run();
}

}  // namespace mayfly
