#pragma once
#include "storage/kv/kv.h"

namespace mayfly {

/// As KvStore::NewIterator, but passes over the keys in [gap_begin, gap_end), which holds no live
/// ones, without looking at them. Two iterators at one snapshot, each made when it is needed.
/// REQUIRES: options.snapshot; the gap lies within the bounds or across one of them.
std::unique_ptr<KvIterator> NewGapIterator(KvStore& kv, Keyspace ks, KvIterOptions options,
                                           std::string gap_begin, std::string gap_end);

}  // namespace mayfly
