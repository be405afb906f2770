#include "transport/crypto/imported_psk.h"

#include <openssl/evp.h>
#include <openssl/ssl.h>

#include <array>
#include <string_view>

#include "base/check.h"

namespace longhaul::crypto {
namespace {

constexpr std::string_view kContext = "longhaul v1 tls";
// RFC 9258 §10: HKDF_SHA256 and HKDF_SHA384.
constexpr uint16_t KdfOf(Hash hash) { return hash == Hash::kSha256 ? 1 : 2; }

void Put(std::string_view text, std::vector<uint8_t>* out) {
  out->push_back(static_cast<uint8_t>(text.size() >> 8));
  out->push_back(static_cast<uint8_t>(text.size()));
  out->insert(out->end(), text.begin(), text.end());
}

std::vector<uint8_t> IdentityOf(const PskKey& key, Hash target) {
  std::vector<uint8_t> identity;
  Put(key.job, &identity);
  Put(kContext, &identity);
  for (const uint16_t number : {uint16_t{TLS1_3_VERSION}, KdfOf(target)}) {
    identity.push_back(static_cast<uint8_t>(number >> 8));
    identity.push_back(static_cast<uint8_t>(number));
  }
  return identity;
}

SecretBytes Extracted(const PskKey& key) { return HkdfExtract(Hash::kSha256, {}, key.psk.span()); }

}  // namespace

ImportedPsk ImportPsk(const PskKey& key, Hash target) {
  ImportedPsk imported{IdentityOf(key, target), {}};
  std::array<uint8_t, 32> hash{};
  LH_CHECK(EVP_Q_digest(nullptr, "SHA256", nullptr, imported.identity.data(), imported.identity.size(),
                        hash.data(), nullptr) == 1);
  imported.key = HkdfExpandLabel(Hash::kSha256, Extracted(key).span(), "derived psk", hash, HashBytes(target),
                                 kTlsLabels);
  return imported;
}

SecretBytes PskRoot(const PskKey& key) {
  return HkdfExpandLabel(Hash::kSha256, Extracted(key).span(), "root", {}, 32);
}

}  // namespace longhaul::crypto
