// Places in memtables that are looked for from where the entry before went (ManyInOrder,
// KeyStreams), with threads: whoever leads a group of writers writes for all of them, single
// entries, large batches in order and range deletes, which RocksDB keeps in a list of their own.
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "storage/kv/rocks_kv.h"
#include "storage_fixture.h"

using namespace mayfly;
using mayfly::testing::ScratchDir;

namespace {

constexpr int kWriters = 4, kSteps = 1500;
constexpr std::array kSpaces = {Keyspace::kRecords, Keyspace::kIndexes, Keyspace::kExpiry,
                                Keyspace::kOplog};
using HintModel = std::array<std::map<std::string, std::string>, kKeyspaceCount>;

std::unique_ptr<KvStore> Opened(const std::string& path) {
  KvOptions o;
  o.path = path;
  o.cache_bytes = 16 << 20;
  auto kv = OpenRocksKv(o);
  if (!kv) throw std::runtime_error(kv.error().message);
  return std::move(kv.value());
}

void Need(bool ok, const char* what) {  // Catch2's assertions are for one thread
  if (!ok) throw std::runtime_error(what);
}

/// A writer with collections and indexes of its own, and what they must have in the end.
class Writer {
 public:
  Writer(KvStore& kv, int number)
      : kv_(kv), number_(number), random_(static_cast<uint32_t>(number)), batch_(kv.NewBatch()) {}

  void Run(std::atomic<bool>& failed) {
    for (step_ = 0; step_ < kSteps && !failed; ++step_) {
      batch_->Clear();
      switch (random_() % 8) {
        case 0:
          Many();
          break;
        case 1:
          RangeDelete();
          if (random_() % 2 == 0) Many();  // a large batch with a range delete in it
          break;
        case 2:
          Drop();
          break;
        default:
          Few();
      }
      // The witnesses: a reader sees all of a batch or nothing of it.
      const std::string now = std::to_string(step_);
      for (Keyspace ks : kSpaces) Put(ks, Prefix(0), now);
      Put(Keyspace::kCatalog, Counter(), now);
      Need(kv_.Write(*batch_, random_() % 64 == 0).has_value(), "a batch was not written");
    }
  }

  std::string Prefix(int stream) const {
    return {0, 0, static_cast<char>(number_), static_cast<char>(stream)};
  }
  std::string Counter() const { return "counters/" + std::to_string(number_); }
  const HintModel& model() const { return model_; }

 private:
  static std::string Number(uint32_t n) {
    std::string k;
    for (int shift = 24; shift >= 0; shift -= 8) k.push_back(static_cast<char>(n >> shift));
    return k;
  }
  int Stream() { return 1 + static_cast<int>(random_() % 3); }
  Keyspace Space() { return kSpaces[random_() % kSpaces.size()]; }
  void Put(Keyspace ks, const std::string& key, const std::string& value) {
    batch_->Put(ks, key, value);
    model_[static_cast<size_t>(ks)][key] = value;
  }
  void Delete(Keyspace ks, const std::string& key) {
    batch_->Delete(ks, key);
    model_[static_cast<size_t>(ks)].erase(key);
  }
  void DeleteRange(Keyspace ks, const std::string& begin, const std::string& end) {
    batch_->DeleteRange(ks, begin, end);
    auto& in = model_[static_cast<size_t>(ks)];
    if (begin < end) in.erase(in.lower_bound(begin), in.lower_bound(end));
  }
  /// An insert: keys that grow in most streams, in the last one they are in no order.
  void Few() {
    for (Keyspace ks : kSpaces) {
      const int stream = Stream();
      const std::string key = Prefix(stream) + Number(stream == 3 ? random_() : next_++);
      if (random_() % 6 == 0)
        Delete(ks, key);
      else
        Put(ks, key, std::to_string(step_));
    }
  }
  void Many() {
    const Keyspace ks = Space();
    const std::string prefix = Prefix(Stream());
    const uint32_t from = random_() % 2 == 0 ? next_ : random_() % (next_ + 1);
    const uint32_t n = 300 + random_() % 700;
    for (uint32_t i = 0; i < n; ++i) Put(ks, prefix + Number(from + 2 * i), "many");
    next_ = std::max(next_, from + 2 * n);
  }
  void RangeDelete() {
    for (Keyspace ks : kSpaces) {
      const uint32_t from = random_() % (next_ + 1);
      const std::string prefix = Prefix(Stream());
      DeleteRange(ks, prefix + Number(from), prefix + Number(from + random_() % 300));
    }
  }
  void Drop() {
    const std::string begin = Prefix(Stream());
    std::string end = begin;
    ++end.back();
    for (Keyspace ks : kSpaces) DeleteRange(ks, begin, end);
  }

  KvStore& kv_;
  const int number_;
  std::mt19937 random_;
  std::unique_ptr<KvBatch> batch_;
  HintModel model_;
  int step_ = 0;
  uint32_t next_ = 1;
};

/// Memtables become files beside the writers, and everything comes in order of key.
void FlushAndRead(KvStore& kv, const std::vector<std::unique_ptr<Writer>>& writers,
                  std::atomic<bool>& over) {
  std::mt19937 random(99);
  while (!over) {
    const KvSnapshotPtr at = kv.Snapshot();
    for (const auto& w : writers) {
      PinnedValue first, other;
      const bool begun = kv.Get(Keyspace::kCatalog, w->Counter(), &first, at.get()).value();
      for (Keyspace ks : kSpaces) {
        Need(kv.Get(ks, w->Prefix(0), &other, at.get()).value() == begun, "half of a batch");
        Need(other.view() == first.view(), "part of a batch is older than the rest");
      }
    }
    const Keyspace ks = kSpaces[random() % kSpaces.size()];
    KvIterOptions o;
    o.snapshot = at;
    auto it = kv.NewIterator(ks, o);
    std::string last;
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      Need(last.empty() || last < it->key(), "keys are not in order");
      last = it->key();
    }
    Need(it->status().has_value(), "an iterator failed");
    if (random() % 4 == 0) Need(kv.Flush(ks).has_value(), "a flush failed");
  }
}

void CheckAll(KvStore& kv, const std::vector<std::unique_ptr<Writer>>& writers) {
  for (int i = 0; i < kKeyspaceCount; ++i) {
    HintModel::value_type expected;
    for (const auto& w : writers) expected.insert(w->model()[i].begin(), w->model()[i].end());
    HintModel::value_type found;
    auto it = kv.NewIterator(static_cast<Keyspace>(i), {});
    for (it->SeekToFirst(); it->Valid(); it->Next())
      found.emplace(std::string(it->key()), std::string(it->value()));
    REQUIRE(it->status());
    INFO("keyspace " << i);
    REQUIRE(found.size() == expected.size());
    CHECK(found == expected);
  }
}

}  // namespace

TEST_CASE("Hints beside range deletes, flushes and large batches of other threads", "[kv]") {
  ScratchDir dir;
  auto kv = Opened(dir.path());
  std::vector<std::unique_ptr<Writer>> writers;
  for (int i = 0; i < kWriters; ++i) writers.push_back(std::make_unique<Writer>(*kv, i + 1));
  std::atomic<bool> over = false, failed = false;
  std::mutex mutex;
  std::string why;
  auto guarded = [&](auto body) {
    return std::thread([&, body] {
      try {
        body();
      } catch (const std::exception& e) {
        std::lock_guard l(mutex);
        why = e.what();
        failed = true;
      }
    });
  };
  std::vector<std::thread> threads;
  for (auto& w : writers) threads.push_back(guarded([&] { w->Run(failed); }));
  std::thread reader = guarded([&] { FlushAndRead(*kv, writers, over); });
  for (auto& t : threads) t.join();
  over = true;
  reader.join();
  INFO(why);
  REQUIRE_FALSE(failed);
  CheckAll(*kv, writers);
  kv.reset();
  kv = Opened(dir.path());  // what is not in files comes out of the log
  CheckAll(*kv, writers);
}
