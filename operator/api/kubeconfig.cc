#include "operator/api/kubeconfig.h"

#include <openssl/evp.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

namespace longhaul::kube::api {
namespace {

constexpr size_t kMaxPemBytes = size_t{1} << 20;
constexpr size_t kMaxTokenBytes = size_t{64} << 10;  // those of service accounts are 1 KB

Status Invalid(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, "kubeconfig: " + message);
}

// Names come from a file: in messages they are printable and short.
std::string Shown(std::string_view name) {
  std::string shown(name.substr(0, 100));
  std::ranges::replace_if(
      shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  return "\"" + shown + "\"";
}

std::string TextOf(const YAML::Node& node) { return node && node.IsScalar() ? node.Scalar() : std::string(); }

// yaml-cpp throws where a key is asked of what is no map.
YAML::Node Child(const YAML::Node& node, const char* name) {
  if (!node || !node.IsMap()) return YAML::Node(YAML::NodeType::Undefined);
  return node[name];
}
std::string TextAt(const YAML::Node& node, const char* name) { return TextOf(Child(node, name)); }
bool Has(const YAML::Node& node, const char* name) {
  const YAML::Node child = Child(node, name);
  return child && !child.IsNull() && !(child.IsScalar() && child.Scalar().empty());
}

// clusters, users and contexts are lists of {name: N, cluster: {...}}.
Result<YAML::Node> Named(const YAML::Node& root, const char* list, const char* kind,
                         const std::string& name) {
  const YAML::Node entries = Child(root, list);
  if (entries && entries.IsSequence()) {
    for (const auto& entry : entries) {
      if (TextAt(entry, "name") == name) return Child(entry, kind);
    }
  }
  return Invalid("there is no " + std::string(kind) + " " + Shown(name) + " in '" + list +
                 "'; `kubectl config view` shows what there is");
}

Result<std::string> Base64(const std::string& text, const char* field) {
  const Status bad = Invalid(std::string(field) +
                             " is not base64; write the file's name in the field without -data instead");
  std::vector<uint8_t> bytes(text.size() + 3);
  if (text.size() > static_cast<size_t>(std::numeric_limits<int>::max())) return bad;
  EVP_ENCODE_CTX* decoder = EVP_ENCODE_CTX_new();
  if (decoder == nullptr) return Status(StatusCode::kInternal, "no memory");
  EVP_DecodeInit(decoder);
  int size = 0;
  int rest = 0;
  const bool ok =
      EVP_DecodeUpdate(decoder, bytes.data(), &size, reinterpret_cast<const uint8_t*>(text.data()),
                       static_cast<int>(text.size())) >= 0 &&
      EVP_DecodeFinal(decoder, bytes.data() + size, &rest) >= 0;
  EVP_ENCODE_CTX_free(decoder);
  if (!ok || size + rest == 0) return bad;
  return std::string(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(size + rest));
}

// The field with -data holds the bytes and wins; the other one names a file.
Status TakeBytes(const YAML::Node& node, const std::string& field, std::string* bytes, std::string* file) {
  const std::string data = TextAt(node, (field + "-data").c_str());
  if (data.empty()) {
    *file = TextAt(node, field.c_str());
    return Status::Ok();
  }
  const Result<std::string> decoded = Base64(data, (field + "-data").c_str());
  if (!decoded.ok()) return decoded.status();
  *bytes = *decoded;
  return Status::Ok();
}

Status Refuse(const YAML::Node& node, std::initializer_list<std::pair<const char*, const char*>> fields) {
  for (const auto& [name, remedy] : fields) {
    if (Has(node, name)) return Invalid(std::string(name) + " is not supported: " + remedy);
  }
  return Status::Ok();
}

Status TakeCluster(const YAML::Node& cluster, KubeconfigEntry* entry) {
  if (Child(cluster, "insecure-skip-tls-verify") && TextAt(cluster, "insecure-skip-tls-verify") != "false")
    return Invalid(
        "insecure-skip-tls-verify is not supported: name the cluster's CA in certificate-authority");
  if (const Status refused =
          Refuse(cluster, {{"proxy-url", "use an address that is reached without a proxy"},
                           {"tls-server-name", "use a name in 'server' that the certificate has"}});
      !refused.ok())
    return refused;
  entry->access.server = TextAt(cluster, "server");
  return TakeBytes(cluster, "certificate-authority", &entry->access.ca, &entry->ca_file);
}

Status TakeUser(const YAML::Node& user, KubeconfigEntry* entry) {
  const char* service_account =
      "make a token of a service account (`kubectl create token NAME`) and write it to a file for tokenFile";
  if (const Status refused = Refuse(
          user,
          {{"exec", service_account},
           {"auth-provider", service_account},
           {"username", "clusters since 1.19 have no basic authentication; use a token or a certificate"},
           {"password", "clusters since 1.19 have no basic authentication; use a token or a certificate"},
           {"as", "use the credentials of that user"},
           {"as-uid", "use the credentials of that user"},
           {"as-groups", "use the credentials of that user"},
           {"as-user-extra", "use the credentials of that user"}});
      !refused.ok())
    return refused;
  entry->access.token = TextAt(user, "token");
  entry->access.token_file = TextAt(user, "tokenFile");
  // kubectl: the file wins.
  if (!entry->access.token_file.empty()) entry->access.token.clear();
  if (const Status taken =
          TakeBytes(user, "client-certificate", &entry->access.client_certificate, &entry->certificate_file);
      !taken.ok())
    return taken;
  return TakeBytes(user, "client-key", &entry->access.client_key, &entry->key_file);
}

Result<KubeconfigEntry> Parse(const YAML::Node& root, std::string context) {
  if (!root.IsMap()) return Invalid("the file is no YAML map; is it a kubeconfig?");
  if (context.empty()) context = TextAt(root, "current-context");
  if (context.empty())
    return Invalid("there is no current-context: name one (`kubectl config get-contexts` lists them)");
  const Result<YAML::Node> chosen = Named(root, "contexts", "context", context);
  if (!chosen.ok()) return chosen.status();
  KubeconfigEntry entry;
  entry.access.name_space = TextAt(*chosen, "namespace");
  const Result<YAML::Node> cluster = Named(root, "clusters", "cluster", TextAt(*chosen, "cluster"));
  if (!cluster.ok()) return cluster.status();
  if (const Status taken = TakeCluster(*cluster, &entry); !taken.ok()) return taken;
  if (const std::string user = TextAt(*chosen, "user"); !user.empty()) {
    const Result<YAML::Node> found = Named(root, "users", "user", user);
    if (!found.ok()) return found.status();
    if (const Status taken = TakeUser(*found, &entry); !taken.ok()) return taken;
  }
  if (entry.access.name_space.empty()) entry.access.name_space = "default";
  return entry;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
}

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \r\n\t");
  return begin == std::string::npos ? std::string()
                                    : text.substr(begin, text.find_last_not_of(" \r\n\t") - begin + 1);
}

bool IsLoopback(std::string_view host) {
  std::string_view name = host.substr(0, host.find('/'));
  if (name == "[::1]" || name.starts_with("[::1]:")) return true;
  name = name.substr(0, name.find(':'));
  return name == "localhost" ||
         (name.starts_with("127.") && name.find_first_not_of("0123456789.") == std::string_view::npos);
}

}  // namespace

Result<KubeconfigEntry> ParseKubeconfig(std::string_view text, const std::string& context) {
  if (text.size() > kMaxKubeconfigBytes)
    return Invalid("the file is larger than " + std::to_string(kMaxKubeconfigBytes) + " bytes");
  try {
    return Parse(YAML::Load(std::string(text)), context);
  } catch (const std::exception& error) {
    return Invalid("the file is no YAML: " + Shown(error.what()));
  }
}

Result<ClusterAccess> LoadKubeconfig(const std::string& path, const std::string& context) {
  const Result<std::string> text = ReadSmallFile(path, kMaxKubeconfigBytes, "kubeconfig");
  if (!text.ok()) return text.status();
  Result<KubeconfigEntry> entry = ParseKubeconfig(*text, context);
  if (!entry.ok()) return Status(entry.status().code(), entry.status().message() + " (" + path + ")");
  const auto resolved = [&path](const std::string& file) {
    return file.starts_with('/') ? file : FolderOf(path) + file;
  };
  ClusterAccess& access = entry->access;
  const std::pair<const std::string*, std::string*> files[] = {
      {&entry->ca_file, &access.ca},
      {&entry->certificate_file, &access.client_certificate},
      {&entry->key_file, &access.client_key}};
  for (const auto& [file, bytes] : files) {
    if (file->empty() || !bytes->empty()) continue;
    const Result<std::string> read =
        ReadSmallFile(resolved(*file), kMaxPemBytes, "a file of the kubeconfig " + path);
    if (!read.ok()) return read.status();
    *bytes = *read;
  }
  if (!access.token_file.empty()) access.token_file = resolved(access.token_file);
  if (const Status checked = CheckAccess(access); !checked.ok()) return checked;
  return access;
}

Result<ClusterAccess> InCluster(const std::string& folder, const std::string& host, const std::string& port) {
  if (host.empty() || port.empty())
    return Status(StatusCode::kFailedPrecondition,
                  "this is no pod (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set)");
  ClusterAccess access;
  access.server = "https://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
  access.token_file = folder + "/token";
  const Result<std::string> ca = ReadSmallFile(folder + "/ca.crt", kMaxPemBytes, "the cluster's CA");
  if (!ca.ok()) return ca.status();
  access.ca = *ca;
  const Result<std::string> token =
      ReadSmallFile(access.token_file, kMaxTokenBytes, "the service account's token");
  if (!token.ok())
    return Status(token.status().code(),
                  token.status().message() + "; is automountServiceAccountToken false?");
  const Result<std::string> name_space = ReadSmallFile(folder + "/namespace", 1024, "the pod's namespace");
  if (!name_space.ok()) return name_space.status();
  access.name_space = Trimmed(*name_space);
  if (const Status checked = CheckAccess(access); !checked.ok()) return checked;
  return access;
}

Status CheckAccess(const ClusterAccess& access) {
  const std::string& server = access.server;
  const bool tls = server.starts_with("https://");
  if (!tls && !server.starts_with("http://"))
    return Invalid("the server " + Shown(server) + " is no address; write https://HOST:PORT");
  const std::string_view host = std::string_view(server).substr(tls ? 8 : 7);
  if (host.empty() || host.find_first_of("@?# \\") != std::string_view::npos)
    return Invalid("the server " + Shown(server) + " is no address; write https://HOST:PORT");
  if (!tls && !IsLoopback(host))
    return Invalid("the server " + Shown(server) +
                   " is reached without TLS, which only a loopback address may be; write https://");
  if (access.client_certificate.empty() != access.client_key.empty())
    return Invalid(
        "a client certificate and its key go together; one of client-certificate and client-key is missing");
  if (access.token.find_first_of("\r\n") != std::string::npos)
    return Invalid("the token has more than one line");
  return Status::Ok();
}

Result<std::string> ReadSmallFile(const std::string& path, size_t limit, std::string_view what) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int error = errno;
    const StatusCode code = error == EACCES ? StatusCode::kPermissionDenied : StatusCode::kNotFound;
    return Status(code, std::string(what) + ": cannot read " + path + ": " + std::strerror(error));
  }
  std::string text(limit + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return Status(StatusCode::kInternal, std::string(what) + ": cannot read " + path);
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > limit)
    return Status(StatusCode::kInvalidArgument,
                  std::string(what) + ": " + path + " is larger than " + std::to_string(limit) + " bytes");
  return text;
}

Result<std::string> Token::Get(Time now) {
  if (file_.empty() || (fresh_ && now - read_at_ < max_age_)) return token_;
  ++reads_;
  const Result<std::string> text = ReadSmallFile(file_, kMaxTokenBytes, "token");
  std::string line = text.ok() ? text->substr(0, text->find_first_of(" \r\n\t")) : std::string();
  if (!line.empty()) {
    token_ = std::move(line);
    fresh_ = true;
    read_at_ = now;
    return token_;
  }
  if (!token_.empty()) return token_;
  return text.ok() ? Status(StatusCode::kUnavailable, "token: " + file_ + " is empty") : text.status();
}

}  // namespace longhaul::kube::api
