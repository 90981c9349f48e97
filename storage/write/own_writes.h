#pragma once
#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "storage/kv/kv.h"
#include "storage/read/overlay.h"
#include "storage/write/write_unit.h"

namespace mayfly {

/// A write unit's staged changes in key order, each with the versions before it, so that statements
/// of the unit can read what earlier ones have changed. The versions are needed because a view
/// shows the unit as it was when the view was made: a statement that scans must not meet what it
/// writes.
/// Adds newly staged changes only when it is read, at logarithmic cost each, so a unit whose writes
/// nobody reads pays nothing. Made by WriteUnit::own_writes. Threads: one at a time, the unit's.
/// Closed when its unit is committed or destroyed.
class OwnWrites final : public Overlay, public std::enable_shared_from_this<OwnWrites> {
 public:
  explicit OwnWrites(WriteUnit::Impl& unit) : unit_(&unit) {}

  State Find(Keyspace ks, std::string_view key, uint32_t until, std::string_view* head,
             std::string_view* tail) override;
  std::unique_ptr<KvIterator> Over(std::unique_ptr<KvIterator> base, uint32_t until, Keyspace ks,
                                   std::string_view lower, std::string_view upper) override;
  uint64_t Multikey(const IndexInfo& index) const override;
  int64_t Documents(const CollectionInfo& coll) const override;
  bool Deadlines(const CollectionInfo& coll) const override;
  /// Whether a range that was removed (numbered at most `until`) covers the key, which the unit has
  /// not changed by itself.
  bool Covered(Keyspace ks, std::string_view key, uint32_t until) const;

  /// Keys in order with the position of the newest change of each in the unit's list, plus one.
  using Keys = std::map<std::string_view, uint32_t>;
  const Keys& KeysOf(Keyspace ks);
  /// As Find, for an entry of KeysOf.
  State Version(Keyspace ks, Keys::const_iterator entry, uint32_t until, std::string_view* head,
                std::string_view* tail) const;

  bool closed() const override { return unit_ == nullptr; }
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

}  // namespace mayfly
