#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "storage/core/open_storage.h"
#include "storage/read/read_view.h"

namespace mayfly {

/// Finds records whose keys come in order and lie next to each other in the store, as those of an
/// index do whose values grow with `_id`: a step of an iterator costs a fraction of a look-up.
/// Keys that lie apart end the walk; they are for look-ups. Reusable; not thread-safe.
class RecordWalk {
 public:
  /// What is known of a key.
  enum class Verdict : uint8_t {
    kFound,
    kAbsent,
    kFar,  ///< nothing: the walk is over, since records lie too far apart or could not be read
  };
  /// Begins at `first`, a full key in Keyspace::kRecords, which is the first that is asked for.
  /// `down`: the keys that follow are lower. REQUIRES: the view has a snapshot, so that keys read
  /// before are those of its records.
  void Begin(KvStore& kv, const CollectionInfo& coll, const ReadView& view, std::string_view first,
             bool down, bool fill_cache);
  /// REQUIRES: walking(), and that `key` is behind all that were asked for. The record's bytes are
  /// valid until the next call. Does not fail: whoever looks the key up meets the error.
  Verdict Find(std::string_view key, std::string_view* record);
  bool walking() const { return it_ != nullptr; }
  void End() { it_.reset(); }
  /// How many records the last walk has found.
  int64_t found() const { return found_; }

 private:
  /// Records between two that are asked for, on average: more cost more than look-ups.
  static constexpr int64_t kSteps = 3;
  /// A record that nobody asked for is read too: of so many bytes it counts as another step.
  static constexpr size_t kStepBytes = 4096;
  /// Deleted entries that one step may pass.
  static constexpr size_t kMaxSkipped = 64;
  bool Before(std::string_view key) const { return down_ ? it_->key() > key : it_->key() < key; }

  std::unique_ptr<KvIterator> it_;
  bool down_ = false, began_ = false;
  bool on_found_ = false;  ///< it_ is on the record that was found last
  int64_t steps_left_ = 0, found_ = 0;
};

}  // namespace mayfly
