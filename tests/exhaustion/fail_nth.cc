#include "tests/exhaustion/fail_nth.h"

#include <execinfo.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace longhaul::exhaustion {
namespace {

std::atomic<What> armed = What::kNothing;
std::atomic<uint64_t> seen = 0;
std::atomic<uint64_t> at = 0;
std::atomic<bool> struck = false;

// Generated messages and nlohmann::json are broken by an allocation that fails in them: the one destroys what
// it has not made, the other's destructors allocate.
bool InsideALibrary() {
  return IsOnTheStack({"(_ZN8longhaul7control", "(_ZNK8longhaul7control", "(_ZN6google8protobuf",
                       "(_ZNK6google8protobuf", "(_ZN8nlohmann", "(_ZNK8nlohmann"});
}

}  // namespace

void Arm(What what, uint64_t n) {
  seen = 0;
  at = n;
  struck = false;
  armed = what;
}

void Disarm() { armed = What::kNothing; }
bool Struck() { return struck; }

bool Fails(What what) {
  if (armed != what || ++seen < at || struck) return false;
  if (what == What::kAllocation && InsideALibrary()) return false;  // the next one, then
  return !struck.exchange(true);
}

bool IsOnTheStack(std::initializer_list<const char*> names) {
  std::array<void*, 60> frames{};
  const int count = ::backtrace(frames.data(), static_cast<int>(frames.size()));
  char** const functions = ::backtrace_symbols(frames.data(), count);
  bool found = false;
  for (int i = 0; functions != nullptr && i < count; ++i) {
    for (const char* name : names) found = found || std::strstr(functions[i], name) != nullptr;
  }
  std::free(functions);
  return found;
}

}  // namespace longhaul::exhaustion

namespace ex = longhaul::exhaustion;

// --- Allocations ---

void* operator new(std::size_t size) {
  if (ex::Fails(ex::What::kAllocation)) throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

// --- System calls, as the linker's --wrap names them ---

namespace {

// -1 and the error instead of the call, when it is its turn.
template <typename Call, typename... Arguments>
auto OrFail(int error, Call* call, Arguments... arguments) -> decltype(call(arguments...)) {
  if (!ex::Fails(ex::What::kSystemCall)) return call(arguments...);
  errno = error;
  return -1;
}

}  // namespace

extern "C" {
int __real_socket(int, int, int);
int __real_bind(int, const sockaddr*, socklen_t);
int __real_setsockopt(int, int, int, const void*, socklen_t);
int __real_getsockopt(int, int, int, void*, socklen_t*);
int __real_getsockname(int, sockaddr*, socklen_t*);
int __real_timerfd_create(int, int);
int __real_epoll_create1(int);
int __real_epoll_ctl(int, int, int, struct epoll_event*);
ssize_t __real_sendmsg(int, const msghdr*, int);
int __real_sendmmsg(int, mmsghdr*, unsigned, int);
int __real_recvmmsg(int, mmsghdr*, unsigned, int, timespec*);

int __wrap_socket(int domain, int type, int protocol) {
  return OrFail(EMFILE, __real_socket, domain, type, protocol);
}
int __wrap_bind(int fd, const sockaddr* address, socklen_t size) {
  return OrFail(EADDRINUSE, __real_bind, fd, address, size);
}
int __wrap_setsockopt(int fd, int level, int name, const void* value, socklen_t size) {
  return OrFail(ENOBUFS, __real_setsockopt, fd, level, name, value, size);
}
int __wrap_getsockopt(int fd, int level, int name, void* value, socklen_t* size) {
  return OrFail(ENOBUFS, __real_getsockopt, fd, level, name, value, size);
}
int __wrap_getsockname(int fd, sockaddr* address, socklen_t* size) {
  return OrFail(ENOBUFS, __real_getsockname, fd, address, size);
}
int __wrap_timerfd_create(int clock, int flags) {
  return OrFail(EMFILE, __real_timerfd_create, clock, flags);
}
int __wrap_epoll_create1(int flags) { return OrFail(EMFILE, __real_epoll_create1, flags); }
int __wrap_epoll_ctl(int epoll, int operation, int fd, struct epoll_event* event) {
  // asio registers its own wake-up and its timer, and looks at no error of that: such a loop would sleep for
  // ever.
  int type = 0;
  socklen_t size = sizeof type;
  const bool is_socket = __real_getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
  if (operation != EPOLL_CTL_ADD || !is_socket) return __real_epoll_ctl(epoll, operation, fd, event);
  return OrFail(ENOSPC, __real_epoll_ctl, epoll, operation, fd, event);
}
ssize_t __wrap_sendmsg(int fd, const msghdr* message, int flags) {
  return OrFail(ENOBUFS, __real_sendmsg, fd, message, flags);
}
int __wrap_sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  return OrFail(ENOBUFS, __real_sendmmsg, fd, messages, count, flags);
}
int __wrap_recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  return OrFail(ENOMEM, __real_recvmmsg, fd, messages, count, flags, timeout);
}
}
