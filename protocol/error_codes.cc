#include "protocol/error_codes.h"

#include <mutex>
#include <string>
#include <unordered_map>

namespace mayfly {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
#define X(name, number, text) \
  case ErrorCode::name:       \
    return text;
    MAYFLY_ERROR_CODES(X)
#undef X
  }
  switch (static_cast<int32_t>(code)) {
    case 257:
      return "TransactionTooLarge";
    case 290:
      return "TransactionExceededLifetimeLimitSeconds";
    default:
      break;
  }
  static std::mutex mutex;
  static auto* names =
      new std::unordered_map<int32_t, std::string>;  // grows by the few Location codes in use
  std::lock_guard lock(mutex);
  std::string& name = (*names)[static_cast<int32_t>(code)];
  if (name.empty()) name = "Location" + std::to_string(static_cast<int32_t>(code));
  return name;
}

}  // namespace mayfly
