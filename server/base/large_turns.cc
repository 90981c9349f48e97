#include "server/base/large_turns.h"

#include <chrono>

namespace mayfly {

Result<void> LargeTurn::Take(Operation& op) {
  if (held_) return Ok();
  LargeTurns& t = turns_;
  std::unique_lock l(t.mutex_);
  const uint64_t mine = t.next_++;
  t.waiting_.insert(mine);
  while (t.taken_ >= t.most_ || *t.waiting_.begin() != mine) {
    t.given_.wait_for(l, std::chrono::milliseconds(20));
    if (Result<void> go = op.CheckInterruptNow(); !go) {
      t.waiting_.erase(mine);
      t.given_.notify_all();
      return go;
    }
  }
  t.waiting_.erase(mine);
  ++t.taken_;
  held_ = true;
  t.given_.notify_all();
  return Ok();
}

void LargeTurn::Give() {
  if (!held_) return;
  held_ = false;
  std::lock_guard l(turns_.mutex_);
  --turns_.taken_;
  turns_.given_.notify_all();
}

}  // namespace mayfly
