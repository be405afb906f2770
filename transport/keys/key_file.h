// Key files on disk: their permissions and how they are written. Their content is transport/crypto's.
//
// A key file is a secret: it must be a regular file of the reading user or of root, with mode 0600 or 0400.
// It is read once and its text is wiped as soon as it is parsed.
#pragma once

#include <string>
#include <string_view>

#include "base/address.h"
#include "longhaul/status.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::keys {

// Errors, each with the file's name and what to do: kNotFound, kPermissionDenied (others may read it, or it
// belongs to another user), kInvalidArgument (not a regular file, empty, too long), kInternal (cannot be
// read).
Result<crypto::SecretBytes> ReadKeyFile(const std::string& path);

// Makes a new file of mode 0600, whole or not at all. Never overwrites: kAlreadyExists. Other errors:
// kNotFound (no such directory), kInternal (cannot be written, with the system's words).
Status WriteKeyFile(const std::string& path, std::string_view text);

// Distinguishes a server from all others that have the same key; stable across restarts.

// The machine's id (machine-id(5), where there is one), its host name, and where the server listens: the
// address that its socket has, with the real port. For TlsOptions::server_name, where it only meets keyed
// hashes; machine-id(5) asks for that.
std::string ServerName(const Address& listen);

// A core dump is a copy of a process' memory in a file that lies around, is collected, and is sent to others;
// the keys of a process that has some are in it.

// From here on this process and those that it starts leave no core dump, neither as a file nor through a
// program that the kernel hands it to. Only the soft limit (RLIMIT_CORE) changes: `prlimit --core=unlimited
// --pid` takes it back. Debuggers are left alone: a user that may attach one can read the key file as well.
void ForbidCoreDumps();

// From here on OpenSSL wipes every block that it gives back (transport/crypto/openssl_memory.h). Before
// anything that uses keys; false: it was too late.
bool WipeFreedKeys();

}  // namespace longhaul::keys
