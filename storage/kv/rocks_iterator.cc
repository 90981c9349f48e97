#include "storage/kv/rocks_iterator.h"

#include <utility>

#include "storage/kv/rocks_status.h"
#include "storage/kv/rocks_tuning.h"

namespace mayfly {
namespace {

class RocksIterator final : public KvIterator {
 public:
  /// `group`: how the keys of this family group; null: they do not.
  RocksIterator(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* cf, KvIterOptions options,
                KvGroupSize group)
      : options_(std::move(options)),
        lower_(S(options_.lower)),
        upper_(S(options_.upper)),
        db_(db),
        cf_(cf),
        one_group_(options_.forward && StaysInGroup(group, options_.lower, options_.upper)) {
    DisablePerfCounters();
    Open();
  }
  void Seek(std::string_view key) override { it_->Seek(S(key)); }
  void SeekForPrev(std::string_view key) override {
    LeaveGroup();
    it_->SeekForPrev(S(key));
  }
  void SeekToFirst() override { it_->SeekToFirst(); }
  void SeekToLast() override {
    LeaveGroup();
    it_->SeekToLast();
  }
  void Next() override { it_->Next(); }
  void Prev() override { it_->Prev(); }
  bool Valid() const override { return it_->Valid(); }
  std::string_view key() const override { return V(it_->key()); }
  std::string_view value() const override { return V(it_->value()); }
  bool Step(bool backward, std::string_view* key, std::string_view* value) override {
    if (backward)
      it_->Prev();
    else
      it_->Next();
    if (!it_->Valid()) return false;
    *key = V(it_->key());
    *value = V(it_->value());
    return true;
  }
  Result<void> status() const override {
    rocksdb::Status s = it_->status();
    if (!s.ok()) return FromStorage(s);
    return Ok();
  }

 private:
  void Open() {
    rocksdb::ReadOptions ro;
    ro.snapshot = RawSnapshot(options_.snapshot.get());
    if (!options_.lower.empty()) ro.iterate_lower_bound = &lower_;
    if (!options_.upper.empty()) ro.iterate_upper_bound = &upper_;
    ro.fill_cache = options_.fill_cache;
    ro.readahead_size = options_.readahead;
    ro.max_skippable_internal_keys = options_.max_skipped;
    // Otherwise RocksDB would use the filters of groups for every seek, and walks that leave a
    // group would miss entries.
    ro.total_order_seek = !one_group_;
    it_.reset(db_->NewIterator(ro, cf_));
  }
  /// The filters are checked for the sought key, and backward that key is in another group.
  void LeaveGroup() {
    if (!std::exchange(one_group_, false)) return;
    Open();
  }
  KvIterOptions options_;  // owns the bounds and the snapshot
  rocksdb::Slice lower_, upper_;
  rocksdb::DB* const db_;
  rocksdb::ColumnFamilyHandle* const cf_;
  bool one_group_;  ///< it keeps to one group, and goes up
  std::unique_ptr<rocksdb::Iterator> it_;
};

}  // namespace

std::unique_ptr<KvIterator> MakeRocksIterator(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* cf,
                                              KvIterOptions options, KvGroupSize group) {
  return std::make_unique<RocksIterator>(db, cf, std::move(options), group);
}

}  // namespace mayfly
