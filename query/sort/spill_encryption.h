#pragma once
#include <cstdio>
#include <memory>

#include "protocol/file_cipher.h"
#include "protocol/large_memory.h"

namespace mayfly {

/// Spill files that are charged to the budget, a server's, are encrypted from now on, each with a
/// key of its own that is in memory only. Null: no longer; to be said before the budget goes.
/// Threads: any.
void EncryptSpillFiles(const large_memory::Budget& budget, FileCiphersPtr ciphers);
/// What they are encrypted with; null: nothing.
FileCiphersPtr SpillCiphers(const large_memory::Budget& budget);

/// A stream whose bytes are encrypted in the file. Takes `fd`, also when it fails: null, errno says
/// why.
std::FILE* OpenEncryptedStream(int fd, std::unique_ptr<FileCipher> cipher);
/// The descriptor of such a stream or of an ordinary one.
int DescriptorOf(std::FILE* file);

}  // namespace mayfly
