"""What a server's threads have used."""

import os


def threads_cpu(pid):
    """Seconds of processor time of all threads that are there; finer than /proc/PID/stat."""
    total = 0
    for t in os.listdir(f"/proc/{pid}/task"):
        try:
            total += int(open(f"/proc/{pid}/task/{t}/schedstat").read().split()[0])
        except FileNotFoundError:
            pass  # it has ended
    return total / 1e9
