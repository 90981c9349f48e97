#include "server/access/stored_users.h"

#include "server/access/access_documents.h"
#include "storage/read/visibility.h"
#include "storage/storage.h"

namespace mayfly {

Result<std::optional<BsonDocument>> ReadAccessDocument(Storage& storage,
                                                       std::string_view collection,
                                                       const std::string& id) {
  std::optional<BsonDocument> none;
  const CollectionInfoPtr coll = storage.catalog().Find(kUsersDatabase, collection);
  if (!coll || coll->is_view()) return none;
  const BsonDocument key = BuildBson([&](BsonBuilder& b) { b.Append("_id", id); });
  Storage::Record record;
  MAYFLY_TRY(bool found, storage.FindById(*coll, key.view()["_id"], &record));
  const Visibility visible(storage, *coll, storage.clock().Now());
  if (!found || !visible.Shows(record.doc, record.expire_at)) return none;
  return std::optional(BsonDocument(record.doc));
}

Result<std::optional<BsonDocument>> StoredUsers::Read(std::string_view collection,
                                                      const std::string& id) {
  if (storage_ == nullptr) return std::optional<BsonDocument>();
  return ReadAccessDocument(*storage_, collection, id);
}

Result<std::optional<UserDocument>> StoredUsers::ReadUser(const UserName& name) {
  MAYFLY_TRY(auto stored, Read(kUsersCollection, name.Id()));
  if (!stored) return std::optional<UserDocument>();
  MAYFLY_TRY(UserDocument user, ParseUserDocument(stored->view()));
  return std::optional(std::move(user));
}

Result<std::optional<RoleDocument>> StoredUsers::ReadRole(const RoleName& name, RoleParts parts) {
  MAYFLY_TRY(auto stored, Read(kRolesCollection, name.Id()));
  if (!stored) return std::optional<RoleDocument>();
  MAYFLY_TRY(RoleDocument role, ParseRoleDocument(stored->view(), parts));
  return std::optional(std::move(role));
}

uint64_t StoredUsers::PlaceOfRoles() const {
  if (storage_ == nullptr) return 0;
  const CollectionInfoPtr coll = storage_->catalog().Find(kUsersDatabase, kRolesCollection);
  std::lock_guard l(place_mutex_);
  // A weak pointer stands for its object also after the end of that: no other one has the same.
  if (place_.owner_before(coll) || coll.owner_before(place_)) {
    place_ = coll;
    ++places_;
  }
  return places_;
}

Result<void> StoredUsers::ForEach(Operation& op, std::string_view collection,
                                  const std::function<Result<bool>(BsonView)>& visit) {
  if (storage_ == nullptr) return Ok();
  const CollectionInfoPtr coll = storage_->catalog().Find(kUsersDatabase, collection);
  if (!coll || coll->is_view()) return Ok();
  const Visibility visible(*storage_, *coll, op);
  auto cursor = storage_->ScanRecords(coll, {});
  while (true) {
    MAYFLY_TRY(op.CheckInterrupt());
    MAYFLY_TRY(bool more, cursor->Next());
    if (!more) return Ok();
    if (!visible.Shows(cursor->doc(), cursor->expire_at())) {
      MAYFLY_TRY(visible.Stopped());
      continue;
    }
    MAYFLY_TRY(bool go_on, visit(cursor->doc()));
    if (!go_on) return Ok();
  }
}

bool StoredUsers::Any() const {
  if (storage_ == nullptr) return false;
  for (std::string_view name : {kUsersCollection, kRolesCollection}) {
    const CollectionInfoPtr coll = storage_->catalog().Find(kUsersDatabase, name);
    if (coll && !coll->is_view() && Storage::DocumentCount(*coll) > 0) return true;
  }
  return false;
}

}  // namespace mayfly
