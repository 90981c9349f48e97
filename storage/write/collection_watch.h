#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mayfly {

class Storage;

/// Reports changes to a few collections of one database, for code that caches their content in
/// memory. One watch per store; set before the first client.
///
/// `changed` runs after each commit that writes to one of the collections, this member's own and
/// those that come by the replication log: when the writes are visible, and before waiters for the
/// commit go on; `collection` is its name. It also runs for changes of definitions (a drop, a
/// rename), whatever their collection, with an empty name: another collection may have taken one.
/// On the thread that commits: it must neither block nor use the store.
void WatchCollections(Storage& storage, std::string db, std::vector<std::string> names,
                      std::function<void(std::string_view collection)> changed);

}  // namespace mayfly
