#include "tests/offload/udp_support.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "transport/keys/key_file.h"

namespace longhaul::offload {

void FaultySender::Set(const Faults& faults) {
  const std::lock_guard lock(mutex_);
  faults_ = faults;
}

std::vector<std::vector<uint8_t>> FaultySender::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_;
}

udp::SendCalls FaultySender::Calls() {
  return {[this](int fd, const msghdr* message, int) {
            SendMessage(fd, *message);
            return static_cast<ssize_t>(message->msg_iov->iov_len);
          },
          [this](int fd, mmsghdr* messages, unsigned count, int) {
            for (unsigned i = 0; i < count; ++i) SendMessage(fd, messages[i].msg_hdr);
            return static_cast<int>(count);
          }};
}

void FaultySender::SendMessage(int fd, const msghdr& message) {
  const auto* const bytes = static_cast<const uint8_t*>(message.msg_iov->iov_base);
  const size_t size = message.msg_iov->iov_len;
  size_t segment = size;
  msghdr copy = message;
  for (cmsghdr* c = CMSG_FIRSTHDR(&copy); c != nullptr; c = CMSG_NXTHDR(&copy, c)) {
    uint16_t value = 0;
    std::memcpy(&value, CMSG_DATA(c), sizeof value);
    if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_SEGMENT) segment = value;
  }
  udp::SocketAddress to;
  to.size = message.msg_namelen;
  std::memcpy(&to.storage, message.msg_name, message.msg_namelen);
  const std::lock_guard lock(mutex_);
  for (size_t at = 0; at < size; at += segment) {
    const size_t length = std::min(segment, size - at);
    const std::vector<uint8_t> datagram(bytes + at, bytes + at + length);
    ++count_;
    if (kept_.size() < faults_.keep) kept_.push_back(datagram);
    if (random_.Chance(faults_.garbage)) SendOne(fd, to, GarbageOf(datagram));
    if (random_.Chance(faults_.loss)) continue;
    if (random_.Chance(faults_.reordering)) {
      held_.push_back({count_ + 1 + random_.Below(20), to, datagram});
      continue;
    }
    SendOne(fd, to, datagram);
    if (random_.Chance(faults_.duplication)) SendOne(fd, to, datagram);
  }
  while (!held_.empty() && held_.front().due <= count_) {
    SendOne(fd, held_.front().to, held_.front().bytes);
    held_.pop_front();
  }
}

std::vector<uint8_t> FaultySender::GarbageOf(std::vector<uint8_t> datagram) {
  switch (random_.Below(3)) {
    case 0:
      datagram.resize(random_.Below(datagram.size()));
      break;
    case 1:
      datagram[random_.Below(datagram.size())] ^= static_cast<uint8_t>(1 << random_.Below(8));
      break;
    default:
      for (uint8_t& byte : datagram) byte = static_cast<uint8_t>(random_.Next());
  }
  return datagram;
}

void FaultySender::SendOne(int fd, const udp::SocketAddress& to, const std::vector<uint8_t>& bytes) {
  (void)!sendto(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL, to.get(), to.size);
}

UdpSite::UdpSite(const Options& options) : options_(options) {
  addresses_.resize(machines());
  links_.resize(machines());
  daemons_.resize(machines());
  threads_.resize(machines());
  stats_.resize(machines());
  logs_.resize(machines());
  for (uint8_t node = 0; node < machines(); ++node) {
    senders_.push_back(std::make_unique<FaultySender>(options.faults, options.seed + node));
    OpenLink(node, Address::V4(127, 0, 0, 1, 0));
  }
  for (uint8_t node = 0; node < machines(); ++node) Run(node);
}

UdpSite::~UdpSite() { StopAll(); }

SiteOptions UdpSite::SiteOf(uint8_t node) const {
  SiteOptions site = options_.site;
  if (node == 1 && options_.seg_bytes_of_node_1 != 0) site.seg_bytes = options_.seg_bytes_of_node_1;
  return site;
}

void UdpSite::OpenLink(uint8_t node, const Address& bind) {
  UdpLinkOptions options;
  options.node = node;
  options.bind = bind;
  options.site = SiteOf(node);
  options.most_silence = options_.most_silence;
  options.socket.force_buffers = false;
  options.socket.segmentation_offload = options_.segmentation_offload;
  const FaultySender::Faults& f = options_.faults;
  if (f.loss + f.duplication + f.reordering + f.garbage > 0 || f.keep > 0)
    options.socket.calls = senders_[node]->Calls();
  if (options_.sealed) {
    const uint8_t key = options_.node_with_another_key == node ? 2 : 1;
    options.seal = SealOptions{.root = crypto::SecretBytes(std::vector<uint8_t>(32, key)),
                               .node = node,
                               .nodes = (uint64_t{1} << machines()) - 1,
                               .start = ++starts_};
  }
  auto link = UdpLink::Open(std::move(options));
  ASSERT_TRUE(link.ok()) << link.status().ToString();
  links_[node] = std::move(*link);
  addresses_[node] = links_[node]->local_address();
}

void UdpSite::Run(uint8_t node) {
  for (uint8_t other = 0; other < machines(); ++other) {
    if (other != node) links_[node]->SetPeer(other, addresses_[other]);
  }
  DaemonOptions options;
  options.path = PathOf(node);
  options.site = SiteOf(node);
  options.link = links_[node];
  options.log = [this, node](std::string_view line) { logs_[node] += std::string(line) + "\n"; };
  daemons_[node] = SiteDaemon::Start(options).value();
  threads_[node] = std::thread([daemon = daemons_[node].get()] { daemon->Run(); });
}

void UdpSite::Stop(uint8_t node) {
  if (!threads_[node].joinable()) return;
  daemons_[node]->Stop();
  threads_[node].join();
  stats_[node] = daemons_[node]->stats(node);
  daemons_[node].reset();
}

void UdpSite::Start(uint8_t node) {
  links_[node].reset();
  OpenLink(node, addresses_[node]);
  Run(node);
}

void UdpSite::StopAll() {
  for (uint8_t node = 0; node < machines(); ++node) Stop(node);
}

Device UdpSite::Open(uint8_t node, uint8_t rank) const {
  return Device::Open("unix:" + PathOf(node), {node, rank, options_.site}).value();
}

Status UdpSite::TryOpen(uint8_t node, uint8_t rank) const {
  return Device::Open("unix:" + PathOf(node < options_.site.nodes ? node : uint8_t{0}),
                      {node, rank, options_.site})
      .status();
}

std::vector<Device> UdpSite::OpenAll() const {
  std::vector<Device> devices;
  for (uint8_t node = 0; node < options_.site.nodes; ++node) {
    for (uint8_t rank = 0; rank < options_.site.ranks_per_node; ++rank) devices.push_back(Open(node, rank));
  }
  return devices;
}

std::string UdpProcesses::AddressOf(int host) {
  const int pid = getpid();
  return "127." + std::to_string(16 + pid / 256 % 200) + "." + std::to_string(pid % 256) + "." +
         std::to_string(host) + ":7500";
}

UdpProcesses::UdpProcesses(const Options& options) : options_(options) {
  const std::string key = folder_.path("key");
  EXPECT_TRUE(keys::WriteKeyFile(key, "longhaul-psk-v1\njob = test\npsk = " + std::string(64, 'a')).ok());
  const auto machines = static_cast<uint8_t>(options.site.nodes + (options.site.aggregator ? 1 : 0));
  for (uint8_t node = 0; node < machines; ++node) {
    std::string peers;
    for (uint8_t other = 0; other < machines; ++other) {
      const bool direct = other == node || !options.seen;
      peers += (other > 0 ? "," : "") + std::to_string(other) + "=" +
               (direct ? NodeAddress(other) : options.seen(node, other));
    }
    std::vector<std::string> words = {"--node",  std::to_string(node),
                                      "--peers", peers,
                                      "--json",  folder_.path("json" + std::to_string(node))};
    if (options.sealed) {
      words.insert(words.end(), {"--key", key});
    } else {
      words.emplace_back("--insecure");
    }
    processes_.push_back(std::make_unique<ProcessSite>(options.site, words, node < options.site.nodes));
  }
}

Device UdpProcesses::Open(uint8_t node, uint8_t rank) const {
  return Device::Open(processes_[node]->where(), {node, rank, options_.site}).value();
}

std::string UdpProcesses::Json(uint8_t node) const {
  std::stringstream text;
  text << std::ifstream(folder_.path("json" + std::to_string(node))).rdbuf();
  return text.str();
}

void ConfigureAll(std::vector<Device>& devices, const SiteOptions& site, JobConfig config) {
  const uint32_t machines = site.nodes + (site.aggregator ? 1u : 0u);
  config.nodes = (uint64_t{1} << machines) - 1;
  for (uint8_t node = 0; node < site.nodes; ++node) {
    Device& device = devices[size_t{node} * site.ranks_per_node];
    ASSERT_TRUE(device.Configure(0, config, 999).ok());
    ASSERT_EQ(NextOf(device).status, WorkStatus::kSuccess);
  }
  if (!site.aggregator) return;
  WorkRequest request{.opcode = Opcode::kConfig, .root_node = site.nodes};
  request.config = &config;
  ASSERT_TRUE(devices[0].Post({&request, 1}).ok());
  ASSERT_EQ(NextOf(devices[0]).status, WorkStatus::kSuccess);
}

Stranger::Stranger() : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  udp::SocketAddress here = udp::ToSocketAddress(Address::V4(127, 0, 0, 1, 0), AF_INET);
  EXPECT_EQ(bind(fd_.get(), here.get(), here.size), 0);
  EXPECT_EQ(getsockname(fd_.get(), here.get(), &here.size), 0);
  address_ = udp::FromSocketAddress(here);
}

std::vector<uint8_t> Stranger::Receive(int milliseconds) {
  pollfd wait{fd_.get(), POLLIN, 0};
  if (poll(&wait, 1, milliseconds) != 1) return {};
  std::vector<uint8_t> datagram(65536);
  datagram.resize(
      static_cast<size_t>(std::max<ssize_t>(0, recv(fd_.get(), datagram.data(), datagram.size(), 0))));
  return datagram;
}

void Stranger::Send(const Address& to, const std::vector<uint8_t>& datagram) {
  udp::SocketAddress address = udp::ToSocketAddress(to, AF_INET);
  (void)!sendto(fd_.get(), datagram.data(), datagram.size(), 0, address.get(), address.size);
}

}  // namespace longhaul::offload
