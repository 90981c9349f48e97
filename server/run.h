#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mayfly {

/// The options whose values are passwords: main writes over them where `ps` shows them.
std::vector<std::string_view> SecretOptions();

/// The process: reads the command line, opens the data directory, serves until a signal or the
/// shutdown command, closes. Returns the exit code (0 fine, 2 bad options, 48 the address is in
/// use, 100 the data directory cannot be opened: mongod's). `rocksdb_env`: a rocksdb::Env* that
/// outlives the call, for tests with a faulty file layer; null: the system's.
int RunServer(const std::vector<std::string>& argv, void* rocksdb_env = nullptr);

}  // namespace mayfly
