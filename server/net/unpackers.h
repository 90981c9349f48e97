#pragma once
#include <boost/asio/thread_pool.hpp>

namespace mayfly {

/// Threads for short, pure computation: large messages are unpacked and checked there. As many
/// as processors: more at once would only take processor time from others. First come, first
/// served.
class Unpackers {
 public:
  Unpackers();
  using Executor = boost::asio::thread_pool::executor_type;
  Executor executor() { return pool_.get_executor(); }
  /// Waits for what was posted; nothing may be posted afterwards.
  void Join() { pool_.join(); }

 private:
  boost::asio::thread_pool pool_;
};

}  // namespace mayfly
