#include "server/dispatch/collection_notifier.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "server/dispatch/io_timer.h"
#include "server/dispatch/operation_registry.h"
#include "server/dispatch/server_context.h"

namespace mayfly {

namespace asio = boost::asio;

CollectionNotifier::Watch::Watch(CollectionNotifier& n, uint32_t collection_id)
    : n_(n), id_(collection_id) {
  std::lock_guard l(n_.mutex_);
  n_.waiters_.fetch_add(1, std::memory_order_seq_cst);
  Entry& e = n_.entries_[id_];
  ++e.watchers;
  seen_ = e.version;
}

CollectionNotifier::Watch::~Watch() {
  std::lock_guard l(n_.mutex_);
  n_.waiters_.fetch_sub(1, std::memory_order_seq_cst);
  if (--n_.entries_[id_].watchers == 0) n_.entries_.erase(id_);
}

void CollectionNotifier::NotifySlow(uint32_t collection_id) {
  std::lock_guard l(mutex_);
  auto it = entries_.find(collection_id);
  if (it == entries_.end()) return;
  ++it->second.version;
  for (auto& [token, wake] : it->second.waiting) wake();
  it->second.waiting.clear();
}

Awaitable<Result<bool>> CollectionNotifier::Watch::WaitFor(CommandContext& ctx,
                                                           int64_t deadline_micros) {
  co_await ctx.MoveToIo();
  const int64_t begin = ctx.server.clock().MonotonicMicros();
  if (ctx.op.deadline_micros != 0)
    deadline_micros = std::min(deadline_micros, ctx.op.deadline_micros);
  auto timer = std::make_shared<IoTimer>(ctx.io);
  timer->expires_at(
      std::chrono::steady_clock::time_point(std::chrono::microseconds(deadline_micros)));
  // Posted, so that it runs on the io thread and after the wait below has begun.
  auto wake = [timer, ex = ctx.io] { asio::post(ex, [timer] { timer->cancel(); }); };
  uint64_t token = 0;
  bool notified = false;
  {
    std::lock_guard l(n_.mutex_);
    Entry& e = n_.entries_[id_];
    notified = e.version != seen_;
    if (!notified) {
      token = n_.next_token_++;
      e.waiting.emplace(token, wake);
    }
  }
  if (!notified && (ctx.client == nullptr || ctx.client->SetKillWaker(wake))) {
    co_await timer->async_wait(asio::as_tuple(kAwait));
    if (ctx.client != nullptr) ctx.client->SetKillWaker({});
  }
  {
    std::lock_guard l(n_.mutex_);
    Entry& e = n_.entries_[id_];
    notified = e.version != seen_;
    seen_ = e.version;
    e.waiting.erase(token);
  }
  ctx.waited_micros += ctx.server.clock().MonotonicMicros() - begin;
  auto ok = ctx.CheckNow();
  if (!ok) co_return std::move(ok).error();
  co_return notified;
}

}  // namespace mayfly
