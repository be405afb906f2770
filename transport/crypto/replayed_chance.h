// Random numbers that come twice, for one purpose: a client says the same ClientHello in several TLS
// sessions, each of which takes another answer (transport/core/connection/server_answers.h). OpenSSL can
// neither copy a session that has begun nor be given a key share.
//
// What is replayed are a session's first draws, the client's random and its share: they belong to the same
// message each time. Everything later, signatures included, is drawn afresh.
#pragma once

#include "base/bytes.h"
#include "transport/crypto/openssl_ptr.h"

namespace longhaul::crypto::replayed_chance {

// Bytes that a ClientHello takes at most.
inline constexpr size_t kSeedBytes = 256;

// The library context for the SSL contexts of such clients; null when OpenSSL has no generator of the kind.
// One for the process, which keeps it.
ossl_lib_ctx_st* Library();
// What this thread draws in that library comes from `seed`, until the next call; what goes beyond it fails.
// Also REQUIRES: Library() is not null.
void Replay(ByteSpan seed);
// From OpenSSL's usual generator: 4 KiB, which no call of TLS needs in whole. To be called before each.
void Refresh();

// Between Replay and Refresh. For a process with a RAND_METHOD of its own (a simulation), which OpenSSL asks
// in every context: now it must give what the generators of Library() give.
bool Replaying();

}  // namespace longhaul::crypto::replayed_chance
