#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>

#include "replication/engine.h"

namespace mayfly {
namespace asio = boost::asio;
namespace {

constexpr uint64_t kCompactAfterBytes = 64 << 20;
/// So many attempts in a row without progress end a copy. Fewer are made if another member than the
/// donor leads by now.
constexpr int kAttempts = 20, kAttemptsElsewhere = 2;
/// While members copy, the log may grow to this many times its size.
constexpr uint64_t kLogForCopies = 2;

}  // namespace

void Engine::Housekeeping() {
  if (initialised()) {
    const uint64_t had = log_->bytes(), keep = checkpoints_->KeepFrom();
    if (keep != UINT64_MAX && had > kLogForCopies * max_bytes_) {
      const uint64_t wanted =
          log_->TrimPoint(max_bytes_, static_cast<int64_t>(min_hours_ * 3'600'000),
                          log_->applied().index, o_.clock->Now());
      if (keep < wanted)
        asio::post(transport_->bulk(), [this, wanted, had] {
          checkpoints_->GiveUp(wanted, "the log has grown to " + std::to_string(had >> 20) +
                                           " MB meanwhile: twice what it is meant to keep");
        });
    }
    node_->Trim(max_bytes_, static_cast<int64_t>(min_hours_ * 3'600'000),
                std::min(checkpoints_->KeepFrom(), o_.machine->KeepLogFrom()));
    trimmed_bytes_ += had - std::min(had, log_->bytes());
    if (trimmed_bytes_ >= kCompactAfterBytes) {
      trimmed_bytes_ = 0;
      // Gives the space back. It reads and writes files, so it runs on the thread for copies.
      asio::post(transport_->bulk(), [this, first = log_->first_index()] {
        std::string begin("\x01\0\0\0\0\0\0\0\0", 9), end("\x01", 1);
        for (int shift = 56; shift >= 0; shift -= 8)
          end.push_back(static_cast<char>(first >> shift));
        Result<void> r = o_.kv->Compact(Keyspace::kOplog, begin, end);
        if (!r) Log('W', "The trimmed log could not be compacted: " + r.error().message);
      });
    }
  }
  asio::post(transport_->bulk(), [this] { checkpoints_->RemoveStale(); });
}

bool Engine::Snapshot(uint64_t at_least, SnapshotPointer* out) {
  std::lock_guard l(snapshot_mutex_);
  const int64_t now = Micros();
  // A checkpoint that is about to be forgotten, or that lies before the beginning of the log, is of
  // no use.
  if (ready_ && checkpoints_->Has(ready_->data) && ready_->position.index >= at_least &&
      ready_->position.index + 1 >= log_->first_index() && now - ready_us_ < 60'000'000) {
    *out = *ready_;
    return true;
  }
  if (making_) return false;
  if (checkpoints_->Full()) {
    if (!std::exchange(full_, true))
      Log('W', "As many members copy as may at the same time: another one waits");
    return false;
  }
  full_ = false;
  making_ = true;
  const LogPosition position = log_->applied();
  std::vector<NodeId> voters, learners;
  for (const RaftNode::Member& m : node_->members()) (m.voter ? voters : learners).push_back(m.id);
  std::string conf = RaftNode::ConfState(voters, learners);
  asio::post(transport_->bulk(), [this, position, conf = std::move(conf)] {
    Result<std::string> made = checkpoints_->Make(position);
    std::lock_guard l(snapshot_mutex_);
    making_ = false;
    if (!made) return Log('E', "A copy of the data could not be made: " + made.error().message);
    Log('I', "A copy of the data is ready for a member that needs it");
    ready_ = SnapshotPointer{position, conf, made.value()};
    ready_us_ = Micros();
  });
  return false;
}

void Engine::Resync(NodeId from, SnapshotPointer p) {
  if (copying_.exchange(true)) return;
  std::optional<std::string> address = transport_->AddressOf(from);
  if (!address) {
    copying_ = false;
    return;
  }
  {
    std::lock_guard l(status_mutex_);
    sync_source_ = *address;
  }
  progress_.done = progress_.total = 0;
  Log('I', "Initial sync: copying the data of " + *address);
  asio::co_spawn(transport_->bulk().get_executor(), Pull(*address, from, std::move(p)),
                 asio::detached);
}

LinkTask<void> Engine::Pull(std::string address, NodeId from, SnapshotPointer p) {
  DataCopy copy(o_.store, o_.data_directory, p.data, progress_);
  Result<void> fetched = Error{};
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint64_t had = progress_.done;
    auto made = co_await MakeLink(address, Identity(), LinkPurpose::kFetch, from);
    if (!made) {
      fetched = made.error();
    } else {
      MemberLink& link = *made.value().link;
      link.CloseAfterSilence(o_.copy_silence_ms);
      fetched = co_await copy.Fetch(link);
      link.Close();
    }
    if (fetched || fetched.error().code == ErrorCode::kInitialSyncFailure) break;
    // Progress counts, no matter how often the connection breaks.
    if (progress_.done > had) attempt = 0;
    const NodeId leader = state().leader;
    if (attempt + 1 >= kAttemptsElsewhere && leader != 0 && leader != from) {
      Log('W', "Initial sync: " + address + " does not answer, and another member leads by now");
      break;
    }
    Log('W', "Initial sync was interrupted and continues: " + fetched.error().message);
    boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                      asio::wait_traits<std::chrono::steady_clock>, LinkExecutor>
        timer(transport_->bulk().get_executor(), std::chrono::seconds(1));
    co_await timer.async_wait(asio::as_tuple(kLinkAwait));
  }
  if (!fetched) {
    Log('W', "Initial sync starts over: " + fetched.error().message);
    EndSync();
    co_return;
  }
  // From here on this node makes no more promises: those that it has made are stored with the copy.
  Call([this, p] {
    if (halted_) return;
    if (p.position.index <= node_->status().commit) {
      Log('I', "Initial sync is not needed any more: the log has caught up");
      EndSync();
      return;
    }
    halted_ = true;
    const HardState own = log_->hard_state();
    asio::post(transport_->bulk(), [this, p, own] {
      DataCopy copy(o_.store, o_.data_directory, p.data, progress_);
      auto archived = ReadArchived(*o_.kv);
      Result<LogPosition> adopted =
          archived ? copy.Adopt(log_->node(), own, archived.value()) : archived.error();
      Result<void> marked = Ok();
      if (adopted) marked = copy.MarkReady();
      if (!adopted || !marked)
        Fatal("the copy of another member's data cannot be used: " +
              (adopted ? marked.error().message : adopted.error().message));
      Log('I',
          "Initial sync: the copy is complete; it is put in place when the server starts again");
      if (o_.restart)
        o_.restart();
      else
        Fatal("the copied data is used after a restart: start the server again");
    });
  });
}

void Engine::EndSync() {
  {
    std::lock_guard l(status_mutex_);
    sync_source_.clear();
  }
  copying_ = false;
}

}  // namespace mayfly
