#include "transport/crypto/ipsec_mb/ipsec_mb_aead.h"

#include <intel-ipsec-mb.h>

#include <algorithm>

#include "base/check.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::crypto {
namespace {

struct ManagerFree {
  void operator()(IMB_MGR* p) const { free_mb_mgr(p); }
};

// The table of functions for this processor; nothing of it changes by the calls below.
const IMB_MGR& Manager() {
  static const std::unique_ptr<IMB_MGR, ManagerFree> manager = [] {
    std::unique_ptr<IMB_MGR, ManagerFree> made(alloc_mb_mgr(0));
    LH_CHECK(made != nullptr);
    init_mb_mgr_auto(made.get(), nullptr);
    return made;
  }();
  return *manager;
}

template <typename T>
void WipeObject(T* object) {
  WipeBytes({reinterpret_cast<uint8_t*>(object), sizeof(T)});
}

class IpsecMbGcm : public Aead {
 public:
  IpsecMbGcm(AeadSuite suite, ByteSpan key) {
    const bool wide = suite == AeadSuite::kAes256Gcm;
    (wide ? Manager().gcm256_pre : Manager().gcm128_pre)(key.data(), &key_);
    encrypt_ = wide ? Manager().gcm256_enc : Manager().gcm128_enc;
    decrypt_ = wide ? Manager().gcm256_dec : Manager().gcm128_dec;
  }
  ~IpsecMbGcm() override {
    WipeObject(&key_);
    WipeObject(&context_);
  }

  void Seal(const AeadNonce& nonce, ByteSpan header, MutableByteSpan body, MutableByteSpan tag) override {
    LH_CHECK_OP(tag.size(), ==, kAeadTagBytes);
    encrypt_(&key_, &context_, body.data(), body.data(), body.size(), nonce.data(), header.data(),
             header.size(), tag.data(), tag.size());
  }
  bool Open(const AeadNonce& nonce, ByteSpan header, MutableByteSpan body, ByteSpan tag) override {
    std::array<uint8_t, kAeadTagBytes> made{};
    decrypt_(&key_, &context_, body.data(), body.data(), body.size(), nonce.data(), header.data(),
             header.size(), made.data(), made.size());
    return SecretsEqual(made, tag);
  }

 private:
  // The header asks for this alignment only where LINUX is defined, the code always needs it.
  alignas(64) gcm_key_data key_{};
  gcm_context_data context_{};
  aes_gcm_enc_dec_t encrypt_, decrypt_;
};

class IpsecMbChaCha : public Aead {
 public:
  explicit IpsecMbChaCha(ByteSpan key) : key_(key) {}
  ~IpsecMbChaCha() override { WipeObject(&context_); }

  void Seal(const AeadNonce& nonce, ByteSpan header, MutableByteSpan body, MutableByteSpan tag) override {
    LH_CHECK_OP(tag.size(), ==, kAeadTagBytes);
    Run(Manager().chacha20_poly1305_enc_update, nonce, header, body, tag);
  }
  bool Open(const AeadNonce& nonce, ByteSpan header, MutableByteSpan body, ByteSpan tag) override {
    std::array<uint8_t, kAeadTagBytes> made{};
    Run(Manager().chacha20_poly1305_dec_update, nonce, header, body, made);
    return SecretsEqual(made, tag);
  }

 private:
  void Run(chacha_poly_enc_dec_update_t update, const AeadNonce& nonce, ByteSpan header, MutableByteSpan body,
           MutableByteSpan tag) {
    const uint8_t* key = key_.span().data();
    Manager().chacha20_poly1305_init(key, &context_, nonce.data(), header.data(), header.size());
    update(key, &context_, body.data(), body.data(), body.size());
    Manager().chacha20_poly1305_finalize(&context_, tag.data(), tag.size());
  }

  SecretBytes key_;
  chacha20_poly1305_context_data context_{};
};

}  // namespace

bool IpsecMbSuitsProcessor() {
  constexpr uint64_t kNeeded = IMB_CPUFLAGS_AVX2 | IMB_FEATURE_SAFE_DATA | IMB_FEATURE_SELF_TEST_PASS;
  const uint64_t features = Manager().features;
  return (features & kNeeded) == kNeeded && (features & IMB_FEATURE_AESNI_EMU) == 0;
}

std::unique_ptr<Aead> MakeIpsecMbAead(AeadSuite suite, Aead::Use, ByteSpan key) {
  LH_CHECK(IpsecMbSuitsProcessor());
  LH_CHECK_OP(key.size(), ==, AeadKeyBytes(suite));
  if (suite == AeadSuite::kChaCha20Poly1305) return std::make_unique<IpsecMbChaCha>(key);
  return std::make_unique<IpsecMbGcm>(suite, key);
}

}  // namespace longhaul::crypto
