#include "wan/tun/tun_wan.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>

#include "base/units_text.h"
#include "wan/tun/namespaces.h"
#include "wan/tun/process.h"
#include "wan/tun/run_state.h"

namespace longhaul::wan {
namespace {

Status Invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

bool IsGoodName(const std::string& name) {
  return !name.empty() && name.size() <= 16 &&
         std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

Status CheckLink(const std::string& which, const LinkOptions& link) {
  const Status s = link.Validate();
  return s.ok() ? s : Invalid(which + ": " + s.message());
}

Status CheckOptions(const TunWan::Options& o) {
  if (o.sites.size() < 2 || o.sites.size() > TunWan::kMaxSites) {
    return Invalid("a WAN has 2 to 64 sites, not " + std::to_string(o.sites.size()));
  }
  for (const std::string& site : o.sites) {
    if (!IsGoodName(site))
      return Invalid("site name '" + site + "': use 1 to 16 letters, digits or underscores");
  }
  if (std::set<std::string>(o.sites.begin(), o.sites.end()).size() != o.sites.size()) {
    return Invalid("two sites have the same name");
  }
  if (!o.tag.empty() && !IsGoodName(o.tag))
    return Invalid("tag '" + o.tag + "': use letters, digits or underscores");
  if (o.mtu < 576 || o.mtu > 9000)
    return Invalid("an MTU of " + std::to_string(o.mtu) + " is outside 576..9000");
  if (o.max_packets_in_flight == 0) return Invalid("max_packets_in_flight is zero");
  if (Status s = CheckLink("every link", o.link); !s.ok()) return s;
  for (const auto& link : o.overrides) {
    for (const std::string& end : {link.from, link.to}) {
      if (std::ranges::find(o.sites, end) == o.sites.end())
        return Invalid("link to or from unknown site '" + end + "'");
    }
    if (link.from == link.to) return Invalid("link " + link.from + "-" + link.to + " leads to itself");
    if (Status s = CheckLink("link " + link.from + "-" + link.to, link.options); !s.ok()) return s;
  }
  return Status::Ok();
}

std::string SiteAddress(size_t site) { return "10.77." + std::to_string(site + 1) + ".1"; }
uint32_t SiteAddressNumber(size_t site) {
  return (10u << 24) | (77u << 16) | (static_cast<uint32_t>(site + 1) << 8) | 1;
}

Status RunSetup(const NetemCommand& command, int namespace_fd) {
  const auto output = RunAndCapture(command.argv, {.network_namespace = namespace_fd});
  if (!output.ok()) return output.status();
  if (output->exit_code == 0) return Status::Ok();
  std::string line;
  for (const std::string& word : command.argv) line += word + " ";
  return {StatusCode::kInternal, line + "failed: " + output->text};
}

}  // namespace

const char* BackendName(Backend backend) {
  switch (backend) {
    case Backend::kAuto:
      return "auto";
    case Backend::kTun:
      return "tun";
    case Backend::kNetem:
      return "netem";
  }
  return "unknown";
}

Result<std::unique_ptr<TunWan>> TunWan::Up(Options options) {
  if (Status s = CheckOptions(options); !s.ok()) return s;
  std::unique_ptr<TunWan> wan(new TunWan(std::move(options)));
  const Status status = wan->Prepare();
  if (!status.ok()) {
    (void)wan->Down();  // the first failure is the one to report
    return status;
  }
  return wan;
}

Status TunWan::Prepare() {
  if (options_.state_directory.empty()) options_.state_directory = DefaultStateDirectory();
  if (options_.backend != Backend::kNetem) {
    // Before anything irreversible, so that a caller can fall back to something else.
    if (Status s = TunDevice::Probe(options_.tun_device); !s.ok()) return s;
  }
  if (geteuid() != 0) {
    auto directory = EnterUserNamespace(options_.state_directory);
    if (!directory.ok()) return directory.status();
    netns_directory_ = *directory;
  }
  if (Status s = ChooseBackend(); !s.ok()) return s;
  if (Status s = PrepareNetnsDirectory(netns_directory_); !s.ok()) return s;
  FillState();
  for (const RunState& other : ListRunStates(options_.state_directory)) {
    if (other.tag != state_.tag) continue;
    if (other.IsAlive())
      return {StatusCode::kAlreadyExists, "a WAN with the tag " + other.tag + " is up already"};
    if (Status s = RemoveRun(options_.state_directory, other); !s.ok()) return s;
  }
  // On disk before the first namespace exists: a crash at any point leaves a trace to clean by.
  up_ = true;
  if (Status s = WriteRunState(options_.state_directory, state_); !s.ok()) return s;
  auto guardian = Guardian::Start(options_.state_directory, state_);
  if (!guardian.ok()) return guardian.status();
  guardian_ = std::make_unique<Guardian>(std::move(*guardian));
  state_.guardian = guardian_->pid();
  if (Status s = WriteRunState(options_.state_directory, state_); !s.ok()) return s;
  if (Status s = MakeNamespaces(); !s.ok()) return s;
  return backend_ == Backend::kTun ? StartTun() : StartNetem();
}

Status TunWan::ChooseBackend() {
  if (options_.backend == Backend::kTun) {
    backend_ = Backend::kTun;
    backend_reason_ = "the tun backend was asked for";
    return Status::Ok();
  }
  Status netem = ProbeNetem();
  for (size_t i = 0; netem.ok() && i < options_.sites.size() * options_.sites.size(); ++i) {
    netem = NetemArguments(LinkOptionsOf(i / options_.sites.size(), i % options_.sites.size())).status();
  }
  if (netem.ok()) {
    backend_ = Backend::kNetem;
    backend_reason_ = "this kernel has sch_netem";
    return Status::Ok();
  }
  if (options_.backend == Backend::kNetem) return {netem.code(), "backend netem: " + netem.message()};
  backend_ = Backend::kTun;
  backend_reason_ = "netem is not used since " + netem.message();
  return Status::Ok();
}

void TunWan::FillState() {
  state_.tag = options_.tag.empty() ? std::to_string(getpid()) : options_.tag;
  state_.pid = getpid();
  state_.pid_start = ProcessStartTime(state_.pid);
  state_.command_line = options_.command_line;
  state_.user_namespace = InUserNamespace();
  state_.backend = BackendName(backend_);
  for (size_t i = 0; i < options_.sites.size(); ++i) {
    const std::string name = "lh-" + options_.sites[i] + "-" + state_.tag;
    state_.sites.push_back({options_.sites[i], SiteAddress(i), netns_directory_ + "/" + name});
  }
  // A site's name has no hyphen, so the hub's cannot be one.
  if (backend_ == Backend::kNetem) state_.extra_namespaces = {netns_directory_ + "/lh--hub-" + state_.tag};
}

Status TunWan::MakeNamespaces() {
  for (const std::string& path : state_.NamespacePaths()) {
    if (Status s = CreateNamespace(path); !s.ok()) return s;
  }
  for (const auto& site : state_.sites) {
    auto fd = OpenNamespace(site.namespace_path);
    if (!fd.ok()) return fd.status();
    namespaces_.push_back(std::move(*fd));
  }
  if (state_.extra_namespaces.empty()) return Status::Ok();
  auto hub = OpenNamespace(state_.extra_namespaces[0]);
  if (!hub.ok()) return hub.status();
  hub_ = std::move(*hub);
  return Status::Ok();
}

Status TunWan::StartTun() {
  std::vector<int> descriptors;
  for (size_t i = 0; i < namespaces_.size(); ++i) {
    const Status status = RunInNamespace(namespaces_[i].get(), [&] {
      auto device = TunDevice::Open(
          {.device = options_.tun_device, .address = SiteAddressNumber(i), .mtu = options_.mtu});
      if (!device.ok()) return device.status();
      devices_.push_back(std::move(*device));
      return Status::Ok();
    });
    if (!status.ok()) return status;
    descriptors.push_back(devices_.back().fd());
  }
  std::vector<LinkModel> links;
  const Random root(options_.seed);
  for (size_t i = 0; i < namespaces_.size() * namespaces_.size(); ++i) {
    Random fresh = root;  // a stream of the pair, not of how many pairs there are
    const size_t from = i / namespaces_.size(), to = i % namespaces_.size();
    links.emplace_back(LinkOptionsOf(from, to), fresh.Fork(from * kMaxSites + to + 1));
  }
  forwarder_ =
      std::make_unique<Forwarder>(std::move(descriptors), std::move(links),
                                  Forwarder::Options{.max_packets_in_flight = options_.max_packets_in_flight,
                                                     .max_packet_size = static_cast<size_t>(options_.mtu),
                                                     .realtime = options_.realtime});
  forwarder_->Start();
  return Status::Ok();
}

Status TunWan::StartNetem() {
  std::vector<NetemSite> sites;
  std::vector<LinkOptions> links;
  for (const auto& site : state_.sites) sites.push_back({site.address, site.namespace_path});
  for (size_t i = 0; i < sites.size() * sites.size(); ++i) {
    links.push_back(LinkOptionsOf(i / sites.size(), i % sites.size()));
  }
  auto commands = NetemSetup(sites, links, options_.mtu);
  if (!commands.ok()) return commands.status();
  for (const NetemCommand& command : *commands) {
    const bool in_hub = command.site == NetemCommand::kHub;
    const int where = in_hub ? hub_.get() : namespaces_[static_cast<size_t>(command.site)].get();
    if (Status s = RunSetup(command, where); !s.ok()) return s;
  }
  return Status::Ok();
}

TunWan::~TunWan() { (void)Down(); }

Status TunWan::Down() {
  if (!up_) return Status::Ok();
  up_ = false;
  // Read while the devices exist.
  final_kernel_counters_ = KernelCounters();
  if (backend_ == Backend::kNetem) final_reports_ = Links();
  if (forwarder_ != nullptr) forwarder_->Stop();
  devices_.clear();  // a TUN device lives as long as its descriptor
  namespaces_.clear();
  hub_.Reset();
  const Status status = RemoveRun(options_.state_directory, state_);
  if (status.ok() && guardian_ != nullptr) guardian_->Dismiss();
  return status;
}

LinkOptions TunWan::LinkOptionsOf(size_t from, size_t to) const {
  LinkOptions options = options_.link;
  for (const LinkOverride& o : options_.overrides) {
    if (o.from == options_.sites[from] && o.to == options_.sites[to]) options = o.options;
  }
  return options;
}

Result<size_t> TunWan::Find(std::string_view site) const {
  const auto found = std::ranges::find(options_.sites, site);
  if (found == options_.sites.end())
    return Status(StatusCode::kNotFound, "there is no site " + std::string(site));
  return static_cast<size_t>(found - options_.sites.begin());
}

LinkCounters TunWan::NetemLinkCounters(size_t from, size_t to) {
  const auto output = RunAndCapture({"tc", "-s", "-j", "qdisc", "show", "dev", NetemDevice(from, to)},
                                    {.network_namespace = hub_.get()});
  LinkCounters counters;
  if (!output.ok()) return counters;
  const auto netem = ParseNetemCounters(output->text);
  if (!netem.ok()) return counters;
  counters.packets_delivered = netem->packets;
  counters.bytes_delivered = netem->bytes;
  counters.dropped_loss = netem->drops;
  counters.packets_in = netem->packets + netem->drops;
  return counters;
}

TunWan::LinkReport TunWan::Report(size_t from, size_t to) {
  LinkReport report{.from = options_.sites[from], .to = options_.sites[to], .options = {}, .counters = {}};
  if (backend_ == Backend::kNetem) {
    report.options = LinkOptionsOf(from, to);
    report.counters = NetemLinkCounters(from, to);
    report.drops_are_merged = true;
    return report;
  }
  report.options = forwarder_->Link(from, to);
  report.counters = forwarder_->Counters(from, to);
  report.queue_delay = forwarder_->QueueDelay(from, to);
  return report;
}

std::vector<TunWan::LinkReport> TunWan::Links() {
  if (!final_reports_.empty()) return final_reports_;
  std::vector<LinkReport> reports;
  if (backend_ == Backend::kTun && forwarder_ == nullptr) return reports;  // Up() failed half-way
  for (size_t from = 0; from < options_.sites.size(); ++from) {
    for (size_t to = 0; to < options_.sites.size(); ++to) {
      if (from != to) reports.push_back(Report(from, to));
    }
  }
  return reports;
}

Result<TunWan::LinkReport> TunWan::Link(std::string_view from, std::string_view to) {
  for (LinkReport& report : Links()) {
    if (report.from == from && report.to == to) return std::move(report);
  }
  return Status(StatusCode::kNotFound, "there is no link " + std::string(from) + "-" + std::string(to));
}

Status TunWan::SetLink(std::string_view from, std::string_view to, const LinkOptions& options) {
  const auto a = Find(from), b = Find(to);
  if (!a.ok()) return a.status();
  if (!b.ok()) return b.status();
  if (*a == *b) return Invalid("a link leads to another site");
  if (Status s = options.Validate(); !s.ok()) return s;
  if (backend_ != Backend::kTun) {
    return {StatusCode::kFailedPrecondition, "only the tun backend changes links while it runs"};
  }
  forwarder_->SetLink(*a, *b, options);
  return Status::Ok();
}

ForwarderStats TunWan::ForwarderStatistics() {
  return forwarder_ == nullptr ? ForwarderStats() : forwarder_->Stats();
}

TunKernelCounters TunWan::KernelCounters() {
  if (devices_.empty()) return final_kernel_counters_;
  TunKernelCounters sum;
  for (const TunDevice& device : devices_) {
    const TunKernelCounters one = device.ReadKernelCounters();
    sum.dropped_before_read += one.dropped_before_read;
    sum.dropped_after_write += one.dropped_after_write;
  }
  return sum;
}

std::string TunWan::StatsJson() {
  WanSnapshot snapshot{.tag = state_.tag,
                       .backend = BackendName(backend_),
                       .backend_reason = backend_reason_,
                       .seed = options_.seed,
                       .sites = state_.sites,
                       .links = Links(),
                       .forwarder = ForwarderStatistics(),
                       .kernel = KernelCounters()};
  return ToJson(snapshot);
}

Result<int> TunWan::OpenSiteNamespace(std::string_view site) {
  const auto index = Find(site);
  if (!index.ok()) return index.status();
  if (!up_) return Status(StatusCode::kFailedPrecondition, "the WAN is down");
  const int fd = fcntl(namespaces_[*index].get(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return OsError("duplicating a descriptor", errno);
  return fd;
}

Status TunWan::EnterSite(std::string_view site) {
  const auto fd = OpenSiteNamespace(site);
  if (!fd.ok()) return fd.status();
  const FileDescriptor owned(*fd);
  if (setns(owned.get(), CLONE_NEWNET) != 0)
    return OsError("entering site " + std::string(site) + " (setns)", errno);
  return Status::Ok();
}

Result<pid_t> TunWan::Spawn(std::string_view site, const std::vector<std::string>& argv) {
  if (argv.empty()) return Invalid("no program to run");
  const auto fd = OpenSiteNamespace(site);
  if (!fd.ok()) return fd.status();
  const FileDescriptor owned(*fd);
  return wan::Spawn(argv, {.network_namespace = owned.get(), .die_with_parent = true});
}

Result<int> TunWan::RunInSite(std::string_view site, const std::vector<std::string>& argv) {
  const auto pid = Spawn(site, argv);
  if (!pid.ok()) return pid.status();
  return WaitFor(*pid);
}

namespace {

using nlohmann::ordered_json;

double Microseconds(Duration t) { return static_cast<double>(t.count()) / 1e3; }

ordered_json LinkJson(const TunWan::LinkReport& link) {
  const LinkCounters& c = link.counters;
  return {{"from", link.from},
          {"to", link.to},
          {"options", link.options.ToString()},
          {"packets_in", c.packets_in},
          {"bytes_in", c.bytes_in},
          {"packets_delivered", c.packets_delivered},
          {"bytes_delivered", c.bytes_delivered},
          {"dropped_loss", c.dropped_loss},
          {"dropped_loss_bytes", c.dropped_loss_bytes},
          {"dropped_queue", c.dropped_queue},
          {"dropped_queue_bytes", c.dropped_queue_bytes},
          {"dropped_outage", c.dropped_outage},
          {"dropped_outage_bytes", c.dropped_outage_bytes},
          {"dropped_mtu", c.dropped_mtu},
          {"dropped_mtu_bytes", c.dropped_mtu_bytes},
          {"duplicated", c.duplicated},
          {"reordered", c.reordered},
          {"corrupted", c.corrupted},
          {"loss_bursts", c.loss_bursts},
          {"drops_are_merged", link.drops_are_merged},
          {"queue_delay_us", Microseconds(link.queue_delay)},
          {"max_queue_delay_us", Microseconds(c.max_queue_delay)}};
}

ordered_json ForwarderJson(const ForwarderStats& f) {
  return {{"packets_read", f.packets_read},
          {"packets_written", f.packets_written},
          {"not_ipv4", f.not_ipv4},
          {"no_route", f.no_route},
          {"overload", f.overload},
          {"write_errors", f.write_errors},
          {"in_flight", f.in_flight},
          {"max_in_flight", f.max_in_flight},
          {"lateness_p50_us", Microseconds(f.lateness.Quantile(0.5))},
          {"lateness_p99_us", Microseconds(f.lateness.Quantile(0.99))},
          {"lateness_p999_us", Microseconds(f.lateness.Quantile(0.999))},
          {"lateness_max_us", Microseconds(f.lateness.max())},
          {"cpu_s", ToSeconds(f.cpu_time)},
          {"realtime", f.realtime}};
}

}  // namespace

std::string ToJson(const WanSnapshot& snapshot) {
  ordered_json sites = ordered_json::array(), links = ordered_json::array();
  for (const auto& site : snapshot.sites) {
    sites.push_back({{"name", site.name}, {"address", site.address}, {"namespace", site.namespace_path}});
  }
  for (const auto& link : snapshot.links) links.push_back(LinkJson(link));
  const ordered_json all = {{"tag", snapshot.tag},
                            {"backend", snapshot.backend},
                            {"backend_reason", snapshot.backend_reason},
                            {"seed", snapshot.seed},
                            {"uptime_s", ToSeconds(snapshot.forwarder.uptime)},
                            {"sites", sites},
                            {"links", links},
                            {"forwarder", ForwarderJson(snapshot.forwarder)},
                            {"kernel_dropped_before_read", snapshot.kernel.dropped_before_read},
                            {"kernel_dropped_after_write", snapshot.kernel.dropped_after_write}};
  return all.dump(2) + "\n";
}

}  // namespace longhaul::wan
