#pragma once
#include <functional>
#include <utility>
#include <vector>

namespace mayfly {

/// The started stages, each with its undo function: undone in reverse order, so that each stage
/// ends while everything it was built on still exists. Threads: one.
class StartStages {
 public:
  StartStages() = default;
  StartStages(const StartStages&) = delete;
  ~StartStages() { Undo(); }
  /// `undo` runs once. It is added when its stage has begun, also where that may still fail.
  void Add(std::function<void()> undo) { undo_.push_back(std::move(undo)); }
  void Undo() {
    while (!undo_.empty()) {
      const std::function<void()> last = std::move(undo_.back());
      undo_.pop_back();
      last();
    }
  }

 private:
  std::vector<std::function<void()>> undo_;
};

}  // namespace mayfly
