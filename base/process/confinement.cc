#include "base/process/confinement.h"

#if defined(LONGHAUL_HAS_SECCOMP) && LONGHAUL_HAS_SECCOMP
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <string>
#endif

namespace longhaul::process {

#if defined(LONGHAUL_HAS_SECCOMP) && LONGHAUL_HAS_SECCOMP
namespace {

// By what they are for. Read off strace(1) of both daemons and off glibc 2.36 (threads, stdio, getaddrinfo),
// with the newer and older relatives of each call, which another glibc takes instead.
constexpr const char* kAllowed[] = {
    // memory
    "brk", "mmap", "munmap", "mprotect", "mremap", "madvise", "mincore", "mlock", "munlock",
    // threads; clone has a rule of its own
    "futex", "set_robust_list", "get_robust_list", "rseq", "exit", "exit_group", "sched_yield",
    "sched_getaffinity", "sched_setaffinity", "getcpu", "gettid", "getpid", "tgkill", "membarrier",
    // time
    "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time", "timerfd_create",
    "timerfd_settime", "timerfd_gettime",
    // signals
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigtimedwait", "rt_sigsuspend", "rt_sigpending",
    "sigaltstack", "restart_syscall", "pause",
    // files
    "open", "openat", "read", "readv", "pread64", "preadv", "write", "writev", "pwrite64", "pwritev", "lseek",
    "close", "close_range", "stat", "fstat", "lstat", "newfstatat", "statx", "statfs", "fstatfs", "fcntl",
    "dup", "dup2", "dup3", "ftruncate", "fallocate", "fsync", "fdatasync", "sync_file_range", "rename",
    "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "getdents64", "access",
    "faccessat", "faccessat2", "readlink", "readlinkat", "getcwd", "chmod", "fchmod", "fchmodat", "umask",
    "flock", "fadvise64",
    // waiting
    "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select",
    "pselect6", "eventfd2", "pipe2",
    // sockets; socket has rules of its own
    "bind", "connect", "getsockname", "getpeername", "getsockopt", "setsockopt", "sendto", "sendmsg",
    "sendmmsg", "recvfrom", "recvmsg", "recvmmsg", "shutdown",
    // what one may know of oneself
    "getrandom", "uname", "sysinfo", "getuid", "geteuid", "getgid", "getegid", "getppid", "getrusage",
    "times", "prlimit64", "getrlimit"};

// What no daemon asks for and an intruder does.
constexpr const char* kDeadly[] = {"execve",
                                   "execveat",
                                   "fork",
                                   "vfork",
                                   "ptrace",
                                   "process_vm_readv",
                                   "process_vm_writev",
                                   "pidfd_getfd",
                                   "kcmp",
                                   "mount",
                                   "umount2",
                                   "move_mount",
                                   "open_tree",
                                   "fsopen",
                                   "pivot_root",
                                   "chroot",
                                   "unshare",
                                   "setns",
                                   "bpf",
                                   "perf_event_open",
                                   "userfaultfd",
                                   "io_uring_setup",
                                   "init_module",
                                   "finit_module",
                                   "delete_module",
                                   "kexec_load",
                                   "kexec_file_load",
                                   "reboot",
                                   "swapon",
                                   "add_key",
                                   "request_key",
                                   "keyctl",
                                   "setuid",
                                   "setgid",
                                   "setreuid",
                                   "setregid",
                                   "setresuid",
                                   "setresgid",
                                   "capset",
                                   "personality",
                                   "open_by_handle_at",
                                   "iopl",
                                   "ioperm",
                                   "acct",
                                   "sethostname"};

using Filter = std::unique_ptr<void, decltype(&seccomp_release)>;

// Collects the first error of many rules.
class Rules {
 public:
  explicit Rules(scmp_filter_ctx filter) : filter_(filter) {}

  // A name that this libseccomp, or this processor, does not know needs no rule.
  template <typename... Conditions>
  void Add(uint32_t action, const char* name, Conditions... conditions) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR || error_ != 0) return;
    error_ = seccomp_rule_add(filter_, action, number, sizeof...(conditions), conditions...);
  }
  void AllowSocket(int domain, int type) {
    // The type carries SOCK_CLOEXEC and SOCK_NONBLOCK in its higher bits.
    Add(SCMP_ACT_ALLOW, "socket", SCMP_A0(SCMP_CMP_EQ, static_cast<uint64_t>(domain)),
        SCMP_A1(SCMP_CMP_MASKED_EQ, 0xf, static_cast<uint64_t>(type)));
  }
  int error() const { return error_; }

 private:
  scmp_filter_ctx filter_;
  int error_ = 0;
};

void AddRules(Confinement role, bool takes_connections, Rules* rules) {
  for (const char* name : kAllowed) rules->Add(SCMP_ACT_ALLOW, name);
  for (const char* name : kDeadly) rules->Add(SCMP_ACT_KILL_PROCESS, name);
  // Threads, not processes. clone3 has its flags in memory, which a filter cannot read: its ENOSYS makes
  // glibc take clone.
  rules->Add(SCMP_ACT_ALLOW, "clone", SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
  rules->Add(SCMP_ACT_KILL_PROCESS, "clone", SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
  for (const uint64_t request : {TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO}) {
    rules->Add(SCMP_ACT_ALLOW, "ioctl", SCMP_A1(SCMP_CMP_EQ, request));
  }
  rules->Add(SCMP_ACT_ALLOW, "prctl", SCMP_A0(SCMP_CMP_EQ, PR_SET_NAME));
  if (takes_connections) {
    for (const char* name : {"accept", "accept4"}) rules->Add(SCMP_ACT_ALLOW, name);
  }
  const bool site = role == Confinement::kSite;
  if (role == Confinement::kOffload || site) {
    for (const char* name : {"accept4", "memfd_create", "socketpair", "pidfd_open"}) {
      rules->Add(SCMP_ACT_ALLOW, name);
    }
  }
  if (role == Confinement::kOffload) return;
  // A rank's device. No process of this filter listens but the site's daemon.
  if (site || role == Confinement::kWorker) rules->AllowSocket(AF_UNIX, SOCK_SEQPACKET);
  for (const int domain : {AF_INET, AF_INET6}) {
    rules->AllowSocket(domain, SOCK_DGRAM);
    if (role == Confinement::kWorker || site) rules->AllowSocket(domain, SOCK_STREAM);
  }
  if (role == Confinement::kWorker || site) {
    rules->AllowSocket(AF_UNIX, SOCK_STREAM);
    rules->AllowSocket(AF_NETLINK, SOCK_RAW);
  }
}

Status Unavailable(int error) {
  return {StatusCode::kUnavailable,
          "this kernel takes no seccomp filter (error " + std::to_string(-error) + ")"};
}

}  // namespace

Status Confine(Confinement role, bool takes_connections) {
  const Filter filter(seccomp_init(SCMP_ACT_ERRNO(ENOSYS)), seccomp_release);
  if (!filter) return Unavailable(-ENOMEM);
  int error = seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_TSYNC, 1);
  if (error != 0) return Unavailable(error);
  Rules rules(filter.get());
  AddRules(role, takes_connections, &rules);
  if (rules.error() != 0) return Unavailable(rules.error());
  error = seccomp_load(filter.get());
  return error == 0 ? Status() : Unavailable(error);
}

#else

Status Confine(Confinement, bool) { return {StatusCode::kUnavailable, "this build has no seccomp filter"}; }

#endif

}  // namespace longhaul::process
