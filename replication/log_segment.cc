#include "replication/log_segment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "protocol/hex.h"
#include "protocol/varint.h"
#include "replication/byte_text.h"
#include "replication/crc.h"
#include "storage/write/log_format.h"

namespace mayfly {
namespace {

constexpr std::string_view kMagic = "MayflyLA";
constexpr size_t kSetId = 12, kSumBytes = Checksum::kBytes;
constexpr size_t kHeaderBytes = 8 + 4 + kSetId + 8 + 8 + 8 + 8 + 1 + 8 + 4;
constexpr size_t kTrailerBytes = 1 + 10 * 8 + kSumBytes + 4;
constexpr size_t kBlockHead = 1 + 4 + 4 + 4;
constexpr size_t kBlockBytes = 256 << 10;
/// An entry is as large as a proposal at most, with what stands around it.
constexpr size_t kMaxBlock = kMaxProposalBytes + kBlockBytes + (1 << 20);
constexpr uint32_t kMaxBlockEntries = 1 << 20;

bool TakeVarint(std::string_view* in, uint64_t* v) {
  *v = 0;
  for (int shift = 0; shift < 64 && !in->empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(in->front());
    in->remove_prefix(1);
    *v |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

std::string Encode(const SegmentHeader& h) {
  std::string out(kMagic);
  AppendNumber(out, kSegmentVersion);
  std::string set = h.set_id;
  set.resize(kSetId, '\0');
  out += set;
  AppendNumber(out, h.node);
  AppendNumber(out, h.first);
  AppendNumber(out, h.previous.index);
  AppendNumber(out, h.previous.term);
  out.push_back(static_cast<char>(h.follows));
  AppendNumber(out, h.created_millis);
  AppendNumber(out, Crc32(out));
  return out;
}

std::string Encode(const SegmentTrailer& t) {
  std::string out = "T";
  AppendNumber(out, t.last);
  AppendNumber(out, t.first_term);
  AppendNumber(out, t.last_term);
  AppendNumber(out, t.first_ts);
  AppendNumber(out, t.last_ts);
  AppendNumber(out, t.first_wall);
  AppendNumber(out, t.last_wall);
  AppendNumber(out, t.entries);
  AppendNumber(out, t.blocks);
  AppendNumber(out, t.bytes);
  out += t.sum;
  AppendNumber(out, Crc32(out));
  return out;
}

/// Counts an entry.
Result<void> Note(const CommittedEntry& e, SegmentTrailer& t) {
  if (t.entries++ == 0) t.first_term = e.position.term;
  t.last = e.position.index;
  t.last_term = e.position.term;
  uint64_t first = 0, last = 0;
  int64_t wall = 0;
  MAYFLY_TRY(const bool has, EntryTimes(e, &first, &last, &wall));
  if (!has) return Ok();
  if (t.first_ts == 0) {
    t.first_ts = first;
    t.first_wall = wall;
  }
  t.last_ts = last;
  t.last_wall = wall;
  return Ok();
}

}  // namespace

Error FileError(std::string_view what, std::string_view path) {
  const int code = errno;
  const bool full = code == ENOSPC || code == EDQUOT;
  return {full ? ErrorCode::kOutOfDiskSpace : ErrorCode::kFileNotOpen,
          std::string(what) + " " + std::string(path) + ": " + std::strerror(code)};
}

std::string SegmentName(const SegmentId& id) {
  char indexes[64];
  std::snprintf(indexes, sizeof indexes, "%020llu-%020llu",
                static_cast<unsigned long long>(id.first),
                static_cast<unsigned long long>(id.last));
  std::string name = id.set_id.empty() ? std::string() : HexDigits(id.set_id) + "-";
  return name.append(indexes).append(kSegmentSuffix);
}

std::optional<SegmentId> ParseSegmentName(std::string_view name) {
  SegmentId id;
  constexpr size_t kSetDigits = 2 * kSetId;
  if (name.size() > kSetDigits && name[kSetDigits] == '-') {
    for (size_t i = 0; i < kSetDigits; i += 2) {
      const size_t high = kLowerHex.find(name[i]), low = kLowerHex.find(name[i + 1]);
      if (high == kLowerHex.npos || low == kLowerHex.npos) return std::nullopt;
      id.set_id.push_back(static_cast<char>(high << 4 | low));
    }
    name.remove_prefix(kSetDigits + 1);
  }
  if (name.size() != 41 + kSegmentSuffix.size() || name[20] != '-' ||
      !name.ends_with(kSegmentSuffix))
    return std::nullopt;
  auto number = [](std::string_view digits, uint64_t* out) {
    *out = 0;
    for (const char c : digits) {
      if (c < '0' || c > '9' || *out > (UINT64_MAX - 9) / 10) return false;
      *out = *out * 10 + static_cast<uint64_t>(c - '0');
    }
    return true;
  };
  if (!number(name.substr(0, 20), &id.first) || !number(name.substr(21, 20), &id.last) ||
      id.first > id.last)
    return std::nullopt;
  return id;
}

Result<bool> EntryTimes(const CommittedEntry& e, uint64_t* first_ts, uint64_t* last_ts,
                        int64_t* wall) {
  if (e.kind != CommittedEntry::Kind::kData || IsLogChunk(e.data)) return false;
  MAYFLY_TRY(ReadLogEntryHeader(e.data));
  std::string_view rest = e.data.substr(kLogEntryHeader);
  bool any = false;
  for (;;) {
    uint64_t ts = 0;
    uint32_t ticks = 0;
    int64_t at = 0;
    MAYFLY_TRY(const bool more, SkipLogUnit(&rest, &ts, &ticks, &at));
    if (!more) return any;
    if (ticks == 0) continue;
    if (!any) *first_ts = ts;
    *last_ts = ts + ticks - 1;
    *wall = at;
    any = true;
  }
}

// --- writing -------------------------------------------------------------------------------------

Result<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(const std::string& path,
                                                             SegmentHeader header,
                                                             const FileCiphers* ciphers) {
  std::unique_ptr<SegmentWriter> w(new SegmentWriter);
  w->path_ = path;
  w->header_ = std::move(header);
  // Removes remains of an earlier process; never follows a link of that name.
  (void)::unlink(path.c_str());
  w->fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (w->fd_ < 0) return FileError("cannot create", path);
  if (ciphers != nullptr) {
    std::string prefix(FileCiphers::kPrefixBytes, '\0');
    MAYFLY_TRY(ciphers->MakePrefix(prefix.data()));
    MAYFLY_TRY(std::unique_ptr<FileCipher> cipher, ciphers->Open(prefix));
    MAYFLY_TRY(w->Write(prefix));
    w->cipher_ = std::move(cipher);
  }
  std::string head = Encode(w->header_);
  w->sum_.Add(head);
  w->trailer_.bytes = head.size();
  MAYFLY_TRY(w->Write(head));
  return w;
}

SegmentWriter::~SegmentWriter() {
  if (fd_ >= 0) ::close(fd_);
}

Result<void> SegmentWriter::Write(std::string& bytes) {
  if (cipher_ && !cipher_->Apply(offset_, bytes.data(), bytes.size()))
    return Error{ErrorCode::kInternalError, "cannot encrypt " + path_};
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError("cannot write", path_);
    done += static_cast<size_t>(n);
  }
  offset_ += bytes.size();
  return Ok();
}

Result<void> SegmentWriter::Add(const CommittedEntry& e) {
  MAYFLY_TRY(Note(e, trailer_));
  if (block_.empty()) block_.assign(kBlockHead, '\0');
  block_.push_back(static_cast<char>(e.kind));
  PutVarint(block_, e.position.term);
  PutVarint(block_, e.data.size());
  block_.append(e.data);
  ++in_block_;
  if (block_.size() < kBlockBytes && in_block_ < kMaxBlockEntries) return Ok();
  return FlushBlock();
}

Result<void> SegmentWriter::FlushBlock() {
  if (block_.empty()) return Ok();
  std::string head;
  AppendNumber(head, static_cast<uint32_t>(block_.size() - kBlockHead));
  AppendNumber(head, in_block_);
  AppendNumber(head, Crc32(std::string_view(block_).substr(kBlockHead), Crc32(head)));
  block_[0] = 'B';
  std::memcpy(block_.data() + 1, head.data(), head.size());
  sum_.Add(block_);
  trailer_.bytes += block_.size();
  ++trailer_.blocks;
  MAYFLY_TRY(Write(block_));
  if (block_.capacity() > 4 * kBlockBytes) block_.shrink_to_fit();
  block_.clear();
  in_block_ = 0;
  return Ok();
}

Result<void> SegmentWriter::Finish() {
  MAYFLY_TRY(FlushBlock());
  trailer_.sum = sum_.Take();
  std::string tail = Encode(trailer_);
  MAYFLY_TRY(Write(tail));
  if (::fsync(fd_) != 0) return FileError("cannot sync", path_);
  return Ok();
}

// --- reading -------------------------------------------------------------------------------------

Error SegmentReader::Damaged(std::string_view how) const {
  return {ErrorCode::kInternalError, "the segment " + path_ + " is damaged: " + std::string(how)};
}

SegmentReader::~SegmentReader() {
  if (fd_ >= 0) ::close(fd_);
}

Result<void> SegmentReader::Read(uint64_t offset, char* to, size_t n) {
  for (size_t done = 0; done < n;) {
    const ssize_t got = ::pread(fd_, to + done, n - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("cannot read", path_);
    if (got == 0) return Damaged("it is cut short");
    done += static_cast<size_t>(got);
  }
  if (cipher_ && !cipher_->Apply(offset, to, n))
    return Error{ErrorCode::kInternalError, "cannot decrypt " + path_};
  return Ok();
}

Result<std::unique_ptr<SegmentReader>> SegmentReader::Open(
    const std::string& path, const std::vector<FileCiphersPtr>& ciphers) {
  std::unique_ptr<SegmentReader> r(new SegmentReader);
  r->path_ = path;
  // Not blocking: a pipe in its place must not make the caller wait.
  r->fd_ = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (r->fd_ < 0) return FileError("cannot open", path);
  struct stat s {};
  if (::fstat(r->fd_, &s) != 0) return FileError("cannot look at", path);
  if (!S_ISREG(s.st_mode)) return r->Damaged("it is not a plain file");
  auto size = static_cast<uint64_t>(s.st_size);
  if (size < kHeaderBytes + kTrailerBytes) return r->Damaged("it is cut short");
  char magic[8];
  MAYFLY_TRY(r->Read(0, magic, sizeof magic));
  if (std::string_view(magic, sizeof magic) != kMagic) {
    if (size < FileCiphers::kPrefixBytes + kHeaderBytes + kTrailerBytes)
      return r->Damaged("it begins neither as a segment nor as an encrypted file");
    std::string prefix(FileCiphers::kPrefixBytes, '\0');
    MAYFLY_TRY(r->Read(0, prefix.data(), prefix.size()));
    std::string why = "no key was given";
    for (const FileCiphersPtr& c : ciphers) {
      auto opened = c->Open(prefix);
      if (opened) {
        r->cipher_ = std::move(opened).value();
        break;
      }
      why = opened.error().message;
    }
    if (!r->cipher_)
      return Error{ErrorCode::kInvalidOptions,
                   "the segment " + path +
                       " is encrypted or damaged, and cannot be opened with the keys that are "
                       "there: " +
                       why};
    r->prefix_ = FileCiphers::kPrefixBytes;
  }
  MAYFLY_TRY(r->ReadHeader());
  MAYFLY_TRY(r->ReadTrailer(size));
  const std::string_view name = std::string_view(r->path_).substr(r->path_.find_last_of('/') + 1);
  const std::optional<SegmentId> id = ParseSegmentName(name);
  if (id && (id->first != r->header_.first || id->last != r->trailer_.last ||
             (!id->set_id.empty() && id->set_id != r->header_.set_id)))
    return r->Damaged("its name is not that of what is in it");
  return r;
}

Result<void> SegmentReader::ReadHeader() {
  std::string head(kHeaderBytes, '\0');
  MAYFLY_TRY(Read(prefix_, head.data(), head.size()));
  std::string_view in = head;
  uint32_t version = 0, crc = 0;
  if (!in.starts_with(kMagic)) return Damaged("it does not begin as a segment");
  in.remove_prefix(kMagic.size());
  TakeNumber(&in, &version);
  if (version > kSegmentVersion)
    return Error{ErrorCode::kUnsupportedFormat,
                 "the segment " + path_ + " has format " + std::to_string(version) +
                     ", this version knows 1: use the version that wrote it"};
  header_.set_id = in.substr(0, kSetId);
  in.remove_prefix(kSetId);
  uint8_t follows = 0;
  TakeNumber(&in, &header_.node);
  TakeNumber(&in, &header_.first);
  TakeNumber(&in, &header_.previous.index);
  TakeNumber(&in, &header_.previous.term);
  TakeNumber(&in, &follows);
  TakeNumber(&in, &header_.created_millis);
  const std::string_view counted = std::string_view(head).substr(0, head.size() - 4);
  if (!TakeNumber(&in, &crc) || crc != Crc32(counted)) return Damaged("checksum of its header");
  if (version != kSegmentVersion || follows > 2 || header_.first == 0)
    return Damaged("its header says what cannot be");
  header_.follows = static_cast<SegmentFollows>(follows);
  sum_.Add(head);
  offset_ = prefix_ + kHeaderBytes;
  return Ok();
}

Result<void> SegmentReader::ReadTrailer(uint64_t size) {
  blocks_end_ = size - kTrailerBytes;
  std::string tail(kTrailerBytes, '\0');
  MAYFLY_TRY(Read(blocks_end_, tail.data(), tail.size()));
  std::string_view in = tail;
  uint32_t crc = 0;
  std::memcpy(&crc, tail.data() + tail.size() - 4, 4);
  if (in[0] != 'T' || crc != Crc32(in.substr(0, in.size() - 4)))
    return Damaged("it was not finished, or its end is damaged");
  in.remove_prefix(1);
  TakeNumber(&in, &trailer_.last);
  TakeNumber(&in, &trailer_.first_term);
  TakeNumber(&in, &trailer_.last_term);
  TakeNumber(&in, &trailer_.first_ts);
  TakeNumber(&in, &trailer_.last_ts);
  TakeNumber(&in, &trailer_.first_wall);
  TakeNumber(&in, &trailer_.last_wall);
  TakeNumber(&in, &trailer_.entries);
  TakeNumber(&in, &trailer_.blocks);
  TakeNumber(&in, &trailer_.bytes);
  trailer_.sum = in.substr(0, kSumBytes);
  if (trailer_.bytes != blocks_end_ - prefix_ || trailer_.last < header_.first ||
      trailer_.entries != trailer_.last - header_.first + 1)
    return Damaged("its end does not fit its beginning");
  return Ok();
}

Result<bool> SegmentReader::End() {
  seen_.bytes = offset_ - prefix_;
  seen_.sum = sum_.Take();
  if (seen_.sum != trailer_.sum) return Damaged("checksum of the whole");
  if (Encode(seen_) != Encode(trailer_)) return Damaged("its end does not fit its entries");
  return false;
}

Result<bool> SegmentReader::NextBlock(std::vector<CommittedEntry>* entries, std::string* bytes) {
  entries->clear();
  if (offset_ == blocks_end_) return End();
  char head[kBlockHead];
  if (blocks_end_ - offset_ < sizeof head) return Damaged("a block is cut short");
  MAYFLY_TRY(Read(offset_, head, sizeof head));
  std::string_view in(head + 1, sizeof head - 1);
  uint32_t size = 0, count = 0, crc = 0;
  TakeNumber(&in, &size);
  TakeNumber(&in, &count);
  TakeNumber(&in, &crc);
  const std::string at = "the block at byte " + std::to_string(offset_);
  if (head[0] != 'B' || size > kMaxBlock || count > kMaxBlockEntries ||
      size > blocks_end_ - offset_ - sizeof head)
    return Damaged(at);
  bytes->resize(size);
  MAYFLY_TRY(Read(offset_ + sizeof head, bytes->data(), size));
  if (crc != Crc32(*bytes, Crc32(std::string_view(head + 1, 8))))
    return Damaged("checksum of " + at);
  sum_.Add(std::string_view(head, sizeof head));
  sum_.Add(*bytes);
  std::string_view rest = *bytes;
  for (uint32_t i = 0; i < count; ++i) {
    CommittedEntry e;
    uint64_t length = 0;
    const uint8_t kind = rest.empty() ? 255 : static_cast<uint8_t>(rest[0]);
    if (kind > static_cast<uint8_t>(CommittedEntry::Kind::kNoop)) return Damaged(at);
    rest.remove_prefix(1);
    if (!TakeVarint(&rest, &e.position.term) || !TakeVarint(&rest, &length) || length > rest.size())
      return Damaged(at);
    e.kind = static_cast<CommittedEntry::Kind>(kind);
    e.data = rest.substr(0, length);
    rest.remove_prefix(length);
    e.position.index = header_.first + seen_.entries;
    const uint64_t before = seen_.entries == 0 ? header_.previous.term : seen_.last_term;
    if (e.position.term < before) return Damaged("terms go back at " + at);
    MAYFLY_TRY(Note(e, seen_));
    entries->push_back(e);
  }
  if (!rest.empty() || count == 0) return Damaged(at);
  ++seen_.blocks;
  offset_ += sizeof head + size;
  return true;
}

}  // namespace mayfly
