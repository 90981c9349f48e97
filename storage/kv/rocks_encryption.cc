#include "storage/kv/rocks_encryption.h"

#include <rocksdb/env_encryption.h>
#include <rocksdb/file_system.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "storage/kv/zeros.h"

namespace mayfly {
namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;
using rocksdb::Status;

constexpr size_t kPrefix = FileCiphers::kPrefixBytes;
/// So many zeros in a row are no encrypted bytes (it would be one chance in 2^128).
constexpr size_t kUnwritten = 16;

/// What RocksDB encrypts and decrypts a file with.
class Stream final : public rocksdb::BlockAccessCipherStream {
 public:
  /// `cipher` is null for a file whose prefix never reached the disk. `holes`: sectors of zeros
  /// were never written.
  Stream(std::unique_ptr<FileCipher> cipher, bool holes)
      : cipher_(std::move(cipher)), holes_(holes) {}
  size_t BlockSize() override { return 16; }
  Status Encrypt(uint64_t offset, char* data, size_t n) override {
    return cipher_ && cipher_->Apply(offset, data, n) ? Status::OK()
                                                      : Status::IOError("cannot encrypt a file");
  }
  Status Decrypt(uint64_t offset, char* data, size_t n) override {
    if (!cipher_) {
      std::memset(data, 0, n);
      return Status::OK();
    }
    if (!holes_) return Apply(offset, data, n);
    size_t begin = 0;  // of what was written and is not decrypted yet
    for (size_t at = 0; at < n;) {
      const size_t size = std::min<uint64_t>(n - at, kSectorBytes - (offset + at) % kSectorBytes);
      if (size >= kUnwritten && data[at] == 0 && AllZero(data + at, size)) {
        if (Status s = Apply(offset + begin, data + begin, at - begin); !s.ok()) return s;
        begin = at + size;
      }
      at += size;
    }
    return Apply(offset + begin, data + begin, n - begin);
  }

 protected:
  // All goes through the two above.
  void AllocateScratch(std::string&) override {}
  Status EncryptBlock(uint64_t, char*, char*) override { return Status::NotSupported(); }
  Status DecryptBlock(uint64_t, char*, char*) override { return Status::NotSupported(); }

 private:
  Status Apply(uint64_t offset, char* data, size_t n) const {
    return n == 0 || cipher_->Apply(offset, data, n) ? Status::OK()
                                                     : Status::IOError("cannot decrypt a file");
  }
  const std::unique_ptr<FileCipher> cipher_;
  const bool holes_;
};

class Provider final : public rocksdb::EncryptionProvider {
 public:
  explicit Provider(FileCiphersPtr ciphers) : ciphers_(std::move(ciphers)) {}
  const char* Name() const override { return "MayflyEncryption"; }
  size_t GetPrefixLength() const override { return kPrefix; }
  Status CreateNewPrefix(const std::string& name, char* prefix, size_t) const override {
    Result<void> made = ciphers_->MakePrefix(prefix);
    return made ? Status::OK() : Status::IOError(name, made.error().message);
  }
  Status AddCipher(const std::string&, const char*, size_t, bool) override {
    return Status::NotSupported("keys come from the keystore");
  }
  Status CreateCipherStream(const std::string& name, const rocksdb::EnvOptions&, Slice& prefix,
                            std::unique_ptr<rocksdb::BlockAccessCipherStream>* out) override {
    const bool log = name.ends_with(".log");
    if (prefix.size() < kPrefix || AllZero(prefix.data(), prefix.size())) {
      *out = std::make_unique<Stream>(nullptr, log);
      return Status::OK();
    }
    auto cipher = ciphers_->Open({prefix.data(), prefix.size()});
    // RocksDB's name for the store: if anything is wrong with it, it is written again. RocksDB
    // assumes that an unreadable file is a disk error, and otherwise ends the process.
    if (!cipher && name.ends_with("/IDENTITY"))
      return Status::IOError(name, cipher.error().message);
    if (!cipher) return Status::Corruption(name, cipher.error().message);
    *out = std::make_unique<Stream>(std::move(cipher).value(), log);
    return Status::OK();
  }

 private:
  const FileCiphersPtr ciphers_;
};

class EncryptedFiles final : public rocksdb::FileSystemWrapper {
 public:
  EncryptedFiles(const std::shared_ptr<rocksdb::FileSystem>& base,
                 const std::shared_ptr<Provider>& provider)
      : FileSystemWrapper(rocksdb::NewEncryptedFS(base, provider)),
        base_(base),
        provider_(provider) {}
  const char* Name() const override { return "MayflyEncryptedFileSystem"; }

  IOStatus ReopenWritableFile(const std::string& name, const rocksdb::FileOptions& o,
                              std::unique_ptr<rocksdb::FSWritableFile>* out,
                              IODebugContext* d) override {
    uint64_t size = 0;
    const IOStatus found = base_->GetFileSize(name, o.io_options, &size, d);
    if (!found.ok() || size == 0) return target()->ReopenWritableFile(name, o, out, d);
    std::unique_ptr<rocksdb::FSSequentialFile> file;
    std::array<char, kPrefix> buffer;
    size_t have = 0;
    if (IOStatus s = base_->NewSequentialFile(name, o, &file, d); !s.ok()) return s;
    while (have < kPrefix) {  // a read may be short
      Slice got;
      const IOStatus s = file->Read(kPrefix - have, o.io_options, &got, buffer.data() + have, d);
      if (!s.ok()) return s;
      if (got.empty()) break;
      std::memmove(buffer.data() + have, got.data(), got.size());
      have += got.size();
    }
    Slice prefix(buffer.data(), have);
    std::unique_ptr<rocksdb::BlockAccessCipherStream> stream;
    if (Status s = provider_->CreateCipherStream(name, o, prefix, &stream); !s.ok())
      return rocksdb::status_to_io_status(std::move(s));
    std::unique_ptr<rocksdb::FSWritableFile> plain;
    if (IOStatus s = base_->ReopenWritableFile(name, o, &plain, d); !s.ok()) return s;
    *out = std::make_unique<rocksdb::EncryptedWritableFile>(std::move(plain), std::move(stream),
                                                            kPrefix);
    return IOStatus::OK();
  }
  IOStatus GetFileSize(const std::string& name, const IOOptions& o, uint64_t* size,
                       IODebugContext* d) override {
    const IOStatus s = base_->GetFileSize(name, o, size, d);
    if (s.ok()) *size -= std::min<uint64_t>(*size, kPrefix);
    return s;
  }
  IOStatus GetChildrenFileAttributes(const std::string& directory, const IOOptions& o,
                                     std::vector<rocksdb::FileAttributes>* out,
                                     IODebugContext* d) override {
    const IOStatus s = base_->GetChildrenFileAttributes(directory, o, out, d);
    if (!s.ok()) return s;
    for (rocksdb::FileAttributes& a : *out)
      a.size_bytes -= std::min<uint64_t>(a.size_bytes, kPrefix);
    return s;
  }

 private:
  const std::shared_ptr<rocksdb::FileSystem> base_;
  const std::shared_ptr<Provider> provider_;
};

}  // namespace

std::unique_ptr<rocksdb::Env> MakeEncryptedEnv(rocksdb::Env& base, FileCiphersPtr ciphers) {
  return rocksdb::NewCompositeEnv(std::make_shared<EncryptedFiles>(
      base.GetFileSystem(), std::make_shared<Provider>(std::move(ciphers))));
}

}  // namespace mayfly
