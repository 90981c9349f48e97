#pragma once
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace mayfly {

/// Documents that live until their unit is committed: views of them stay good while others are
/// added, and nothing is allocated for the list itself before there is a second one, because most
/// commands have one or none. One thread.
class ScratchDocuments {
 public:
  ScratchDocuments() = default;
  /// REQUIRES: it is empty. Short documents are inside of what moves.
  ScratchDocuments(ScratchDocuments&&) = default;
  ScratchDocuments(const ScratchDocuments&) = delete;
  ScratchDocuments& operator=(const ScratchDocuments&) = delete;

  /// An empty one more, until pop_back or clear.
  std::string& Add() {
    if (count_++ == 0) return first_;
    if (!more_) more_.emplace();
    return more_->emplace_back();
  }
  std::string& Add(std::string document) { return Add() = std::move(document); }
  /// The one that was added last goes. REQUIRES: there is one.
  void RemoveLast() {
    if (--count_ == 0)
      ClearFirst();
    else
      more_->pop_back();
  }
  /// Forgets them all; keeps the memory.
  void Clear() {
    if (count_ == 0) return;
    count_ = 0;
    ClearFirst();
    if (more_) more_->clear();
  }
  size_t size() const { return count_; }

 private:
  /// What the next one fills again, unless it is large.
  void ClearFirst() {
    first_.clear();
    if (first_.capacity() > kKept) std::string().swap(first_);
  }
  static constexpr size_t kKept = 64 << 10;
  size_t count_ = 0;
  std::string first_;
  std::optional<std::deque<std::string>> more_;
};

}  // namespace mayfly
