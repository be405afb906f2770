#include "operator/webhook/certificate.h"

#include <sys/stat.h>

#include <asio/ssl/context.hpp>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "operator/api/kubeconfig.h"

namespace longhaul::kube::webhook {
namespace {

constexpr const char* kFiles[] = {"/tls.crt", "/tls.key", "/path"};  // the last need not be there
constexpr size_t kMostPathBytes = 256;
constexpr size_t kMostPemBytes = size_t{1} << 20;  // of a Secret

Result<Certificate::Context> Make(const std::string& certificate, const std::string& key,
                                  const std::string& folder) {
  try {
    auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
    SSL_CTX* raw = context->native_handle();
    SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
    SSL_CTX_set_options(raw,
                        SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    // Each review has a connection of its own: what would make the next one shorter is not kept.
    SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(raw, 0);
    SSL_CTX_set_options(raw, SSL_OP_NO_TICKET);
    SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);  // 34 KB of a connection that waits
    std::error_code error;
    context->use_certificate_chain(asio::buffer(certificate), error);
    if (error) {
      return Status(StatusCode::kInvalidArgument,
                    folder + "/tls.crt: no certificate in PEM: " + error.message());
    }
    context->use_private_key(asio::buffer(key), asio::ssl::context::pem, error);
    if (error || SSL_CTX_check_private_key(raw) != 1) {
      return Status(StatusCode::kInvalidArgument,
                    folder + "/tls.key: is not the key of tls.crt, in PEM and without a passphrase" +
                        (error ? ": " + error.message() : ""));
    }
    return context;
  } catch (const std::system_error& error) {  // OpenSSL makes no context
    return Status(StatusCode::kInternal, std::string("no TLS: ") + error.what());
  }
}

}  // namespace

Status Certificate::Stat(Stamp* stamp) const {
  size_t at = 0;
  for (const char* file : kFiles) {
    struct stat found {};
    if (::stat((folder_ + file).c_str(), &found) != 0) {
      if (file == kFiles[2] && errno == ENOENT) continue;
      return {errno == EACCES ? StatusCode::kPermissionDenied : StatusCode::kNotFound,
              folder_ + file + ": " + std::strerror(errno) +
                  ": deploy/kubernetes/admission-webhook/certificate.sh makes one"};
    }
    for (const int64_t value :
         {static_cast<int64_t>(found.st_dev), static_cast<int64_t>(found.st_ino), int64_t{found.st_size},
          int64_t{found.st_mtim.tv_sec}, int64_t{found.st_mtim.tv_nsec}})
      (*stamp)[at++] = value;
  }
  return {};
}

Status Certificate::Refresh() {
  Stamp stamp{};
  if (Status known = Stat(&stamp); !known.ok()) return known;
  if (context_ && stamp == read_) return {};
  const auto certificate = api::ReadSmallFile(folder_ + kFiles[0], kMostPemBytes, "the certificate");
  if (!certificate.ok()) return certificate.status();
  const auto key = api::ReadSmallFile(folder_ + kFiles[1], kMostPemBytes, "the key");
  if (!key.ok()) return key.status();
  std::string path;
  if (stamp[10] != 0) {
    const auto read = api::ReadSmallFile(folder_ + kFiles[2], kMostPathBytes, "the path of the webhooks");
    if (!read.ok()) return read.status();
    path = read->substr(0, read->find_last_not_of(" \r\n") + 1);
  }
  Result<Context> made = Make(*certificate, *key, folder_);
  if (!made.ok()) return made.status();
  context_ = std::move(*made);
  path_ = std::move(path);
  read_ = stamp;
  ++loads_;
  return {};
}

}  // namespace longhaul::kube::webhook
