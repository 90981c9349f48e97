#define PCRE2_CODE_UNIT_WIDTH 8
#include "query/expression/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <climits>
#include <cmath>

#include "protocol/large_memory.h"
#include "query/expression/parse_work.h"
#include "query/expression/utf8_positions.h"
#include "storage/operation.h"

namespace mayfly {

namespace {

constexpr size_t kMaxPatternBytes = 32764;
constexpr uint32_t kMatchLimit = 1'000'000;  // back-tracking steps: some 10 ms
constexpr uint32_t kDepthLimit = 10'000;
constexpr uint32_t kHeapLimitKib = 20'000;
constexpr uint32_t kParensNestLimit = 200;
constexpr size_t kJitStackMax = 512 * 1024;
constexpr uint32_t kFastPatterns = 32;  // of one parse that become machine code when first used
constexpr uint32_t kOften = 64;         // uses of the others before they do
// Steps of a back-tracking search, some ns each, allowed without a check of the operation.
constexpr double kFastSteps = 1e8;
// … for a pattern that has proved short: hardly any takes the steps that its text allows.
constexpr double kTrustedSteps = 1e10;
constexpr int kShortSearches = 16;
constexpr double kSliceSteps = 1e6;            // … on a thread that serves sockets
constexpr int64_t kWatchedSteps = 20'000'000;  // of one search at most; some seconds
constexpr int64_t kLookSteps = 256;            // steps between two looks at the operation
constexpr size_t kBytesAStep = 64;             // read through in the time of a step
// A pattern of more bytes is long: its letters are compared again at each place of a subject.
constexpr size_t kLongPattern = 32;
constexpr size_t kCompiledAtOnce = 512;    // … of more, becomes machine code when first used
constexpr size_t kSlicePiece = 1'000'000;  // as kPiece, on a thread that serves sockets
constexpr size_t kLeastPlaces = 64;        // of one piece
// Without machine code each piece begins with a look at the whole rest of the subject: there are no
// more pieces than this, as far as that makes none so many times longer.
constexpr size_t kInterpretedPieces = 64, kLongerInterpreted = 10;
/// The longest pattern that can only be searched for in one go: the code that calls back counts its
/// letters, and takes seven times as many bytes.
constexpr size_t kMaxInOneGo = 8 << 10;
// For all patterns of a server together; patterns beyond it are interpreted.
constexpr int64_t kMaxMachineCode = int64_t{64} << 20;

/// The memory of a match besides the pattern; one per thread, so that matching allocates nothing.
struct MatchScratch {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, kJitStackMax, nullptr);
  pcre2_match_data* data = pcre2_match_data_create(64, nullptr);

  MatchScratch() {
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_depth_limit(context, kDepthLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchScratch() {
    pcre2_match_data_free(data);
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
  }
};

MatchScratch& Scratch() {
  thread_local MatchScratch scratch;
  return scratch;
}

/// How fast the steps of a search can grow: a subject of n bytes takes at most about n ^ `power` *
/// `factor` steps, apart from groups, which PCRE2 counts.
struct Growth {
  int power = 1;
  double factor = 1;
  size_t Bytes(double steps) const {
    return static_cast<size_t>(std::pow(steps / factor, 1.0 / std::max(power, 1)));
  }
};

/// By the text: each repeat and back reference may cost as many steps as the subject has bytes.
/// What only looks like one (in a class, escaped) counts too.
Growth GrowthOf(std::string_view pattern, uint32_t flags) {
  constexpr int kMaxCounted = 40;
  // A search that is tied to the beginning has one start.
  const bool anchored = pattern.starts_with('^') && (flags & PCRE2_MULTILINE) == 0 &&
                        pattern.find('|') == std::string_view::npos;
  Growth g{.power = anchored ? 0 : 1};
  int optional = 0;
  for (size_t i = 0; i < pattern.size() && g.power < kMaxCounted; ++i) {
    const char c = pattern[i], before = i == 0 ? '\0' : pattern[i - 1],
               next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '*' || c == '+' || c == '{') {
      // "a++": the second one takes nothing more.
      if (before != '*' && before != '+' && before != '}' && before != '(') ++g.power;
    } else if (c == '\\' && ((next >= '1' && next <= '9') || next == 'g' || next == 'k')) {
      ++g.power;
    } else if (c == '?' && before == '(') {
      // Calls of groups: (?R), (?1), (?&name), (?P>name).
      if (next == 'R' || next == '&' || next == 'P' || next == '+' || next == '-' ||
          (next >= '0' && next <= '9'))
        g.power = kMaxCounted;
    } else if (c == '?' && before != '*' && before != '+' && before != '}') {
      ++optional;
    }
  }
  g.factor = std::ldexp(1.0, std::min(optional, 60));
  return g;
}

/// Whether where a search begins, and that it ends at the first place that fails, may matter to the
/// pattern: \G and verbs ("(*COMMIT)"). What is in a class, escaped or between \Q and \E is none of
/// these.
bool MustBeInOneGo(std::string_view pattern) {
  if (pattern.find("\\G") == pattern.npos && pattern.find("(*") == pattern.npos) return false;
  // In comments and in the text of a callout, brackets and backslashes mean nothing; a class of
  // classes ends elsewhere. Then one of both may be what it looks like.
  if (pattern.find('#') != pattern.npos || pattern.find("(?C") != pattern.npos ||
      pattern.find("(?[") != pattern.npos)
    return true;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i], next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\' && next == 'Q') {
      const size_t end = pattern.find("\\E", i + 2);
      if (end == pattern.npos) return false;
      i = end + 1;
    } else if (c == '\\') {
      if (next == 'G' && !in_class) return true;
      i += next == 'c' ? 2 : 1;  // "\c]" is one character
    } else if (in_class) {
      // Also where "]" is a letter, as the first one or of "[:alpha:]": what follows is then taken
      // for what it looks like.
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
    } else if (c == '(' && next == '*') {
      return true;
    }
  }
  return false;
}

/// One search that is watched.
struct Watch {
  Operation* op;
  size_t position = 0;
  int64_t until_look = kLookSteps, left = kWatchedSteps;
  bool interrupted = false;
  int64_t Steps() const { return kWatchedSteps - left + kLookSteps - until_look; }
};

int OnCallout(pcre2_callout_block* block, void* data) {
  auto& w = *static_cast<Watch*>(data);
  // A repeat that matches reads through what lies between.
  const size_t at = block->current_position;
  const size_t moved = at > w.position ? at - w.position : w.position - at;
  w.position = at;
  w.until_look -= 1 + static_cast<int64_t>(moved / kBytesAStep);
  if (w.until_look > 0) [[likely]]
    return 0;
  w.left -= kLookSteps - w.until_look;
  w.until_look = kLookSteps;
  if (w.left <= 0) return PCRE2_ERROR_MATCHLIMIT;
  w.interrupted = w.op != nullptr && !w.op->CheckInterruptNow();
  return w.interrupted ? PCRE2_ERROR_CALLOUT : 0;
}

std::string PcreMessage(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

/// Which limit of a search was exceeded, and what to change.
std::string WhatFailed(int rc) {
  std::string limit;
  switch (rc) {
    case PCRE2_ERROR_MATCHLIMIT:
      limit = "it went back to try something else " + std::to_string(kMatchLimit) +
              " times, or took " + std::to_string(kWatchedSteps) + " steps";
      break;
    case PCRE2_ERROR_DEPTHLIMIT:
      limit = "it has more than " + std::to_string(kDepthLimit) + " places to go back to";
      break;
    case PCRE2_ERROR_HEAPLIMIT:
      limit = "the places to go back to take more than " + std::to_string(kHeapLimitKib) + " KiB";
      break;
    case PCRE2_ERROR_JIT_STACKLIMIT:
      limit =
          "the places to go back to take more than " + std::to_string(kJitStackMax / 1024) + " KiB";
      break;
    default:
      return "result code " + std::to_string(rc) + " (" + PcreMessage(rc) + ")";
  }
  return limit +
         ", which is the limit of one search: write a class for alternatives of one letter "
         "('[ab]*' for '(a|b)*'), make repeats of groups possessive ('(...)*+'), do not repeat "
         "what is a repeat itself, or match shorter strings";
}

}  // namespace

namespace {

int64_t MachineCodeBytes(const void* code) {
  size_t bytes = 0;
  if (code == nullptr ||
      pcre2_pattern_info(static_cast<const pcre2_code*>(code), PCRE2_INFO_JITSIZE, &bytes) != 0)
    return 0;
  return static_cast<int64_t>(bytes);
}

/// Makes machine code beside it, where that is possible; the interpreter does the work otherwise.
bool MakeMachineCode(pcre2_code* code, std::atomic<int64_t>& used) {
  if (used.load(std::memory_order_relaxed) >= kMaxMachineCode) return false;
  if (pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) != 0) return false;
  used.fetch_add(MachineCodeBytes(code), std::memory_order_relaxed);
  return true;
}

}  // namespace

CompiledRegex::~CompiledRegex() {
  void* fast = fast_.load(std::memory_order_relaxed);
  void* watched = watched_.load(std::memory_order_relaxed);
  int64_t bytes = MachineCodeBytes(watched);
  if (fast != code_) bytes += MachineCodeBytes(fast);
  machine_code_bytes_->fetch_sub(bytes, std::memory_order_relaxed);
  if (fast != code_) pcre2_code_free(static_cast<pcre2_code*>(fast));
  if (watched != code_) pcre2_code_free(static_cast<pcre2_code*>(watched));
  pcre2_code_free(static_cast<pcre2_code*>(code_));
}

bool CompiledRegex::MayTakeLong(size_t subject, const Operation* op) const {
  if (subject <= slice_bytes_) [[likely]]
    return false;
  if (op != nullptr && op->in_slice()) return true;
  if (subject <= fast_bytes_) return false;
  return subject > trusted_bytes_ ||
         short_searches_.load(std::memory_order_relaxed) < kShortSearches;
}

void CompiledRegex::CountWatched(size_t subject, int64_t steps) const {
  if (steps > 1024 + 32 * static_cast<int64_t>(subject))
    short_searches_.store(INT_MIN / 2, std::memory_order_relaxed);
  else if (short_searches_.load(std::memory_order_relaxed) < kShortSearches)
    short_searches_.fetch_add(1, std::memory_order_relaxed);
}

const void* CompiledRegex::WatchedCode() const {
  if (const void* made = watched_.load(std::memory_order_acquire)) return made;
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern_.data()), pattern_.size(),
                                   flags_ | PCRE2_AUTO_CALLOUT, &error, &offset, nullptr);
  if (code == nullptr) {
    // Too long with what calls back in it: it is interpreted, where groups and repeats are counted.
    watched_.store(code_, std::memory_order_release);
    return code_;
  }
  void* before = nullptr;
  (void)MakeMachineCode(code, *machine_code_bytes_);
  if (watched_.compare_exchange_strong(before, code, std::memory_order_acq_rel)) return code;
  // Another thread was first.
  machine_code_bytes_->fetch_sub(MachineCodeBytes(code), std::memory_order_relaxed);
  pcre2_code_free(code);
  return before;
}

const void* CompiledRegex::Code() const {
  if (const void* fast = fast_.load(std::memory_order_acquire)) [[likely]]
    return fast;
  // One thread makes it, while others go on without.
  if (uses_.fetch_add(1, std::memory_order_relaxed) != fast_from_) return code_;
  void* made = code_;
  if (machine_code_bytes_->load(std::memory_order_relaxed) < kMaxMachineCode) {
    pcre2_code* copy = pcre2_code_copy(static_cast<const pcre2_code*>(code_));
    if (copy != nullptr && MakeMachineCode(copy, *machine_code_bytes_))
      made = copy;
    else
      pcre2_code_free(copy);
  }
  fast_.store(made, std::memory_order_release);
  return made;
}

Result<CompiledRegex::Ptr> CompiledRegex::Compile(std::string_view pattern,
                                                  std::string_view options) {
  if (pattern.find('\0') != std::string_view::npos)
    return Error{LocationCode(51109), "Regular expression cannot contain an embedded null byte"};
  if (options.find('\0') != std::string_view::npos)
    return Error{LocationCode(51110),
                 "Regular expression options string cannot contain an embedded null byte"};
  if (pattern.size() > kMaxPatternBytes)
    return Error{ErrorCode::kBadValue, "Regular expression is too long"};
  // No \C: it would split characters, and PCRE2 refuses it together with subjects that may not be
  // UTF-8.
  uint32_t flags = PCRE2_UTF | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
  for (char c : options) {
    switch (c) {
      case 'i':
        flags |= PCRE2_CASELESS;
        break;
      case 'm':
        flags |= PCRE2_MULTILINE;
        break;
      case 's':
        flags |= PCRE2_DOTALL;
        break;
      case 'x':
        flags |= PCRE2_EXTENDED;
        break;
      case 'u':
        break;
      default:
        return Error{LocationCode(51108), std::string("invalid flag in regex options: ") + c};
    }
  }
  const bool in_pieces = pattern.size() > kLongPattern && !MustBeInOneGo(pattern);
  if (in_pieces) flags |= PCRE2_USE_OFFSET_LIMIT;
  if (pattern.size() > kMaxInOneGo && !in_pieces)
    return Error{ErrorCode::kBadValue,
                 "Regular expression is too long: with \\G or a verb it may have no more than " +
                     std::to_string(kMaxInOneGo) + " bytes"};
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_parens_nest_limit(context, kParensNestLimit);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   flags, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr)
    return Error{LocationCode(51091), "Regular expression is invalid: " + PcreMessage(error)};
  std::shared_ptr<CompiledRegex> regex(new CompiledRegex);
  regex->pattern_ = pattern;
  regex->options_ = options;
  regex->code_ = code;
  regex->flags_ = flags;
  regex->machine_code_bytes_ = large_memory::ThreadBudget().machine_code_bytes;
  regex->in_pieces_ = in_pieces;
  Growth growth = GrowthOf(pattern, flags);
  if (!in_pieces && pattern.size() > kLongPattern)
    growth.factor *= static_cast<double>(pattern.size()) / 16;
  regex->fast_bytes_ = growth.Bytes(kFastSteps);
  regex->slice_bytes_ = growth.Bytes(kSliceSteps);
  regex->trusted_bytes_ = growth.Bytes(kTrustedSteps);
  uint32_t captures = 0;
  pcre2_pattern_info(code, PCRE2_INFO_CAPTURECOUNT, &captures);
  regex->captures_ = static_cast<int>(captures);
  size_t bytes = 0;
  pcre2_pattern_info(code, PCRE2_INFO_SIZE, &bytes);
  ParseWork::Made(sizeof(CompiledRegex) + bytes + pattern.size());
  // A very long one at once: the interpreter looks through the whole subject before each piece.
  if (ParseWork::CountPattern() > kFastPatterns &&
      (!in_pieces || pattern.size() <= kCompiledAtOnce))
    regex->fast_from_ = kOften;
  return Ptr(std::move(regex));
}

Result<int> CompiledRegex::Match(const void* code, std::string_view subject, size_t start,
                                 void* data, Operation* op) const {
  pcre2_match_context* context = Scratch().context;
  const auto match = [&](size_t from) {
    return pcre2_match(static_cast<const pcre2_code*>(code),
                       reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), from, 0,
                       static_cast<pcre2_match_data*>(data), context);
  };
  if (!in_pieces_ || start > subject.size()) [[likely]]
    return match(start);
  const size_t letters = op != nullptr && op->in_slice() ? kSlicePiece : kPiece;
  size_t places = std::max(kLeastPlaces, letters / pattern_.size());  // never that of "": not long
  if (subject.size() - start <= places) [[likely]]
    return match(start);
  if (MachineCodeBytes(code) == 0)
    places = std::max(places,
                      std::min(subject.size() / kInterpretedPieces, kLongerInterpreted * places));
  for (size_t from = start;;) {
    if (op != nullptr) {
      MAYFLY_TRY(op->CheckInterruptNow());
    }
    size_t next = from + places;
    // No search begins within a character.
    while (next < subject.size() && IsContinuation(subject[next])) ++next;
    const bool last = next > subject.size();
    pcre2_set_offset_limit(context, last ? PCRE2_UNSET : next - 1);
    const int rc = match(from);
    pcre2_set_offset_limit(context, PCRE2_UNSET);
    if (rc != PCRE2_ERROR_NOMATCH || last) return rc;
    from = next;
  }
}

Result<bool> CompiledRegex::Find(std::string_view subject, size_t start, std::vector<Span>* groups,
                                 Operation* op) const {
  MatchScratch& scratch = Scratch();
  Watch watch{.op = op};
  const pcre2_code* code = nullptr;
  const bool watched = MayTakeLong(subject.size(), op);
  if (watched) [[unlikely]] {
    code = static_cast<const pcre2_code*>(WatchedCode());
    pcre2_set_callout(scratch.context, OnCallout, &watch);
  } else {
    code = static_cast<const pcre2_code*>(Code());
  }
  pcre2_match_data* data = scratch.data;
  pcre2_match_data* own = nullptr;
  if (groups != nullptr && captures_ >= 64)
    data = own = pcre2_match_data_create_from_pattern(code, nullptr);
  Result<int> matched = Match(code, subject, start, data, op);
  if (watched) [[unlikely]] {
    pcre2_set_callout(scratch.context, nullptr, nullptr);
    CountWatched(subject.size(), watch.Steps());
    if (watch.interrupted && matched) {
      if (Result<void> ended = op->CheckInterruptNow(); !ended) matched = std::move(ended).error();
    }
  }
  if (!matched) [[unlikely]] {
    if (own != nullptr) pcre2_match_data_free(own);
    return std::move(matched).error();
  }
  const int rc = matched.value();
  if (rc >= 0 && groups != nullptr) {
    const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(data);
    groups->clear();
    for (int i = 0; i <= captures_; ++i) {
      bool set = i < rc && ovector[2 * i] != PCRE2_UNSET;
      groups->push_back(set ? Span(ovector[2 * i], ovector[2 * i + 1]) : Span(kUnset, kUnset));
    }
  }
  if (own != nullptr) pcre2_match_data_free(own);
  if (rc >= 0) return true;
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  return Error{LocationCode(51156),
               "Error occurred while executing regular expression: " + WhatFailed(rc)};
}

}  // namespace mayfly
