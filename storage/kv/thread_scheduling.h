#pragma once

namespace mayfly {

/// For a thread that answers others and is quick about it (the network's): asks the kernel for time
/// slices of 0.1 ms instead of about 3. Such a thread gets no larger share of the processors, but
/// when it wakes it need not wait for the end of the slice of one that computes, such as the
/// store's compactions. Linux 6.12 and later; before, and where it is not allowed, nothing changes.
/// Applies to the calling thread.
void UseShortTimeSlices();

/// For a thread whose work can wait (the store's flushes and compactions): others come first when
/// they wake. It still gets a tenth of a processor that others keep busy all the time, so that what
/// it writes out does not fall behind without end, and locks that it holds are not held for long.
/// Applies to the calling thread, which cannot take it back without privileges.
void LetOthersGoFirst(int nice = 10);

}  // namespace mayfly
