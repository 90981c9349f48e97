#pragma once
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "protocol/extended_json.h"
#include "query/match/record_filter.h"
#include "query/plan/executor.h"
#include "storage/catalog/catalog.h"
#include "storage/catalog/catalog_format.h"
#include "storage/kv/rocks_kv.h"
#include "storage/storage.h"
#include "tests/unit/scratch_dir.h"

namespace mayfly::testing {

inline BsonDocument PlanJson(std::string_view text) {
  auto r = ParseJson(text);
  if (!r) FAIL("bad JSON in the test: " << text << ": " << r.error().message);
  return std::move(r).value();
}

/// A store with one collection "db.c" for queries to run on.
class PlanStore {
  ScratchDir dir_;  // removed last

 public:
  PlanStore() {
    StorageOptions o;
    o.engine = MakeRocksEngine();
    o.path = dir_.path();
    o.cache_bytes = 32 << 20;
    o.clock = &clock;
    o.compile_filter = [](BsonView f, bool i) { return CompileRecordFilter(f, i); };
    auto opened = Storage::Open(std::move(o));
    if (!opened) FAIL(opened.error().message);
    storage = std::move(opened.value());
    op = std::make_unique<Operation>(clock);
    auto made = storage->catalog().GetOrCreate(*op, "db", "c");
    if (!made) FAIL(made.error().message);
  }

  CollectionInfoPtr Coll() { return storage->catalog().Find("db", "c"); }
  /// Starts over with an empty collection of the same name.
  void Reset(bool capped = false) {
    (void)storage->catalog().Drop(*op, "db", "c");
    CollectionInfo c;
    c.db = "db";
    c.name = "c";
    if (capped) c.kind = CollectionKind::kCapped;
    c.capped_bytes = capped ? 1 << 20 : 0;
    auto r = storage->catalog().Create(*op, std::move(c));
    if (!r) FAIL(r.error().message);
  }
  Result<void> Insert(const BsonDocument& doc, std::optional<Instant> expire_at = {}) {
    Operation o(clock);
    WriteUnit unit(*storage, o);
    MAYFLY_TRY(unit.Insert(*Coll(), doc, expire_at));
    return storage->committer().Commit(std::move(unit));
  }
  void Insert(std::string_view json) {
    auto r = Insert(PlanJson(json));
    if (!r) FAIL(r.error().message);
  }
  /// {key: {…}, unique, sparse, hidden, partialFilterExpression}
  void CreateIndex(std::string_view json) {
    BsonDocument d = PlanJson(json);
    BsonView v = d;
    IndexInfo i;
    i.key = BsonDocument(v["key"].Document());
    i.fields = ParseIndexKey(i.key).value();
    i.kind = &KindOfKey(i.fields);
    for (const auto& f : i.fields)
      i.name += (i.name.empty() ? "" : "_") + f.path + (f.descending ? "_-1" : "_1");
    if (v.Has("name")) i.name = std::string(v["name"].String());
    i.unique = v["unique"].Truthy();
    i.sparse = v["sparse"].Truthy();
    i.hidden = v["hidden"].Truthy();
    if (v.Has("partialFilterExpression")) {
      i.has_partial_filter = true;
      i.partial_filter = BsonDocument(v["partialFilterExpression"].Document());
      i.filter = CompileRecordFilter(i.partial_filter, true).value();
    }
    std::vector<IndexInfo> specs;
    specs.push_back(std::move(i));
    auto r = storage->catalog().CreateIndexes(*op, *Coll(), std::move(specs));
    if (!r) FAIL(json << ": " << r.error().message);
  }

  std::unique_ptr<PlanExecutor> Open(QuerySpec spec) {
    if (spec.coll == nullptr) spec.coll = Coll();
    auto r = MakeFindExecutor(*storage, *op, std::move(spec));
    if (!r) FAIL(r.error().message);
    return std::move(r).value();
  }
  /// All results as relaxed JSON without spaces. `pause`: saved and restored after so many results.
  std::vector<std::string> Run(QuerySpec spec, int pause = 0) {
    auto e = Open(std::move(spec));
    std::vector<std::string> out;
    while (true) {
      auto state = e->Next();
      if (!state) FAIL(state.error().message);
      if (state.value() == PlanExecutor::State::kEof) return out;
      std::string text = ToRelaxedJson(e->doc().value());
      std::erase(text, ' ');
      out.push_back(std::move(text));
      if (pause > 0 && out.size() % static_cast<size_t>(pause) == 0) {
        e->SaveState();
        auto r = e->RestoreState(*op);
        if (!r) FAIL(r.error().message);
      }
    }
  }
  std::vector<std::string> Find(std::string_view filter, std::string_view sort = "{}",
                                std::string_view projection = "{}") {
    BsonDocument f = PlanJson(filter), s = PlanJson(sort), p = PlanJson(projection);
    QuerySpec spec;
    spec.filter = f;
    spec.sort = s;
    spec.projection = p;
    return Run(std::move(spec));
  }
  BsonDocument Explain(QuerySpec spec,
                       ExplainVerbosity verbosity = ExplainVerbosity::kExecutionStats) {
    spec.explain = true;
    auto e = Open(std::move(spec));
    if (verbosity != ExplainVerbosity::kQueryPlanner) {
      auto n = e->RunToEnd();
      if (!n) FAIL(n.error().message);
    }
    return BuildBson([&](BsonBuilder& b) {
      auto r = e->Explain(verbosity, {}, b);
      if (!r) FAIL(r.error().message);
    });
  }

  SystemClock clock;
  std::unique_ptr<Storage> storage;
  std::unique_ptr<Operation> op;
};

}  // namespace mayfly::testing
