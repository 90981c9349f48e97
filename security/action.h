#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace mayfly {

/// The names of everything a privilege may allow, in alphabetical order: those of MongoDB's manual
/// ("Privilege Actions"), even if this server lacks their commands, so that MongoDB's roles can be
/// copied; and Mayfly's own (viewExpiry, changeExpiry, holdExpiry, reviewGuard, readExpired,
/// backup). `anyAction` is no row: it stands for all of them.
#define MAYFLY_ACTIONS(X)                \
  X(addShard)                            \
  X(advanceClusterTime)                  \
  X(analyzeShardKey)                     \
  X(appendOplogNote)                     \
  X(applicationMessage)                  \
  X(applyOps)                            \
  X(auditConfigure)                      \
  X(auditLogRotate)                      \
  X(authSchemaUpgrade)                   \
  X(backup)                              \
  X(bypassDefaultMaxTimeMS)              \
  X(bypassDocumentValidation)            \
  X(bypassWriteBlockingMode)             \
  X(changeCustomData)                    \
  X(changeExpiry)                        \
  X(changeOwnCustomData)                 \
  X(changeOwnPassword)                   \
  X(changePassword)                      \
  X(changeStream)                        \
  X(checkFreeMonitoringStatus)           \
  X(checkMetadataConsistency)            \
  X(cleanupOrphaned)                     \
  X(cleanupStructuredEncryptionData)     \
  X(clearJumboFlag)                      \
  X(closeAllDatabases)                   \
  X(collMod)                             \
  X(collStats)                           \
  X(compact)                             \
  X(compactStructuredEncryptionData)     \
  X(configureQueryAnalyzer)              \
  X(connPoolStats)                       \
  X(connPoolSync)                        \
  X(convertToCapped)                     \
  X(cpuProfiler)                         \
  X(createCollection)                    \
  X(createIndex)                         \
  X(createRole)                          \
  X(createSearchIndexes)                 \
  X(createUser)                          \
  X(cursorInfo)                          \
  X(dbHash)                              \
  X(dbStats)                             \
  X(dropCollection)                      \
  X(dropConnections)                     \
  X(dropDatabase)                        \
  X(dropIndex)                           \
  X(dropRole)                            \
  X(dropSearchIndex)                     \
  X(dropUser)                            \
  X(enableProfiler)                      \
  X(enableSharding)                      \
  X(find)                                \
  X(flushRouterConfig)                   \
  X(forceUUID)                           \
  X(fsync)                               \
  X(getClusterParameter)                 \
  X(getCmdLineOpts)                      \
  X(getDefaultRWConcern)                 \
  X(getLog)                              \
  X(getParameter)                        \
  X(getShardMap)                         \
  X(getShardVersion)                     \
  X(grantRole)                           \
  X(holdExpiry)                          \
  X(hostInfo)                            \
  X(impersonate)                         \
  X(indexStats)                          \
  X(inprog)                              \
  X(insert)                              \
  X(internal)                            \
  X(invalidateUserCache)                 \
  X(issueDirectShardOperations)          \
  X(killAnyCursor)                       \
  X(killAnySession)                      \
  X(killCursors)                         \
  X(killop)                              \
  X(listClusterCatalog)                  \
  X(listCollections)                     \
  X(listDatabases)                       \
  X(listIndexes)                         \
  X(listSearchIndexes)                   \
  X(listSessions)                        \
  X(listShards)                          \
  X(logRotate)                           \
  X(moveChunk)                           \
  X(moveCollection)                      \
  X(netstat)                             \
  X(oidReset)                            \
  X(performRawDataOperations)            \
  X(planCacheIndexFilter)                \
  X(planCacheRead)                       \
  X(planCacheWrite)                      \
  X(querySettings)                       \
  X(queryStatsRead)                      \
  X(queryStatsReadTransformed)           \
  X(reIndex)                             \
  X(readExpired)                         \
  X(refineCollectionShardKey)            \
  X(remove)                              \
  X(removeShard)                         \
  X(renameCollectionSameDB)              \
  X(replSetConfigure)                    \
  X(replSetGetConfig)                    \
  X(replSetGetStatus)                    \
  X(replSetHeartbeat)                    \
  X(replSetStateChange)                  \
  X(reshardCollection)                   \
  X(resync)                              \
  X(reviewGuard)                         \
  X(revokeRole)                          \
  X(rewriteCollection)                   \
  X(rotateCertificates)                  \
  X(serverStatus)                        \
  X(setAuthenticationRestriction)        \
  X(setClusterParameter)                 \
  X(setDefaultRWConcern)                 \
  X(setFeatureCompatibilityVersion)      \
  X(setFreeMonitoring)                   \
  X(setParameter)                        \
  X(setUserWriteBlockMode)               \
  X(shardedDataDistribution)             \
  X(shardingState)                       \
  X(shutdown)                            \
  X(splitChunk)                          \
  X(splitVector)                         \
  X(storageDetails)                      \
  X(top)                                 \
  X(touch)                               \
  X(transitionFromDedicatedConfigServer) \
  X(transitionToDedicatedConfigServer)   \
  X(unlock)                              \
  X(unshardCollection)                   \
  X(update)                              \
  X(updateSearchIndex)                   \
  X(useUUID)                             \
  X(validate)                            \
  X(viewExpiry)                          \
  X(viewRole)                            \
  X(viewUser)

/// One thing that a privilege may allow. The numbers are of this process: nothing stores them.
enum class Action : uint8_t {
#define X(name) name,
  MAYFLY_ACTIONS(X)
#undef X
};

inline constexpr size_t kActionCount = 0
#define X(name) +1
    MAYFLY_ACTIONS(X)
#undef X
    ;

/// Its name, as privileges spell it. Lives as long as the process.
std::string_view ActionName(Action action);
/// By its exact name; none if there is no such action ("anyAction" is none either).
std::optional<Action> FindAction(std::string_view name);

/// A set of actions, as bits. A value of 24 bytes; nothing allocates. Threads: as an int.
class ActionSet {
 public:
  constexpr ActionSet() = default;
  constexpr ActionSet(std::initializer_list<Action> actions) {
    for (Action a : actions) Add(a);
  }
  /// What "anyAction" stands for.
  static constexpr ActionSet All() {
    ActionSet s;
    for (size_t i = 0; i < kActionCount; ++i) s.Add(static_cast<Action>(i));
    return s;
  }
  constexpr void Add(Action a) { words_[Word(a)] |= Bit(a); }
  constexpr void Remove(Action a) { words_[Word(a)] &= ~Bit(a); }
  constexpr bool Has(Action a) const { return (words_[Word(a)] & Bit(a)) != 0; }
  /// True for an empty `o`: nothing is asked for.
  constexpr bool HasAll(const ActionSet& o) const {
    for (size_t i = 0; i < kWords; ++i)
      if ((o.words_[i] & ~words_[i]) != 0) return false;
    return true;
  }
  /// False for an empty `o`.
  constexpr bool HasAny(const ActionSet& o) const {
    for (size_t i = 0; i < kWords; ++i)
      if ((o.words_[i] & words_[i]) != 0) return true;
    return false;
  }
  constexpr bool empty() const { return *this == ActionSet(); }
  /// How many actions; counted at each call.
  constexpr size_t size() const {
    size_t n = 0;
    for (uint64_t w : words_) n += static_cast<size_t>(std::popcount(w));
    return n;
  }
  constexpr ActionSet& operator|=(const ActionSet& o) {
    for (size_t i = 0; i < kWords; ++i) words_[i] |= o.words_[i];
    return *this;
  }
  /// Takes away what is in `o`.
  constexpr ActionSet& operator-=(const ActionSet& o) {
    for (size_t i = 0; i < kWords; ++i) words_[i] &= ~o.words_[i];
    return *this;
  }
  friend constexpr ActionSet operator|(ActionSet a, const ActionSet& b) { return a |= b; }
  constexpr bool operator==(const ActionSet&) const = default;

  /// `f(Action)` for each, in alphabetical order of their names.
  template <class F>
  void ForEach(F&& f) const {
    for (size_t i = 0; i < kActionCount; ++i)
      if (Has(static_cast<Action>(i))) f(static_cast<Action>(i));
  }

 private:
  static constexpr size_t kWords = (kActionCount + 63) / 64;
  static constexpr size_t Word(Action a) { return static_cast<size_t>(a) / 64; }
  static constexpr uint64_t Bit(Action a) { return uint64_t{1} << (static_cast<size_t>(a) % 64); }
  std::array<uint64_t, kWords> words_{};
};

}  // namespace mayfly
