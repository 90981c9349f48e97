#include "server/execution/transactions.h"

#include <algorithm>

#include "protocol/fair_share.h"
#include "protocol/large_memory.h"
#include "server/dispatch/data_services.h"
#include "server/dispatch/replication_gate.h"
#include "storage/storage.h"
#include "storage/write/transaction_holdings.h"

/// Figures of transactions, the limits of their clients, and their ends.
namespace mayfly {

int64_t TransactionTotals::aborted() const {
  int64_t n = 0;
  for (size_t i = 1; i < ended.size(); ++i) n += ended[i];
  return n;
}

void Transactions::CountLocked(Transaction& t, const Operation& op) {
  t.costs_.Add(op);
  const int64_t now = server_.clock().MonotonicMicros();
  t.costs_.active_micros += now - t.active_since_;
  t.active_since_ = now;
  if (!t.unit_) return;
  const TransactionHoldings h =
      HoldingsOf(*t.unit_, TransactionCosts::kNamespaces, &t.costs_.written);
  const size_t bytes = t.unit_->MemoryBytes();
  const int64_t more = static_cast<int64_t>(bytes) - static_cast<int64_t>(t.costs_.bytes);
  bytes_ += more;
  by_client_[t.client_].bytes += more;
  t.costs_.locks = h.locks;
  t.costs_.documents = h.documents;
  t.costs_.bytes = bytes;
}

Result<void> Transactions::TakeShareLocked(const std::string& client) {
  if (open_.load() >= static_cast<int64_t>(kMaxOpenTransactions))
    return Error{ErrorCode::kExceededMemoryLimit, "there are too many open transactions"};
  Share& share = by_client_[client];
  if (share.open != 0 && !FitsFairShare(share.open + 1, open_.load() + 1, kMaxOpenTransactions,
                                        kMaxTransactionsOfClient, false))
    return Error{ErrorCode::kExceededMemoryLimit,
                 "this client has " + std::to_string(share.open) +
                     " open transactions, as many as it may: end some of them"};
  ++share.open;
  return Ok();
}

Result<void> Transactions::CheckShareLocked(const Transaction& t) const {
  const auto share = by_client_.find(t.client_);
  if (share == by_client_.end() ||
      FitsFairShare(share->second.bytes, bytes_, MaxTransactionBytes(),
                    MaxTransactionBytesOfClient(), share->second.open == 1))
    return Ok();
  return Error{ErrorCode::kExceededMemoryLimit,
               "the open transactions of this client have staged more than the " +
                   std::to_string(MaxTransactionBytesOfClient() >> 20) +
                   " MB they may, or more than is left for all others: commit them earlier, or "
                   "begin fewer at once"};
}

void Transactions::EndLocked(Transaction& t, TransactionEnd end) {
  const bool committed = end == TransactionEnd::kCommitted;
  t.state_ = committed ? Transaction::State::kCommitted : Transaction::State::kAborted;
  open_.fetch_sub(1);
  ++ended_[static_cast<size_t>(end)];
  bytes_ -= static_cast<int64_t>(t.costs_.bytes);
  if (auto share = by_client_.find(t.client_); share != by_client_.end()) {
    share->second.bytes -= static_cast<int64_t>(t.costs_.bytes);
    if (--share->second.open == 0) by_client_.erase(share);
  }
  list_.erase(list_.iterator_to(t));
  t.session_use_.Reset();
  if (committed)
    last_ = TransactionTotals::Last{t.changes_, t.entry_bytes_, std::move(t.write_concern_)};
}

void Transactions::Committed(const TransactionPtr& t, const MadeTeller& tell,
                             Result<void> r) noexcept {
  const TransactionEnd end = r ? TransactionEnd::kCommitted
                             : r.error().code == ErrorCode::kWriteConflict
                                 ? TransactionEnd::kConflict
                             : server_.writable() ? TransactionEnd::kError
                                                  : TransactionEnd::kStepDown;
  std::vector<CollectionInfoPtr> untold;
  {
    std::lock_guard l(mutex_);
    // Handing it over has failed, and was answered so.
    if (t->state_ != Transaction::State::kCommitting) return;
    t->commit_ts_ = t->commit_op_->commit_ts;
    if (r) CountRow();
    const bool committed = r.has_value();
    if (!committed) t->commit_error_ = std::move(r).error();
    EndLocked(*t, end);
    if (committed && t->waiting_ == 0) untold.swap(t->made_);
  }
  // Nobody is told of what there is no memory to tell.
  try {
    if (tell && !untold.empty()) tell(std::move(untold));
  } catch (...) {
  }
  try {
    TellEnd(*t, end);
  } catch (...) {
  }
  {
    std::lock_guard l(mutex_);
    StripLocked(*t);
  }
  Tell(kEnded);
  Tell(t->event_);
}

void Transactions::TellEnd(const Transaction& t, TransactionEnd end) {
  const int64_t now = server_.clock().MonotonicMicros();
  server_.metrics().transactions.Record(now - t.began_micros_);
  if (!on_end_) return;
  on_end_(now - t.began_micros_, [&] {
    std::lock_guard l(mutex_);
    return FinishedTransaction{ViewOf(t, now), end};
  });
}

void Transactions::StripLocked(Transaction& t) {
  t.costs_ = TransactionCosts();
  if (t.commit_op_) t.commit_op_->SetUser(nullptr, nullptr);  // it may be as large as its roles
  std::string().swap(t.db_);
  t.user_.reset();
  std::string().swap(t.client_);
  t.read_concern_ = BsonDocument();
  t.write_concern_ = WriteConcern();
}

TransactionView Transactions::ViewOf(const Transaction& t, int64_t now_micros) const {
  TransactionView v;
  v.session = t.session;
  v.user = t.user_;
  v.db = t.db_;
  v.number = t.number;
  v.connection_id = t.connection_id_;
  v.read_concern = t.read_concern_;
  v.read_ts = t.point_ts_;
  v.began = t.began_;
  v.open_micros = now_micros - t.began_micros_;
  v.lifetime_secs = server_.snapshot_reads().transaction_parameters().lifetime_secs.load();
  v.costs = t.costs_;
  if (t.running_ != nullptr && t.state_ != Transaction::State::kAborted) {
    v.running_op = t.running_->id;
    v.costs.active_micros += std::max<int64_t>(0, now_micros - t.active_since_);
  }
  return v;
}

TransactionTotals Transactions::totals() {
  TransactionTotals out;
  const int64_t now = server_.clock().MonotonicMicros();
  std::lock_guard l(mutex_);
  out.open = static_cast<int64_t>(list_.size());
  for (const Transaction& t : list_) out.active += t.running_ != nullptr;
  out.started = started_.load();
  out.rows = rows_.load();
  out.conflicts = conflicts_;
  if (!list_.empty()) out.oldest_micros = std::max<int64_t>(0, now - list_.front().began_micros_);
  out.bytes = bytes_;
  out.ended = ended_;
  out.last = last_;
  return out;
}

std::vector<TransactionView> Transactions::List() {
  std::vector<TransactionView> out;
  const int64_t now = server_.clock().MonotonicMicros();
  std::lock_guard l(mutex_);
  out.reserve(list_.size());
  for (const Transaction& t : list_) out.push_back(ViewOf(t, now));
  return out;
}

}  // namespace mayfly
