#pragma once
#include <string>
#include <string_view>

namespace mayfly {

/// A message of an error as clients get it: what it quotes of them may be no UTF-8, or have a NUL,
/// where some programs take a text to end. Each such byte is U+FFFD. Threads: any.
std::string ErrorText(std::string_view message);

}  // namespace mayfly
