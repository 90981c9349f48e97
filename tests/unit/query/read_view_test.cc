// What a write unit that is not committed yet shows to its own statements: the same queries by
// every kind of plan, once through the unit over a snapshot, once on a store where the same changes
// are committed.
#include <algorithm>
#include <map>
#include <random>

#include "query/plan/planner.h"
#include "storage/write/own_writes.h"
#include "storage/write/write_unit_impl.h"
#include "tests/unit/query/plan_fixture.h"

namespace mayfly {
namespace {

using testing::PlanJson;
using testing::PlanStore;
using Lines = std::vector<std::string>;

struct Dice {
  std::mt19937_64 engine;
  bool arrays = true;
  int operator()(int n) { return static_cast<int>(engine() % static_cast<uint64_t>(n)); }
  std::string Value() {
    switch ((*this)(8)) {
      case 0:
        return "null";
      case 1:
        if (!arrays) return "2";
        return "[" + std::to_string((*this)(6)) + ", " + std::to_string((*this)(6)) + "]";
      case 2:
        return "\"s" + std::to_string((*this)(4)) + "\"";
      case 3:
        return arrays ? "[]" : "3";
      default:
        return std::to_string((*this)(8));
    }
  }
  /// `u`: of a unique index, so each document has its own.
  std::string Document(int id, int unique) {
    std::string d = "{\"_id\": " + std::to_string(id) + ", \"u\": " + std::to_string(unique);
    for (const char* f : {"a", "b", "c"})
      if ((*this)(5) != 0) d += std::string(", \"") + f + "\": " + Value();
    if ((*this)(3) == 0)
      d += ", \"t\": {\"$date\": \"20" + std::string((*this)(2) ? "99" : "97") + "-01-0" +
           std::to_string(1 + (*this)(9)) + "T00:00:00Z\"}";
    return d + "}";
  }
};

const char* const kViewIndexes[] = {
    R"({"key": {"a": 1}})",
    R"({"key": {"a": -1, "b": 1}})",
    R"({"key": {"b": 1, "c": -1}})",
    R"({"key": {"u": 1}, "unique": true})",
    R"({"key": {"c": 1}, "sparse": true})",
    R"({"key": {"b": 1}, "partialFilterExpression": {"c": {"$lte": 3}}, "name": "b_partial"})",
};

void MakeIndexes(PlanStore& s) {
  for (const char* i : kViewIndexes) s.CreateIndex(i);
  IndexInfo ttl;
  ttl.key = PlanJson(R"({"t": 1})");
  ttl.fields = ParseIndexKey(ttl.key).value();
  ttl.name = "t_1";
  ttl.expire_after_seconds = 3600;
  std::vector<IndexInfo> specs;
  specs.push_back(std::move(ttl));
  REQUIRE(s.storage->catalog().CreateIndexes(*s.op, *s.Coll(), std::move(specs)).has_value());
}

std::string KeyOf(PlanStore& s, int id) {
  std::string key;
  BsonDocument d = BuildBson([&](BsonBuilder& b) { b.Append("_id", id); });
  Storage::AppendRecordKey(*s.Coll(), d.view().First().value, key);
  return key;
}

/// One change; `next` empty: a removal.
struct Change {
  int id;
  std::string next;
  std::optional<Instant> expire_at;
};

bool Apply(PlanStore& s, WriteUnit& unit, const Change& c) {
  const CollectionInfoPtr coll = s.Coll();
  WriteUnit::Locked locked;
  auto found = unit.LockAndRead(*coll, KeyOf(s, c.id), &locked);
  REQUIRE(found.has_value());
  if (c.next.empty()) return found.value() && unit.Delete(*coll, locked).has_value();
  // Freed at once: the unit keeps its own copies.
  auto doc = std::make_unique<BsonDocument>(PlanJson(c.next));
  return found.value() ? unit.Update(*coll, locked, *doc, c.expire_at).has_value()
                       : unit.Insert(*coll, *doc, c.expire_at).has_value();
}

/// Applies and commits, one by one.
void Commit(PlanStore& s, const Change& c) {
  WriteUnit unit(*s.storage, *s.op);
  unit.OwnDocuments();
  if (Apply(s, unit, c)) REQUIRE(s.storage->committer().Commit(std::move(unit)).has_value());
}

std::string RandomFilter(Dice& dice) {
  auto clause = [&]() -> std::string {
    const char* fields[] = {"a", "b", "c", "u", "_id", "t"};
    const std::string f = fields[dice(6)];
    const std::string v = f == "t"                 ? "{\"$date\": \"2098-01-01T00:00:00Z\"}"
                          : f == "u" || f == "_id" ? std::to_string(dice(60))
                                                   : dice.Value();
    switch (dice(7)) {
      case 0:
        return "\"" + f + "\": {\"$gt\": " + v + "}";
      case 1:
        return "\"" + f + "\": {\"$lte\": " + v + "}";
      case 2:
        return "\"" + f + "\": {\"$in\": [" + v + ", " + std::to_string(dice(8)) + "]}";
      case 3:
        return "\"" + f + "\": {\"$ne\": " + v + "}";
      case 4:
        return "\"" + f + "\": {\"$exists\": " + (dice(2) ? "true" : "false") + "}";
      case 5:
        return "\"$or\": [{\"a\": " + dice.Value() + "}, {\"" + f + "\": " + v + "}]";
      default:
        return "\"" + f + "\": " + v;
    }
  };
  if (dice(8) == 0) return "{}";
  std::string one = clause(), two = clause();
  if (dice(2) || one.substr(0, one.find(':')) == two.substr(0, two.find(':')))
    return "{" + one + "}";
  return "{" + one + ", " + two + "}";
}

/// What one random query answers: results without an order, and the sequence of sort keys.
Lines Ask(PlanStore& s, uint64_t seed) {
  Dice dice{std::mt19937_64(seed)};
  const std::string filter = RandomFilter(dice);
  const char* sorts[] = {"{}",
                         "{}",
                         R"({"a": 1, "_id": 1})",
                         R"({"b": 1, "c": -1, "_id": 1})",
                         R"({"u": -1})",
                         R"({"t": 1, "_id": 1})",
                         R"({"_id": -1})",
                         R"({"$natural": -1})"};
  const char* hints[] = {"", "", "", "a_1", "a_-1_b_1", "b_1_c_-1", "u_1", "t_1", "_id_"};
  const std::string sort = sorts[dice(8)], hint = hints[dice(9)];
  const int kind = dice(6), pause = dice(2) ? 1 + dice(5) : 0;
  BsonDocument f = PlanJson(filter), so = PlanJson(sort), none = PlanJson("{}");
  BsonDocument h = PlanJson("{\"h\": \"" + hint + "\"}");
  BsonDocument covered =
      PlanJson(dice(2) ? R"({"_id": 0, "u": 1})" : R"({"_id": 0, "b": 1, "c": 1})");
  BsonDocument natural = PlanJson(R"({"h": {"$natural": 1}})");
  BsonDocument low = PlanJson(R"({"u": 7})"), high = PlanJson(R"({"u": 40})"),
               by_u = PlanJson(R"({"h": "u_1"})");
  QuerySpec spec;
  spec.coll = s.Coll();
  spec.filter = f;
  const bool sorted = sort != "{}" && sort.find("natural") == std::string::npos;
  Lines out;
  if (kind == 0) {
    if (!hint.empty()) spec.hint = h.view()["h"];
    auto count = MakeCountExecutor(*s.storage, *s.op, spec);
    REQUIRE(count.has_value());
    return {std::to_string(count.value()->Count().value())};
  }
  if (kind == 1) {
    const char* keys[] = {"a", "b", "c", "u", "t"};
    auto distinct = MakeDistinctExecutor(*s.storage, *s.op, spec, keys[dice(5)]);
    REQUIRE(distinct.has_value());
    REQUIRE(distinct.value()
                ->Run([&](BsonValue v) -> Result<void> {
                  out.push_back(ToRelaxedJson(v));
                  return Ok();
                })
                .has_value());
  } else if (kind == 2) {
    spec.min = low;
    spec.max = high;
    spec.hint = by_u.view()["h"];
    out = s.Run(spec, pause);
  } else {
    if (kind == 3) spec.projection = covered;
    if (sort.find("natural") != std::string::npos) {
      spec.hint = natural.view()["h"];
    } else {
      spec.sort = so;
      if (!hint.empty()) spec.hint = h.view()["h"];
    }
    out = s.Run(spec, pause);
    if (sorted && kind != 3) return out;  // `_id` or `u` decides: one order only
  }
  std::sort(out.begin(), out.end());
  return out;
}

void CheckSame(PlanStore& through, PlanStore& committed, Dice& dice, int queries) {
  for (int i = 0; i < queries; ++i) {
    const uint64_t seed = dice.engine();
    const Lines wanted = Ask(committed, seed), got = Ask(through, seed);
    INFO("query " << seed);
    REQUIRE(got == wanted);
  }
  // By record key and by `_id`.
  for (int id = 0; id < 60; ++id) {
    BsonDocument f = BuildBson([&](BsonBuilder& b) { b.Append("_id", id); });
    QuerySpec spec;
    spec.filter = f;
    const Lines wanted = committed.Run(spec);
    CHECK(through.Run(spec) == wanted);
  }
}

}  // namespace

TEST_CASE("Statements of a unit see by every plan what it has changed", "[view]") {
  const char* runs = std::getenv("MAYFLY_VIEW_RUNS");
  const int rounds = runs ? std::atoi(runs) : 6;
  for (int round = 0; round < rounds; ++round) {
    const char* fixed = std::getenv("MAYFLY_VIEW_SEED");
    const uint64_t seed = fixed ? std::strtoull(fixed, nullptr, 10) : 1000 + round;
    INFO("seed " << seed);
    Dice dice{std::mt19937_64(seed)};
    PlanStore a, b;
    MakeIndexes(a);
    MakeIndexes(b);
    int unique = 100;
    auto random_change = [&](int id) {
      Change c{id, {}, {}};
      // A key of the unique index that somebody else may have, too: then nothing happens on either
      // side.
      if (dice(4) != 0) c.next = dice.Document(id, dice(5) ? unique++ : dice(60));
      if (dice(6) == 0) c.expire_at = Instant{dice(2) ? a.op->now.millis + 86'400'000 : 1000};
      return c;
    };
    // In every other round it is the unit that makes the indexes multikey.
    dice.arrays = seed % 2 == 0;
    for (int i = 0; i < 40; ++i) {
      Change c{i, dice.Document(i, i), {}};
      Commit(a, c);
      Commit(b, c);
    }
    auto point = ReadPoint::Take(*a.storage, 1);
    // What others write later is not seen.
    for (int i = 1000; i < 1020; ++i) Commit(a, {i, dice.Document(i, i), {}});
    a.op->view = point->View();
    CheckSame(a, b, dice, 5);
    dice.arrays = true;

    auto first = std::make_unique<Operation>(a.clock);
    WriteUnit unit(*a.storage, *first);
    unit.OwnDocuments();
    unit.Attach(*a.op);
    first.reset();  // it goes on for other operations
    for (int statement = 0; statement < 8; ++statement) {
      a.op->view = std::make_shared<const ReadView>(point->View()->With(unit));
      const auto before = unit.Mark();
      const uint64_t asked = dice.engine();
      const Lines answer = Ask(a, asked);
      const bool undone = dice(3) == 0;
      const int n = 1 + dice(6);
      for (int i = 0; i < n; ++i) {
        Change c = random_change(dice(60));
        WriteUnit::Savepoint mark = unit.Mark();
        if (!Apply(a, unit, c)) {
          unit.RollBackTo(mark);
          continue;
        }
        if (!undone) Commit(b, c);
        // The statement's own view has not changed.
        REQUIRE(Ask(a, asked) == answer);
      }
      if (undone) unit.RollBackTo(before);
      a.op->view = std::make_shared<const ReadView>(point->View()->With(unit));
      CheckSame(a, b, dice, 25);
      CHECK(unit.MemoryBytes() >= unit.SizeBytes() / 2);
    }
    // And so it is for everybody once it is committed.
    a.op->view = nullptr;
    for (int i = 1000; i < 1020; ++i) Commit(b, {i, "", {}});
    REQUIRE(a.storage->committer().Commit(std::move(unit)).has_value());
    for (int i = 1000; i < 1020; ++i) Commit(a, {i, "", {}});
    CheckSame(a, b, dice, 25);
    CHECK(Storage::DocumentCount(*a.Coll()) == Storage::DocumentCount(*b.Coll()));
  }
}

TEST_CASE("Own writes are merged in both directions, within bounds, and end with their unit",
          "[view]") {
  PlanStore s;
  std::map<std::string, std::string> stored;
  Dice dice{std::mt19937_64(7)};
  KvStore& kv = s.storage->kv();
  auto name = [](int i) { return "k" + std::to_string(10 + i); };
  for (int round = 0; round < 200; ++round) {
    auto batch = kv.NewBatch();
    batch->DeleteRange(Keyspace::kTombstones, "k", "l");
    stored.clear();
    for (int i = 0; i < 20; ++i)
      if (dice(2)) {
        stored[name(i)] = "s";
        batch->Put(Keyspace::kTombstones, name(i), "s");
      }
    REQUIRE(kv.Write(*batch, false).has_value());
    std::optional<WriteUnit> unit;
    unit.emplace(*s.storage, *s.op);
    std::map<std::string, std::string> model = stored;
    for (int i = 0; i < 15; ++i) {
      const std::string key = name(dice(20));
      switch (dice(5)) {
        case 0: {
          const std::string end = name(dice(20));
          unit->EraseRange(Keyspace::kTombstones, std::min(key, end), std::max(key, end));
          model.erase(model.lower_bound(std::min(key, end)), model.lower_bound(std::max(key, end)));
          break;
        }
        case 1:
          unit->Erase(Keyspace::kTombstones, key);
          model.erase(key);
          break;
        default:
          unit->Put(Keyspace::kTombstones, key, "own" + std::to_string(i));
          model[key] = "own" + std::to_string(i);
      }
    }
    const ReadView view = ReadView(kv.Snapshot()).With(*unit);
    unit->Put(Keyspace::kTombstones, name(3), "later");
    KvIterOptions o;
    o.lower = name(dice(8));
    o.upper = name(12 + dice(10));
    std::map<std::string, std::string> part(model.lower_bound(o.lower), model.lower_bound(o.upper));
    auto it = view.NewIterator(kv, Keyspace::kTombstones, o);
    auto at = part.end();
    for (int step = 0; step < 60; ++step) {
      const std::string key = name(dice(24));
      const int move = at == part.end() ? dice(4) : dice(8);
      if (move == 0) {
        it->SeekToFirst();
        at = part.begin();
      } else if (move == 1) {
        it->SeekToLast();
        at = part.empty() ? part.end() : std::prev(part.end());
      } else if (move == 2) {
        it->Seek(key);
        at = part.lower_bound(key);
      } else if (move == 3) {
        it->SeekForPrev(key);
        at = part.upper_bound(key);
        at = at == part.begin() ? part.end() : std::prev(at);
      } else if (move % 2) {
        it->Next();
        ++at;
      } else {
        it->Prev();
        at = at == part.begin() ? part.end() : std::prev(at);
      }
      REQUIRE(it->Valid() == (at != part.end()));
      if (at == part.end()) continue;
      REQUIRE(std::string(it->key()) == at->first);
      REQUIRE(std::string(it->value()) == at->second);
    }
    for (int i = 0; i < 20; ++i) {
      PinnedValue v;
      const bool found = view.Get(kv, Keyspace::kTombstones, name(i), &v).value();
      REQUIRE(found == model.contains(name(i)));
      if (found) REQUIRE(std::string(v.view()) == model[name(i)]);
    }
    unit.reset();
    CHECK_FALSE(it->Valid());
    CHECK_FALSE(it->status().has_value());
    PinnedValue v;
    CHECK_FALSE(view.Get(kv, Keyspace::kTombstones, name(0), &v).has_value());
  }
}

TEST_CASE("A point in time has the catalog of its moment", "[view]") {
  PlanStore s;
  for (int i = 0; i < 10; ++i) s.Insert("{\"_id\": " + std::to_string(i) + ", \"a\": 1}");
  auto point = ReadPoint::Take(*s.storage, 1);
  const ReadViewPtr view = point->View();
  Catalog& catalog = s.storage->catalog();
  auto count = [&](const char* name) -> std::string {
    Operation op(s.clock);
    op.view = view;
    auto coll = FindCollection(catalog, op, "db", name);
    if (!coll) return coll.error().message;
    if (!coll.value()) return "none";
    BsonDocument f = PlanJson(R"({"a": 1})");
    QuerySpec spec;
    spec.coll = coll.value();
    spec.filter = f;
    auto e = MakeFindExecutor(*s.storage, op, spec);
    REQUIRE(e.has_value());
    return std::to_string(e.value()->RunToEnd().value()) + " " + e.value()->PlanSummary();
  };
  CHECK(count("c") == "10 COLLSCAN");
  s.CreateIndex(R"({"key": {"a": 1}})");
  s.Insert(R"({"_id": 100, "a": 1})");
  CHECK(count("c") == "10 COLLSCAN");
  REQUIRE(catalog.Rename(*s.op, *s.Coll(), "db", "d", false).has_value());
  CHECK(count("c") == "10 COLLSCAN");
  CHECK(count("d") == "none");
  REQUIRE(catalog.Drop(*s.op, "db", "d").has_value());
  s.storage->impl().catalog->WaitForGarbage();
  REQUIRE(catalog.GetOrCreate(*s.op, "db", "c").has_value());
  CHECK(count("c") == "10 COLLSCAN");
  // A point in between.
  s.Insert(R"({"_id": 1, "a": 1})");
  auto later = ReadPoint::Take(*s.storage, 2);
  s.CreateIndex(R"({"key": {"a": 1}})");
  REQUIRE(catalog.Drop(*s.op, "db", "c").has_value());
  {
    Operation op(s.clock);
    op.view = later->View();
    auto coll = FindCollection(catalog, op, "db", "c");
    REQUIRE(coll.value());
    CHECK(coll.value()->indexes.empty());
  }
  CHECK(count("c") == "10 COLLSCAN");
  point->Release();
  CHECK_FALSE(point->View());
  CHECK(count("c") == "10 COLLSCAN");  // an operation that has it goes on
}

TEST_CASE("More changes of the catalog than are remembered make a point unavailable", "[view]") {
  PlanStore s;
  auto point = ReadPoint::Take(*s.storage, 1);
  auto& catalog = *s.storage->impl().catalog;
  CollectionInfo made;
  made.id = 0x90000000;
  made.db = "local";
  made.name = "made";
  made.ns = "local.made";
  auto was = std::make_shared<CollectionInfo>(made);
  catalog.AddSource(was);
  for (size_t i = 0; i < Catalog::kMaxPast; ++i) {
    auto next = std::make_shared<CollectionInfo>(made);
    catalog.ReplaceSource(was, next);
    was = next;
  }
  Operation op(s.clock);
  op.view = point->View();
  auto coll = FindCollection(s.storage->catalog(), op, "local", "made");
  REQUIRE_FALSE(coll.has_value());
  CHECK(coll.error().code == ErrorCode::kSnapshotUnavailable);
  // Who changes one database does not end what reads another.
  CHECK(FindCollection(s.storage->catalog(), op, "db", "c").has_value());
}

TEST_CASE("A plan whose index is dropped in a pause ends, others go on", "[view]") {
  PlanStore s;
  for (int i = 0; i < 50; ++i) s.Insert("{\"_id\": " + std::to_string(i) + ", \"a\": 1, \"b\": 1}");
  s.CreateIndex(R"({"key": {"a": 1}})");
  s.CreateIndex(R"({"key": {"b": 1}})");
  BsonDocument f = PlanJson(R"({"a": 1})"), all = PlanJson("{}");
  BsonDocument hint = PlanJson(R"({"h": "a_1"})");
  QuerySpec by_a, scan;
  by_a.filter = f;
  by_a.hint = hint.view()["h"];
  scan.filter = all;
  auto indexed = s.Open(by_a), plain = s.Open(scan), other = s.Open(by_a);
  for (auto* e : {&indexed, &plain, &other}) {
    REQUIRE((*e)->Next().has_value());
    (*e)->SaveState();
  }
  REQUIRE(s.storage->catalog().DropIndexes(*s.op, *s.Coll(), {"b_1"}).has_value());
  CHECK(other->RestoreState(*s.op).has_value());
  CHECK(other->RunToEnd().value() == 49);
  REQUIRE(s.storage->catalog().DropIndexes(*s.op, *s.Coll(), {"a_1"}).has_value());
  s.storage->impl().catalog->WaitForGarbage();
  s.CreateIndex(R"({"key": {"a": 1}})");  // another one of the same name
  auto killed = indexed->RestoreState(*s.op);
  REQUIRE_FALSE(killed.has_value());
  CHECK(killed.error().code == ErrorCode::kQueryPlanKilled);
  CHECK(plain->RestoreState(*s.op).has_value());
  CHECK(plain->RunToEnd().value() == 49);
  auto renamed = s.Open(scan);
  REQUIRE(renamed->Next().has_value());
  renamed->SaveState();
  REQUIRE(s.storage->catalog().Rename(*s.op, *s.Coll(), "db", "d", false).has_value());
  CHECK(renamed->RestoreState(*s.op).error().code == ErrorCode::kQueryPlanKilled);
}

TEST_CASE("A definition that is out of date when the snapshot is taken is looked up again",
          "[view]") {
  PlanStore s;
  for (int i = 0; i < 10; ++i) s.Insert("{\"_id\": " + std::to_string(i) + ", \"a\": 1}");
  s.CreateIndex(R"({"key": {"a": 1}})");
  const CollectionInfoPtr before = s.Coll();
  REQUIRE(s.storage->catalog().DropIndexes(*s.op, *before, {"a_1"}).has_value());
  s.storage->impl().catalog->WaitForGarbage();
  BsonDocument f = PlanJson(R"({"a": 1})");
  QuerySpec spec;
  spec.coll = before;
  spec.filter = f;
  CHECK(s.Run(spec).size() == 10);
}

}  // namespace mayfly
