#include "storage/kv/kv.h"

#include "storage/kv/write_room.h"

namespace mayfly {
namespace {

/// Bytes of its own.
struct OwnBytes {
  std::string bytes;
  void Release() { bytes.clear(); }
  void TakeOver(OwnBytes& o) {
    bytes = std::move(o.bytes);
    o.bytes.clear();
  }
  std::string_view View() const { return bytes; }
};

}  // namespace

void PinnedValue::Assign(std::string_view bytes) {
  OwnBytes& own = Holder<OwnBytes>();
  own.bytes.assign(bytes);
  view_ = own.bytes;
}

void PinnedValue::TakeOver(PinnedValue& o) {
  if (o.kind_ == nullptr) {
    Reset();
    return;
  }
  if (kind_ != o.kind_) {
    if (kind_ != nullptr) kind_->destroy(holder_);
    o.kind_->make(holder_);
    kind_ = o.kind_;
  }
  // Small values may live inside the holder, and have moved with it.
  const bool engaged = o.view_.data() != nullptr;
  const std::string_view moved = kind_->take_over(holder_, o.holder_);
  view_ = engaged ? moved : std::string_view();
  o.view_ = {};
}

bool KvIterator::Step(bool backward, std::string_view* key, std::string_view* value) {
  if (!Valid()) return false;  // the unit that is read from has ended since
  if (backward)
    Prev();
  else
    Next();
  if (!Valid()) return false;
  *key = this->key();
  *value = this->value();
  return true;
}

bool HasRoom(KvStore& kv) {
  auto* store = dynamic_cast<WriteRoom*>(&kv);
  return store == nullptr || store->HasRoom();
}

std::unique_ptr<KvBatch> NewLargeBatch(KvStore& kv, size_t bytes) {
  auto* store = dynamic_cast<WriteRoom*>(&kv);
  return store == nullptr ? kv.NewBatch() : store->NewLargeBatch(bytes);
}

}  // namespace mayfly
