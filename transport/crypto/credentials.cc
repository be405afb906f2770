#include "transport/crypto/credentials.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <array>
#include <optional>

#include "base/check.h"
#include "transport/crypto/certificate.h"
#include "transport/crypto/imported_psk.h"
#include "transport/crypto/key_derivation.h"
#include "transport/crypto/replayed_chance.h"

namespace longhaul::crypto {
namespace {

constexpr std::string_view kPskMagic = "longhaul-psk-v1";

Status Invalid(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// The next line that means something; nullopt at the end.
std::optional<std::string_view> NextLine(std::string_view* text) {
  while (!text->empty()) {
    const size_t end = std::min(text->find('\n'), text->size());
    const std::string_view line = Trim(text->substr(0, end));
    text->remove_prefix(std::min(end + 1, text->size()));
    if (!line.empty() && line.front() != '#') return line;
  }
  return std::nullopt;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<SecretBytes> ParsePsk(std::string_view hex) {
  if (hex.size() != 2 * kPskBytes) return std::nullopt;
  SecretBytes psk(kPskBytes);
  for (size_t i = 0; i < kPskBytes; ++i) {
    const int high = HexDigit(hex[2 * i]), low = HexDigit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    psk.span()[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return psk;
}

Result<Credentials> ParsePskFile(std::string_view text) {
  PskKey key;
  while (const auto line = NextLine(&text)) {
    const size_t equals = line->find('=');
    if (equals == std::string_view::npos) return Invalid("a line is not NAME = VALUE");
    const std::string_view name = Trim(line->substr(0, equals)), value = Trim(line->substr(equals + 1));
    if (name == "job" && key.job.empty()) {
      if (Status valid = CheckKeyName("job", value); !valid.ok()) return Invalid(valid.message());
      key.job = value;
    } else if (name == "psk" && key.psk.empty()) {
      std::optional<SecretBytes> psk = ParsePsk(value);
      if (!psk) return Invalid("psk is not 64 hexadecimal digits");
      key.psk = std::move(*psk);
    } else {
      return Invalid("a line is neither job nor psk, or comes twice");
    }
  }
  if (key.job.empty() || key.psk.empty()) return Invalid("job or psk is missing");
  return Credentials(std::move(key));
}

// Sorts the certificates into the own chain and the authorities.
Result<Credentials> Assemble(PrivateKey private_key, PrivateKey client_key,
                             std::vector<Certificate> certificates) {
  CertificateKey key;
  key.private_key = std::move(private_key);
  key.client_key = std::move(client_key);
  for (Certificate& certificate : certificates) {
    const bool authority =
        X509_self_signed(certificate.get(), 1) == 1 && X509_check_ca(certificate.get()) != 0;
    (authority ? key.authorities : key.chain).push_back(std::move(certificate));
  }
  ERR_clear_error();
  if (key.chain.empty()) {
    return Invalid(key.authorities.empty() ? "no certificate"
                                           : "a CA's own file: it issues certificates, daemons get those");
  }
  if (key.authorities.empty()) return Invalid("no CA certificate");
  if (X509_check_private_key(key.chain.front().get(), key.private_key.get()) != 1) {
    ERR_clear_error();
    return Invalid("the first certificate is not the private key's");
  }
  Result<transport::PeerIdentity> identity = IdentityOf(*key.chain.front());
  if (!identity.ok()) return Invalid("own certificate: " + identity.status().message());
  key.identity = std::move(identity).value();
  return Credentials(std::move(key));
}

Result<Credentials> ParseBundle(std::string_view text) {
  PrivateKey private_key = ParsePrivateKey(text);
  if (private_key == nullptr) return Invalid("no private key that can be read (encrypted ones cannot)");
  Result<std::vector<Certificate>> certificates = ParseCertificates(text);
  if (!certificates.ok()) return certificates.status();
  PrivateKey client_key = ParsePrivateKey(text, replayed_chance::Library());
  if (client_key == nullptr) return Invalid("OpenSSL cannot use the private key in a context of its own");
  return Assemble(std::move(private_key), std::move(client_key), std::move(certificates).value());
}

}  // namespace

Result<Credentials> ParseKeyFile(std::string_view text) {
  if (text.size() > kMaxKeyFileBytes) return Invalid("larger than 64 KiB");
  std::string_view rest = text;
  const std::optional<std::string_view> first = NextLine(&rest);
  if (!first) return Invalid("empty");
  if (*first == kPskMagic) return ParsePskFile(rest);
  if (text.find("-----BEGIN ") != std::string_view::npos) return ParseBundle(text);
  return Invalid("neither longhaul-psk-v1 nor PEM");
}

std::vector<std::string> TrustsOf(const Credentials& credentials) {
  if (const auto* shared = std::get_if<PskKey>(&credentials)) {
    return {TrustText(HkdfExpandLabel(Hash::kSha256, PskRoot(*shared).span(), "key id", {}, 8).span())};
  }
  std::vector<std::string> trusts;
  for (const Certificate& authority : std::get<CertificateKey>(credentials).authorities) {
    trusts.push_back(TrustOf(*authority));
  }
  return trusts;
}

SecretBytes PrintPskKey(const PskKey& key) {
  LH_CHECK(CheckKeyName("job", key.job).ok() && key.psk.size() == kPskBytes);
  constexpr std::string_view kDigits = "0123456789abcdef";
  const std::string head = std::string(kPskMagic) + "\njob = " + key.job + "\npsk = ";
  SecretBytes text(head.size() + 2 * kPskBytes + 1);
  ByteWriter out(text.span());
  for (char c : head) out.U8(static_cast<uint8_t>(c));
  for (uint8_t byte : key.psk.span()) {
    out.U8(static_cast<uint8_t>(kDigits[byte >> 4]));
    out.U8(static_cast<uint8_t>(kDigits[byte & 15]));
  }
  out.U8('\n');
  return text;
}

}  // namespace longhaul::crypto
