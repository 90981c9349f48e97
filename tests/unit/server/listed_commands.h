#pragma once
#include <string>
#include <vector>

namespace mayfly::test {

/// A command of tests/data/privileges.txt: with `shop` as its database and `other` as another one.
struct ListedCommand {
  std::string db, json;
};

/// All of them. `path`: of that file.
std::vector<ListedCommand> ReadListedCommands(const std::string& path);

}  // namespace mayfly::test
