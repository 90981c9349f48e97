#pragma once
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>

#include "server/dispatch/command.h"

namespace mayfly {

/// co_await with the server's typed executor, and a timer on it.
inline constexpr boost::asio::use_awaitable_t<IoExecutor> kAwait;
using IoTimer = boost::asio::basic_waitable_timer<
    std::chrono::steady_clock, boost::asio::wait_traits<std::chrono::steady_clock>, IoExecutor>;

}  // namespace mayfly
