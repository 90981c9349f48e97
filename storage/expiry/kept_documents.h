#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace mayfly {

/// A document that a unit on its way into the log writes again.
struct KeptDocument {
  uint64_t hash;     ///< of its record's key: LockHash
  int64_t deadline;  ///< the one that is stored, from which on it is absent
  int64_t until;     ///< the one that the unit gives it; INT64_MAX: none for now
  /// `until` is so many milliseconds from the commit, and this at most; INT64_MIN: it is a time.
  int64_t latest;
};

/// Conditions of a unit's documents on its time in the log.
struct KeptUnit {
  int64_t prepared = 0;                 ///< when all of this was found
  int64_t earliest = INT64_MAX;         ///< the first deadline of the documents that it changes
  int64_t looked_to = INT64_MAX;        ///< deadlines behind this one were not looked for
  std::vector<KeptDocument> documents;  ///< by hash

  // KeptDocuments' own.
  bool decided = false;
  int64_t passed = 0;  ///< between `prepared` and its time
};

/// The documents of units whose time in the log is fixed and which are not visible yet. A document
/// that falls due between the two was rewritten before it was due, so it must not vanish for a
/// moment and come back (docs/expiry.md X5): reads show it as it was. A reader that hides a
/// document looks here after it reads the clock, and a unit is here before its time is read. So
/// either the reader finds it, or its time is past the deadline, and it is refused. Threads: any;
/// waits are short.
class KeptDocuments {
 public:
  /// Fixes the unit's time, as `clock` says: from here on its documents are kept. Nothing when one
  /// that it changes was due by then, or when that is not known any more.
  std::optional<int64_t> Decide(const std::shared_ptr<KeptUnit>& unit,
                                const std::function<int64_t()>& clock);
  /// The unit is `visible` by `now`, or never will be. Readers with an earlier view may still
  /// ask.
  void Release(const std::shared_ptr<KeptUnit>& unit, int64_t now, bool visible);
  /// Whether there may be any; forgets those that have been visible for long by `now`, a reading of
  /// the clock. Costs a load while there are none. For a count of many documents, once.
  bool Any(int64_t now) { return MayKeep() && AnyAfter(now); }
  /// Whether Keeps may say so of any document: a load alone, for each that a read would hide.
  bool MayKeep() const { return count_.load(std::memory_order_seq_cst) > 0; }
  /// Whether the document that has this deadline has been given a later one than `now`. `clock`: a
  /// reading of it, as for Any; forgets as that does.
  bool Keeps(uint64_t hash, int64_t deadline, int64_t now, int64_t clock);

 private:
  using UnitPtr = std::shared_ptr<KeptUnit>;
  struct One {
    KeptDocument document;
    const KeptUnit* unit;
  };
  /// One that is visible, and when that was.
  struct Gone {
    UnitPtr unit;
    int64_t at;
  };
  bool AnyAfter(int64_t now);
  void AddLocked(const UnitPtr& unit);
  void RemoveLocked(const UnitPtr& unit);
  /// Removes those that have been visible for long, and the oldest of too many.
  void ForgetLocked(int64_t now);

  std::mutex mutex_;
  std::unordered_multimap<uint64_t, One> few_;  ///< of units of few documents
  std::vector<UnitPtr> many_;                   ///< units of many, which come one at a time
  std::deque<Gone> gone_;
  size_t gone_documents_ = 0;
  std::atomic<int> count_{0};  ///< units
};

}  // namespace mayfly
