#pragma once
#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "storage/kv/kv.h"
#include "storage/write/write_unit.h"

namespace mayfly {

/// A write unit's staged changes in key order, each with the versions before it, so that statements
/// of the unit can read what earlier ones have changed. Takes up what was staged since when it is
/// asked, which costs the logarithm of their number each. Made by WriteUnit::own_writes.
/// Threads: one at a time, the unit's. Closed when its unit is committed or destroyed.
class OwnWrites {
 public:
  explicit OwnWrites(WriteUnit::Impl& unit) : unit_(&unit) {}

  enum class State : uint8_t { kUnknown, kAbsent, kPresent };  ///< kUnknown: ask the store
  /// The newest version of the key that is numbered at most `until`. The value is *head and *tail
  /// together; they live as long as the unit.
  State Find(Keyspace ks, std::string_view key, uint32_t until, std::string_view* head,
             std::string_view* tail);
  /// Whether a range that was removed (numbered at most `until`) covers the key, which the unit has
  /// not changed by itself.
  bool Covered(Keyspace ks, std::string_view key, uint32_t until) const;

  /// Keys in order with the position of the newest change of each in the unit's list, plus one.
  using Keys = std::map<std::string_view, uint32_t>;
  const Keys& KeysOf(Keyspace ks);
  /// As Find, for an entry of KeysOf.
  State Version(Keyspace ks, Keys::const_iterator entry, uint32_t until, std::string_view* head,
                std::string_view* tail) const;

  bool closed() const { return unit_ == nullptr; }
  static Error ClosedError();
  WriteUnit::Impl* unit() { return unit_; }
  /// Forgets what was staged behind these sizes. By the unit, before it forgets.
  void Truncate(const std::array<uint32_t, kKeyspaceCount>& sizes);
  void Close();
  size_t MemoryBytes() const;

 private:
  void TakeUp(size_t ks);
  struct Space {
    Keys keys;
    /// For each staged change: the one of the same key before it, plus one; 0: none. What is not in
    /// `keys` (ranges) has 0.
    std::vector<uint32_t> previous;
  };
  WriteUnit::Impl* unit_;
  std::array<Space, kKeyspaceCount> spaces_;
};

/// `base` with the own writes over it, in key order, in both directions. `lower`, `upper`: as in
/// KvIterOptions; those of `base`.
std::unique_ptr<KvIterator> NewOwnWritesIterator(std::unique_ptr<KvIterator> base,
                                                 std::shared_ptr<OwnWrites> own, uint32_t until,
                                                 Keyspace ks, std::string_view lower,
                                                 std::string_view upper);

}  // namespace mayfly
