#include "transport/keys/temporary_key.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/crypto/keygen.h"

namespace longhaul::keys {
namespace {

// Since Linux 6.3, where some systems insist on it; older headers lack it.
constexpr unsigned kNoExecSeal = 0x0008;

// Not closed on exec: children are to read it.
int NewMemoryFile() {
  const int fd = ::memfd_create("longhaul-key", kNoExecSeal);
  return fd < 0 && errno == EINVAL ? ::memfd_create("longhaul-key", 0) : fd;
}

}  // namespace

Result<TemporaryKey> TemporaryKey::Make(const std::string& job) {
  const auto text = crypto::NewPsk(job);
  if (!text.ok()) return text.status();
  TemporaryKey key(NewMemoryFile());
  const auto size = static_cast<ssize_t>(text->text().size());
  // The mode is what readers ask of a key file.
  if (key.fd_ < 0 || ::fchmod(key.fd_, 0600) != 0 ||
      ::write(key.fd_, text->text().data(), text->text().size()) != size) {
    return Status(StatusCode::kInternal,
                  std::string("cannot make a file in memory for the key: ") + std::strerror(errno));
  }
  return key;
}

TemporaryKey::TemporaryKey(TemporaryKey&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

TemporaryKey::~TemporaryKey() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace longhaul::keys
