#include "server/access/access_control.h"

#include <algorithm>
#include <set>

#include "security/login_backoff.h"
#include "security/time_keys.h"
#include "server/base/client_of.h"
#include "storage/storage.h"
#include "storage/write/collection_watch.h"
#include "storage/write/write_unit.h"

namespace mayfly {
namespace {

constexpr size_t kDecoySecretBytes = 32;

}  // namespace

AccessControl::~AccessControl() = default;

std::shared_ptr<void> UnknownClients::Enter(std::string_view address, int64_t limit) {
  std::string client = ClientOf(address);
  {
    std::lock_guard l(table_->mutex);
    int64_t& n = table_->connections[client];
    if (n >= limit) return nullptr;
    ++n;
  }
  return std::shared_ptr<void>(this, [table = table_, client = std::move(client)](void*) {
    std::lock_guard l(table->mutex);
    if (auto at = table->connections.find(client);
        at != table->connections.end() && --at->second <= 0)
      table->connections.erase(at);
  });
}

AccessControl::AccessControl()
    : users_(stored_),
      backoff_(std::make_unique<LoginBackoff>()),
      time_keys_(std::make_unique<TimeKeys>()) {
  // Used until storage has a secret. Before the first user exists, there are no real users that
  // decoys could be compared with. So without random bytes any text will do here: the first user
  // is not made before KeepDecoySecret, which then fails, has stored a secret.
  auto random = RandomBytes(kDecoySecretBytes);
  UseDecoySecret(random ? std::move(random).value() : std::string(kDecoySecretBytes, 'x'));
}

void AccessControl::Open(Storage& storage) {
  storage_ = &storage;
  stored_.set_storage(&storage);
  LoadDecoySecret();
  (void)LoadTimeKeys();
  if (stored_.Any()) localhost_closed_ = true;
  WatchCollections(storage, std::string(kUsersDatabase),
                   {std::string(kUsersCollection), std::string(kRolesCollection)},
                   [this](std::string_view collection) {
                     if (!collection.empty())
                       localhost_closed_.store(true, std::memory_order_relaxed);
                     // A definition's change: PlaceOfRoles says whether it was that of the roles.
                     users_.Invalidate(collection == kRolesCollection);
                   });
}

void AccessControl::Close() {
  stored_.set_storage(nullptr);
  storage_ = nullptr;
}

bool AccessControl::LocalhostExceptionOpen() {
  if (!enforced_ || !parameters_.localhost_bypass || localhost_closed_) return false;
  if (!stored_.Any()) return true;
  localhost_closed_ = true;
  return false;
}

std::shared_ptr<const ScramDecoys> AccessControl::decoys() const {
  std::lock_guard l(decoys_mutex_);
  return decoys_;
}

void AccessControl::UseDecoySecret(std::string secret) {
  auto made = std::make_shared<const ScramDecoys>(secret);
  std::lock_guard l(decoys_mutex_);
  decoys_ = std::move(made);
  decoy_secret_ = std::move(secret);
}

void AccessControl::LoadDecoySecret() {
  if (auto stored = storage_->catalog().GetSetting(kDecoySetting);
      stored && stored.value() && stored.value()->size() == kDecoySecretBytes)
    UseDecoySecret(std::move(*stored.value()));
}

Result<void> AccessControl::KeepDecoySecret(Operation& op) {
  MAYFLY_TRY(auto stored, storage_->catalog().GetSetting(kDecoySetting));
  if (stored && stored->size() == kDecoySecretBytes) return Ok();
  MAYFLY_TRY(std::string secret, RandomBytes(kDecoySecretBytes));
  MAYFLY_TRY(storage_->catalog().PutSetting(op, kDecoySetting, secret));
  UseDecoySecret(std::move(secret));
  return Ok();
}

Result<void> AccessControl::LoadTimeKeys() {
  MAYFLY_TRY(auto stored, storage_->catalog().GetSetting(kTimeKeysSetting));
  return stored ? time_keys_->Use(*stored) : Ok();
}

Result<void> AccessControl::KeepTimeKeys(Operation& op, int64_t seconds) {
  // Another thread is doing it, and may wait for a majority.
  const std::unique_lock l(keeping_times_, std::try_to_lock);
  if (!l) return Ok();
  MAYFLY_TRY(LoadTimeKeys());
  MAYFLY_TRY(auto renewed, time_keys_->Renewed(seconds, parameters_.time_key_seconds));
  if (renewed) {
    MAYFLY_TRY(storage_->catalog().PutSetting(op, kTimeKeysSetting, *renewed));
    MAYFLY_TRY(time_keys_->Use(*renewed));
  }
  return ShowTimeKeys(op);
}

Result<void> AccessControl::ShowTimeKeys(Operation& op) {
  const std::vector<TimeKeys::Shown> keys = time_keys_->All();
  MAYFLY_TRY(CollectionInfoPtr coll,
             storage_->catalog().GetOrCreate(op, kUsersDatabase, kTimeKeysCollection));
  if (coll->is_view()) return Ok();
  std::vector<BsonDocument> documents;  // live until the commit
  documents.reserve(keys.size());
  WriteUnit unit(*storage_, op);
  bool changed = false;
  std::set<std::string> there;
  auto cursor = storage_->ScanRecords(coll, {});
  while (true) {
    MAYFLY_TRY(bool more, cursor->Next());
    if (!more) break;
    const BsonValue id = cursor->doc()["_id"];
    if (std::ranges::any_of(keys, [&](const auto& k) {
          return id.Is(BsonType::kInt64) && id.NumberAsInt64() == k.id;
        })) {
      there.emplace(cursor->record_key());
      continue;
    }
    WriteUnit::Locked locked;
    MAYFLY_TRY(bool found, unit.LockAndRead(*coll, cursor->record_key(), &locked));
    if (!found) continue;
    MAYFLY_TRY(unit.Delete(*coll, locked));
    changed = true;
  }
  for (const TimeKeys::Shown& k : keys) {
    documents.push_back(BuildBson([&](BsonBuilder& b) {
      b.Append("_id", k.id).Append("purpose", "HMAC").AppendBinary("key", 0, k.secret);
      b.AppendTimestamp("expiresAt", static_cast<uint64_t>(k.expires) << 32);
    }));
    const BsonView document = documents.back().view();
    std::string key;
    Storage::AppendRecordKey(*coll, document["_id"], key);
    if (there.contains(key)) continue;
    MAYFLY_TRY(unit.Insert(*coll, document));
    changed = true;
  }
  return changed ? storage_->committer().Commit(std::move(unit)) : Ok();
}

}  // namespace mayfly
