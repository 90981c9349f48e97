#include "backup/manifest.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <set>

#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "protocol/hex.h"
#include "security/crypto.h"

namespace mayfly {
namespace {

constexpr std::string_view kMagic = "MayflyBM";
constexpr char kVersion = 1;
constexpr size_t kHead = 13;  // up to the BSON

Error DamagedManifest(std::string_view what) {
  return {ErrorCode::kInternalError, "the manifest is damaged: " + std::string(what)};
}

bool ReadText(BsonView d, std::string_view name, std::string* out) {
  const BsonValue v = d[name];
  if (!v.IsString()) return false;
  *out = v.String();
  // It is shown to who restores: nothing that a terminal would obey.
  return std::none_of(out->begin(), out->end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

bool ReadNumber(BsonView d, std::string_view name, int64_t* out) {
  const BsonValue v = d[name];
  if (!v.Is(BsonType::kInt64)) return false;
  *out = v.NumberAsInt64();
  return true;
}

/// A number that is never negative.
bool ReadCount(BsonView d, std::string_view name, int64_t* out) {
  return ReadNumber(d, name, out) && *out >= 0;
}

bool ReadBytes(BsonView d, std::string_view name, size_t size, std::string* out) {
  const BsonValue v = d[name];
  if (!v.Is(BsonType::kBinary) || v.BinaryData().size() != size) return false;
  *out = v.BinaryData();
  return true;
}

bool ReadFile(BsonValue v, BackupFile* f) {
  if (!v.IsDocument()) return false;
  const BsonView d = v.Document();
  int64_t size = 0;
  if (!ReadText(d, "name", &f->name) || !IsPlainFileName(f->name) || !ReadCount(d, "size", &size) ||
      !ReadBytes(d, "sum", BackupManifest::kSumBytes, &f->sum) ||
      !ReadBytes(d, "tag", BackupManifest::kTagBytes, &f->tag))
    return false;
  f->size = static_cast<uint64_t>(size);
  return true;
}

bool ReadPosition(BsonView d, BackupManifest* m) {
  const BsonValue v = d["position"];
  if (v.missing()) return true;
  if (!v.IsDocument()) return false;
  const BsonView p = v.Document();
  int64_t term = 0, index = 0, ts = 0, latest_index = 0, latest_ts = 0;
  if (!ReadCount(p, "term", &term) || !ReadCount(p, "index", &index) || !ReadNumber(p, "ts", &ts))
    return false;
  if (!p["latestIndex"].missing() &&
      (!ReadCount(p, "latestIndex", &latest_index) || latest_index < index ||
       !ReadNumber(p, "latestTs", &latest_ts) ||
       static_cast<uint64_t>(latest_ts) < static_cast<uint64_t>(ts)))
    return false;
  m->latest_index = static_cast<uint64_t>(latest_index);
  m->latest_ts = static_cast<uint64_t>(latest_ts);
  m->term = static_cast<uint64_t>(term);
  m->index = static_cast<uint64_t>(index);
  m->ts = static_cast<uint64_t>(ts);
  return true;
}

bool ReadSet(BsonView d, BackupManifest* m) {
  const BsonValue v = d["set"];
  if (v.missing()) return true;
  if (!v.IsDocument() || !ReadText(v.Document(), "name", &m->set_name)) return false;
  const BsonValue id = v.Document()["id"];
  if (!id.Is(BsonType::kBinary) || id.BinaryData().size() > 64) return false;
  m->set_id = id.BinaryData();
  return true;
}

bool ReadCatalog(BsonView d, BackupManifest* m) {
  const BsonValue v = d["catalog"];
  if (!v.IsDocument()) return false;
  const BsonView c = v.Document();
  // Documents and bytes are counted beside the data, and may be off by what a crash left.
  return ReadCount(c, "databases", &m->databases) && ReadCount(c, "collections", &m->collections) &&
         ReadCount(c, "indexes", &m->indexes) && ReadNumber(c, "documents", &m->documents) &&
         ReadNumber(c, "bytes", &m->bytes);
}

}  // namespace

bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name.size() < 200 && name[0] != '.' &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

bool IsBackupId(std::string_view id) {
  return !id.empty() && id.size() <= 64 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-';
  });
}

std::string MakeBackupId(Instant time, std::string_view random_bytes) {
  const time_t seconds = time.millis / 1000;
  struct tm t {};
  ::gmtime_r(&seconds, &t);
  char text[40];
  const size_t n = std::strftime(text, sizeof text, "%Y%m%dT%H%M%S", &t);
  // Two backups of one second are in order too.
  std::snprintf(text + n, sizeof text - n, "%03dZ", static_cast<int>(time.millis % 1000));
  return std::string(text) + "-" + HexDigits(random_bytes.substr(0, 6));
}

std::string BackupFile::StoredName() const {
  return HexDigits(sum) + "-" + HexDigits(tag) + "-" + std::to_string(size);
}

uint64_t BackupManifest::TotalBytes() const {
  uint64_t n = 0;
  for (const BackupFile& f : files) n += f.size;
  return n;
}

std::string BackupManifest::Encode() const {
  const BsonDocument body = BuildBson([&](BsonBuilder& b) {
    b.Append("id", id).Append("time", time).Append("serverVersion", server_version);
    if (!set_name.empty()) {
      BsonBuilder set = b.OpenDocument("set");
      set.Append("name", set_name).AppendBinary("id", 0, set_id);
      set.Done();
      BsonBuilder p = b.OpenDocument("position");
      p.Append("term", term).Append("index", index).Append("ts", ts);
      if (latest_index > 0) p.Append("latestIndex", latest_index).Append("latestTs", latest_ts);
    }
    {
      BsonBuilder c = b.OpenDocument("catalog");
      c.Append("databases", databases).Append("collections", collections);
      c.Append("indexes", indexes).Append("documents", documents).Append("bytes", bytes);
    }
    if (!key_id.empty()) b.Append("keyId", key_id);
    BsonArrayBuilder list = b.OpenArray("files");
    for (const BackupFile& f : files) {
      BsonBuilder d = list.OpenDocument();
      d.Append("name", f.name).Append("size", f.size);
      d.AppendBinary("sum", 0, f.sum).AppendBinary("tag", 0, f.tag);
    }
  });
  std::string out(kMagic);
  out += kVersion;
  const auto size = static_cast<uint32_t>(body.view().size());
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(size >> shift);
  out += body.view().bytes();
  out += HashOf(HashKind::kSha256, out).view();
  return out;
}

Result<BackupManifest> BackupManifest::Decode(std::string_view bytes) {
  if (bytes.size() < kHead + 5 + kSumBytes || bytes.size() > kMaxBytes ||
      !bytes.starts_with(kMagic))
    return DamagedManifest("it is not one, or was cut");
  if (bytes[kMagic.size()] != kVersion)
    return Error{ErrorCode::kUnsupportedFormat,
                 "the manifest has version " +
                     std::to_string(static_cast<unsigned char>(bytes[kMagic.size()])) +
                     ", which this program does not read: use a newer one"};
  uint32_t size = 0;
  for (int i = 0; i < 4; ++i)
    size |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[kMagic.size() + 1 + i]))
            << (8 * i);
  if (size != bytes.size() - kHead - kSumBytes)
    return DamagedManifest("its size is not what it says");
  const std::string_view front = bytes.substr(0, bytes.size() - kSumBytes);
  if (HashOf(HashKind::kSha256, front).view() != bytes.substr(front.size()))
    return DamagedManifest("its checksum is wrong");
  const std::string_view body = front.substr(kHead);
  if (auto valid = ValidateBson(body); !valid) return DamagedManifest(valid.error().message);
  const BsonView d(body.data());
  BackupManifest m;
  const BsonValue time = d["time"], files = d["files"], key = d["keyId"];
  if (!ReadText(d, "id", &m.id) || !IsBackupId(m.id) || !time.IsDate() ||
      !ReadText(d, "serverVersion", &m.server_version) || !ReadSet(d, &m) || !ReadPosition(d, &m) ||
      !ReadCatalog(d, &m) || !files.IsArray() || !(key.missing() || key.IsString()))
    return DamagedManifest("a field is missing, or of another type");
  m.time = time.Date();
  if (key.IsString()) m.key_id = key.String();
  if (m.key_id.find_first_not_of("0123456789abcdef") != std::string::npos)
    return DamagedManifest("its keyId is none");
  std::set<std::string_view> names;
  for (const BsonElement& e : files.Document()) {
    BackupFile f;
    if (m.files.size() >= kMaxFiles || !ReadFile(e.value, &f))
      return DamagedManifest("its list of files cannot be read");
    m.files.push_back(std::move(f));
  }
  uint64_t total = 0;
  for (const BackupFile& f : m.files) {
    if (!names.insert(f.name).second)
      return DamagedManifest("it names the file " + f.name + " twice");
    total += f.size;  // each is an int64, so this cannot wrap before it is seen
    if (total > INT64_MAX) return DamagedManifest("its files have more bytes than there can be");
  }
  if (m.files.empty()) return DamagedManifest("it has no files");
  return m;
}

}  // namespace mayfly
