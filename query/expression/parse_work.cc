#include "query/expression/parse_work.h"

#include <string>

#include "storage/operation.h"

namespace mayfly {

thread_local constinit ParseWork* ParseWork::current_ = nullptr;
thread_local constinit uint32_t ParseWork::left_ = ParseWork::kSteps;
thread_local constinit uint64_t ParseWork::made_ = 0;

ParseWork::ParseWork(Operation* op)
    : outer_(current_),
      outermost_(outer_ != nullptr ? outer_->outermost_ : this),
      op_(op != nullptr || outer_ == nullptr ? op : outer_->op_),
      begin_(made_),
      kept_before_(outermost_->kept_) {
  current_ = this;
  if (outer_ == nullptr) left_ = kSteps;
}

ParseWork::~ParseWork() { current_ = outer_; }

Result<void> ParseWork::Look() {
  left_ = 0;
  if (current_ != nullptr) {
    ParseWork& whole = *current_->outermost_;
    if (whole.full_) return large_memory::TooMuch();
    if (whole.bytes() > kMaxBytes)
      return Error{ErrorCode::kExceededMemoryLimit,
                   "What was sent takes more than the " + std::to_string(kMaxBytes >> 20) +
                       " MB of memory that one operation may use to parse it: send fewer "
                       "conditions, fields or "
                       "stages at once"};
    if (Result<void> held = whole.held_.Set(whole.bytes() - whole.kept_); !held) {
      // A Hold says so once only: what it holds then is no more than before.
      whole.full_ = true;
      return held;
    }
    if (current_->op_ != nullptr) {
      MAYFLY_TRY(current_->op_->CheckInterruptNow());
    }
  }
  left_ = kSteps;
  return Ok();
}

Result<void> ParseWork::HandOver(large_memory::Hold* hold, uint64_t more) {
  ParseWork& whole = *outermost_;
  if (whole.full_) return large_memory::TooMuch();
  whole.kept_ += more;
  // The parse gives it up first, so that it never counts twice. An error here is one below, too.
  static_cast<void>(whole.held_.Set(whole.bytes() - whole.kept_));
  Result<void> taken = hold->Set(hold->held() + more);
  if (!taken) whole.full_ = true;
  return taken;
}

}  // namespace mayfly
