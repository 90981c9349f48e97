#pragma once
#include "storage/catalog/catalog.h"
#include "storage/clock.h"
#include "storage/core/open_storage.h"
#include "storage/expiry/expiry_policy.h"
#include "storage/kv/kv.h"
#include "storage/operation.h"
#include "storage/read/cursors.h"
#include "storage/read/read_view.h"
#include "storage/write/write_unit.h"

/// What the layers above need of an open data directory: Storage itself, the catalog, reads and
/// writes.
