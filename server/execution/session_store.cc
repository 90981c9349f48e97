#include "server/execution/session_store.h"

#include <openssl/sha.h>

#include <algorithm>
#include <deque>
#include <span>

#include "protocol/large_memory.h"
#include "query/update/expire.h"
#include "server/dispatch/expiry_services.h"
#include "server/execution/index_spec.h"
#include "server/execution/write_ops.h"
#include "storage/read/visibility.h"
#include "storage/storage.h"

namespace mayfly {

namespace {

constexpr std::string_view kDb = "config", kCollection = "system.sessions";
constexpr std::string_view kIndex = "lsidTTLIndex";

BsonDocument Filter(std::string_view key) {
  return BuildBson([&](BsonBuilder& b) {
    BsonBuilder lsid = b.OpenDocument("_id");
    AppendSessionId(lsid, key);
  });
}

/// Creates the collection and its index if they do not exist.
Result<void> EnsureCollection(ExpiryServices& server, Operation& op) {
  Catalog& catalog = server.storage().catalog();
  MAYFLY_TRY(CollectionInfoPtr coll, catalog.GetOrCreate(op, kDb, kCollection));
  const int64_t seconds = server.settings().local_session_timeout_minutes * 60;
  for (const IndexInfoPtr& i : coll->indexes) {
    if (i->name != kIndex) continue;
    if (i->expire_after_seconds == seconds) return Ok();
    MAYFLY_TRY(catalog.ModifyIndex(op, *coll, kIndex, [&](IndexInfo& index) -> Result<void> {
      index.expire_after_seconds = static_cast<int32_t>(seconds);
      return Ok();
    }));
    return Ok();
  }
  const BsonDocument spec = BuildBson([&](BsonBuilder& b) {
    b.OpenDocument("key").Append("lastUse", 1);
    b.Append("name", kIndex).Append("expireAfterSeconds", static_cast<int32_t>(seconds));
  });
  std::string note;
  MAYFLY_TRY(IndexInfo index, ParseIndexSpec(server, coll.get(), spec.view(), &note));
  std::vector<IndexInfo> indexes;
  indexes.push_back(std::move(index));
  return catalog.CreateIndexes(op, *coll, std::move(indexes));
}

/// Sessions whose records are written, or removed, together: each commit may wait for a disk and
/// for other members.
constexpr size_t kSessionsAUnit = 200;

/// Records the last use of these sessions in one unit. False: nothing is recorded, since somebody
/// else is changing one of the records, or since they need more than this.
Result<bool> RecordTogether(Storage& storage, Operation& op, const CollectionInfo& coll,
                            std::span<const SessionPtr> sessions) {
  if (coll.validator_filter || !HasNoExpiry(coll)) return false;
  std::vector<Instant> uses;
  std::deque<BsonDocument> documents;  // the unit has views of them
  WriteUnit unit(storage, op);
  unit.set_no_wait(true);  // two refreshes meet the same records, each in its own order
  const Visibility visible(storage, coll, op);
  for (const SessionPtr& session : sessions) {
    MAYFLY_TRY(op.CheckInterrupt());
    const Instant used = uses.emplace_back(session->last_use());
    const BsonDocument filter = Filter(session->id());
    std::string key;
    Storage::AppendRecordKey(coll, filter.view()["_id"], key);
    WriteUnit::Locked record;
    Result<bool> current = unit.LockAndRead(coll, key, &record);
    if (current && current.value()) {
      if (record.expire_at) return false;
      MAYFLY_TRY(const auto expired, visible.Expired(record.doc, record.expire_at));
      current = !expired;
    }
    Result<void> staged = Ok();
    if (!current) {
      staged = std::move(current).error();
    } else if (!current.value()) {
      documents.push_back(
          BuildBson([&](BsonBuilder& b) { b.AppendAll(filter.view()).Append("lastUse", used); }));
      staged = unit.Insert(coll, documents.back());
    } else if (const BsonValue before = record.doc["lastUse"];
               !before.IsDate() || before.Date() < used) {
      // Else another member of the set has recorded a later use.
      documents.push_back(BuildBson([&](BsonBuilder& b) {
        for (const BsonElement& e : record.doc)
          if (e.name != "lastUse") b.Append(e);
        b.Append("lastUse", used);
      }));
      staged = unit.Update(coll, record, documents.back());
    }
    if (!staged && IsRetryable(staged.error())) return false;
    MAYFLY_TRY(std::move(staged));
  }
  if (!unit.empty()) {
    Result<void> committed = storage.committer().Commit(std::move(unit));
    if (!committed && IsRetryable(committed.error())) return false;
    MAYFLY_TRY(std::move(committed));
  }
  for (size_t i = 0; i < sessions.size(); ++i) sessions[i]->set_stored_use(uses[i]);
  return true;
}

/// The same of one session, whatever the collection has become; waits for others' changes.
Result<void> RecordOne(WriteCommand& command, const SessionPtr& session) {
  const Instant used = session->last_use();
  const BsonDocument filter = Filter(session->id());
  const BsonDocument update =
      BuildBson([&](BsonBuilder& b) { b.OpenDocument("$max").Append("lastUse", used); });
  UpdateStatement s;
  s.filter = filter.view();
  s.update = update.view().AsValue();
  s.upsert = true;
  MAYFLY_TRY(command.Update(s));
  session->set_stored_use(used);
  return Ok();
}

}  // namespace

void AppendSessionId(BsonBuilder& out, std::string_view key) {
  const std::string_view uid = SessionUid(key);
  out.AppendBinary("id", 4, SessionUuid(key));
  out.AppendBinary("uid", 0, uid.empty() ? NobodysDigest() : uid);
}

std::string_view NobodysDigest() {
  static const std::string digest = [] {
    std::string d(SHA256_DIGEST_LENGTH, '\0');
    SHA256(nullptr, 0, reinterpret_cast<unsigned char*>(d.data()));
    return d;
  }();
  return digest;
}

Result<void> RefreshSessionRecords(ExpiryServices& server, Operation& op) {
  if (!server.writable()) return Ok();
  std::vector<SessionPtr> changed;
  for (const auto& [id, last_use] : server.sessions().List()) {
    SessionPtr session = server.sessions().Find(id);
    if (session && session->stored_use() < last_use.millis) changed.push_back(std::move(session));
  }
  if (changed.empty() && !server.storage().catalog().Find(kDb, kCollection)) return Ok();
  MAYFLY_TRY(EnsureCollection(server, op));
  WriteCommand command(WriteServicesOf(server), op, kDb, kCollection);
  MAYFLY_TRY(command.OpenOrCreate());
  for (std::span<const SessionPtr> left = changed; !left.empty();) {
    MAYFLY_TRY(op.CheckInterrupt());
    const auto some = left.first(std::min(left.size(), kSessionsAUnit));
    left = left.subspan(some.size());
    MAYFLY_TRY(const bool done, RecordTogether(server.storage(), op, *command.coll(), some));
    if (done) continue;
    for (const SessionPtr& session : some) {
      MAYFLY_TRY(op.CheckInterrupt());
      MAYFLY_TRY(RecordOne(command, session));
    }
  }
  return Ok();
}

Result<void> RemoveSessionRecords(DataServices& server, Operation& op,
                                  const std::vector<std::string>& keys) {
  if (!server.has_storage() || !server.writable() ||
      !server.storage().catalog().Find(kDb, kCollection))
    return Ok();
  WriteCommand command(WriteServicesOf(server), op, kDb, kCollection);
  MAYFLY_TRY(command.Open());
  for (std::span<const std::string> left = keys; !left.empty();) {
    MAYFLY_TRY(op.CheckInterrupt());
    const auto some = left.first(std::min(left.size(), kSessionsAUnit));
    left = left.subspan(some.size());
    const BsonDocument filter = BuildBson([&](BsonBuilder& b) {
      BsonBuilder id = b.OpenDocument("_id");
      BsonArrayBuilder in = id.OpenArray("$in");
      for (const std::string& key : some) {
        BsonBuilder lsid = in.OpenDocument();
        AppendSessionId(lsid, key);
      }
    });
    MAYFLY_TRY(command.Delete({.filter = filter.view(), .multi = true}));
  }
  return Ok();
}

Result<std::vector<BsonDocument>> ListSessionRecords(
    DataServices& server, Operation& op, const std::function<bool(BsonView record)>& shown) {
  std::vector<BsonDocument> out;
  size_t bytes = 0;
  large_memory::Hold hold;  // then the stage has one
  CollectionInfoPtr coll = server.storage().catalog().Find(kDb, kCollection);
  if (!coll) return out;
  auto cursor = server.storage().ScanRecords(coll, {});
  while (true) {
    MAYFLY_TRY(op.CheckInterrupt());
    MAYFLY_TRY(bool more, cursor->Next());
    if (!more) return out;
    if (shown && !shown(cursor->doc())) continue;
    out.emplace_back(cursor->doc());
    bytes += sizeof(BsonDocument) + out.back().view().size();
    MAYFLY_TRY(hold.Set(bytes));
  }
}

}  // namespace mayfly
