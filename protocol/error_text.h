#pragma once
#include <string>
#include <string_view>

namespace mayfly {

/// An error message for clients. Text that it quotes may be invalid UTF-8, or contain a NUL, at
/// which some programs end a text. Each such byte is U+FFFD. Threads: any.
std::string ErrorText(std::string_view message);

}  // namespace mayfly
