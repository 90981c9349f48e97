// Look-ups by an indexed value leave out files by the filters of groups (KvOptions::index_group):
// they find what a walk without filters finds, whatever is in memory, in how many files, and
// whoever wrote these.
#include <map>
#include <random>
#include <thread>

#include "protocol/value.h"
#include "storage/keys/key_format.h"
#include "storage/kv/rocks_kv.h"
#include "storage/kv/store_activity.h"
#include "storage_fixture.h"

namespace mayfly {
using testing::ScratchDir;

namespace {

constexpr Keyspace kSpace = Keyspace::kIndexes;
using GroupModel = std::map<std::string, std::string>;

std::unique_ptr<KvStore> OpenGrouped(const std::string& path, KvGroupSize group) {
  KvOptions o;
  o.path = path;
  o.cache_bytes = 16 << 20;
  o.index_group = group;
  auto kv = MakeRocksEngine()->Open(o);
  if (!kv) FAIL(kv.error().message);
  return std::move(kv.value());
}

/// Entries of four indexes, of which two descend: few values, several records of each.
class GroupEntries {
 public:
  explicit GroupEntries(uint32_t seed) : random_(seed) {}
  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  /// The part that all entries of one value of one index have in common.
  std::string Front() {
    const int index = 1 + Pick(4);
    std::string key = IdPrefix(static_cast<uint32_t>(index));
    EncodeKeyValue(AnyValue().view(), index % 2 == 0, key);
    return key;
  }
  std::string Key() {
    std::string key = Front();
    EncodeKeyValue(Value::Int64(Pick(6)).view(), false, key);
    return key;
  }

 private:
  Value AnyValue() {
    static constexpr const char* kTexts[] = {"", "a", "ab", "b", "\xFF", "\xFF\xFF"};
    switch (Pick(6)) {
      case 0:
        return Value::String(kTexts[Pick(6)]);
      case 1:
        return Value::Null();
      case 2:
        return Value::Date({Pick(5) - 2});
      case 3:
        return Value::Double(Pick(9) * 0.25);
      default:
        return Value::Int64(Pick(2) ? Pick(300) : -Pick(300));
    }
  }
  std::mt19937 random_;
};

/// The first key behind all that begin so.
std::string Behind(std::string front) {
  while (!front.empty() && front.back() == '\xFF') front.pop_back();
  if (!front.empty()) front.back() = static_cast<char>(front.back() + 1);
  return front;
}

std::string Expected(const GroupModel& model, const KvIterOptions& o, bool backward) {
  std::vector<std::string> keys;
  for (auto it = model.lower_bound(o.lower);
       it != model.end() && (o.upper.empty() || it->first < o.upper); ++it)
    keys.push_back(it->first + "=" + it->second);
  if (backward) std::reverse(keys.begin(), keys.end());
  std::string all;
  for (const std::string& k : keys) all.append(k).push_back(';');
  return all;
}
std::string Walk(KvIterator& it, bool backward) {
  std::string all;
  for (backward ? it.SeekToLast() : it.SeekToFirst(); it.Valid(); backward ? it.Prev() : it.Next())
    all.append(it.key()).append("=").append(it.value()).push_back(';');
  REQUIRE(it.status());
  return all;
}

void ChangeAtRandom(KvStore& kv, GroupEntries& entries, GroupModel& model) {
  auto b = kv.NewBatch();
  for (int i = entries.Pick(20); i >= 0; --i) {
    const int kind = entries.Pick(100);
    if (kind < 65) {
      const std::string key = entries.Key(), value = std::to_string(entries.Pick(1000));
      b->Put(kSpace, key, value);
      model[key] = value;
    } else if (kind < 98) {
      auto it = model.lower_bound(entries.Key());
      if (it == model.end()) continue;
      b->Delete(kSpace, it->first);
      model.erase(it);
    } else {
      const std::string begin = entries.Front(), end = Behind(begin);
      b->DeleteRange(kSpace, begin, end);
      model.erase(model.lower_bound(begin), model.lower_bound(end));
    }
  }
  REQUIRE(kv.Write(*b, false));
}

/// The bounds of a look-up by value, or of a walk over several values.
KvIterOptions AnyBounds(GroupEntries& entries) {
  KvIterOptions o;
  o.forward = entries.Pick(5) != 0;
  o.lower = entries.Pick(4) == 0 ? entries.Key() : entries.Front();
  switch (entries.Pick(4)) {
    case 0:
      o.upper = std::max(o.lower, entries.Front());
      break;
    case 1:
      o.upper = IdPrefixEnd(KeyId(o.lower));
      break;
    default:
      o.upper = Behind(o.lower);
  }
  return o;
}

void CompareWalks(KvStore& kv, GroupEntries& entries, const GroupModel& model) {
  KvIterOptions o = AnyBounds(entries);
  CAPTURE(o.lower, o.upper, o.forward);
  auto it = kv.NewIterator(kSpace, o);
  REQUIRE(Walk(*it, false) == Expected(model, o, false));
  // Also what it was not told of, and from any place.
  if (entries.Pick(2) == 0) REQUIRE(Walk(*it, true) == Expected(model, o, true));
  const std::string from = entries.Pick(2) == 0 ? o.lower + "\x20" : entries.Key();
  it->Seek(from);
  auto want = model.lower_bound(std::max(from, o.lower));
  const bool there = want != model.end() && want->first < o.upper;
  REQUIRE(it->Valid() == there);
  if (there) REQUIRE(it->key() == want->first);
}

}  // namespace

TEST_CASE("Look-ups by value find through filters what walks without them find", "[kv][group]") {
  const auto seed = GENERATE(range(1U, 9U));
  CAPTURE(seed);
  ScratchDir dir;
  // Half of the runs begin with files of a store that knew no groups.
  auto kv = OpenGrouped(dir.path(), seed % 2 == 0 ? nullptr : IndexGroupSize);
  GroupEntries entries(seed);
  GroupModel model;
  for (int round = 0; round < 400; ++round) {
    ChangeAtRandom(*kv, entries, model);
    for (int i = 0; i < 8; ++i) CompareWalks(*kv, entries, model);
    if (entries.Pick(20) == 0) REQUIRE(kv->Flush(kSpace));
    if (entries.Pick(150) == 0) REQUIRE(kv->Compact(kSpace, {}, {}));
    if (round % 100 == 50) {  // the next one reads what the one before has written
      kv.reset();
      kv = OpenGrouped(dir.path(), round == 250 ? nullptr : IndexGroupSize);
    }
  }
}

TEST_CASE("A look-up by value at a snapshot sees what was there then", "[kv][group]") {
  ScratchDir dir;
  auto kv = OpenGrouped(dir.path(), IndexGroupSize);
  GroupEntries entries(77);
  GroupModel model;
  for (int round = 0; round < 40; ++round) {
    ChangeAtRandom(*kv, entries, model);
    const GroupModel then = model;
    KvSnapshotPtr snapshot = kv->Snapshot();
    ChangeAtRandom(*kv, entries, model);
    if (round % 5 == 0) REQUIRE(kv->Flush(kSpace));
    for (int i = 0; i < 20; ++i) {
      KvIterOptions o = AnyBounds(entries);
      o.snapshot = snapshot;
      CAPTURE(o.lower, o.upper, o.forward);
      auto it = kv->NewIterator(kSpace, o);
      REQUIRE(Walk(*it, false) == Expected(then, o, false));
      REQUIRE(Walk(*it, true) == Expected(then, o, true));
    }
  }
}

TEST_CASE("A store says what it is made of, and what its filters and writes come to",
          "[kv][group]") {
  ScratchDir dir;
  auto kv = OpenGrouped(dir.path(), IndexGroupSize);
  StoreActivity* activity = ActivityOf(*kv);
  REQUIRE(activity != nullptr);
  const KvCounters before = activity->Counters();
  auto key = [](int64_t value, int64_t record) {
    std::string k = IdPrefix(1);
    EncodeKeyValue(Value::Int64(value).view(), false, k);
    EncodeKeyValue(Value::Int64(record).view(), false, k);
    return k;
  };
  // Three files, whose ranges overlap and whose values do not.
  for (int64_t file = 0; file < 3; ++file) {
    auto b = kv->NewBatch();
    for (int64_t i = 0; i < 500; ++i) b->Put(kSpace, key(i * 3 + file, i), "");
    REQUIRE(kv->Write(*b, false));
    REQUIRE(kv->Flush(kSpace));
  }
  CHECK(activity->Shape(kSpace).files[0] == 3);
  CHECK(activity->Shape(kSpace).memtables == 1);
  CHECK(activity->Shape(kSpace).sorted_runs() == 4);
  CHECK(activity->Shape(Keyspace::kRecords).sorted_runs() == 1);

  for (int64_t value = 300; value < 400; ++value) {
    KvIterOptions o;
    o.forward = true;
    o.lower = IdPrefix(1);
    EncodeKeyValue(Value::Int64(value).view(), false, o.lower);
    o.upper = Behind(o.lower);
    auto it = kv->NewIterator(kSpace, o);
    it->SeekToFirst();
    REQUIRE(it->Valid());
    it->Next();
    CHECK(!it->Valid());
  }
  KvCounters now = activity->Counters();
  CHECK(now.group_filters_asked - before.group_filters_asked == 300);
  // One file of three has the value; of the others a filter passes one in a hundred by mistake.
  CHECK(now.group_filters_useful - before.group_filters_useful > 180);
  CHECK(now.group_filters_useful - before.group_filters_useful <= 200);
  CHECK(now.data_hits + now.data_misses > before.data_hits + before.data_misses);
  CHECK(now.written_bytes > before.written_bytes);
  CHECK(now.flushed_bytes > before.flushed_bytes);
  CHECK(now.log_bytes > before.log_bytes);

  // Walks over several values ask no filter.
  KvIterOptions wide;
  wide.forward = true;
  wide.lower = IdPrefix(1);
  wide.upper = IdPrefixEnd(1);
  auto it = kv->NewIterator(kSpace, wide);
  it->SeekToFirst();
  CHECK(it->Valid());
  CHECK(activity->Counters().group_filters_asked == now.group_filters_asked);

  REQUIRE(kv->Compact(kSpace, {}, {}));
  CHECK(activity->Shape(kSpace).sorted_runs() == 2);
  now = activity->Counters();
  CHECK(now.compaction_written_bytes > before.compaction_written_bytes);
  CHECK(now.compaction_read_bytes > before.compaction_read_bytes);
  CHECK(now.WriteAmplification() > 1);
}

TEST_CASE("What threads that have ended have counted is not lost", "[kv][group]") {
  ScratchDir dir;
  auto kv = OpenGrouped(dir.path(), nullptr);
  const uint64_t before = ActivityOf(*kv)->Counters().written_bytes;
  for (int i = 0; i < 4; ++i)
    std::thread([&] {
      auto b = kv->NewBatch();
      b->Put(Keyspace::kRecords, "key", std::string(100'000, 'x'));
      REQUIRE(kv->Write(*b, false));
    }).join();
  CHECK(ActivityOf(*kv)->Counters().written_bytes - before >= 400'000);
}

}  // namespace mayfly
