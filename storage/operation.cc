#include "storage/operation.h"

namespace mayfly {

Error Operation::Killed(ErrorCode code) {
  switch (code) {
    case ErrorCode::kMaxTimeMSExpired: return {code, "operation exceeded time limit"};
    case ErrorCode::kInterruptedAtShutdown: return {code, "interrupted at shutdown"};
    case ErrorCode::kInterrupted: return {code, "operation was interrupted"};
    default: return {code, "operation was interrupted"};
  }
}

}  // namespace mayfly
