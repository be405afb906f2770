#include "cli/temporary_key.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"

namespace longhaul::cli {

Result<TemporaryKey> TemporaryKey::Make(const std::string& job) {
  const char* base = std::getenv("TMPDIR");
  std::string name = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/longhaul-key-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) {
    return Status(StatusCode::kInternal, "cannot make a directory for the key: " + name + ": " + std::strerror(errno));
  }
  TemporaryKey key(std::move(name));
  const auto text = crypto::NewPsk(job);
  if (!text.ok()) return text.status();
  if (Status written = keys::WriteKeyFile(key.path(), text->text()); !written.ok()) return written;
  return key;
}

TemporaryKey::TemporaryKey(TemporaryKey&& other) noexcept : directory_(std::exchange(other.directory_, {})) {}

TemporaryKey::~TemporaryKey() {
  if (directory_.empty()) return;
  ::unlink(path().c_str());
  ::rmdir(directory_.c_str());
}

}  // namespace longhaul::cli
