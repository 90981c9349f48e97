#include "storage/write/transaction_unit.h"

#include <map>
#include <optional>
#include <random>
#include <set>

#include "storage/core/storage_impl.h"
#include "storage/read/cursors.h"
#include "storage/read/read_view.h"
#include "storage/read/visibility.h"
#include "storage/schema/name_claims.h"
#include "storage/storage.h"
#include "storage/write/log_apply.h"
#include "storage/write/log_format.h"
#include "storage/write/submitted_unit.h"
#include "tests/unit/storage/catalog_fixture.h"

namespace mayfly::testing {
namespace {

/// A transaction as the server makes one.
struct Txn {
  explicit Txn(CatalogStore& s) : op(s.clock), unit(*s.storage, op) {
    base = *ReadPoint::Take(*s.storage, 0)->View();
    catalog = std::make_shared<TransactionCatalog>(base, s.catalog());
    BeginTransactionUnit(unit, base.snapshot(), catalog, 0);
    view = ReadView(base.snapshot(), catalog, base.point());
  }
  ReadView View() { return view.With(unit); }
  Operation op;
  WriteUnit unit;
  ReadView base, view;
  std::shared_ptr<TransactionCatalog> catalog;
};

std::string KeyOf(const CollectionInfo& c, int id) {
  std::string key;
  const BsonDocument doc = BuildBson([&](BsonBuilder& b) { b.Append("_id", id); });
  Storage::AppendRecordKey(c, doc.view().First().value, key);
  return key;
}

/// Puts the value in place of what there is, or removes it (0).
Result<void> Write(WriteUnit& unit, const CollectionInfo& c, int id, int value) {
  WriteUnit::Locked l;
  MAYFLY_TRY(const bool there, unit.LockAndRead(c, KeyOf(c, id), &l));
  if (value == 0) return there ? unit.Delete(c, l) : Ok();
  const BsonDocument next =
      BuildBson([&](BsonBuilder& b) { b.Append("_id", id).Append("v", value); });
  return there ? unit.Update(c, l, next) : unit.Insert(c, next);
}

/// A collection with a unique index on `u`, and {_id: 1, u: 7}.
CollectionInfoPtr WithUnique(CatalogStore& s) {
  const CollectionInfoPtr made = s.Make();
  std::vector<IndexInfo> specs;
  specs.push_back(Spec(R"({"key": {"u": 1}, "unique": true})"));
  REQUIRE(s.catalog().CreateIndexes(*s.op, *made, std::move(specs)).has_value());
  const CollectionInfoPtr c = s.Coll();
  REQUIRE(s.Insert(*c, R"({"_id": 1, "u": 7})"));
  return c;
}

using Values = std::map<int, int>;

Values All(CatalogStore& s, const CollectionInfoPtr& c, const ReadView& view) {
  Values out;
  RecordScan scan;
  scan.view = view;
  auto cursor = s.storage->ScanRecords(c, std::move(scan));
  for (;;) {
    Result<bool> more = cursor->Next();
    REQUIRE(more.has_value());
    if (!more.value()) return out;
    out[cursor->doc()["_id"].Int32()] = cursor->doc()["v"].Int32();
  }
}

Result<void> CommitOf(CatalogStore& s, Txn& t) {
  Operation op(s.clock);
  MAYFLY_TRY(PrepareTransactionCommit(*s.storage, t.unit, op));
  return s.storage->committer().Commit(std::move(t.unit));
}

}  // namespace

TEST_CASE("who writes second what a transaction has read fails at once", "[transaction_unit]") {
  CatalogStore s;
  s.storage->impl().logged = GENERATE(false, true);
  const CollectionInfoPtr c = s.Make();
  REQUIRE(s.Insert(*c, R"({"_id": 1, "v": 1})"));
  Txn a(s);
  std::optional<Txn> other(std::in_place, s);
  Txn& b = *other;
  REQUIRE(Write(a.unit, *c, 1, 2).has_value());
  CHECK(CodeOf(Write(b.unit, *c, 1, 3)) == ErrorCode::kWriteConflict);
  CHECK(All(s, c, a.View()) == Values{{1, 2}});
  CHECK(All(s, c, b.View()) == Values{{1, 1}});
  REQUIRE(CommitOf(s, a).has_value());
  // The lock is free now, but it has changed since.
  CHECK(CodeOf(Write(b.unit, *c, 1, 3)) == ErrorCode::kWriteConflict);
  CHECK(All(s, c, b.View()) == Values{{1, 1}});
  // Its locks stay with it until it has ended.
  other.reset();
  Txn later(s);
  CHECK(Write(later.unit, *c, 1, 4).has_value());
}

TEST_CASE("what a transaction's snapshot has is no conflict, though its lock was released later",
          "[transaction_unit]") {
  CatalogStore s;
  s.storage->impl().logged = true;
  const CollectionInfoPtr c = s.Make();
  REQUIRE(s.Insert(*c, R"({"_id": 1, "v": 1})"));
  Txn open(s);  // so that changes are noted
  LogApplier applier(*s.storage);
  Operation op(s.clock);
  std::vector<WriteUnit> units;
  units.emplace_back(*s.storage, op).OwnDocuments();
  REQUIRE(Write(units[0], *c, 1, 2).has_value());
  std::string entry, unit;
  BeginLogEntry(1, 1, entry);
  EncodeLogUnit(units[0], unit);
  SetUnitTime(unit.data(), uint64_t{1} << 32, 1000);
  entry += unit;
  const LogApplier::Entry applied{.data = entry, .units = units, .term = 1};
  auto batch = s.storage->kv().NewBatch();
  REQUIRE(applier.Prepare({&applied, 1}, *batch).has_value());
  std::optional<Txn> before(std::in_place, s);
  REQUIRE(s.storage->kv().Write(*batch, false).has_value());
  // Others write before the transaction begins, and more before the lock is free.
  auto others = s.storage->kv().NewBatch();
  others->Put(Keyspace::kOplog, "other", "1");
  REQUIRE(s.storage->kv().Write(*others, false).has_value());
  Txn behind(s);
  REQUIRE(s.storage->kv().Write(*others, false).has_value());
  applier.Applied({&applied, 1});
  CHECK(All(s, c, behind.View()) == Values{{1, 2}});
  CHECK(CodeOf(Write(before->unit, *c, 1, 3)) == ErrorCode::kWriteConflict);
  before.reset();  // with the lock
  CHECK(CodeOf(Write(behind.unit, *c, 1, 3)) == ErrorCode::kOk);
}

TEST_CASE("a unique key that was freed since a transaction began is a conflict",
          "[transaction_unit]") {
  CatalogStore s;
  s.storage->impl().logged = GENERATE(false, true);
  const CollectionInfoPtr c = WithUnique(s);
  Txn t(s);
  {
    Operation op(s.clock);
    WriteUnit plain(*s.storage, op);
    plain.OwnDocuments();
    REQUIRE(Write(plain, *c, 1, 0).has_value());
    REQUIRE(s.storage->committer().Commit(std::move(plain)).has_value());
  }
  const BsonDocument doc = Json(R"({"_id": 2, "u": 7})");
  CHECK(CodeOf(t.unit.Insert(*c, doc)) == ErrorCode::kWriteConflict);
}

TEST_CASE("a definition that changed since a transaction began is not written by",
          "[transaction_unit]") {
  CatalogStore s;
  const CollectionInfoPtr c = s.Make();
  Txn t(s);
  std::vector<IndexInfo> specs;
  specs.push_back(Spec(R"({"key": {"a": 1}})"));
  REQUIRE(s.catalog().CreateIndexes(*s.op, *c, std::move(specs)).has_value());
  CHECK(CodeOf(Write(t.unit, *s.Coll(), 1, 1)) == ErrorCode::kSnapshotUnavailable);
  // A collection that came later is one the transaction has made, or it does not know it.
  const CollectionInfoPtr made = s.Make("later");
  CHECK(CodeOf(Write(t.unit, *made, 1, 1)) == ErrorCode::kSnapshotUnavailable);
  AdoptCollection(t.unit, made);
  CHECK(Write(t.unit, *made, 1, 1).has_value());
  CHECK(All(s, made, t.View()) == Values{{1, 1}});
  CHECK(All(s, made, ReadView()).empty());
}

TEST_CASE("a plain writer is told that a transaction has the lock", "[transaction_unit]") {
  CatalogStore s;
  const CollectionInfoPtr c = s.Make();
  std::optional<Txn> t(std::in_place, s);
  REQUIRE(Write(t->unit, *c, 1, 1).has_value());
  bool met = false;
  auto plain = [&] {
    Operation op(s.clock);
    WriteUnit unit(*s.storage, op);
    unit.OwnDocuments();
    met = false;
    LeaveToTransactions(unit, &met);
    Result<void> r = Write(unit, *c, 1, 9);
    return r ? s.storage->committer().Commit(std::move(unit)) : r;
  };
  CHECK(CodeOf(plain()) == ErrorCode::kWriteConflict);
  CHECK(met);
  t.reset();
  CHECK(plain().has_value());
  CHECK_FALSE(met);
  CHECK(All(s, c, ReadView()) == Values{{1, 9}});
}

TEST_CASE("a commit fails when what it changes has passed its deadline for others",
          "[transaction_unit]") {
  CatalogStore s;
  const CollectionInfoPtr c = s.Make();
  REQUIRE(s.Insert(*c, R"({"_id": 1, "v": 1})", Instant{s.clock.Now().millis + 3'600'000}));
  Txn t(s), in_time(s);
  REQUIRE(Write(t.unit, *c, 1, 2).has_value());
  s.clock.Advance(2 * 3'600'000);
  CHECK(CodeOf(CommitOf(s, t)) == ErrorCode::kWriteConflict);
  CHECK(CommitOf(s, in_time).has_value());
}

TEST_CASE("a commit's time in the log decides what is hidden until it is visible",
          "[transaction_unit]") {
  CatalogStore s;
  s.clock.Freeze(true);
  s.storage->impl().logged = true;
  const CollectionInfoPtr c = s.Make();
  const Instant deadline{s.clock.Now().millis + 10'000};
  for (const char* doc :
       {R"({"_id": 1, "v": 1})", R"({"_id": 2, "v": 1})", R"({"_id": 3, "v": 1})"})
    REQUIRE(s.Insert(*c, doc, deadline));
  const auto clock = [&] { return s.clock.Now().millis; };
  const auto visible = [&] {
    Operation op(s.clock);
    return Visibility(*s.storage, *c, op.now).CountVisible(op).value();
  };
  const auto shows = [&](int id, Instant expire_at) {
    const BsonDocument doc = BuildBson([&](BsonBuilder& b) { b.Append("_id", id).Append("v", 1); });
    return Visibility(*s.storage, *c, s.clock.Now()).Shows(doc.view(), expire_at);
  };
  std::optional<Txn> t(std::in_place, s);
  REQUIRE(Write(t->unit, *c, 1, 2).has_value());
  REQUIRE(Write(t->unit, *c, 2, 0).has_value());  // removed: it need not be kept
  {
    Operation op(s.clock);
    REQUIRE(PrepareTransactionCommit(*s.storage, t->unit, op).has_value());
  }
  SECTION("before the deadline: what it has written anew is shown, and nothing else") {
    s.clock.Advance(9'999);
    CHECK(SubmittedUnit(t->unit).FixTime(clock).value() == s.clock.Now().millis);
    s.clock.Advance(1);
    CHECK(visible() == 1);
    CHECK(shows(1, deadline));
    CHECK_FALSE(shows(1, Instant{deadline.millis - 1}));  // another version of it
    CHECK_FALSE(shows(2, deadline));
    CHECK_FALSE(shows(3, deadline));
    SECTION("it becomes visible: who still reads what was before is told the same") {
      REQUIRE(s.storage->committer().Commit(std::move(t->unit)).has_value());
      CHECK(visible() == 1);
      CHECK(shows(1, deadline));
    }
    SECTION("it never does") {
      SubmittedUnit(t->unit).GiveUp();
      t.reset();
      CHECK(visible() == 0);
      CHECK_FALSE(shows(1, deadline));
      CHECK_FALSE(s.storage->impl().kept.Any(s.clock.Now().millis));
    }
  }
  SECTION("at the deadline: it is refused, and hidden meanwhile") {
    s.clock.Advance(10'000);
    CHECK(visible() == 0);
    CHECK(SubmittedUnit(t->unit).FixTime(clock).error().code == ErrorCode::kWriteConflict);
    CHECK(visible() == 0);
  }
  SECTION("so late that nobody knows what else was due") {
    s.clock.Advance(3'600'000);
    CHECK(SubmittedUnit(t->unit).FixTime(clock).error().code == ErrorCode::kWriteConflict);
  }
}

TEST_CASE("a unique key that an open transaction frees is a conflict to others",
          "[transaction_unit]") {
  CatalogStore s;
  s.storage->impl().logged = GENERATE(false, true);
  const CollectionInfoPtr c = WithUnique(s);
  const BsonDocument doc = Json(R"({"_id": 2, "u": 7})");
  std::optional<Txn> t(std::in_place, s);
  REQUIRE(Write(t->unit, *c, 1, 0).has_value());
  {
    Txn other(s);
    CHECK(CodeOf(other.unit.Insert(*c, doc)) == ErrorCode::kWriteConflict);
  }
  bool met = false;
  {
    Operation op(s.clock);
    WriteUnit plain(*s.storage, op);
    LeaveToTransactions(plain, &met);
    CHECK(CodeOf(plain.Insert(*c, doc)) == ErrorCode::kWriteConflict);
    CHECK(met);
  }
  CHECK(t->unit.Insert(*c, doc).has_value());  // its own to give again
  t.reset();
  Txn later(s);
  CHECK(CodeOf(later.unit.Insert(*c, doc)) == ErrorCode::kDuplicateKey);
}

TEST_CASE("names that were claimed are nobody else's until the claim ends", "[transaction_unit]") {
  NameClaims names;
  NameClaims::ClaimPtr first = names.TryTake("db", "a");
  REQUIRE(first != nullptr);
  CHECK(names.TryTake("db", "a") == nullptr);
  NameClaims::ClaimPtr second = names.TryTake("db", "A");
  CHECK(second != nullptr);
  CHECK(names.TryTake("DB", "b") == nullptr);  // one of the two would differ by case alone
  CHECK(names.TryTake("other", "a") != nullptr);
  first.reset();
  CHECK(names.TryTake("DB", "b") == nullptr);
  CHECK(names.TryTake("db", "a") != nullptr);
  second.reset();
  CHECK(names.TryTake("DB", "b") != nullptr);
}

TEST_CASE("what a transaction makes counts, once, by its newest definition", "[transaction_unit]") {
  CatalogStore s;
  Txn t(s);
  const auto define = [&](uint32_t id, const std::string& name, size_t bytes) {
    auto coll = std::make_shared<CollectionInfo>();
    coll->id = id;
    coll->db = "db";
    coll->name = name;
    coll->ns = "db." + name;
    coll->options = BuildBson([&](BsonBuilder& b) { b.Append("x", std::string(bytes, 'x')); });
    return coll;
  };
  const size_t before = t.unit.MemoryBytes();
  AdoptCollection(t.unit, define(900, "a", 1 << 20));
  AdoptCollection(t.unit, define(901, "b", 10));
  CHECK(t.unit.MemoryBytes() - before >= 1 << 20);
  CHECK(TransactionEntryBytes(t.unit) >= 1 << 20);
  AdoptCollection(t.unit, define(900, "a", 10));
  CHECK(t.unit.MemoryBytes() - before < 100'000);
  CHECK(TransactionEntryBytes(t.unit) < 100'000);
  CHECK(t.catalog->OwnCount() == 2);
  CHECK(t.catalog->Find("db", "a").value() == t.catalog->FindOwn(900));
  CHECK(t.catalog->Find("db", "b").value() == t.catalog->FindOwn(901));
  CHECK(t.catalog->Find("db", "c").value() == nullptr);
  CHECK(CheckTransactionSize(t.unit));
  AdoptCollection(t.unit, define(902, "c", kMaxTransactionEntryBytes));
  CHECK(CheckTransactionSize(t.unit).error().code == ErrorCode::kTransactionTooLarge);
}

TEST_CASE("random transactions are isolated by their snapshots", "[transaction_unit][property]") {
  constexpr int kIds = 6, kTransactions = 4, kSteps = 4000;
  const auto seed = GENERATE(1u, 2u, 3u);
  CAPTURE(seed);
  std::mt19937 random(seed);
  auto dice = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  CatalogStore s;
  const bool remembers = GENERATE(false, true);
  s.storage->impl().logged = remembers;
  const CollectionInfoPtr c = s.Make();
  struct Open {
    std::unique_ptr<Txn> txn;
    Values before, now;
    std::set<int> locked;
    std::set<int> rewritten = {};  // by it: updated or removed, not only inserted
    std::set<int> touched = {};    // likewise, by others that have committed since it began
  };
  std::vector<Open> open(kTransactions);
  Values committed;
  int value = 0, conflicts = 0, commits = 0;
  auto value_of = [](const Values& v, int id) { return v.contains(id) ? v.at(id) : 0; };
  auto locked = [&](int id, const Open* mine) {
    for (const Open& o : open)
      if (&o != mine && o.txn && o.locked.contains(id)) return true;
    return false;
  };
  auto set = [](Values* v, int id, int to) {
    if (to == 0)
      v->erase(id);
    else
      (*v)[id] = to;
  };
  auto touch = [&](const std::set<int>& ids) {
    for (Open& o : open) o.touched.insert(ids.begin(), ids.end());
  };
  // What has changed since is a conflict, on a member of a set also when it is as it was by now.
  auto unchanged = [&](int id, const Open& o) {
    return value_of(committed, id) == value_of(o.before, id) &&
           !(remembers && o.touched.contains(id));
  };
  for (int step = 0; step < kSteps; ++step) {
    const int id = dice(kIds), next = dice(4) == 0 ? 0 : ++value;
    if (dice(10) == 0) {  // a plain write
      Operation op(s.clock);
      WriteUnit unit(*s.storage, op);
      unit.set_no_wait(true);
      unit.OwnDocuments();
      Result<void> r = Write(unit, *c, id, next);
      REQUIRE(r.has_value() == !locked(id, nullptr));
      if (!r) continue;
      REQUIRE(s.storage->committer().Commit(std::move(unit)).has_value());
      if (value_of(committed, id) != 0) touch({id});
      set(&committed, id, next);
      continue;
    }
    Open& o = open[static_cast<size_t>(dice(kTransactions))];
    if (!o.txn) {
      o = {std::make_unique<Txn>(s), committed, committed, {}};
      continue;
    }
    REQUIRE(All(s, c, o.txn->View()) == o.now);
    switch (dice(8)) {
      case 0:
        o = {};
        break;
      case 1: {
        // What it has not changed keeps what others have made of it.
        REQUIRE(CommitOf(s, *o.txn).has_value());
        for (int of : o.locked) set(&committed, of, value_of(o.now, of));
        touch(o.rewritten);
        o = {};
        ++commits;
        REQUIRE(All(s, c, ReadView()) == committed);
        break;
      }
      case 2: {  // a statement that is taken back, with its locks kept
        if (!o.locked.contains(id) && (locked(id, &o) || !unchanged(id, o))) break;
        const WriteUnit::Savepoint mark = o.txn->unit.Mark();
        REQUIRE(Write(o.txn->unit, *c, id, next).has_value());
        o.txn->unit.RollBackTo(mark);
        o.locked.insert(id);
        break;
      }
      default: {
        const bool mine = o.locked.contains(id);
        const bool possible = mine || (!locked(id, &o) && unchanged(id, o));
        Result<void> r = Write(o.txn->unit, *c, id, next);
        REQUIRE(r.has_value() == possible);
        if (r) {
          o.locked.insert(id);
          if (value_of(o.now, id) != 0) o.rewritten.insert(id);
          set(&o.now, id, next);
        } else {
          REQUIRE(r.error().code == ErrorCode::kWriteConflict);
          o = {};
          ++conflicts;
        }
      }
    }
  }
  CHECK(commits > 50);
  CHECK(conflicts > 50);
}

}  // namespace mayfly::testing
