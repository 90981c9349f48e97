#include "query/pipeline/optimize.h"

#include <algorithm>

namespace mayfly {
namespace {

template <class T>
T* As(StagePtr& stage) {
  return dynamic_cast<T*>(stage.get());
}

/// The members of a filter that must all match.
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

/// May `stage` change what is at `path`? Nothing when documents cannot be matched before it at all.
std::optional<bool> Touches(const PipelineStage& stage, std::string_view path) {
  if (auto touched = ProjectionTouches(stage, path)) return touched;
  if (auto* unwind = dynamic_cast<const PipelineUnwind*>(&stage)) return unwind->Touches(path);
  return LookupTouches(stage, path);
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
    // One document in, one out: cut off before computing.
    if ((As<PipelineLimit>(b) || As<PipelineSkip>(b)) && ProjectionTouches(*a, "_id").has_value()) {
      std::swap(a, b);
      return true;
    }
    return false;
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
    if (!Touches(*a, "_id").has_value()) return false;
    // What reads only fields that the stage leaves alone goes before it.
    std::vector<BsonDocument> all, before, behind;
    SplitConjuncts(match.filter(), all);
    for (auto& conjunct : all) {
      MAYFLY_TRY(MatchPtr parsed, ParseMatch(conjunct, {.scope = &scope_}));
      std::set<std::string> fields;
      bool safe = MatchDependencies(*parsed, &fields);
      for (auto& field : fields)
        safe = safe && !field.starts_with(kMetaDependency) && !*Touches(*a, field);
      (safe ? before : behind).push_back(std::move(conjunct));
    }
    if (before.empty()) return false;
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

Result<void> OptimizeStages(std::vector<StagePtr>& stages, PipelineContext& context,
                            VariableScope& scope) {
  return Optimizer(stages, context, scope).Run();
}

}  // namespace mayfly
