#include "storage/rocks_descriptors.h"

#include <rocksdb/file_system.h>

#include <chrono>
#include <string>
#include <thread>

namespace mayfly {
namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

constexpr int kTries = 20;
constexpr auto kPause = std::chrono::milliseconds(25);

class DescriptorFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  DescriptorFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "MayflyFileSystem"; }

  IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions& o,
                             std::unique_ptr<rocksdb::FSSequentialFile>* out,
                             IODebugContext* d) override {
    return Try([&] { return target()->NewSequentialFile(name, o, out, d); });
  }
  IOStatus NewRandomAccessFile(const std::string& name, const rocksdb::FileOptions& o,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* out,
                               IODebugContext* d) override {
    return Try([&] { return target()->NewRandomAccessFile(name, o, out, d); });
  }
  IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& o,
                           std::unique_ptr<rocksdb::FSWritableFile>* out,
                           IODebugContext* d) override {
    return Try([&] { return target()->NewWritableFile(name, o, out, d); });
  }
  IOStatus ReopenWritableFile(const std::string& name, const rocksdb::FileOptions& o,
                              std::unique_ptr<rocksdb::FSWritableFile>* out,
                              IODebugContext* d) override {
    return Try([&] { return target()->ReopenWritableFile(name, o, out, d); });
  }
  IOStatus ReuseWritableFile(const std::string& name, const std::string& old,
                             const rocksdb::FileOptions& o,
                             std::unique_ptr<rocksdb::FSWritableFile>* out,
                             IODebugContext* d) override {
    return Try([&] { return target()->ReuseWritableFile(name, old, o, out, d); });
  }
  IOStatus NewDirectory(const std::string& name, const IOOptions& o,
                        std::unique_ptr<rocksdb::FSDirectory>* out, IODebugContext* d) override {
    return Try([&] { return target()->NewDirectory(name, o, out, d); });
  }
  IOStatus GetChildren(const std::string& name, const IOOptions& o, std::vector<std::string>* out,
                       IODebugContext* d) override {
    return Try([&] { return target()->GetChildren(name, o, out, d); });
  }

 private:
  template <class F>
  static IOStatus Try(F&& open) {
    IOStatus s = open();
    if (s.ok()) [[likely]]
      return s;
    for (int i = 0; i < kTries && s.IsIOError() && LacksDescriptors(s.ToString()); ++i) {
      std::this_thread::sleep_for(kPause);
      s = open();
    }
    if (s.ok() || !s.IsIOError()) return s;
    const std::string text = s.ToString();
    return LacksDescriptors(text) ? IOStatus::NoSpace(text) : s;
  }
};

}  // namespace

bool LacksDescriptors(std::string_view text) {
  return text.find("Too many open files") != std::string_view::npos;
}

std::unique_ptr<rocksdb::Env> MakeDescriptorEnv() {
  return rocksdb::NewCompositeEnv(std::make_shared<DescriptorFileSystem>());
}

}  // namespace mayfly
