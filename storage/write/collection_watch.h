#pragma once
#include <functional>
#include <string>
#include <vector>

namespace mayfly {

class Storage;

/// Tells of changes to a few collections of one database, to whoever keeps in memory what is in
/// them. There is one watch a store; set before the first client.
///
/// `changed` runs after each commit that writes to one of the collections, this member's own and
/// those that come by the replication log: when what was written is visible, and before whoever
/// waits for the commit goes on. It also runs for changes of definitions (a drop, a rename),
/// whatever their collection, with `documents` false: another collection may have taken a name. On
/// the thread that commits: it must neither block nor use the store.
void WatchCollections(Storage& storage, std::string db, std::vector<std::string> names,
                      std::function<void(bool documents)> changed);

}  // namespace mayfly
