#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/error.h"

namespace mayfly {

/// An open file or directory, by its descriptor; closed with it. Names are taken relative to an
/// open directory, and symbolic links are never followed at their end. One thread.
class DiskFile {
 public:
  DiskFile() = default;
  DiskFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~DiskFile();
  DiskFile(DiskFile&& o) noexcept : fd_(std::exchange(o.fd_, -1)), path_(std::move(o.path_)) {}
  DiskFile& operator=(DiskFile&& o) noexcept;

  /// Errors of all: FileNotOpen 38, OutOfDiskSpace 14031, with the path and the system's words.
  static Result<DiskFile> Directory(const std::string& path);
  Result<DiskFile> OpenDirectory(std::string_view name) const;
  Result<DiskFile> OpenToRead(std::string_view name) const;
  /// New, for its owner alone; there must be none of this name.
  Result<DiskFile> Create(std::string_view name) const;
  /// Makes a directory for its owner alone, unless there is one.
  Result<void> MakeDirectory(std::string_view name) const;
  /// Whether it is there; a regular file's size.
  Result<bool> Exists(std::string_view name, uint64_t* size = nullptr) const;
  Result<void> Rename(std::string_view from, std::string_view to) const;
  Result<void> Remove(std::string_view name) const;  ///< a file; fine if there is none
  /// Names without "." and "..".
  Result<std::vector<std::string>> List() const;

  /// The next bytes, at most `n`, into `*out`; fewer only at the end.
  Result<void> Read(size_t n, std::string* out) const;
  /// The same; what the system did not have in memory does not stay there, where it can do so.
  Result<void> ReadPassing(size_t n, std::string* out) const;
  Result<void> ReadAt(uint64_t offset, size_t n, std::string* out) const;
  Result<void> Write(std::string_view bytes) const;
  Result<uint64_t> Size() const;
  Result<void> Sync() const;
  /// Starts to write out what was written since, so that Sync need not write all of it.
  void WriteOut(uint64_t offset, uint64_t bytes) const;
  /// The same, waits for the disk, and lets the system forget these bytes. Whoever waits after each
  /// small piece never has more than that in the disk's queue, where others' reads would be behind
  /// it.
  Result<void> WriteOutAndWait(uint64_t offset, uint64_t bytes) const;
  /// The system need not keep it in memory.
  void Forget() const;
  /// False: another process, or another descriptor of this one, has it locked.
  Result<bool> Lock(bool exclusive) const;
  /// Bytes that may still be written to its file system.
  uint64_t FreeBytes() const;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

 private:
  Error Failed(std::string_view what, std::string_view name = {}) const;
  int fd_ = -1;
  std::string path_;
};

}  // namespace mayfly
