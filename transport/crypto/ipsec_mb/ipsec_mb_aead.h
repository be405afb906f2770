// The AEADs by libipsec-mb, which uses the processor's vector instructions better than OpenSSL 3.0 does: a
// packet in a third of the time. Only in builds with LONGHAUL_IPSEC_MB; tests/crypto/ipsec_mb_test.cc holds
// it against EVP.
#pragma once

#include <memory>

#include "transport/crypto/aead.h"

namespace longhaul::crypto {

// Whether this processor has what makes it faster and safe: AES and vector instructions (without them the
// library looks up tables in memory, which leaks the key by timing), and the library has passed its own test.
bool IpsecMbSuitsProcessor();
// As MakeEvpAead. REQUIRES: IpsecMbSuitsProcessor().
std::unique_ptr<Aead> MakeIpsecMbAead(AeadSuite suite, Aead::Use use, ByteSpan key);

}  // namespace longhaul::crypto
