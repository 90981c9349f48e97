#include "link/read_ahead.h"

#include <chrono>
#include <iterator>
#include <utility>

namespace mayfly {

void ReadAhead::Open(BsonView token, uint64_t time) {
  Close();
  closed_ = false;
  thread_ = std::thread([this, from = BsonDocument(token), time] { Read(from, time); });
}

void ReadAhead::Read(BsonDocument token, uint64_t time) {
  progress_.Reads();
  ClusterResult<void> done = reader_.Open(token, time);
  while (done) {
    Batch batch;
    ClusterResult<std::vector<BsonDocument>> events = reader_.Next(&batch.token);
    if (!events) {
      done = std::move(events).error();
      break;
    }
    batch.events = std::move(events).value();
    for (const BsonDocument& e : batch.events) batch.bytes += e.view().size() + sizeof e;
    if (!batch.events.empty()) {
      const BsonValue at = batch.events.front().view()["wallTime"];
      batch.oldest = at.IsDate() ? at.Date().millis : progress_.SourceNow();
    }
    std::unique_lock l(mutex_);
    progress_.Heard(batch.oldest);
    // A source that has nothing to say must not fill the queue of a link that is paused.
    if (batch.events.empty() && !queue_.empty()) {
      if (!batch.token.view().empty()) queue_.back().token = std::move(batch.token);
      if (closed_) break;
      continue;
    }
    waiting_.events += static_cast<int64_t>(batch.events.size());
    waiting_.bytes += static_cast<int64_t>(batch.bytes);
    queue_.push_back(std::move(batch));
    changed_.notify_all();
    changed_.wait(l, [&] { return closed_ || waiting_.bytes < static_cast<int64_t>(kMostBytes); });
    if (closed_) break;
  }
  reader_.Close();
  if (done) return;
  std::lock_guard l(mutex_);
  failed_ = std::move(done).error();
  changed_.notify_all();
}

ClusterResult<ReadAhead::Batch> ReadAhead::Next(size_t most) {
  std::unique_lock l(mutex_);
  changed_.wait_for(l, std::chrono::seconds(1), [&] { return !queue_.empty() || failed_; });
  Batch out;
  if (queue_.empty()) {
    if (failed_) return *failed_;
    return out;
  }
  do {
    Batch next = std::move(queue_.front());
    queue_.pop_front();
    waiting_.events -= static_cast<int64_t>(next.events.size());
    waiting_.bytes -= static_cast<int64_t>(next.bytes);
    out.bytes += next.bytes;
    if (!next.token.view().empty()) out.token = std::move(next.token);
    if (out.events.empty())
      out.events = std::move(next.events);
    else
      std::ranges::move(next.events, std::back_inserter(out.events));
    // A batch without a token (a large event goes on behind it) is not joined to an earlier one:
    // with that one's token the position would be before events that were given out, perhaps even
    // before a rename that was saved already.
  } while (!queue_.empty() && !queue_.front().token.view().empty() &&
           out.events.size() + queue_.front().events.size() <= most &&
           out.bytes + queue_.front().bytes <= kMostJoined);
  changed_.notify_all();
  return out;
}

void ReadAhead::Written(int64_t lag_millis) {
  std::lock_guard l(mutex_);
  std::optional<int64_t> oldest;
  for (auto b = queue_.begin(); b != queue_.end() && !oldest; ++b) oldest = b->oldest;
  progress_.Written(lag_millis, oldest);
}

ReadAhead::Waiting ReadAhead::waiting() const {
  std::lock_guard l(mutex_);
  return waiting_;
}

void ReadAhead::Close() {
  {
    std::lock_guard l(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  queue_.clear();
  waiting_ = {};
  failed_.reset();
}

}  // namespace mayfly
