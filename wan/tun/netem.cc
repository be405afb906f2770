#include "wan/tun/netem.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <thread>

#include <nlohmann/json.hpp>

#include "wan/link_model.h"
#include "wan/tun/process.h"

namespace longhaul::wan {
namespace {

constexpr double kPacketBytes = 1500;

std::string Percent(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g%%", ratio * 100);
  return text;
}

std::string TcTime(Duration t) { return std::to_string(t.count() / 1000) + "us"; }

// netem keeps the delayed packets in the same queue, so its bound is the queue plus what is in flight.
int64_t LimitInPackets(const LinkOptions& o) {
  constexpr int64_t kUnlimited = 1'000'000;
  if (o.rate.IsZero()) return kUnlimited;
  const ByteCount queue = o.queue_bytes.value() > 0 ? o.queue_bytes : o.rate * o.queue_time;
  const ByteCount in_flight = o.rate * (o.delay + o.jitter);
  return std::max<int64_t>(1, std::llround(static_cast<double>((queue + in_flight).value()) / kPacketBytes));
}

void AddLoss(const LinkOptions& o, std::vector<std::string>& words) {
  if (o.loss == 0) return;
  if (o.loss_burst == 0) {
    words.insert(words.end(), {"loss", "random", Percent(o.loss)});
    return;
  }
  const GilbertElliott chain = GilbertElliott::From(o.loss, o.loss_burst);
  // p r 1-h 1-k: everything is lost in the bad state, nothing in the good one.
  words.insert(words.end(),
               {"loss", "gemodel", Percent(chain.enter_bad), Percent(chain.leave_bad), "100%", "0%"});
}

class SetupBuilder {
 public:
  explicit SetupBuilder(int mtu) : mtu_(std::to_string(mtu)) {}

  void Run(int where, std::vector<std::string> argv) { commands.push_back({where, std::move(argv)}); }

  // A pair "site's device wan<peer>" -- "hub's device s<site>p<peer>", plugged into the pair's bridge.
  void Connect(size_t site, size_t peer, const NetemSite& at, const NetemSite& to,
               const std::string& bridge) {
    const int where = static_cast<int>(site);
    const std::string outer = NetemDevice(peer, site);
    const std::string inner = "wan" + std::to_string(peer + 1);
    Run(NetemCommand::kHub, {"ip", "link", "add", outer, "mtu", mtu_, "type", "veth", "peer", "name", inner,
                             "mtu", mtu_, "netns", at.namespace_path});
    Run(NetemCommand::kHub, {"ip", "link", "set", outer, "master", bridge, "up", "gso_max_segs", "1"});
    // One packet at a time, as on a wire: otherwise netem would lose 64 kB bursts of segments at once.
    Run(where, {"ip", "link", "set", inner, "up", "gso_max_segs", "1"});
    Run(where, {"ip", "route", "add", to.address + "/32", "dev", inner, "src", at.address});
  }

  std::vector<NetemCommand> commands;

 private:
  std::string mtu_;
};

}  // namespace

Result<std::vector<std::string>> NetemArguments(const LinkOptions& o) {
  if (Status s = o.Validate(); !s.ok()) return s;
  if (!o.outages.empty() || o.mtu.value() > 0) {
    return Status(StatusCode::kInvalidArgument,
                  "netem can do neither outages nor an mtu black hole; use the tun backend");
  }
  std::vector<std::string> words = {"limit", std::to_string(LimitInPackets(o))};
  if (o.delay.count() > 0) {
    words.insert(words.end(), {"delay", TcTime(o.delay)});
    if (o.jitter.count() > 0) words.push_back(TcTime(o.jitter));
  }
  AddLoss(o, words);
  if (o.corrupt > 0) words.insert(words.end(), {"corrupt", Percent(o.corrupt)});
  if (o.duplicate > 0) words.insert(words.end(), {"duplicate", Percent(o.duplicate)});
  if (o.reorder > 0) words.insert(words.end(), {"reorder", Percent(o.reorder)});
  if (!o.rate.IsZero()) words.insert(words.end(), {"rate", std::to_string(o.rate.bits_per_second()) + "bit"});
  return words;
}

std::string NetemDevice(size_t from, size_t to) {
  return "s" + std::to_string(to + 1) + "p" + std::to_string(from + 1);
}

Result<std::vector<NetemCommand>> NetemSetup(const std::vector<NetemSite>& sites,
                                             const std::vector<LinkOptions>& links, int mtu) {
  SetupBuilder setup(mtu);
  for (size_t a = 0; a < sites.size(); ++a) {
    setup.Run(static_cast<int>(a), {"ip", "link", "set", "lo", "up"});
    setup.Run(static_cast<int>(a), {"ip", "address", "add", sites[a].address + "/32", "dev", "lo"});
  }
  for (size_t a = 0; a < sites.size(); ++a) {
    for (size_t b = a + 1; b < sites.size(); ++b) {
      const std::string bridge = "b" + std::to_string(a + 1) + "p" + std::to_string(b + 1);
      setup.Run(NetemCommand::kHub, {"ip", "link", "add", bridge, "type", "bridge"});
      setup.Run(NetemCommand::kHub, {"ip", "link", "set", bridge, "up"});
      setup.Connect(a, b, sites[a], sites[b], bridge);
      setup.Connect(b, a, sites[b], sites[a], bridge);
    }
  }
  for (size_t from = 0; from < sites.size(); ++from) {
    for (size_t to = 0; to < sites.size(); ++to) {
      if (from == to) continue;
      const auto words = NetemArguments(links[from * sites.size() + to]);
      if (!words.ok()) return words.status();
      std::vector<std::string> argv = {"tc", "qdisc", "add", "dev", NetemDevice(from, to), "root", "netem"};
      argv.insert(argv.end(), words->begin(), words->end());
      setup.Run(NetemCommand::kHub, std::move(argv));
    }
  }
  return std::move(setup.commands);
}

Result<NetemCounters> ParseNetemCounters(std::string_view text) {
  const auto parsed = nlohmann::json::parse(text, nullptr, false);
  if (parsed.is_array()) {
    for (const auto& qdisc : parsed) {
      if (!qdisc.is_object() || qdisc.value("kind", "") != "netem") continue;
      return NetemCounters{.packets = qdisc.value("packets", uint64_t{0}),
                           .bytes = qdisc.value("bytes", uint64_t{0}),
                           .drops = qdisc.value("drops", uint64_t{0})};
    }
  }
  return Status(StatusCode::kDataLoss, "tc reported no netem: " + std::string(text.substr(0, 200)));
}

Status ProbeNetem() {
  Status status;
  // unshare() moves this thread only, and the namespace vanishes with it.
  std::thread([&status] {
    if (unshare(CLONE_NEWNET) != 0) {
      status = OsError("creating a network namespace to look for netem", errno);
      return;
    }
    const auto tried = RunAndCapture({"tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"});
    if (!tried.ok()) {
      status = tried.status();
    } else if (tried->exit_code != 0) {
      const std::string said = tried->text.substr(0, tried->text.find('\n'));
      status = Status(StatusCode::kUnavailable, "this kernel has no sch_netem (tc says: " + said + ")");
    }
  }).join();
  return status;
}

}  // namespace longhaul::wan
