// Key files on disk: who may read them, and how they are written. What is in them is transport/crypto's
// business.
//
// A key file is a secret: it must be a regular file that belongs to whoever reads it (or to root) and that
// nobody else may read or write (mode 0600 or 0400). It is read once and its text is wiped as soon as it was
// understood.
#pragma once

#include <string>
#include <string_view>

#include "longhaul/status.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::keys {

// Errors, each with the file's name and what to do: kNotFound, kPermissionDenied (others may read it, or it
// belongs to somebody else), kInvalidArgument (not a regular file, empty, too long), kInternal (cannot be
// read).
Result<crypto::SecretBytes> ReadKeyFile(const std::string& path);

// Makes a new file of mode 0600, whole or not at all. Never overwrites: kAlreadyExists. Other errors:
// kNotFound (no such directory), kInternal (cannot be written, with the system's words).
Status WriteKeyFile(const std::string& path, std::string_view text);

}  // namespace longhaul::keys
