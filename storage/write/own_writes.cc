#include "storage/write/own_writes.h"

#include "storage/read/read_view.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {

ReadView ReadView::With(WriteUnit& unit) const {
  ReadView v = *this;
  v.own_ = unit.own_writes();
  v.own_until_ = unit.impl().sequence;
  return v;
}

void OwnWrites::TakeUp(size_t ks) {
  if (unit_ == nullptr) return;
  Space& s = spaces_[ks];
  const std::vector<StagedOp>& ops = unit_->ops[ks];
  for (size_t i = s.previous.size(); i < ops.size(); ++i) {
    uint32_t before = 0;
    if (ops[i].kind != StagedOp::kDeleteRange)
      before = std::exchange(s.keys[ops[i].key()], static_cast<uint32_t>(i) + 1);
    s.previous.push_back(before);
  }
}

const OwnWrites::Keys& OwnWrites::KeysOf(Keyspace ks) {
  TakeUp(static_cast<size_t>(ks));
  return spaces_[static_cast<size_t>(ks)].keys;
}

bool OwnWrites::Covered(Keyspace ks, std::string_view key, uint32_t until) const {
  if (unit_ == nullptr) return false;
  for (const StagedOp& r : unit_->ranges)
    if (r.head_size == static_cast<uint8_t>(ks) && r.sequence <= until && r.key() <= key &&
        key < r.tail())
      return true;
  return false;
}

OwnWrites::State OwnWrites::Version(Keyspace ks, Keys::const_iterator entry, uint32_t until,
                                    std::string_view* head, std::string_view* tail) const {
  if (unit_ == nullptr) return State::kUnknown;
  const Space& s = spaces_[static_cast<size_t>(ks)];
  const std::vector<StagedOp>& ops = unit_->ops[static_cast<size_t>(ks)];
  uint32_t at = entry->second;
  while (at != 0 && ops[at - 1].sequence > until) at = s.previous[at - 1];
  const uint32_t sequence = at == 0 ? 0 : ops[at - 1].sequence;
  for (const StagedOp& r : unit_->ranges)
    if (r.head_size == static_cast<uint8_t>(ks) && r.sequence <= until && r.sequence > sequence &&
        r.key() <= entry->first && entry->first < r.tail())
      return State::kAbsent;
  if (at == 0) return State::kUnknown;
  if (ops[at - 1].kind == StagedOp::kDelete) return State::kAbsent;
  *head = ops[at - 1].head();
  *tail = ops[at - 1].tail();
  return State::kPresent;
}

OwnWrites::State OwnWrites::Find(Keyspace ks, std::string_view key, uint32_t until,
                                 std::string_view* head, std::string_view* tail) {
  const Keys& keys = KeysOf(ks);
  auto it = keys.find(key);
  if (it == keys.end()) return Covered(ks, key, until) ? State::kAbsent : State::kUnknown;
  return Version(ks, it, until, head, tail);
}

void OwnWrites::Truncate(const std::array<uint32_t, kKeyspaceCount>& sizes) {
  for (size_t ks = 0; ks < kKeyspaceCount; ++ks) {
    Space& s = spaces_[ks];
    const std::vector<StagedOp>& ops = unit_->ops[ks];
    // From the end, so that each key returns to the version before the removed one.
    while (s.previous.size() > sizes[ks]) {
      const StagedOp& o = ops[s.previous.size() - 1];
      if (o.kind != StagedOp::kDeleteRange) {
        auto it = s.keys.find(o.key());
        if (s.previous.back() == 0)
          s.keys.erase(it);
        else
          it->second = s.previous.back();
      }
      s.previous.pop_back();
    }
  }
}

size_t OwnWrites::MemoryBytes() const {
  constexpr size_t kNode = sizeof(Keys::value_type) + 4 * sizeof(void*);
  size_t bytes = 0;
  for (const Space& s : spaces_)
    bytes += s.keys.size() * kNode + s.previous.capacity() * sizeof(uint32_t);
  return bytes;
}

void OwnWrites::Close() {
  unit_ = nullptr;
  for (Space& s : spaces_) {
    s.keys.clear();
    s.previous.clear();
  }
}

namespace {

class OwnWritesIterator final : public KvIterator {
 public:
  OwnWritesIterator(std::unique_ptr<KvIterator> base, std::shared_ptr<OwnWrites> own,
                    uint32_t until, Keyspace ks, std::string_view lower, std::string_view upper)
      : base_(std::move(base)),
        own_(std::move(own)),
        until_(until),
        ks_(ks),
        lower_(lower),
        upper_(upper) {}

  void Seek(std::string_view key) override {
    base_->Seek(key);
    it_ = Keys().lower_bound(std::max<std::string_view>(key, lower_));
    forward_ = true;
    Settle();
  }
  void SeekForPrev(std::string_view key) override {
    base_->SeekForPrev(key);
    const OwnWrites::Keys& keys = Keys();
    it_ = !upper_.empty() && upper_ <= key ? keys.lower_bound(upper_) : keys.upper_bound(key);
    own_valid_ = StepBack();
    forward_ = false;
    Settle();
  }
  void SeekToFirst() override {
    base_->SeekToFirst();
    it_ = Keys().lower_bound(lower_);
    forward_ = true;
    Settle();
  }
  void SeekToLast() override {
    base_->SeekToLast();
    const OwnWrites::Keys& keys = Keys();
    it_ = upper_.empty() ? keys.end() : keys.lower_bound(upper_);
    own_valid_ = StepBack();
    forward_ = false;
    Settle();
  }
  void Next() override {
    if (!forward_) {
      Turn();
      return;
    }
    Leave();
    Settle();
  }
  void Prev() override {
    if (forward_) {
      Turn();
      return;
    }
    Leave();
    Settle();
  }
  bool Valid() const override { return at_ != At::kNone && !own_->closed(); }
  std::string_view key() const override { return at_ == At::kOwn ? it_->first : base_->key(); }
  std::string_view value() const override {
    if (at_ != At::kOwn) return base_->value();
    if (head_.empty()) return tail_;
    if (whole_.empty()) whole_.append(head_).append(tail_);
    return whole_;
  }
  Result<void> status() const override {
    if (own_->closed()) return OwnWrites::ClosedError();
    return base_->status();
  }

 private:
  enum class At : uint8_t { kNone, kBase, kOwn };
  const OwnWrites::Keys& Keys() { return *(keys_ = &own_->KeysOf(ks_)); }
  bool StepBack() {
    if (it_ == keys_->begin()) return false;
    return (--it_)->first >= lower_;
  }
  bool OwnValid() const {
    if (own_->closed()) return false;
    if (!forward_) return own_valid_;
    return it_ != keys_->end() && (upper_.empty() || it_->first < upper_);
  }
  void StepOwn() {
    if (forward_)
      ++it_;
    else
      own_valid_ = StepBack();
  }
  void StepBase() {
    if (forward_)
      base_->Next();
    else
      base_->Prev();
  }
  /// Away from the current key, on both sides.
  void Leave() {
    if (at_ == At::kBase) {
      StepBase();
    } else if (at_ == At::kOwn) {
      if (base_->Valid() && base_->key() == it_->first) StepBase();
      StepOwn();
    }
  }
  /// The other direction: once more to the current key, and on from there.
  void Turn() {
    const std::string here(key());
    if (forward_) {
      SeekForPrev(here);
      if (Valid() && key() == here) Prev();
    } else {
      Seek(here);
      if (Valid() && key() == here) Next();
    }
  }
  /// On to the nearest key that is there.
  void Settle() {
    whole_.clear();
    for (;;) {
      const bool own = OwnValid(), base = base_->Valid();
      if (!own && !base) {
        at_ = At::kNone;
        return;
      }
      int order = !base ? -1 : !own ? 1 : it_->first.compare(base_->key());
      if (base && own && !forward_) order = -order;
      if (order > 0) {  // the store's comes first, or is alone
        if (!own_->Covered(ks_, base_->key(), until_)) {
          at_ = At::kBase;
          return;
        }
        StepBase();
        continue;
      }
      switch (own_->Version(ks_, it_, until_, &head_, &tail_)) {
        case OwnWrites::State::kPresent:
          at_ = At::kOwn;
          return;
        case OwnWrites::State::kAbsent:
          if (order == 0 && base) StepBase();
          StepOwn();
          continue;
        case OwnWrites::State::kUnknown:  // changed later than what is seen
          StepOwn();
          if (order == 0 && base) {
            at_ = At::kBase;
            return;
          }
          continue;
      }
    }
  }

  std::unique_ptr<KvIterator> base_;
  std::shared_ptr<OwnWrites> own_;
  const uint32_t until_;
  const Keyspace ks_;
  const std::string lower_, upper_;
  const OwnWrites::Keys* keys_ = nullptr;
  OwnWrites::Keys::const_iterator it_;
  bool forward_ = true;
  bool own_valid_ = false;  ///< backward: it_ is an entry of the range
  At at_ = At::kNone;
  std::string_view head_, tail_;
  mutable std::string whole_;
};

}  // namespace

std::unique_ptr<KvIterator> OwnWrites::Over(std::unique_ptr<KvIterator> base, uint32_t until,
                                            Keyspace ks, std::string_view lower,
                                            std::string_view upper) {
  return std::make_unique<OwnWritesIterator>(std::move(base), shared_from_this(), until, ks, lower,
                                             upper);
}

uint64_t OwnWrites::Multikey(const IndexInfo& index) const {
  uint64_t bits = 0;
  if (unit_ != nullptr)
    for (const auto& m : unit_->multikey)
      if (m.index->id == index.id) bits |= m.bits;
  return bits;
}

int64_t OwnWrites::Documents(const CollectionInfo& coll) const {
  if (unit_ != nullptr)
    for (const TouchedCollection& t : unit_->collections)
      if (t.id == coll.id) return t.documents;
  return 0;
}

bool OwnWrites::Deadlines(const CollectionInfo& coll) const {
  if (unit_ != nullptr)
    for (const auto& n : unit_->expiry_notes)
      if (n.state == coll.document_expiry.get()) return true;
  return false;
}

}  // namespace mayfly
