#include "protocol/error_labels.h"

#include <algorithm>
#include <cstdint>

namespace mayfly {
namespace {

enum Sets : uint8_t { kRetryableWrite = 1, kResumableStream = 2, kNotPrimary = 4 };

struct Row {
  int32_t code;  ///< also of errors that this server never makes: tests name them (fail points)
  uint8_t sets;
};

/// By code.
constexpr Row kRows[] = {
    {6, kRetryableWrite | kResumableStream},                    // HostUnreachable
    {7, kRetryableWrite | kResumableStream},                    // HostNotFound
    {63, kResumableStream},                                     // StaleShardVersion
    {89, kRetryableWrite | kResumableStream},                   // NetworkTimeout
    {91, kRetryableWrite | kResumableStream},                   // ShutdownInProgress
    {133, kResumableStream},                                    // FailedToSatisfyReadPreference
    {150, kResumableStream},                                    // StaleEpoch
    {189, kRetryableWrite | kResumableStream | kNotPrimary},    // PrimarySteppedDown
    {234, kResumableStream},                                    // RetryChangeStream
    {262, kRetryableWrite | kResumableStream},                  // ExceededTimeLimit
    {9001, kRetryableWrite | kResumableStream},                 // SocketException
    {10107, kRetryableWrite | kResumableStream | kNotPrimary},  // NotWritablePrimary
    {11600, kRetryableWrite | kResumableStream},                // InterruptedAtShutdown
    {11602, kRetryableWrite | kResumableStream | kNotPrimary},  // InterruptedDueToReplStateChange
    {13388, kResumableStream},                                  // StaleConfig
    {13435, kRetryableWrite | kResumableStream | kNotPrimary},  // NotPrimaryNoSecondaryOk
    {13436, kRetryableWrite | kResumableStream | kNotPrimary},  // NotPrimaryOrSecondary
};

bool In(ErrorCode code, Sets set) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [n = static_cast<int32_t>(code)](Row r) { return r.code == n; });
  return row != std::end(kRows) && (row->sets & set) != 0;
}

}  // namespace

bool IsRetryableWriteError(ErrorCode code) { return In(code, kRetryableWrite); }
bool IsResumableStreamError(ErrorCode code) { return In(code, kResumableStream); }
bool IsNotPrimaryError(ErrorCode code) { return In(code, kNotPrimary); }

}  // namespace mayfly
