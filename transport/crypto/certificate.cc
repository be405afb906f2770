#include "transport/crypto/certificate.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "transport/crypto/identity_name.h"

namespace longhaul::crypto {
namespace {

Status Damaged(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

struct GeneralNamesFree {
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};

std::optional<std::string_view> UriOf(const GENERAL_NAME& name) {
  if (name.type != GEN_URI) return std::nullopt;
  const ASN1_IA5STRING* text = name.d.uniformResourceIdentifier;
  return std::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                          static_cast<size_t>(ASN1_STRING_length(text)));
}

}  // namespace

// Only the certificates' blocks go to OpenSSL, whose reader would leave what it skips, the private key, in
// the heap.
Result<std::vector<Certificate>> ParseCertificates(std::string_view text) {
  constexpr std::string_view kBegin = "-----BEGIN CERTIFICATE-----", kEnd = "-----END CERTIFICATE-----";
  std::vector<Certificate> found;
  for (size_t begin = text.find(kBegin); begin != std::string_view::npos; begin = text.find(kBegin)) {
    text.remove_prefix(begin);
    const size_t end = text.find(kEnd);
    if (end == std::string_view::npos) return Damaged("a certificate is damaged");
    const size_t size = end + kEnd.size();
    const Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(size)));
    LH_CHECK(bio != nullptr);
    // Certificates are never encrypted: an empty password, so that OpenSSL does not ask for one at the
    // terminal.
    char no_password[] = "";
    Certificate next(PEM_read_bio_X509(bio.get(), nullptr, nullptr, no_password));
    ERR_clear_error();
    if (next == nullptr) return Damaged("a certificate is damaged");
    if (found.size() == kMaxCertificates) return Damaged("more than 16 certificates");
    found.push_back(std::move(next));
    text.remove_prefix(size);
  }
  return found;
}

Result<transport::PeerIdentity> IdentityOf(const x509_st& certificate) {
  const std::unique_ptr<GENERAL_NAMES, GeneralNamesFree> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::optional<transport::PeerIdentity> found;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const std::optional<std::string_view> uri = UriOf(*sk_GENERAL_NAME_value(names.get(), i));
    std::optional<transport::PeerIdentity> identity = uri ? ParseIdentityUri(*uri) : std::nullopt;
    if (identity && found)
      return Status(StatusCode::kPermissionDenied, "names more than one longhaul:// identity");
    if (identity) found = std::move(identity);
  }
  ERR_clear_error();
  if (!found) return Status(StatusCode::kPermissionDenied, "names no identity longhaul://JOB/ROLE/NAME");
  return *found;
}

}  // namespace longhaul::crypto
