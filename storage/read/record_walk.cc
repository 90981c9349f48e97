#include "storage/read/record_walk.h"

#include <algorithm>
#include <utility>

#include "storage/catalog/catalog_types.h"
#include "storage/keys/key_format.h"
#include "storage/kv/read_once.h"

namespace mayfly {

void RecordWalk::Begin(KvStore& kv, const CollectionInfo& coll, const ReadView& view,
                       std::string_view first, bool down, bool fill_cache) {
  KvIterOptions o;
  if (down) {
    o.lower = IdPrefix(coll.id);
    o.upper.assign(first).push_back('\0');
  } else {
    o.lower.assign(first);
    o.upper = IdPrefixEnd(coll.id);
    o.forward = true;
  }
  o.max_skipped = kMaxSkipped;
  o.fill_cache = fill_cache && !ReadOnce::On();
  it_ = view.NewIterator(kv, Keyspace::kRecords, std::move(o));
  down_ = down;
  began_ = on_found_ = false;
  steps_left_ = 2 * kSteps;
  found_ = 0;
}

RecordWalk::Verdict RecordWalk::Find(std::string_view key, std::string_view* record) {
  if (!began_) {
    began_ = true;
    if (down_)
      it_->SeekToLast();
    else
      it_->SeekToFirst();
  }
  steps_left_ = std::min<int64_t>(steps_left_ + kSteps, 8 * kSteps);
  while (it_->Valid() && Before(key)) {
    if (!std::exchange(on_found_, false))
      steps_left_ -= static_cast<int64_t>(it_->value().size() / kStepBytes);
    if (--steps_left_ < 0) {
      it_.reset();
      return Verdict::kFar;
    }
    if (down_)
      it_->Prev();
    else
      it_->Next();
  }
  if (!it_->Valid()) {
    if (it_->status()) return Verdict::kAbsent;
    it_.reset();
    return Verdict::kFar;
  }
  if (it_->key() != key) return Verdict::kAbsent;
  ++found_;
  on_found_ = true;
  *record = it_->value();
  return Verdict::kFound;
}

}  // namespace mayfly
