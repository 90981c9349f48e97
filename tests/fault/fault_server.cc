// mayflyd on a disk that can fail, for the process-level fault tests (disk_run.py,
// member_faults_run.py, isolation_run.py). It takes mayflyd's flags, and on standard input
//
//   power        the power goes: whatever was not synced is gone, and the process with it
//   free BYTES   the disk has room for so many more bytes
//   free none    … for as many as there are
//   fail writes  every append answers with an I/O error; fail syncs: every sync; fail none
//   slow MILLIS  every sync takes so much longer
//   clock MILLIS the wall clock is so much ahead of the machine's (negative: behind)
//   archive full   the archive of the log has no room: writes there answer so; archive free
//   reads NUMBER it says of itself that it reads entries of the log up to this version (0: nothing,
//                as versions before transactions do); reads all
//   break WHAT   transactions are no longer isolated: conflicts are not found, own writes are not
//                read, each statement reads now (snapshots), or the account of what locks have
//                protected says that nothing was changed, or is not begun anew when this member
//                leads again (reigns); break none
//   memory WHAT  a transaction finds no memory when it begins (begin), for its next statement
//                (statement; "statement and answer": nor is there any to say so), when that is
//                counted at its end (end) or on its way into the log (commit); a login finds none
//                for its last step (login); memory enough
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "replication/heartbeat.h"
#include "security/names.h"
#include "server/base/login_lines.h"
#include "server/run.h"
#include "storage/kv/rocks_fault_env.h"
#include "storage/read/read_view.h"
#include "storage/write/log_format.h"
#include "storage/write/transaction_holdings.h"
#include "storage/write/transaction_unit.h"

static std::atomic<long long> drift_millis{0};

/// In the place of the C library's: the whole process, std::chrono included, reads a clock that is
/// wrong.
extern "C" int clock_gettime(clockid_t id, timespec* t) {
  const int failed = static_cast<int>(::syscall(SYS_clock_gettime, id, t));
  if (failed != 0 || id != CLOCK_REALTIME) return failed;
  const long long nanos = t->tv_sec * 1'000'000'000LL + t->tv_nsec + drift_millis * 1'000'000LL;
  t->tv_sec = nanos / 1'000'000'000;
  t->tv_nsec = nanos % 1'000'000'000;
  return 0;
}

static std::atomic<bool> archive_full{false};

/// In the place of the C library's: files of an archive that are being written may have no room.
extern "C" ssize_t write(int fd, const void* bytes, size_t size) {
  if (archive_full) {
    char link[64], path[512];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = ::readlink(link, path, sizeof path);
    if (n > 0 && std::string_view(path, static_cast<size_t>(n)).find("/.partial-") !=
                     std::string_view::npos) {
      errno = ENOSPC;
      return -1;
    }
  }
  return ::syscall(SYS_write, fd, bytes, size);
}

// What isolates transactions, each with a fault on purpose: a checker of isolation must find it. In
// this program alone the linker puts them in the place of the server's own (tests/CMakeLists.txt).
enum class Broken : int { kNone, kConflicts, kOwnWrites, kSnapshots, kAccount, kReigns };
static std::atomic<Broken> broken{Broken::kNone};

using mayfly::ReadView;
using mayfly::Result;
using mayfly::WriteUnit;

// WriteUnit::Impl::CheckUnchanged, as the linker knows it.
#define CHECK_UNCHANGED                                                                      \
  "_ZNK6mayfly9WriteUnit4Impl14CheckUnchangedENS_8KeyspaceESt17basic_string_viewIcSt11char_" \
  "traitsIcEEm"
Result<void> TheirCheckUnchanged(const void* unit, mayfly::Keyspace ks, std::string_view key,
                                 uint64_t hash) asm("__real_" CHECK_UNCHANGED);
Result<void> OurCheckUnchanged(const void* unit, mayfly::Keyspace ks, std::string_view key,
                               uint64_t hash) asm("__wrap_" CHECK_UNCHANGED);
Result<void> OurCheckUnchanged(const void* unit, mayfly::Keyspace ks, std::string_view key,
                               uint64_t hash) {
  return broken == Broken::kConflicts ? mayfly::Ok() : TheirCheckUnchanged(unit, ks, key, hash);
}

// LockTable::UnchangedSince.
#define UNCHANGED_SINCE "_ZN6mayfly9LockTable14UnchangedSinceEmm"
bool TheirUnchangedSince(void* table, uint64_t hash,
                         uint64_t sequence) asm("__real_" UNCHANGED_SINCE);
bool OurUnchangedSince(void* table, uint64_t hash,
                       uint64_t sequence) asm("__wrap_" UNCHANGED_SINCE);
bool OurUnchangedSince(void* table, uint64_t hash, uint64_t sequence) {
  return broken == Broken::kAccount || TheirUnchangedSince(table, hash, sequence);
}

// LockTable::BeginReign.
#define BEGIN_REIGN "_ZN6mayfly9LockTable10BeginReignEmm"
void TheirBeginReign(void* table, uint64_t reign, uint64_t now) asm("__real_" BEGIN_REIGN);
void OurBeginReign(void* table, uint64_t reign, uint64_t now) asm("__wrap_" BEGIN_REIGN);
void OurBeginReign(void* table, uint64_t reign, uint64_t now) {
  if (broken != Broken::kReigns) TheirBeginReign(table, reign, now);
}

// Where transactions, and logins, find no memory.
enum class Short : int { kNowhere, kBegin, kStatement, kEnd, kCommit, kLogin, kLoginLine };
static std::atomic<Short> short_of_memory{Short::kNowhere};
static std::atomic<bool> no_answer{false};

// CurrentExceptionText: for the line in the log, and the answer.
#define EXCEPTION_TEXT "_ZN6mayfly20CurrentExceptionTextB5cxx11Ev"
std::string TheirExceptionText() asm("__real_" EXCEPTION_TEXT);
std::string OurExceptionText() asm("__wrap_" EXCEPTION_TEXT);
std::string OurExceptionText() {
  if (no_answer) throw std::bad_alloc();
  return TheirExceptionText();
}

// EncodeLogUnit.
#define ENCODE_UNIT                                                                             \
  "_ZN6mayfly13EncodeLogUnitERKNS_9WriteUnitERNSt7__cxx1112basic_stringIcSt11char_traitsIcESaI" \
  "cEEERKSt8functionIFivEE"
using AllRead = std::function<int()>;
mayfly::EncodedUnit TheirEncodeUnit(const WriteUnit& unit, std::string& out,
                                    const AllRead& all_read) asm("__real_" ENCODE_UNIT);
mayfly::EncodedUnit OurEncodeUnit(const WriteUnit& unit, std::string& out,
                                  const AllRead& all_read) asm("__wrap_" ENCODE_UNIT);
mayfly::EncodedUnit OurEncodeUnit(const WriteUnit& unit, std::string& out,
                                  const AllRead& all_read) {
  mayfly::EncodedUnit made = TheirEncodeUnit(unit, out, all_read);
  if (short_of_memory == Short::kCommit && made.version == mayfly::kLogEntryWithTransaction)
    throw std::bad_alloc();
  return made;
}

// ReadView::With.
#define WITH "_ZNK6mayfly8ReadView4WithERNS_9WriteUnitE"
ReadView TheirWith(const ReadView* view, WriteUnit& unit) asm("__real_" WITH);
ReadView OurWith(const ReadView* view, WriteUnit& unit) asm("__wrap_" WITH);
ReadView OurWith(const ReadView* view, WriteUnit& unit) {
  const bool of_transaction = view->point() != nullptr;
  if (of_transaction && short_of_memory == Short::kStatement) throw std::bad_alloc();
  if (of_transaction && broken == Broken::kOwnWrites) return *view;
  const ReadView now;
  return TheirWith(of_transaction && broken == Broken::kSnapshots ? &now : view, unit);
}

// BeginTransactionUnit.
#define BEGIN_UNIT                                                                             \
  "_ZN6mayfly20BeginTransactionUnitERNS_9WriteUnitESt10shared_ptrIKNS_10KvSnapshotEES2_INS_18" \
  "TransactionCatalogEElm"
using mayfly::KvSnapshotPtr;
using mayfly::TransactionCatalog;
void TheirBeginUnit(WriteUnit& unit, KvSnapshotPtr snapshot,
                    std::shared_ptr<TransactionCatalog> catalog, int64_t wait,
                    uint64_t reign) asm("__real_" BEGIN_UNIT);
void OurBeginUnit(WriteUnit& unit, KvSnapshotPtr snapshot,
                  std::shared_ptr<TransactionCatalog> catalog, int64_t wait,
                  uint64_t reign) asm("__wrap_" BEGIN_UNIT);
void OurBeginUnit(WriteUnit& unit, KvSnapshotPtr snapshot,
                  std::shared_ptr<TransactionCatalog> catalog, int64_t wait, uint64_t reign) {
  if (short_of_memory == Short::kBegin) throw std::bad_alloc();
  TheirBeginUnit(unit, std::move(snapshot), std::move(catalog), wait, reign);
}

// HoldingsOf.
#define HOLDINGS_OF                                                                       \
  "_ZN6mayfly10HoldingsOfERNS_9WriteUnitEmPSt6vectorINSt7__cxx1112basic_stringIcSt11char" \
  "_traitsIcESaIcEEESaIS8_EE"
using Names = std::vector<std::string>;
mayfly::TransactionHoldings TheirHoldingsOf(WriteUnit& unit, size_t most,
                                            Names* names) asm("__real_" HOLDINGS_OF);
mayfly::TransactionHoldings OurHoldingsOf(WriteUnit& unit, size_t most,
                                          Names* names) asm("__wrap_" HOLDINGS_OF);
mayfly::TransactionHoldings OurHoldingsOf(WriteUnit& unit, size_t most, Names* names) {
  if (short_of_memory == Short::kEnd) throw std::bad_alloc();
  return TheirHoldingsOf(unit, most, names);
}

// ClientSlot::SetUser: others see from then on whose connection it is.
#define SET_USER "_ZN6mayfly10ClientSlot7SetUserESt8optionalINS_8UserNameEE"
using MaybeUser = std::optional<mayfly::UserName>;
void TheirSetUser(void* slot, MaybeUser user) asm("__real_" SET_USER);
void OurSetUser(void* slot, MaybeUser user) asm("__wrap_" SET_USER);
void OurSetUser(void* slot, MaybeUser user) {
  if (user && short_of_memory == Short::kLogin) throw std::bad_alloc();
  TheirSetUser(slot, std::move(user));
}

// WriteLoginLine: the client is logged in, and the log is told.
#define LOGIN_LINE "_ZN6mayfly14WriteLoginLineERNS_3LogERNS_12FailedLoginsElRKNS_9LoginLineE"
void TheirLoginLine(mayfly::Log& log, mayfly::FailedLogins& failed, int64_t second,
                    const mayfly::LoginLine& line) asm("__real_" LOGIN_LINE);
void OurLoginLine(mayfly::Log& log, mayfly::FailedLogins& failed, int64_t second,
                  const mayfly::LoginLine& line) asm("__wrap_" LOGIN_LINE);
void OurLoginLine(mayfly::Log& log, mayfly::FailedLogins& failed, int64_t second,
                  const mayfly::LoginLine& line) {
  if (line.good && short_of_memory == Short::kLoginLine) throw std::bad_alloc();
  TheirLoginLine(log, failed, second, line);
}

static std::atomic<int> reads{-1};

// EncodeHeartbeat: what a member says of itself.
#define ENCODE_HEARTBEAT "_ZN6mayfly15EncodeHeartbeatB5cxx11ERKNS_9HeartbeatE"
std::string TheirEncodeHeartbeat(const mayfly::Heartbeat& h) asm("__real_" ENCODE_HEARTBEAT);
std::string OurEncodeHeartbeat(const mayfly::Heartbeat& h) asm("__wrap_" ENCODE_HEARTBEAT);
std::string OurEncodeHeartbeat(const mayfly::Heartbeat& h) {
  const int version = reads;
  if (version < 0 || !mayfly::ValidateBson(h.payload, false)) return TheirEncodeHeartbeat(h);
  mayfly::Heartbeat said = h;
  const mayfly::BsonDocument payload = mayfly::BuildBson([&](mayfly::BsonBuilder& b) {
    for (const mayfly::BsonElement& e : mayfly::BsonView(h.payload)) {
      if (e.name != "log")
        b.Append(e.name, e.value);
      else if (version > 0)
        b.Append("log", int32_t{version});
    }
  });
  said.payload = payload.bytes();
  return TheirEncodeHeartbeat(said);
}

static void Break(std::string_view what) {
  broken = what == "conflicts"    ? Broken::kConflicts
           : what == "own writes" ? Broken::kOwnWrites
           : what == "snapshots"  ? Broken::kSnapshots
           : what == "account"    ? Broken::kAccount
           : what == "reigns"     ? Broken::kReigns
                                  : Broken::kNone;
}

static void RunShort(std::string_view when) {
  no_answer = when == "statement and answer";
  short_of_memory = when == "begin"                 ? Short::kBegin
                    : when.starts_with("statement") ? Short::kStatement
                    : when == "end"                 ? Short::kEnd
                    : when == "commit"              ? Short::kCommit
                    : when == "login"               ? Short::kLogin
                    : when == "login line"          ? Short::kLoginLine
                                                    : Short::kNowhere;
}

int main(int argc, char** argv) {
  // For ever: the thread below may still use it when the server has stopped.
  static mayfly::FaultDisk* disk = mayfly::FaultDisk::Make().release();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([] {
    for (std::string line; std::getline(std::cin, line);) {
      if (line == "power") {
        disk->CutPower();
        const bool dropped = disk->DropUnsynced().has_value();
        ::_exit(dropped ? 9 : 10);
      }
      if (line == "free none")
        disk->SetFreeBytes(std::nullopt);
      else if (line.starts_with("free "))
        disk->SetFreeBytes(std::atoll(line.c_str() + 5));
      else if (line.starts_with("fail ")) {
        disk->FailWrites(line == "fail writes");
        disk->FailSyncs(line == "fail syncs");
      } else if (line.starts_with("slow "))
        disk->SlowSyncs(std::atoll(line.c_str() + 5));
      else if (line.starts_with("clock "))
        drift_millis = std::atoll(line.c_str() + 6);
      else if (line.starts_with("reads "))
        reads = line == "reads all" ? -1 : std::atoi(line.c_str() + 6);
      else if (line.starts_with("archive "))
        archive_full = line == "archive full";
      else if (line.starts_with("break "))
        Break(std::string_view(line).substr(6));
      else if (line.starts_with("memory "))
        RunShort(std::string_view(line).substr(7));
      std::cout << "done: " << line << std::endl;
    }
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return mayfly::RunServer({argv, argv + argc}, disk->env());
}
