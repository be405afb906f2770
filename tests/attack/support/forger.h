// Packets that no honest program would send now: INITs at will, refusals, and everything one can do to a
// recorded packet.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "longhaul/status.h"
#include "proto/frames.h"
#include "transport/core/security/security.h"
#include "transport/keys/load_security.h"

namespace longhaul::attack {

using Bytes = std::vector<uint8_t>;

// An attacker with this key file. With a certificate, of any authority, its INITs open at every server of
// certificates.
class Forger {
 public:
  explicit Forger(const std::string& key_file);

  // With a TLS ClientHello in it, as a client's first.
  Bytes Init(uint64_t source, ByteSpan cookie = {}, uint64_t number = 0);
  // An ACCEPT of a server `source` for a worker, under the key of long packets that certificates have in
  // common.
  Bytes Accept(uint64_t worker, uint64_t source, const std::vector<wire::Frame>& frames);
  Bytes Retry(uint64_t worker, ByteSpan cookie);
  // The worker's ClientHello in an INIT or, with certificates, the server's part in an ACCEPT; nullopt: none.
  struct Crypto {
    uint64_t offset = 0;
    Bytes data;
  };
  std::optional<Crypto> CryptoOf(ByteSpan long_packet);

 private:
  keys::LoadedSecurity security_;
  Bytes hello_;
};

// Looks like an INIT from the outside; nothing in it opens.
Bytes NoiseInit(uint64_t source, size_t bytes = 1200);
// As a server without room would send it: no key is needed.
Bytes Refuse(uint64_t destination, StatusCode code);
// The cookie of a RETRY; its form is public.
std::optional<Bytes> CookieOf(ByteSpan retry);

// Copies with one bit flipped each: every bit of the first and the last `all_bits` bytes, one of every other
// byte.
std::vector<Bytes> Flipped(ByteSpan packet, size_t all_bits);
// Every prefix of it, the whole not included.
std::vector<Bytes> Truncated(ByteSpan packet);

}  // namespace longhaul::attack
