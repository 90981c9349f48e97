// What storage/kv/kv.h promises, for every store there is: RocksDB's, and the one in memory that
// other tests use in its place. A store that passes is one that everything above can run on.
#include <map>
#include <random>
#include <thread>

#include "../test_ciphers.h"
#include "catalog_fixture.h"
#include "storage/kv/batch_number.h"
#include "storage/kv/encrypted_engine.h"
#include "storage/kv/memory_kv.h"
#include "storage/kv/rocks_kv.h"

namespace mayfly {
using testing::ScratchDir;

namespace {

struct Engine {
  const char* name;
  KvEnginePtr engine;
};
std::vector<Engine> Engines() {
  return {{"RocksDB", MakeRocksEngine()},
          {"RocksDB, encrypted", MakeRocksEngine(nullptr, testing::MakeCiphers())},
          {"memory", MakeMemoryEngine()}};
}

/// One store after the other in the same directory, as processes come and go.
struct Store {
  explicit Store(Engine e) : engine(std::move(e)) { Open(); }
  void Open() {
    kv.reset();
    auto opened = engine.engine->Open({.path = dir.path(), .cache_bytes = 16 << 20, .log = {}});
    if (!opened) FAIL(opened.error().message);
    kv = std::move(opened.value());
  }
  void Put(std::string_view key, std::string_view value, Keyspace ks = Keyspace::kRecords) {
    auto b = kv->NewBatch();
    b->Put(ks, key, value);
    REQUIRE(kv->Write(*b, false));
  }
  std::string Get(std::string_view key, const KvSnapshot* at = nullptr,
                  Keyspace ks = Keyspace::kRecords) {
    PinnedValue v;
    auto found = kv->Get(ks, key, &v, at);
    REQUIRE(found);
    CHECK((v.view().data() != nullptr) == found.value());
    return found.value() ? std::string(v.view()) : "-";
  }
  std::string Keys(KvIterOptions o, bool backward = false, Keyspace ks = Keyspace::kRecords) {
    auto it = kv->NewIterator(ks, std::move(o));
    std::string seen;
    for (backward ? it->SeekToLast() : it->SeekToFirst(); it->Valid();
         backward ? it->Prev() : it->Next())
      seen.append(it->key()).append(" ");
    REQUIRE(it->status());
    // A step is a move and what is there.
    std::string stepped;
    std::string_view key, value;
    backward ? it->SeekToLast() : it->SeekToFirst();
    for (bool there = it->Valid(); there;) {
      stepped.append(it->key()).append(" ");
      there = it->Step(backward, &key, &value);
      REQUIRE(there == it->Valid());
      if (there) CHECK((key == it->key() && value == it->value()));
    }
    REQUIRE(it->status());
    CHECK(stepped == seen);
    return seen;
  }
  ScratchDir dir;
  Engine engine;
  std::unique_ptr<KvStore> kv;
};

}  // namespace

TEST_CASE("Every store keeps keyspaces apart, and snapshots as they were", "[kv][contract]") {
  Store s(GENERATE(from_range(Engines())));
  CAPTURE(s.engine.name);
  s.Put("a", "1");
  s.Put("a", "index", Keyspace::kIndexes);
  KvSnapshotPtr before = s.kv->Snapshot();
  s.Put("a", "2");
  s.Put("empty", "");
  CHECK(s.Get("a") == "2");
  CHECK(s.Get("a", before.get()) == "1");
  CHECK(s.Get("a", nullptr, Keyspace::kIndexes) == "index");
  CHECK(s.Get("b") == "-");
  CHECK(s.Get("empty").empty());
  CHECK(s.Get("empty", before.get()) == "-");

  const std::vector<std::string_view> keys = {"a", "b", "empty"};
  std::vector<PinnedValue> values(3);
  REQUIRE(s.kv->MultiGet(Keyspace::kRecords, keys, values));
  CHECK(values[0].view() == "2");
  CHECK(values[1].view().data() == nullptr);
  CHECK(values[2].view().data() != nullptr);
  REQUIRE(s.kv->MultiGet(Keyspace::kRecords, keys, values, before.get()));
  CHECK(values[0].view() == "1");
  CHECK(values[2].view().data() == nullptr);

  KvIterOptions o;
  o.snapshot = before;
  CHECK(s.Keys(std::move(o)) == "a ");
}

TEST_CASE("Every store's sequence goes up with each batch, and snapshots have theirs",
          "[kv][contract]") {
  Store s(GENERATE(from_range(Engines())));
  CAPTURE(s.engine.name);
  uint64_t last = s.kv->LatestSequence();
  for (int i = 0; i < 5; ++i) {
    KvSnapshotPtr before = s.kv->Snapshot();
    CHECK(before->sequence() == last);
    s.Put("k", std::to_string(i));
    CHECK(s.kv->LatestSequence() > last);
    last = s.kv->LatestSequence();
    CHECK(before->sequence() < last);
  }
}

TEST_CASE("Every store's batch knows its number, whoever else writes", "[kv][contract]") {
  Store s(GENERATE(from_range(Engines())));
  CAPTURE(s.engine.name);
  auto batch = s.kv->NewBatch();
  CHECK(NumberOf(*batch) == 0);
  batch->Put(Keyspace::kRecords, "a", "1");
  batch->Put(Keyspace::kIndexes, "b", "1");
  REQUIRE(s.kv->Write(*batch, false));
  const uint64_t number = s.kv->LatestSequence();
  CHECK(NumberOf(*batch) == number);
  s.Put("c", "1");
  CHECK(NumberOf(*batch) == number);
  batch->Clear();
  CHECK(NumberOf(*batch) == 0);

  // Many at once: each has numbers of its own.
  constexpr int kThreads = 4, kBatches = 200;
  const uint64_t before = s.kv->LatestSequence();
  std::vector<std::vector<uint64_t>> of_threads(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      auto own = s.kv->NewBatch();
      for (int i = 0; i < kBatches; ++i) {
        own->Clear();
        for (int n = 0; n <= t; ++n)
          own->Put(Keyspace::kRecords, std::to_string(t) + "/" + std::to_string(i * 10 + n), "v");
        if (!s.kv->Write(*own, false)) return;
        of_threads[static_cast<size_t>(t)].push_back(NumberOf(*own));
      }
    });
  for (std::thread& t : threads) t.join();
  std::map<uint64_t, uint64_t> firsts;  // first of a batch, its last
  for (size_t t = 0; t < of_threads.size(); ++t) {
    REQUIRE(of_threads[t].size() == kBatches);
    for (uint64_t last : of_threads[t]) firsts[last - t] = last;
  }
  uint64_t next = before + 1;
  for (const auto& [first, last] : firsts) {
    REQUIRE(first == next);
    next = last + 1;
  }
  CHECK(next == s.kv->LatestSequence() + 1);
}

TEST_CASE("Every store's iterators keep to their bounds, both ways", "[kv][contract]") {
  Store s(GENERATE(from_range(Engines())));
  CAPTURE(s.engine.name);
  for (const char* k : {"a", "b", "c", "d", "e"}) s.Put(k, k);
  auto bounded = [](const char* lower, const char* upper) {
    KvIterOptions o;
    o.lower = lower;
    o.upper = upper;
    return o;
  };
  CHECK(s.Keys(bounded("", "")) == "a b c d e ");
  CHECK(s.Keys(bounded("b", "d")) == "b c ");
  CHECK(s.Keys(bounded("b", "d"), true) == "c b ");
  CHECK(s.Keys(bounded("bb", "")) == "c d e ");
  CHECK(s.Keys(bounded("", "b"), true) == "a ");
  CHECK(s.Keys(bounded("c", "c")).empty());
  CHECK(s.Keys(bounded("x", "z")).empty());

  auto it = s.kv->NewIterator(Keyspace::kRecords, bounded("b", "e"));
  struct Move {
    const char *to, *next, *previous;  // what Seek and SeekForPrev come to
  };
  for (const Move& m : {Move{"a", "b", ""},
                        {"b", "b", "b"},
                        {"bb", "c", "b"},
                        {"d", "d", "d"},
                        {"dd", "", "d"},
                        {"e", "", "d"},
                        {"z", "", "d"}}) {
    CAPTURE(m.to);
    it->Seek(m.to);
    CHECK((it->Valid() ? std::string(it->key()) : "") == m.next);
    it->SeekForPrev(m.to);
    CHECK((it->Valid() ? std::string(it->key()) : "") == m.previous);
  }
  // It turns where it is.
  it->Seek("c");
  it->Next();
  REQUIRE(it->Valid());
  it->Prev();
  REQUIRE(it->Valid());
  CHECK(it->key() == "c");
  // What is written later is not in it.
  s.Put("cc", "late");
  it->Next();
  REQUIRE(it->Valid());
  CHECK(it->key() == "d");
}

TEST_CASE("Every store applies a batch as a whole and in order", "[kv][contract]") {
  Store s(GENERATE(from_range(Engines())));
  CAPTURE(s.engine.name);
  for (const char* k : {"a", "b", "c", "d"}) s.Put(k, k);
  auto b = s.kv->NewBatch();
  CHECK(b->Count() == 0);
  b->Put(Keyspace::kRecords, "b", "new");
  b->DeleteRange(Keyspace::kRecords, "b", "d");
  b->Put(Keyspace::kRecords, "c", "he", "ad");  // after the range: it stays
  b->Delete(Keyspace::kRecords, "a");
  b->Put(Keyspace::kExpiry, "a", "other");
  CHECK(b->Count() == 5);
  CHECK(b->SizeBytes() > 0);
  CHECK(s.Get("b") == "b");
  REQUIRE(s.kv->Write(*b, false));
  CHECK(s.Keys({}) == "c d ");
  CHECK(s.Get("c") == "head");
  CHECK(s.Get("a", nullptr, Keyspace::kExpiry) == "other");
  b->Clear();
  CHECK(b->Count() == 0);
  b->DeleteRange(Keyspace::kRecords, "z", "a");  // nothing is in there
  b->DeleteRange(Keyspace::kRecords, "c", "c");
  CHECK(b->Count() == 0);
  REQUIRE(s.kv->Write(*b, true));
  CHECK(s.Keys({}) == "c d ");
}

TEST_CASE("Every store has after closing what it had before", "[kv][contract]") {
  Store s(GENERATE(from_range(Engines())));
  CAPTURE(s.engine.name);
  s.Put("k", "1");
  REQUIRE(s.kv->SyncWal());
  s.Put("l", std::string(100'000, 'x'), Keyspace::kOplog);
  auto second = s.engine.engine->Open({.path = s.dir.path(), .cache_bytes = 0, .log = {}});
  REQUIRE(!second);
  CHECK(second.error().code == ErrorCode::kLockBusy);
  s.Open();
  CHECK(s.Get("k") == "1");
  CHECK(s.Get("l", nullptr, Keyspace::kOplog).size() == 100'000);
  REQUIRE(s.kv->WritesPossible());
  REQUIRE(s.kv->Flush());
  CHECK(s.kv->ApproximateBytes(Keyspace::kOplog, "a", "z") > 0);
}

TEST_CASE("Values move with their bytes, whichever store they are from", "[kv][contract]") {
  Store s(GENERATE(from_range(Engines()))), other(Engines()[s.engine.name[0] == 'R' ? 1 : 0]);
  const bool flushed = GENERATE(false, true);  // copied out of memory, or pinned in a cache
  CAPTURE(s.engine.name, flushed);
  s.Put("k", "short");
  s.Put("l", std::string(1000, 'x'));
  other.Put("k", "foreign");
  if (flushed) REQUIRE(s.kv->Flush());
  PinnedValue a, b;
  REQUIRE(s.kv->Get(Keyspace::kRecords, "k", &a).value());
  b = std::move(a);
  CHECK(b.view() == "short");
  CHECK(a.view().empty());
  PinnedValue c(std::move(b));
  CHECK(c.view() == "short");
  REQUIRE(s.kv->Get(Keyspace::kRecords, "l", &c).value());
  PinnedValue d(std::move(c));
  CHECK(d.view() == std::string(1000, 'x'));
  // The same one again, for bytes of its own and for another store's.
  d.Assign("own");
  CHECK(d.view() == "own");
  REQUIRE(other.kv->Get(Keyspace::kRecords, "k", &d).value());
  CHECK(d.view() == "foreign");
  REQUIRE(s.kv->Get(Keyspace::kRecords, "l", &a).value());
  a = std::move(d);
  CHECK(a.view() == "foreign");
  a = PinnedValue();
  CHECK(a.view().data() == nullptr);
  CHECK(!s.kv->Get(Keyspace::kRecords, "none", &a).value());
  CHECK(a.view().data() == nullptr);
}

TEST_CASE("Random changes read the same from every store", "[kv][contract]") {
  std::vector<std::unique_ptr<Store>> stores;
  for (Engine& e : Engines()) stores.push_back(std::make_unique<Store>(std::move(e)));
  const uint32_t seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  auto key = [&] { return std::string(1, static_cast<char>('a' + random() % 26)); };
  std::vector<std::vector<KvSnapshotPtr>> snapshots(stores.size());
  for (int round = 0; round < 300; ++round) {
    std::vector<MemoryKv::Op> ops;
    for (uint32_t n = 1 + random() % 4; n > 0; --n) {
      const auto kind = static_cast<MemoryKv::Op::Kind>(random() % 3);
      ops.push_back({kind, Keyspace::kRecords, key(),
                     kind == MemoryKv::Op::kRange ? key() : std::to_string(random())});
    }
    const bool keep = random() % 40 == 0;
    for (size_t i = 0; i < stores.size(); ++i) {
      if (keep) snapshots[i].push_back(stores[i]->kv->Snapshot());
      auto b = stores[i]->kv->NewBatch();
      for (const MemoryKv::Op& op : ops) {
        if (op.kind == MemoryKv::Op::kPut) b->Put(op.ks, op.key, op.value);
        if (op.kind == MemoryKv::Op::kDelete) b->Delete(op.ks, op.key);
        if (op.kind == MemoryKv::Op::kRange) b->DeleteRange(op.ks, op.key, op.value);
      }
      REQUIRE(stores[i]->kv->Write(*b, random() % 8 == 0));
    }
    const size_t at = random() % (snapshots[0].size() + 1);
    const std::string lower = key(), upper = key();
    const bool backward = random() % 2 == 0;
    std::vector<std::string> seen;
    for (size_t i = 0; i < stores.size(); ++i) {
      KvIterOptions o;
      if (at < snapshots[i].size()) o.snapshot = snapshots[i][at];
      o.lower = lower;
      o.upper = upper;
      seen.push_back(stores[i]->Keys(std::move(o), backward));
    }
    CAPTURE(round, lower, upper, backward);
    REQUIRE(seen[0] == seen[1]);
  }
}

TEST_CASE("What is not synced goes with the power, in memory", "[kv]") {
  MemoryKv kv;
  auto write = [&](const char* key, bool sync) {
    auto b = kv.NewBatch();
    b->Put(Keyspace::kOplog, key, "v");
    REQUIRE(kv.Write(*b, sync));
  };
  write("a", true);
  write("b", false);
  write("c", false);
  CHECK(kv.unsynced() == 2);
  kv.LosePower(1);
  CHECK(kv.map(Keyspace::kOplog)->size() == 2);
  CHECK(kv.map(Keyspace::kOplog)->contains("b"));
  write("d", false);
  kv.LosePower(0);
  CHECK(kv.map(Keyspace::kOplog)->size() == 2);
}

TEST_CASE("Storage runs on a store in memory, and finds its collections again", "[kv][contract]") {
  ScratchDir dir;
  SystemClock clock;
  StorageOptions o;
  o.engine = MakeMemoryEngine();
  o.path = dir.path();
  o.clock = &clock;
  o.compile_filter = testing::CompileEqualFilter;
  auto open = [&] {
    auto opened = Storage::Open(o);
    if (!opened) FAIL(opened.error().message);
    return std::move(opened.value());
  };
  auto insert = [&](Storage& storage, int id) {
    Operation op(clock);
    CollectionInfoPtr coll = storage.catalog().GetOrCreate(op, "db", "c").value();
    const BsonDocument doc =
        BuildBson([&](BsonBuilder& b) { b.Append("_id", id).Append("a", id % 3); });
    WriteUnit unit(storage, op);
    REQUIRE(unit.Insert(*coll, doc));
    REQUIRE(storage.committer().Commit(std::move(unit)));
  };
  {
    auto storage = open();
    Operation op(clock);
    for (int i = 0; i < 30; ++i) insert(*storage, i);
    IndexInfo index;
    index.name = "a_1";
    index.key = BuildBson([](BsonBuilder& b) { b.Append("a", 1); });
    index.fields = ParseIndexKey(index.key).value();
    REQUIRE(storage->catalog().CreateIndexes(op, *storage->catalog().Find("db", "c"), {index}));
    insert(*storage, 30);
  }
  auto storage = open();
  CollectionInfoPtr coll = storage->catalog().Find("db", "c");
  REQUIRE(coll);
  CHECK(Storage::DocumentCount(*coll) == 31);
  REQUIRE(coll->indexes.size() == 1);
  auto cursor = storage->ScanIndex(coll, coll->indexes[0], {});
  int entries = 0;
  while (cursor->Next().value()) ++entries;
  CHECK(entries == 31);
  std::string text;
  BsonBuilder reply(text);
  Operation op(clock);
  REQUIRE(storage->Validate(op, coll, true, reply));
  reply.Done();
  CHECK(BsonView(text)["valid"].Bool());
  // No kind of store: said, not guessed.
  o.engine = nullptr;
  CHECK_FALSE(Storage::Open(o));
}

}  // namespace mayfly
