#pragma once

namespace mayfly {

/// For latency-critical threads with short bursts of work (network threads): asks the kernel for
/// time slices of 0.1 ms instead of about 3 ms. The thread's share of the processors stays the
/// same, but when it wakes it preempts a busy thread, such as a compaction, without waiting for the
/// end of that thread's slice. Needs Linux 6.12; has no effect on older kernels or without
/// permission. Applies to the calling thread.
void UseShortTimeSlices();

/// For a thread whose work can wait (the store's flushes and compactions): others come first when
/// they wake. It still gets a tenth of a processor that others keep busy all the time, so that what
/// it writes out does not fall behind without end, and locks that it holds are not held for long.
/// Applies to the calling thread, which cannot take it back without privileges.
void UseBackgroundScheduling(int nice = 10);

}  // namespace mayfly
