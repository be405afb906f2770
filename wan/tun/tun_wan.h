// A WAN between network namespaces for real processes: any program, TCP included, crosses the same links.
//
//   auto wan = TunWan::Up({.sites = {"A", "B"}, .link = *ParseLinkOptions("rate 200mbit delay 25ms loss
//   2%")});
//   (*wan)->RunInSite("A", {"ping", "-c", "3", "10.77.2.1"});
//
// One namespace a site, lh-<site>-<tag>, where site k (from 1) has 10.77.<k>.1/24 on device wan0 and a route
// to all of 10.77.0.0/16. Every packet from one site to another crosses the LinkModel of that direction. The
// caller's own namespace is no part of the WAN.
//
// Everything is gone after Down(), and also when the process dies, however it dies (see process.h). What
// still runs inside a site then is ended with it.
//
// Needs root and /dev/net/tun, or unprivileged user namespaces and a /dev/net/tun the user may open.
// Thread-safe but for Up(), Down() and the destructor.
#pragma once

#include <sys/types.h>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "longhaul/status.h"
#include "wan/link_model.h"
#include "wan/link_options.h"
#include "wan/tun/forwarder.h"
#include "wan/tun/namespaces.h"
#include "wan/tun/netem.h"
#include "wan/tun/process.h"
#include "wan/tun/run_state.h"
#include "wan/tun/tun_device.h"

namespace longhaul::wan {

enum class Backend { kAuto, kTun, kNetem };
const char* BackendName(Backend backend);

class TunWan {
 public:
  static constexpr size_t kMaxSites = 64;

  struct LinkOverride {
    std::string from;
    std::string to;
    LinkOptions options = {};
  };
  struct Options {
    // 2..64 different names of 1..16 letters, digits or underscores.
    std::vector<std::string> sites = {};
    // Every directed link...
    LinkOptions link = {};
    // ... but these. The last one for a direction counts.
    std::vector<LinkOverride> overrides = {};
    uint64_t seed = 1;
    // Distinguishes runs; empty: the process id.
    std::string tag = {};
    // kAuto takes netem where the kernel has it and the options allow it, else tun. See backend_reason().
    Backend backend = Backend::kAuto;
    int mtu = 1500;
    // The bound of the forwarder's memory, about 2 kB a packet. Rate x delay of all links must fit.
    size_t max_packets_in_flight = 65536;
    bool realtime = true;
    std::string tun_device = "/dev/net/tun";
    // Empty: DefaultStateDirectory().
    std::string state_directory = {};
    // Lets `longhaul-wan down` end this process.
    bool command_line = false;
  };
  struct LinkReport {
    std::string from;
    std::string to;
    LinkOptions options;
    LinkCounters counters;
    // netem counts loss and queue together; then counters.dropped_loss holds both and this is true.
    bool drops_are_merged = false;
    Duration queue_delay{0};
  };

  // Errors: kInvalidArgument (options), kPermissionDenied (names the refused step), kUnavailable (the kernel
  // has no TUN, or no netem though it was demanded), kFailedPrecondition (not root and already threaded).
  // Nothing is left behind on failure, except that a process that is not root may find itself in a user
  // namespace of its own; the access to the TUN device is checked before that.
  static Result<std::unique_ptr<TunWan>> Up(Options options);
  ~TunWan();

  // Stops forwarding and removes namespaces, devices and the state file. Counters can be read afterwards.
  // Idempotent. The destructor calls it.
  Status Down();

  Backend backend() const { return backend_; }
  // Why this backend: one line for the user.
  const std::string& backend_reason() const { return backend_reason_; }
  const std::string& tag() const { return state_.tag; }
  const std::string& state_directory() const { return options_.state_directory; }
  const std::vector<RunState::Site>& sites() const { return state_.sites; }
  pid_t guardian_pid() const { return state_.guardian; }

  // For every ordered pair of sites.
  std::vector<LinkReport> Links();
  Result<LinkReport> Link(std::string_view from, std::string_view to);
  // Changes the weather. Only with the tun backend; kNotFound for unknown sites. Outages count from Up().
  Status SetLink(std::string_view from, std::string_view to, const LinkOptions& options);
  // Zeros with netem.
  ForwarderStats ForwarderStatistics();
  // What the kernel dropped outside the model; zero in a healthy run.
  TunKernelCounters KernelCounters();
  // Everything above as JSON: backend, seed, uptime_s, sites, links with all counters, forwarder.
  std::string StatsJson();

  // A descriptor for setns(fd, CLONE_NEWNET), closed on exec; the caller's.
  Result<int> OpenSiteNamespace(std::string_view site);
  // Moves the calling thread into the site: the sockets that it makes from now on are there.
  Status EnterSite(std::string_view site);
  // Starts a program inside the site; it gets SIGTERM when the spawning thread ends.
  Result<pid_t> Spawn(std::string_view site, const std::vector<std::string>& argv);
  // Spawn() and wait: the exit code, or 128 + signal.
  Result<int> RunInSite(std::string_view site, const std::vector<std::string>& argv);

 private:
  explicit TunWan(Options options) : options_(std::move(options)) {}

  Status Prepare();
  Status ChooseBackend();
  void FillState();
  Status MakeNamespaces();
  Status StartTun();
  Status StartNetem();
  LinkOptions LinkOptionsOf(size_t from, size_t to) const;
  Result<size_t> Find(std::string_view site) const;
  LinkReport Report(size_t from, size_t to);
  LinkCounters NetemLinkCounters(size_t from, size_t to);

  Options options_;
  std::string netns_directory_ = kNetnsDirectory;
  Backend backend_ = Backend::kAuto;
  std::string backend_reason_;
  RunState state_;
  std::unique_ptr<Guardian> guardian_;
  std::vector<FileDescriptor> namespaces_;  // of the sites
  FileDescriptor hub_;                      // netem only
  std::vector<TunDevice> devices_;
  std::unique_ptr<Forwarder> forwarder_;
  std::vector<LinkReport> final_reports_;  // netem's counters vanish with the hub
  TunKernelCounters final_kernel_counters_;
  bool up_ = false;
};

// A running WAN's figures as JSON; the names are those of LinkCounters and ForwarderStats.
struct WanSnapshot {
  std::string tag;
  std::string backend;
  std::string backend_reason;
  uint64_t seed = 0;
  std::vector<RunState::Site> sites;
  std::vector<TunWan::LinkReport> links;
  ForwarderStats forwarder;
  TunKernelCounters kernel;
};

std::string ToJson(const WanSnapshot& snapshot);

}  // namespace longhaul::wan
