#include "server/dispatch/operation_registry.h"

#include "server/dispatch/command.h"

namespace mayfly {

ClientSlot::ClientSlot(OperationRegistry& registry, std::string d, int64_t id)
    : desc(d.empty() ? "conn" + std::to_string(id) : std::move(d)),
      connection_id(id),
      registry_(registry),
      shard_(registry.next_shard_.fetch_add(1, std::memory_order_relaxed) %
             registry.shards_.size()) {
  OperationRegistry::Shard& s = registry_.shards_[shard_];
  std::lock_guard l(s.mutex);
  s.clients.push_back(*this);
}

ClientSlot::~ClientSlot() {
  OperationRegistry::Shard& s = registry_.shards_[shard_];
  std::lock_guard l(s.mutex);
  s.clients.erase(s.clients.iterator_to(*this));
}

void ClientSlot::Begin(Operation& op, std::string_view command_name, std::string_view db,
                       BsonView command, OperationReport* report, std::string_view session,
                       int64_t start_micros) {
  std::lock_guard l(lock_);
  op_ = &op;
  command_name_ = command_name;
  db_ = db;
  command_ = command;
  report_ = report;
  session_ = session;
  start_micros_ = start_micros;
}

void ClientSlot::End() {
  std::lock_guard l(lock_);
  op_ = nullptr;
  report_ = nullptr;
  command_ = BsonView();
  command_name_ = db_ = session_ = {};
  writes_ = false;
  if (kill_waker_) kill_waker_ = {};
}

bool ClientSlot::SetKillWaker(std::function<void()> wake) {
  std::lock_guard l(lock_);
  if (wake && op_ != nullptr && op_->kill_code.load(std::memory_order_relaxed) != 0) return false;
  kill_waker_ = std::move(wake);
  return true;
}

void ClientSlot::SetWrites(bool on) {
  std::lock_guard l(lock_);
  writes_ = on;
}

bool ClientSlot::Kill(uint64_t op_id, ErrorCode code) {
  std::lock_guard l(lock_);
  if (op_ == nullptr || (op_id != 0 && op_->id != op_id)) return false;
  op_->kill_code.store(static_cast<int32_t>(code), std::memory_order_relaxed);
  if (kill_waker_) kill_waker_();
  return true;
}

void ClientSlot::SetAddresses(std::string remote, std::string local) {
  std::lock_guard l(lock_);
  address = std::move(remote);
  local_address = std::move(local);
}

void ClientSlot::SetUser(std::optional<UserName> user) {
  std::lock_guard l(lock_);
  user_ = std::move(user);
}

std::optional<UserName> ClientSlot::user() const {
  std::lock_guard l(lock_);
  return user_;
}

void ClientSlot::SetMetadata(BsonDocument metadata, std::string app_name) {
  std::lock_guard l(lock_);
  metadata_ = std::move(metadata);
  app_name_ = std::move(app_name);
}

BsonDocument ClientSlot::metadata() const {
  std::lock_guard l(lock_);
  return metadata_;
}

std::string ClientSlot::app_name() const {
  std::lock_guard l(lock_);
  return app_name_;
}

ClientSlot::View ClientSlot::MakeView() const {
  const bool kill_pending = op_ != nullptr && op_->kill_code.load(std::memory_order_relaxed) != 0;
  return {*this,         op_,
          command_name_, db_,
          session_,      command_,
          report_,       start_micros_,
          app_name_,     metadata_,
          kill_pending,  static_cast<bool>(kill_waker_),
          writes_,       user_ ? &*user_ : nullptr};
}

void OperationRegistry::ForEach(const std::function<void(const ClientSlot::View&)>& f) const {
  for (const Shard& s : shards_) {
    std::lock_guard l(s.mutex);
    for (const ClientSlot& c : s.clients) {
      std::lock_guard of_client(c.lock_);
      f(c.MakeView());
    }
  }
}

bool OperationRegistry::Kill(uint64_t op_id, ErrorCode code) {
  if (op_id == 0) return false;
  for (Shard& s : shards_) {
    std::lock_guard l(s.mutex);
    for (ClientSlot& c : s.clients)
      if (c.Kill(op_id, code)) return true;
  }
  return false;
}

int OperationRegistry::KillWhere(const std::function<bool(const ClientSlot::View&)>& which,
                                 ErrorCode code) {
  int n = 0;
  for (Shard& s : shards_) {
    std::lock_guard l(s.mutex);
    for (ClientSlot& c : s.clients) {
      std::lock_guard of_client(c.lock_);
      if (c.op_ == nullptr || !which(c.MakeView())) continue;
      c.op_->kill_code.store(static_cast<int32_t>(code), std::memory_order_relaxed);
      if (c.kill_waker_) c.kill_waker_();
      ++n;
    }
  }
  return n;
}

int OperationRegistry::KillSession(std::string_view session, ErrorCode code) {
  return KillWhere([&](const ClientSlot::View& v) { return v.session == session; }, code);
}

int OperationRegistry::KillAll(ErrorCode code) {
  return KillWhere([](const ClientSlot::View&) { return true; }, code);
}

int OperationRegistry::ActiveCount() const {
  int n = 0;
  ForEach([&](const ClientSlot::View& v) { n += v.op != nullptr ? 1 : 0; });
  return n;
}

struct InternalOperation::State {
  std::string db;
  BsonDocument command;
  OperationReport report;
};

InternalOperation::InternalOperation(OperationRegistry& registry, const Clock& clock,
                                     std::string desc, std::string_view op, std::string db,
                                     std::string ns, BsonView command)
    : state_(std::make_unique<State>()),
      op_(clock, registry.NextOperationId()),
      slot_(registry, std::move(desc), 0) {
  state_->db = std::move(db);
  state_->command = BsonDocument(command);
  state_->report.op = op;
  state_->report.ns = std::move(ns);
  const BsonView shown = state_->command.view();
  slot_.Begin(op_, shown.First().name, state_->db, shown, &state_->report, {},
              clock.MonotonicMicros());
}

InternalOperation::~InternalOperation() { slot_.End(); }

const OperationReport& InternalOperation::report() const { return state_->report; }

}  // namespace mayfly
