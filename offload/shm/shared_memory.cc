#include "offload/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

namespace longhaul::offload {
namespace {

// Above it no machine has memory, and rounding up does not overflow.
constexpr uint64_t kMostBytes = uint64_t{1} << 46;
// From here on huge pages, where the system gives any, save more faults than they waste.
constexpr uint64_t kHugeFrom = uint64_t{4} << 20;

Status NoMemory() {
  return Status(StatusCode::kResourceExhausted, "offload: the system gives no shared memory");
}

}  // namespace

uint64_t SharedMemory::RoundUp(uint64_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

Result<SharedMemory> SharedMemory::Create(const char* name, uint64_t bytes) {
  if (bytes == 0) return Status(StatusCode::kInvalidArgument, "offload: a region without memory");
  if (bytes > kMostBytes) return NoMemory();
  const uint64_t size = RoundUp(bytes);
  FileDescriptor fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return NoMemory();
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return NoMemory();
  auto memory = Map(std::move(fd), size);
  return memory.ok() ? std::move(memory) : Result<SharedMemory>(NoMemory());
}

Result<SharedMemory> SharedMemory::Map(FileDescriptor fd, uint64_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return Status(StatusCode::kInternal, "offload: shared memory cannot be mapped");
  if (bytes >= kHugeFrom) (void)madvise(data, bytes, MADV_HUGEPAGE);
  SharedMemory memory;
  memory.fd_ = std::move(fd);
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = bytes;
  return memory;
}

FileDescriptor SharedMemory::PassOn(bool keep) {
  return keep ? FileDescriptor(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)) : std::move(fd_);
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace longhaul::offload
