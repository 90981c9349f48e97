#pragma once
#include <string_view>

namespace mayfly {

/// A file of server/http/page/, put into the program by CMake.
struct PageFile {
  std::string_view path;  ///< "/app.js"; the page itself is "/"
  std::string_view type;  ///< Content-Type
  std::string_view content;
};

/// Null when there is none.
const PageFile* FindPageFile(std::string_view path);

}  // namespace mayfly
