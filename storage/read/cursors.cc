#include "storage/core/storage_impl.h"
#include "storage/keys/key_format.h"
#include "storage/kv/gap_iterator.h"
#include "storage/read/record_source.h"

namespace mayfly {
namespace {

/// An iterator over one range in one direction that can be given up and taken up again behind the
/// last key.
class RangeWalker {
 public:
  /// `head`: what the reaper has emptied of the range, if it is one; must outlive the walker.
  RangeWalker(Storage::Impl& storage, Keyspace ks, ReadView view, KvIterOptions options,
              bool backward, const ExpiryHead* head)
      : storage_(storage),
        ks_(ks),
        view_(std::move(view)),
        options_(std::move(options)),
        backward_(backward),
        head_(head) {
    options_.forward = !backward;
  }

  /// Moves to the next entry; false at the end.
  Result<bool> Next() {
    if (there_) [[likely]] {
      there_ = it_->Step(backward_, &key_, &value_);
      if (there_) return true;
      MAYFLY_TRY(it_->status());
      return false;
    }
    if (!it_) {
      it_ = Open();
      if (!seek_.empty()) {
        Seek();
      } else if (!last_.empty()) {
        Position(last_);
        if (it_->Valid() && it_->key() == last_) it_->Step(backward_, &key_, &value_);
      } else if (backward_) {
        it_->SeekToLast();
      } else {
        it_->SeekToFirst();
      }
    } else if (!seek_.empty()) {
      Seek();
    }
    there_ = it_->Valid();
    if (there_) {
      key_ = it_->key();
      value_ = it_->value();
      return true;
    }
    MAYFLY_TRY(it_->status());
    return false;
  }
  /// The next Next() returns the first key at or behind this one; backward, the last one below it.
  void SeekTo(std::string key) {
    seek_ = std::move(key);
    there_ = false;
  }
  void Reposition(ReadView view) {
    if (it_ && it_->Valid() && seek_.empty()) last_.assign(it_->key());
    it_.reset();
    there_ = false;
    view_ = std::move(view);
    options_.max_skipped = 0;
  }
  // Of the entry that Next() has come to.
  std::string_view key() const { return key_; }
  std::string_view value() const { return value_; }
  bool backward() const { return backward_; }

  /// Remembers where the walk is when it has come to its end: what is written behind it later is
  /// found by Reposition.
  void Remember(std::string_view key) { last_.assign(key); }

 private:
  std::unique_ptr<KvIterator> Open() {
    std::shared_ptr<const ExpiryHead::Stretch> gap;
    if (head_ != nullptr) gap = head_->Read();
    if (!gap || !Overlaps(*gap)) [[likely]]
      return view_.NewIterator(*storage_.kv, ks_, options_);
    // The snapshot first: what it shows and the head does not know of is in what is read now.
    KvIterOptions o = options_;
    o.snapshot = view_.snapshot();
    if (!o.snapshot) o.snapshot = storage_.kv->Snapshot();
    gap = head_->Read();
    if (!gap || !Overlaps(*gap) || gap->sequence > o.snapshot->sequence() ||
        gap->epoch != storage_.expiry_epoch.load(std::memory_order_acquire))
      return view_.NewIterator(*storage_.kv, ks_, options_);
    return view_.Merge(NewGapIterator(*storage_.kv, ks_, std::move(o), gap->begin, gap->end), ks_,
                       options_.lower, options_.upper);
  }
  bool Overlaps(const ExpiryHead::Stretch& gap) const {
    return options_.lower < gap.end && (options_.upper.empty() || gap.begin < options_.upper) &&
           gap.begin < gap.end;
  }
  void Position(const std::string& key) {
    if (backward_)
      it_->SeekForPrev(key);
    else
      it_->Seek(key);
  }
  void Seek() {
    Position(seek_);
    if (backward_ && it_->Valid() && it_->key() == seek_) it_->Prev();
    seek_.clear();
  }
  Storage::Impl& storage_;
  Keyspace ks_;
  ReadView view_;
  KvIterOptions options_;
  bool backward_;
  const ExpiryHead* head_;
  std::unique_ptr<KvIterator> it_;
  bool there_ = false;  ///< it_ was on an entry after its last move, and goes on from there
  std::string_view key_, value_;
  std::string seek_, last_;
};

class RecordCursorImpl final : public RecordCursor {
 public:
  RecordCursorImpl(Storage::Impl& storage, CollectionInfoPtr coll, RecordScan scan)
      : coll_(std::move(coll)),
        walker_(storage, Keyspace::kRecords, std::move(scan.view), Options(*coll_, scan),
                scan.backward, coll_->clustered() ? &coll_->expiry->head : nullptr) {}

  Result<bool> Next() override {
    MAYFLY_TRY(bool more, walker_.Next());
    if (!more) {
      if (valid_) walker_.Remember(last_key_);
      valid_ = false;
      return false;
    }
    valid_ = true;
    // A capped collection's tail is followed from its last record, which the iterator has forgotten
    // at the end.
    if (coll_->capped()) last_key_.assign(walker_.key());
    BsonView doc;
    std::optional<Instant> expire_at;
    if (!DecodeRecord(walker_.value(), &doc, &expire_at)) return DamagedRecord(*coll_);
    Show(walker_.key(), doc, expire_at);
    return true;
  }
  void Reposition(ReadView view) override { walker_.Reposition(std::move(view)); }

 private:
  static KvIterOptions Options(const CollectionInfo& coll, RecordScan& scan) {
    KvIterOptions o;
    o.lower = scan.lower.empty() ? IdPrefix(coll.id) : std::move(scan.lower);
    o.upper = scan.upper.empty() ? IdPrefixEnd(coll.id) : std::move(scan.upper);
    o.fill_cache = scan.fill_cache;
    o.max_skipped = scan.max_skipped;
    return o;
  }
  CollectionInfoPtr coll_;
  RangeWalker walker_;
  std::string last_key_;
  bool valid_ = false;
};

class IndexCursorImpl final : public IndexCursor {
 public:
  IndexCursorImpl(Storage::Impl& storage, CollectionInfoPtr coll, IndexInfoPtr index,
                  IndexScan scan)
      : coll_(std::move(coll)),
        index_(std::move(index)),
        walker_(storage, index_->keyspace, std::move(scan.view), Options(*index_, scan),
                scan.backward, index_->expire_after_seconds ? &index_->expiry->head : nullptr) {
    AppendBe32(record_key_, coll_->id);
  }

  Result<bool> Next() override {
    MAYFLY_TRY(bool more, walker_.Next());
    if (!more) return false;
    std::string_view rest = walker_.key().substr(kIdPrefixSize);
    std::string_view record_id;
    if (index_->unique) {
      values_ = rest;
      if (!DecodeUniqueIndexValue(walker_.value(), &record_id, &type_bits_)) return Damaged();
    } else {
      size_t n = 0;
      for (const IndexField& f : index_->fields) {
        const size_t length = StoredValueLength(rest, n, f.descending);
        if (length == 0) return Damaged();
        n += length;
      }
      values_ = rest.substr(0, n);
      record_id = rest.substr(n);
      type_bits_ = walker_.value();
    }
    if (record_id.empty()) return Damaged();
    record_key_.resize(kIdPrefixSize);
    record_key_.append(record_id);
    return true;
  }
  void SeekTo(std::string_view encoded_values) override {
    std::string key = IdPrefix(index_->id);
    key.append(encoded_values);
    walker_.SeekTo(std::move(key));
  }
  std::string_view encoded_values() const override { return values_; }
  std::string_view type_bits() const override { return type_bits_; }
  std::string_view record_key() const override { return record_key_; }
  void Reposition(ReadView view) override { walker_.Reposition(std::move(view)); }

 private:
  static KvIterOptions Options(const IndexInfo& index, IndexScan& scan) {
    KvIterOptions o;
    o.lower = IdPrefix(index.id) + scan.lower;
    o.upper = scan.upper.empty() ? IdPrefixEnd(index.id) : IdPrefix(index.id) + scan.upper;
    o.fill_cache = scan.fill_cache;
    o.max_skipped = scan.max_skipped;
    return o;
  }
  Error Damaged() const { return DamagedEntry(*coll_, *index_); }
  CollectionInfoPtr coll_;
  IndexInfoPtr index_;
  RangeWalker walker_;
  std::string_view values_, type_bits_;
  std::string record_key_;
};

}  // namespace

std::unique_ptr<RecordCursor> Storage::ScanRecords(CollectionInfoPtr coll, RecordScan scan) {
  if (coll->source) return coll->source->Scan(std::move(scan));
  return std::make_unique<RecordCursorImpl>(*impl_, std::move(coll), std::move(scan));
}

std::unique_ptr<IndexCursor> Storage::ScanIndex(CollectionInfoPtr coll, IndexInfoPtr index,
                                                IndexScan scan) {
  return std::make_unique<IndexCursorImpl>(*impl_, std::move(coll), std::move(index),
                                           std::move(scan));
}

}  // namespace mayfly
