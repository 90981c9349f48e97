#define PCRE2_CODE_UNIT_WIDTH 8
#include "query/expression/regex.h"

#include <pcre2.h>

#include "query/expression/parse_work.h"

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
constexpr size_t kMostMachineCode = size_t{64} << 20;  // of all patterns; others are interpreted
std::atomic<size_t> g_machine_code{0};

/// What a match needs besides the pattern; one a thread, so that matching allocates nothing.
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

std::string PcreMessage(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

CompiledRegex::~CompiledRegex() {
  void* fast = fast_.load(std::memory_order_relaxed);
  size_t bytes = 0;
  if (fast != nullptr && fast != code_ &&
      pcre2_pattern_info(static_cast<pcre2_code*>(fast), PCRE2_INFO_JITSIZE, &bytes) == 0)
    g_machine_code.fetch_sub(bytes, std::memory_order_relaxed);
  if (fast != code_) pcre2_code_free(static_cast<pcre2_code*>(fast));
  pcre2_code_free(static_cast<pcre2_code*>(code_));
}

const void* CompiledRegex::Code() const {
  if (const void* fast = fast_.load(std::memory_order_acquire)) [[likely]]
    return fast;
  // One thread makes it, while others go on without.
  if (uses_.fetch_add(1, std::memory_order_relaxed) != fast_from_) return code_;
  void* made = code_;
  if (g_machine_code.load(std::memory_order_relaxed) < kMostMachineCode) {
    pcre2_code* copy = pcre2_code_copy(static_cast<const pcre2_code*>(code_));
    size_t bytes = 0;
    // Fails where memory may not be made executable; the interpreter then does the work.
    if (copy != nullptr && pcre2_jit_compile(copy, PCRE2_JIT_COMPLETE) == 0 &&
        pcre2_pattern_info(copy, PCRE2_INFO_JITSIZE, &bytes) == 0) {
      g_machine_code.fetch_add(bytes, std::memory_order_relaxed);
      made = copy;
    } else {
      pcre2_code_free(copy);
    }
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
  uint32_t captures = 0;
  pcre2_pattern_info(code, PCRE2_INFO_CAPTURECOUNT, &captures);
  regex->captures_ = static_cast<int>(captures);
  size_t bytes = 0;
  pcre2_pattern_info(code, PCRE2_INFO_SIZE, &bytes);
  ParseWork::Made(sizeof(CompiledRegex) + bytes + pattern.size());
  if (ParseWork::CountPattern() > kFastPatterns) regex->fast_from_ = kOften;
  return Ptr(std::move(regex));
}

Result<bool> CompiledRegex::Find(std::string_view subject, size_t start,
                                 std::vector<Span>* groups) const {
  MatchScratch& scratch = Scratch();
  const auto* code = static_cast<const pcre2_code*>(Code());
  pcre2_match_data* data = scratch.data;
  pcre2_match_data* own = nullptr;
  if (groups != nullptr && captures_ >= 64)
    data = own = pcre2_match_data_create_from_pattern(code, nullptr);
  int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), start, 0,
                       data, scratch.context);
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
               "Error occurred while executing regular expression. Result code: " +
                   std::to_string(rc) + " (" + PcreMessage(rc) + ")"};
}

}  // namespace mayfly
