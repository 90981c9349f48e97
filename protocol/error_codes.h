#pragma once
#include <cstdint>
#include <string_view>

namespace mayfly {

/// Error codes as drivers know them: numbers and names are part of the wire contract. DO NOT
/// RENUMBER. One row per code, X(enumerator, number, code name), in order of the numbers.
#define MAYFLY_ERROR_CODES(X)                                                                   \
  X(kOk, 0, "OK")                                                                               \
  X(kInternalError, 1, "InternalError")                                                         \
  X(kBadValue, 2, "BadValue")                                                                   \
  X(kNoSuchKey, 4, "NoSuchKey")                                                                 \
  X(kGraphContainsCycle, 5, "GraphContainsCycle")                                               \
  X(kHostUnreachable, 6, "HostUnreachable")                                                     \
  X(kHostNotFound, 7, "HostNotFound")                                                           \
  X(kUnknownError, 8, "UnknownError")                                                           \
  X(kFailedToParse, 9, "FailedToParse")                                                         \
  X(kCannotMutateObject, 10, "CannotMutateObject")                                              \
  X(kUserNotFound, 11, "UserNotFound")                                                          \
  X(kUnsupportedFormat, 12, "UnsupportedFormat")                                                \
  X(kUnauthorized, 13, "Unauthorized")                                                          \
  X(kTypeMismatch, 14, "TypeMismatch")                                                          \
  X(kOverflow, 15, "Overflow")                                                                  \
  X(kInvalidLength, 16, "InvalidLength")                                                        \
  X(kProtocolError, 17, "ProtocolError")                                                        \
  X(kAuthenticationFailed, 18, "AuthenticationFailed")                                          \
  X(kCannotReuseObject, 19, "CannotReuseObject")                                                \
  X(kIllegalOperation, 20, "IllegalOperation")                                                  \
  X(kEmptyArrayOperation, 21, "EmptyArrayOperation")                                            \
  X(kInvalidBSON, 22, "InvalidBSON")                                                            \
  X(kAlreadyInitialized, 23, "AlreadyInitialized")                                              \
  X(kLockTimeout, 24, "LockTimeout")                                                            \
  X(kNamespaceNotFound, 26, "NamespaceNotFound")                                                \
  X(kIndexNotFound, 27, "IndexNotFound")                                                        \
  X(kPathNotViable, 28, "PathNotViable")                                                        \
  X(kNonExistentPath, 29, "NonExistentPath")                                                    \
  X(kInvalidPath, 30, "InvalidPath")                                                            \
  X(kRoleNotFound, 31, "RoleNotFound")                                                          \
  X(kCannotBackfillArray, 34, "CannotBackfillArray")                                            \
  X(kFileRenameFailed, 37, "FileRenameFailed")                                                  \
  X(kFileNotOpen, 38, "FileNotOpen")                                                            \
  X(kConflictingUpdateOperators, 40, "ConflictingUpdateOperators")                              \
  X(kCursorNotFound, 43, "CursorNotFound")                                                      \
  X(kUserDataInconsistent, 45, "UserDataInconsistent")                                          \
  X(kLockBusy, 46, "LockBusy")                                                                  \
  X(kNoMatchingDocument, 47, "NoMatchingDocument")                                              \
  X(kNamespaceExists, 48, "NamespaceExists")                                                    \
  X(kMaxTimeMSExpired, 50, "MaxTimeMSExpired")                                                  \
  X(kDollarPrefixedFieldName, 52, "DollarPrefixedFieldName")                                    \
  X(kInvalidIdField, 53, "InvalidIdField")                                                      \
  X(kNotSingleValueField, 54, "NotSingleValueField")                                            \
  X(kInvalidDBRef, 55, "InvalidDBRef")                                                          \
  X(kEmptyFieldName, 56, "EmptyFieldName")                                                      \
  X(kDottedFieldName, 57, "DottedFieldName")                                                    \
  X(kCommandNotFound, 59, "CommandNotFound")                                                    \
  X(kShardKeyNotFound, 61, "ShardKeyNotFound")                                                  \
  X(kOplogOperationUnsupported, 62, "OplogOperationUnsupported")                                \
  X(kStaleShardVersion, 63, "StaleShardVersion")                                                \
  X(kWriteConcernFailed, 64, "WriteConcernFailed")                                              \
  X(kMultipleErrorsOccurred, 65, "MultipleErrorsOccurred")                                      \
  X(kImmutableField, 66, "ImmutableField")                                                      \
  X(kCannotCreateIndex, 67, "CannotCreateIndex")                                                \
  X(kIndexAlreadyExists, 68, "IndexAlreadyExists")                                              \
  X(kInvalidOptions, 72, "InvalidOptions")                                                      \
  X(kInvalidNamespace, 73, "InvalidNamespace")                                                  \
  X(kNodeNotFound, 74, "NodeNotFound")                                                          \
  X(kWriteConcernLegacyOK, 75, "WriteConcernLegacyOK")                                          \
  X(kNoReplicationEnabled, 76, "NoReplicationEnabled")                                          \
  X(kOperationIncomplete, 77, "OperationIncomplete")                                            \
  X(kUnknownReplWriteConcern, 79, "UnknownReplWriteConcern")                                    \
  X(kInvalidRoleModification, 80, "InvalidRoleModification")                                    \
  X(kIndexOptionsConflict, 85, "IndexOptionsConflict")                                          \
  X(kIndexKeySpecsConflict, 86, "IndexKeySpecsConflict")                                        \
  X(kNetworkTimeout, 89, "NetworkTimeout")                                                      \
  X(kShutdownInProgress, 91, "ShutdownInProgress")                                              \
  X(kInvalidReplicaSetConfig, 93, "InvalidReplicaSetConfig")                                    \
  X(kNotYetInitialized, 94, "NotYetInitialized")                                                \
  X(kNotSecondary, 95, "NotSecondary")                                                          \
  X(kOperationFailed, 96, "OperationFailed")                                                    \
  X(kNoProjectionFound, 97, "NoProjectionFound")                                                \
  X(kUnsatisfiableWriteConcern, 100, "UnsatisfiableWriteConcern")                               \
  X(kNewReplicaSetConfigurationIncompatible, 103, "NewReplicaSetConfigurationIncompatible")     \
  X(kNodeNotElectable, 104, "NodeNotElectable")                                                 \
  X(kIncompatibleShardingMetadata, 105, "IncompatibleShardingMetadata")                         \
  X(kLockFailed, 107, "LockFailed")                                                             \
  X(kConfigurationInProgress, 109, "ConfigurationInProgress")                                   \
  X(kNotExactValueField, 111, "NotExactValueField")                                             \
  X(kWriteConflict, 112, "WriteConflict")                                                       \
  X(kInitialSyncFailure, 113, "InitialSyncFailure")                                             \
  X(kCommandNotSupported, 115, "CommandNotSupported")                                           \
  X(kDocTooLargeForCapped, 116, "DocTooLargeForCapped")                                         \
  X(kConflictingOperationInProgress, 117, "ConflictingOperationInProgress")                     \
  X(kNamespaceNotSharded, 118, "NamespaceNotSharded")                                           \
  X(kDocumentValidationFailure, 121, "DocumentValidationFailure")                               \
  X(kNotAReplicaSet, 123, "NotAReplicaSet")                                                     \
  X(kIncompatibleElectionProtocol, 124, "IncompatibleElectionProtocol")                         \
  X(kCommandFailed, 125, "CommandFailed")                                                       \
  X(kRPCProtocolNegotiationFailed, 126, "RPCProtocolNegotiationFailed")                         \
  X(kUnrecoverableRollbackError, 127, "UnrecoverableRollbackError")                             \
  X(kFailedToSatisfyReadPreference, 133, "FailedToSatisfyReadPreference")                       \
  X(kReadConcernMajorityNotAvailableYet, 134, "ReadConcernMajorityNotAvailableYet")             \
  X(kStaleTerm, 135, "StaleTerm")                                                               \
  X(kCappedPositionLost, 136, "CappedPositionLost")                                             \
  X(kExceededMemoryLimit, 146, "ExceededMemoryLimit")                                           \
  X(kStaleEpoch, 150, "StaleEpoch")                                                             \
  X(kViewDepthLimitExceeded, 165, "ViewDepthLimitExceeded")                                     \
  X(kCommandNotSupportedOnView, 166, "CommandNotSupportedOnView")                               \
  X(kOptionNotSupportedOnView, 167, "OptionNotSupportedOnView")                                 \
  X(kInvalidPipelineOperator, 168, "InvalidPipelineOperator")                                   \
  X(kCommandOnShardedViewNotSupportedOnMongod, 169, "CommandOnShardedViewNotSupportedOnMongod") \
  X(kCannotIndexParallelArrays, 171, "CannotIndexParallelArrays")                               \
  X(kQueryPlanKilled, 175, "QueryPlanKilled")                                                   \
  X(kAmbiguousIndexKeyPattern, 181, "AmbiguousIndexKeyPattern")                                 \
  X(kInvalidViewDefinition, 182, "InvalidViewDefinition")                                       \
  X(kClientMetadataMissingField, 183, "ClientMetadataMissingField")                             \
  X(kClientMetadataAppNameTooLarge, 184, "ClientMetadataAppNameTooLarge")                       \
  X(kClientMetadataDocumentTooLarge, 185, "ClientMetadataDocumentTooLarge")                     \
  X(kClientMetadataCannotBeMutated, 186, "ClientMetadataCannotBeMutated")                       \
  X(kPrimarySteppedDown, 189, "PrimarySteppedDown")                                             \
  X(kViewPipelineMaxSizeExceeded, 195, "ViewPipelineMaxSizeExceeded")                           \
  X(kInvalidIndexSpecificationOption, 197, "InvalidIndexSpecificationOption")                   \
  X(kCannotBuildIndexKeys, 201, "CannotBuildIndexKeys")                                         \
  X(kTimeProofMismatch, 204, "TimeProofMismatch")                                               \
  X(kNoSuchSession, 206, "NoSuchSession")                                                       \
  X(kInvalidUUID, 207, "InvalidUUID")                                                           \
  X(kKeyNotFound, 211, "KeyNotFound")                                                           \
  X(kIncompleteTransactionHistory, 217, "IncompleteTransactionHistory")                         \
  X(kQueryFeatureNotAllowed, 224, "QueryFeatureNotAllowed")                                     \
  X(kTransactionTooOld, 225, "TransactionTooOld")                                               \
  X(kMaxSubPipelineDepthExceeded, 232, "MaxSubPipelineDepthExceeded")                           \
  X(kRetryChangeStream, 234, "RetryChangeStream")                                               \
  X(kCursorKilled, 237, "CursorKilled")                                                         \
  X(kNotImplemented, 238, "NotImplemented")                                                     \
  X(kSnapshotTooOld, 239, "SnapshotTooOld")                                                     \
  X(kConversionFailure, 241, "ConversionFailure")                                               \
  X(kSnapshotUnavailable, 246, "SnapshotUnavailable")                                           \
  X(kNoSuchTransaction, 251, "NoSuchTransaction")                                               \
  X(kTransactionCommitted, 256, "TransactionCommitted")                                         \
  X(kTransactionTooLarge, 257, "TransactionTooLarge")                                           \
  X(kInvalidResumeToken, 260, "InvalidResumeToken")                                             \
  X(kTooManyLogicalSessions, 261, "TooManyLogicalSessions")                                     \
  X(kExceededTimeLimit, 262, "ExceededTimeLimit")                                               \
  X(kOperationNotSupportedInTransaction, 263, "OperationNotSupportedInTransaction")             \
  X(kTooManyFilesOpen, 264, "TooManyFilesOpen")                                                 \
  X(kFailPointSetFailed, 266, "FailPointSetFailed")                                             \
  X(kPreparedTransactionInProgress, 267, "PreparedTransactionInProgress")                       \
  X(kIndexBuildAborted, 276, "IndexBuildAborted")                                               \
  X(kClientDisconnect, 279, "ClientDisconnect")                                                 \
  X(kChangeStreamFatalError, 280, "ChangeStreamFatalError")                                     \
  X(kIndexBuildAlreadyInProgress, 285, "IndexBuildAlreadyInProgress")                           \
  X(kChangeStreamHistoryLost, 286, "ChangeStreamHistoryLost")                                   \
  X(kTransactionExceededLifetimeLimitSeconds, 290, "TransactionExceededLifetimeLimitSeconds")   \
  X(kQueryExceededMemoryLimitNoDiskUseAllowed, 292, "QueryExceededMemoryLimitNoDiskUseAllowed") \
  X(kAPIVersionError, 322, "APIVersionError")                                                   \
  X(kAPIStrictError, 323, "APIStrictError")                                                     \
  X(kAPIDeprecationError, 324, "APIDeprecationError")                                           \
  X(kMechanismUnavailable, 334, "MechanismUnavailable")                                         \
  X(kUnsupportedOpQueryCommand, 352, "UnsupportedOpQueryCommand")                               \
  X(kCannotConvertIndexToUnique, 359, "CannotConvertIndexToUnique")                             \
  X(kCollectionUUIDMismatch, 361, "CollectionUUIDMismatch")                                     \
  X(kSocketException, 9001, "SocketException")                                                  \
  X(kNotWritablePrimary, 10107, "NotWritablePrimary")                                           \
  X(kBSONObjectTooLarge, 10334, "BSONObjectTooLarge")                                           \
  X(kDuplicateKey, 11000, "DuplicateKey")                                                       \
  X(kInterruptedAtShutdown, 11600, "InterruptedAtShutdown")                                     \
  X(kInterrupted, 11601, "Interrupted")                                                         \
  X(kInterruptedDueToReplStateChange, 11602, "InterruptedDueToReplStateChange")                 \
  X(kCursorInUse, 12051, "CursorInUse")                                                         \
  X(kStaleConfig, 13388, "StaleConfig")                                                         \
  X(kNotPrimaryNoSecondaryOk, 13435, "NotPrimaryNoSecondaryOk")                                 \
  X(kNotPrimaryOrSecondary, 13436, "NotPrimaryOrSecondary")                                     \
  X(kOutOfDiskSpace, 14031, "OutOfDiskSpace")                                                   \
  X(kKeyTooLong, 17280, "KeyTooLong")                                                           \
  X(kSearchNotEnabled, 31082, "SearchNotEnabled")                                               \
  X(kUnknownPipelineStage, 40324, "Location40324")                                              \
  X(kMissingField, 40414, "Location40414")                                                      \
  X(kUnknownField, 40415, "Location40415")

/// A code that drivers branch on. Codes without a name of their own ("Location" codes) are made
/// with LocationCode(n), so any number a manual or an observed reply names can be answered.
enum class ErrorCode : int32_t {
#define X(name, number, text) name = number,
  MAYFLY_ERROR_CODES(X)
#undef X
};

/// The code whose name is "Location<number>".
constexpr ErrorCode LocationCode(int32_t number) { return static_cast<ErrorCode>(number); }

/// The name sent beside the code: "BadValue", or "Location<number>" for a number without a row.
/// The returned text lives as long as the process. Threads: any.
std::string_view ErrorCodeName(ErrorCode code);

}  // namespace mayfly
