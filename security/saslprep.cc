#include "security/saslprep.h"

#include <openssl/crypto.h>
#include <unicode/usprep.h>
#include <unicode/ustring.h>

#include <algorithm>
#include <vector>

#include "protocol/utf8.h"

namespace mayfly {

namespace {

/// The tables of the profile, loaded once. ICU allows threads to share them.
const UStringPrepProfile* Profile() {
  static const UStringPrepProfile* const profile = [] {
    UErrorCode status = U_ZERO_ERROR;
    return usprep_openByType(USPREP_RFC4013_SASLPREP, &status);
  }();
  return profile;
}

/// A password in UTF-16. It is overwritten when it is destroyed.
struct WideText {
  std::vector<char16_t> units;
  explicit WideText(size_t n) : units(n) {}
  WideText(const WideText&) = delete;
  ~WideText() { OPENSSL_cleanse(units.data(), units.size() * sizeof(char16_t)); }
  char16_t* data() { return units.data(); }
  int32_t capacity() const { return static_cast<int32_t>(units.size()); }
};

Error Refused(const char* why) {
  return {ErrorCode::kBadValue, std::string("this password cannot be used: ") + why};
}

}  // namespace

Result<Secret> SaslPrep(std::string_view text) {
  if (text.empty()) return Refused("it is empty");
  if (text.size() > kMaxPasswordBytes)
    return Refused("it has more than 4,096 bytes; choose a shorter one");
  if (std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; }))
    return Secret(std::string(text));
  if (!IsUtf8(text)) return Refused("it is not UTF-8");
  if (Profile() == nullptr) return Error{ErrorCode::kInternalError, "ICU has no SASLprep tables"};

  // One byte of UTF-8 becomes at most one unit of UTF-16, and NFKC makes at most 18 units of one.
  WideText wide(text.size() + 1), prepared(text.size() * 18 + 1);
  UErrorCode status = U_ZERO_ERROR;
  int32_t n = 0;
  u_strFromUTF8(wide.data(), wide.capacity(), &n, text.data(), static_cast<int32_t>(text.size()),
                &status);
  if (U_FAILURE(status)) return Refused("it is not UTF-8");
  const int32_t size = usprep_prepare(Profile(), wide.data(), n, prepared.data(),
                                      prepared.capacity(), USPREP_DEFAULT, nullptr, &status);
  if (U_FAILURE(status))
    return Refused(
        "it has characters that passwords may not have (control characters, unassigned ones, or "
        "letters of both directions of writing)");
  if (size == 0) return Refused("it consists of characters that do not count");
  std::string out(static_cast<size_t>(size) * 3 + 1, '\0');
  int32_t bytes = 0;
  u_strToUTF8(out.data(), static_cast<int32_t>(out.size()), &bytes, prepared.data(), size, &status);
  if (U_FAILURE(status)) {
    OPENSSL_cleanse(out.data(), out.size());
    return Refused("it is not UTF-8");
  }
  out.resize(static_cast<size_t>(bytes));  // the bytes behind it are all zero
  return Secret(std::move(out));
}

}  // namespace mayfly
