#pragma once
#include <cstdio>
#include <memory>

#include "protocol/file_cipher.h"
#include "protocol/large_memory.h"

namespace mayfly {

/// From now on, spill files charged to this budget, a server's, are encrypted, each with its
/// own key in memory only. Null: no longer; call it before the budget is destroyed. Threads:
/// any.
void EncryptSpillFiles(const large_memory::Budget& budget, FileCiphersPtr ciphers);
/// Their ciphers; null: not encrypted.
FileCiphersPtr SpillCiphers(const large_memory::Budget& budget);

/// A stream whose bytes are encrypted in the file. Takes `fd`, also when it fails: null, errno says
/// why.
std::FILE* OpenEncryptedStream(int fd, std::unique_ptr<FileCipher> cipher);
/// The descriptor of such a stream or of an ordinary one.
int DescriptorOf(std::FILE* file);

}  // namespace mayfly
