#include "storage/kv/gap_iterator.h"

#include <cassert>

namespace mayfly {
namespace {

class GapIterator final : public KvIterator {
 public:
  GapIterator(KvStore& kv, Keyspace ks, KvIterOptions options, std::string begin, std::string end)
      : kv_(kv),
        ks_(ks),
        options_(std::move(options)),
        begin_(std::move(begin)),
        end_(std::move(end)) {
    assert(options_.snapshot);
  }
  void Seek(std::string_view key) override {
    if (key < begin_ && HasFront()) {
      at_ = Front();
      at_->Seek(key);
      GoOn();
    } else if ((at_ = Back())) {
      at_->Seek(key);
    }
  }
  void SeekForPrev(std::string_view key) override {
    if (key >= end_ && HasBack()) {
      at_ = Back();
      at_->SeekForPrev(key);
      GoBack();
    } else if ((at_ = Front())) {
      at_->SeekForPrev(key);
    }
  }
  void SeekToFirst() override {
    if (HasFront()) {
      at_ = Front();
      at_->SeekToFirst();
      GoOn();
    } else if ((at_ = Back())) {
      at_->SeekToFirst();
    }
  }
  void SeekToLast() override {
    if (HasBack()) {
      at_ = Back();
      at_->SeekToLast();
      GoBack();
    } else if ((at_ = Front())) {
      at_->SeekToLast();
    }
  }
  void Next() override {
    at_->Next();
    GoOn();
  }
  void Prev() override {
    at_->Prev();
    GoBack();
  }
  bool Valid() const override { return at_ != nullptr && at_->Valid(); }
  std::string_view key() const override { return at_->key(); }
  std::string_view value() const override { return at_->value(); }
  Result<void> status() const override {
    if (at_ != nullptr) return at_->status();
    return Ok();
  }

 private:
  bool HasFront() const { return options_.lower < begin_; }
  bool HasBack() const { return options_.upper.empty() || end_ < options_.upper; }
  KvIterator* Front() {
    if (!front_ && HasFront()) {
      KvIterOptions o = options_;
      o.upper = begin_;
      front_ = kv_.NewIterator(ks_, std::move(o));
    }
    return front_.get();
  }
  KvIterator* Back() {
    if (!back_ && HasBack()) {
      KvIterOptions o = options_;
      o.lower = end_;
      back_ = kv_.NewIterator(ks_, std::move(o));
    }
    return back_.get();
  }
  /// From the end of the front to the first key behind the gap.
  void GoOn() {
    if (at_->Valid() || at_ != front_.get() || !at_->status() || !HasBack()) return;
    at_ = Back();
    at_->SeekToFirst();
  }
  void GoBack() {
    if (at_->Valid() || at_ != back_.get() || !at_->status() || !HasFront()) return;
    at_ = Front();
    at_->SeekToLast();
  }

  KvStore& kv_;
  const Keyspace ks_;
  const KvIterOptions options_;
  const std::string begin_, end_;
  std::unique_ptr<KvIterator> front_, back_;
  KvIterator* at_ = nullptr;
};

}  // namespace

std::unique_ptr<KvIterator> NewGapIterator(KvStore& kv, Keyspace ks, KvIterOptions options,
                                           std::string gap_begin, std::string gap_end) {
  return std::make_unique<GapIterator>(kv, ks, std::move(options), std::move(gap_begin),
                                       std::move(gap_end));
}

}  // namespace mayfly
