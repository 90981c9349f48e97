#pragma once
#include <future>
#include <memory>
#include <utility>

#include "protocol/error.h"

namespace mayfly {

/// Waits for a call of the engine that answers once: `start` gets the function to answer with.
template <class T, class F>
Result<T> Await(F&& start) {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  std::future<Result<T>> future = promise->get_future();
  start([promise](Result<T> r) { promise->set_value(std::move(r)); });
  return future.get();
}

}  // namespace mayfly
