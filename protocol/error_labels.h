#pragma once
#include "protocol/error_codes.h"

namespace mayfly {

// How a client may react to an error: drivers use these sets, not single codes.

/// A retryable write may be tried again, here or at another member (label RetryableWriteError).
bool IsRetryableWriteError(ErrorCode code);
/// A change stream may go on behind the last event (label ResumableChangeStreamError).
bool IsResumableStreamError(ErrorCode code);
/// This member is no primary, or not any more: a driver looks for another one.
bool IsNotPrimaryError(ErrorCode code);

}  // namespace mayfly
