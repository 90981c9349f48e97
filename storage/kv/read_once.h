#pragma once

namespace mayfly {

/// While one lives, this thread's reads by KvStore::MultiGet, if nearly in key order, do
/// not fill the store's cache: documents about to be removed would evict those that others
/// read.
class ReadOnce {
 public:
  ReadOnce() { ++depth_; }
  ~ReadOnce() { --depth_; }
  ReadOnce(const ReadOnce&) = delete;
  static bool On() { return depth_ > 0; }

 private:
  inline static thread_local int depth_ = 0;
};

}  // namespace mayfly
