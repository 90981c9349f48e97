#include "storage/kv/rocks_status.h"

#include "storage/kv/rocks_descriptors.h"

namespace mayfly {

Error FromStorage(const rocksdb::Status& s) {
  if (s.IsIOError() && LacksDescriptors(s.ToString()))
    return {ErrorCode::kOutOfDiskSpace,
            "the process has no file descriptors left: raise the limit (ulimit -n) or lower "
            "--maxConns; once some are free, writes go on by themselves (" +
                s.ToString() + ")"};
  if (s.IsNoSpace() || s.subcode() == rocksdb::Status::kSpaceLimit)
    return {ErrorCode::kOutOfDiskSpace,
            "the disk is full: free some space, writes then go on by themselves (" + s.ToString() +
                ")"};
  if (s.IsBusy() || s.IsTryAgain())
    return {ErrorCode::kWriteConflict, "write conflict, please retry the operation"};
  if (s.IsShutdownInProgress() || s.IsAborted())
    return {ErrorCode::kInterruptedAtShutdown, "the storage is shutting down"};
  if (s.IsCorruption())
    return {ErrorCode::kInternalError, "data on disk is damaged: " + s.ToString()};
  return {ErrorCode::kInternalError, "storage error: " + s.ToString()};
}

}  // namespace mayfly
