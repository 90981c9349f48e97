#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/error.h"

namespace mayfly {

class Operation;

/// A regular expression, compiled once (PCRE2; to machine code when it is used more often) and
/// matched under match, depth and heap limits. Machine code does not count the steps of repeated
/// single characters ("[ab]{1,900}[ab]{1,20000}x" takes hours on 10 kB). So patterns that may take
/// many steps, by the number of repeats and the length of the subject, are matched by code that
/// calls back before each item: it counts the steps, and can interrupt the operation. Nor does
/// anything count the letters of a long pattern that are compared at each place of a subject: such
/// a search goes on from place to place in pieces, and looks at the operation between them.
/// Immutable; threads: any.
class CompiledRegex {
 public:
  using Ptr = std::shared_ptr<const CompiledRegex>;
  /// Byte offsets [first, second) of a match or of one group; kUnset twice for a group that took no
  /// part.
  using Span = std::pair<size_t, size_t>;
  static constexpr size_t kUnset = ~size_t{0};
  /// Letters that are compared between two looks at the operation: one piece of a long search.
  static constexpr size_t kPiece = 100'000'000;

  /// `options`: any of i m s x u (u changes nothing: patterns and subjects are UTF-8 always).
  /// Errors: 51108 (unknown option), 51109 and 51110 (NUL in the pattern or options), 51091 (bad
  /// pattern), BadValue 2 (pattern above 32764 bytes; above 8 KiB with \G or a verb).
  static Result<Ptr> Compile(std::string_view pattern, std::string_view options);
  /// How long compiling takes, for ParseWork::Step.
  static size_t Cost(std::string_view pattern) { return 8 + pattern.size() / 16; }
  ~CompiledRegex();
  CompiledRegex(const CompiledRegex&) = delete;
  CompiledRegex& operator=(const CompiledRegex&) = delete;

  /// Whether it matches anywhere in `subject`. No allocation. `op` (may be null) is asked now and
  /// then whether to go on. Errors: 51156 when a limit is exceeded; those of
  /// Operation::CheckInterrupt.
  Result<bool> Matches(std::string_view subject, Operation* op = nullptr) const {
    return Find(subject, 0, nullptr, op);
  }
  /// The first match at or behind byte `start`; `groups` (may be null) gets the whole match and
  /// then each group.
  Result<bool> Find(std::string_view subject, size_t start, std::vector<Span>* groups,
                    Operation* op = nullptr) const;

  const std::string& pattern() const { return pattern_; }
  const std::string& options() const { return options_; }
  /// Number of capture groups in the pattern.
  int captures() const { return captures_; }

 private:
  CompiledRegex() = default;
  std::string pattern_, options_;
  /// The code to match with: machine code, made at the first use. Making it takes twenty
  /// times as long as compiling, so if a filter has many patterns, only those used often get
  /// it.
  const void* Code() const;
  /// The one that calls back, or code_ where that would be too long.
  const void* WatchedCode() const;
  bool MayTakeLong(size_t subject, const Operation* op) const;
  void CountWatched(size_t subject, int64_t steps) const;
  /// pcre2_match, in pieces where the pattern is long. `code`: a pcre2_code*, `data`: a
  /// pcre2_match_data*. Answers what that answers; errors: those of CheckInterrupt.
  Result<int> Match(const void* code, std::string_view subject, size_t start, void* data,
                    Operation* op) const;

  void* code_ = nullptr;  // pcre2_code*, never changed
  /// That of the server which has compiled it: large_memory::Budget.
  std::shared_ptr<std::atomic<int64_t>> machine_code_bytes_;
  int captures_ = 0;
  uint32_t flags_ = 0;  ///< it was compiled with
  /// Longer subjects may take more than kFastSteps; than kSliceSteps.
  size_t fast_bytes_ = 0, slice_bytes_ = 0;
  size_t trusted_bytes_ = 0;  ///< … than kTrustedSteps
  bool in_pieces_ = false;    ///< long: see Match
  uint32_t fast_from_ = 0;    ///< the use at which machine code is made
  mutable std::atomic<uint32_t> uses_{0};
  mutable std::atomic<void*> fast_{
      nullptr};  // pcre2_code*: a copy of code_ with machine code; null: not yet
  mutable std::atomic<int> short_searches_{0};   ///< watched ones; below 0: one was long
  mutable std::atomic<void*> watched_{nullptr};  // pcre2_code*; null: not yet
};

}  // namespace mayfly
