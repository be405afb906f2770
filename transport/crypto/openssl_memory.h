// What OpenSSL leaves behind. It wipes most secrets, but frees a TLS session with the secrets of its schedule
// in it (OpenSSL 3.0: SSL_free), from which every key of the connection's beginning follows.
#pragma once

namespace longhaul::crypto {

// From now on every block that OpenSSL gives back is wiped. For programs, at their start: OpenSSL takes it
// only before its first allocation, for the whole process. False: it came too late.
bool WipeOpenSslMemory();
// What is done to such a block.
void WipeBlock(void* block);

}  // namespace longhaul::crypto
