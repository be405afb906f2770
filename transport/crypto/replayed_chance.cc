#include "transport/crypto/replayed_chance.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <array>

#include "base/check.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::crypto::replayed_chance {
namespace {

OSSL_LIB_CTX* NewLibrary() {
  OSSL_LIB_CTX* library = OSSL_LIB_CTX_new();
  // A generator that gives out what it was given, and nothing else (EVP_RAND-TEST-RAND(7)).
  const bool ok = library != nullptr &&
                  RAND_set_DRBG_type(library, "TEST-RAND", nullptr, nullptr, nullptr) == 1 &&
                  RAND_get0_public(library) != nullptr && RAND_get0_private(library) != nullptr;
  if (ok) return library;
  OSSL_LIB_CTX_free(library);
  return nullptr;
}

void Load(EVP_RAND_CTX* generator, ByteSpan bytes) {
  // Copied, and never written through.
  const std::array<OSSL_PARAM, 2> params{
      OSSL_PARAM_construct_octet_string(OSSL_RAND_PARAM_TEST_ENTROPY, const_cast<uint8_t*>(bytes.data()),
                                        bytes.size()),
      OSSL_PARAM_construct_end()};
  LH_CHECK(generator != nullptr && EVP_RAND_CTX_set_params(generator, params.data()) == 1);
}

thread_local bool t_replaying = false;

}  // namespace

bool Replaying() { return t_replaying; }

OSSL_LIB_CTX* Library() {
  static OSSL_LIB_CTX* const library = NewLibrary();
  return library;
}

void Replay(ByteSpan seed) {
  t_replaying = true;
  Load(RAND_get0_public(Library()), seed.first(seed.size() / 2));
  Load(RAND_get0_private(Library()), seed.subspan(seed.size() / 2));
}

void Refresh() {
  t_replaying = false;
  std::array<uint8_t, 4096> bytes{};
  for (EVP_RAND_CTX* generator : {RAND_get0_public(Library()), RAND_get0_private(Library())}) {
    LH_CHECK(RAND_priv_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
    Load(generator, bytes);
  }
  WipeBytes(bytes);
}

}  // namespace longhaul::crypto::replayed_chance
