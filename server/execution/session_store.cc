#include "server/execution/session_store.h"

#include <openssl/sha.h>

#include "server/dispatch/expiry_services.h"
#include "server/execution/index_spec.h"
#include "server/execution/write_ops.h"
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
  for (const SessionPtr& session : changed) {
    MAYFLY_TRY(op.CheckInterrupt());
    const Instant used = session->last_use();
    const BsonDocument filter = Filter(session->id());
    // Another member of the set may have recorded a later use.
    const BsonDocument update =
        BuildBson([&](BsonBuilder& b) { b.OpenDocument("$max").Append("lastUse", used); });
    UpdateStatement s;
    s.filter = filter.view();
    s.update = update.view().AsValue();
    s.upsert = true;
    MAYFLY_TRY(command.Update(s));
    session->set_stored_use(used);
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
  for (const std::string& key : keys) {
    MAYFLY_TRY(op.CheckInterrupt());
    const BsonDocument filter = Filter(key);
    MAYFLY_TRY(command.Delete({.filter = filter.view()}));
  }
  return Ok();
}

Result<std::vector<BsonDocument>> ListSessionRecords(DataServices& server, Operation& op) {
  std::vector<BsonDocument> out;
  CollectionInfoPtr coll = server.storage().catalog().Find(kDb, kCollection);
  if (!coll) return out;
  auto cursor = server.storage().ScanRecords(coll, {});
  while (true) {
    MAYFLY_TRY(op.CheckInterrupt());
    MAYFLY_TRY(bool more, cursor->Next());
    if (!more) return out;
    out.emplace_back(cursor->doc());
  }
}

}  // namespace mayfly
