// The AEADs by libipsec-mb, which uses the processor's vector instructions better than OpenSSL 3.0 does. Only
// in builds with LONGHAUL_IPSEC_MB; tests/crypto/ipsec_mb_test.cc holds it against EVP.
#pragma once

#include <memory>

#include "transport/crypto/aead.h"

namespace longhaul::crypto {

// As MakeEvpAead.
std::unique_ptr<Aead> MakeIpsecMbAead(AeadSuite suite, Aead::Use use, ByteSpan key);

}  // namespace longhaul::crypto
