#include "cli/run_wan.h"

#include <sched.h>

#include <cstdio>
#include <utility>

namespace longhaul::cli {
namespace {

using Json = nlohmann::json;

constexpr const char* kServerSite = "A";

// An injector is in each member of the job, on what it sends and what it receives: without offload the ranks
// of a site have equal parts of its link.
std::string FaultSpec(const RunOptions& o, const wan::LinkOptions& link) {
  const int64_t rate = link.rate.bits_per_second() / (o.offload ? 1 : o.ranks);
  char spec[256];
  std::snprintf(spec, sizeof spec, "drop=%.6f,delay=%lldus,rate=%lldbit,queue=%lldus,seed=%llu", link.loss,
                static_cast<long long>(link.delay.count() / 1000), static_cast<long long>(rate),
                static_cast<long long>(link.queue_time.count() / 1000),
                static_cast<unsigned long long>(o.seed));
  return spec;
}

}  // namespace

std::string SiteName(uint32_t site) { return std::string(1, static_cast<char>(kServerSite[0] + 1 + site)); }

Result<wan::LinkOptions> LinkOf(const RunOptions& o) {
  std::string words = "rate " + o.rate + " delay " + o.delay + " queue " + o.queue;
  if (o.loss != "0") words += " loss " + o.loss;
  if (o.loss_burst >= 1) words += " burst " + std::to_string(o.loss_burst);
  return wan::ParseLinkOptions(words);
}

Result<RunWan> RunWan::Make(const RunOptions& o, const wan::LinkOptions& link) {
  RunWan wan;
  const auto loopback = [&](const std::string& why) {
    wan.fault_spec_ = FaultSpec(o, link);
    wan.description_ = std::string("loopback with the seeded fault injector in every ") +
                       (o.offload ? "site" : "worker") + " (" + wan.fault_spec_ + ")" +
                       (why.empty() ? "" : "; no network namespaces: " + why);
    return std::move(wan);
  };
  if (o.wan == "loopback") return loopback("");
  wan::TunWan::Options options;
  options.sites = {kServerSite};
  for (uint32_t site = 0; site < o.sites; ++site) options.sites.push_back(SiteName(site));
  options.link = link;
  options.seed = o.seed;
  options.backend = o.wan == "netem" ? wan::Backend::kNetem
                    : o.wan == "tun" ? wan::Backend::kTun
                                     : wan::Backend::kAuto;
  Result<std::unique_ptr<wan::TunWan>> up = wan::TunWan::Up(options);
  if (!up.ok()) {
    if (o.wan == "auto" && up.status().code() != StatusCode::kInvalidArgument) {
      return loopback(up.status().message());
    }
    return up.status();
  }
  wan.links_ = std::move(*up);
  for (const std::string& site : options.sites) {
    Result<int> opened = wan.links_->OpenSiteNamespace(site);
    if (!opened.ok()) return opened.status();
    wan.namespaces_.emplace_back(*opened);
  }
  const size_t count = options.sites.size();
  wan.description_ = std::string(wan::BackendName(wan.links_->backend())) + " between " +
                     (count == 2 ? "two" : std::to_string(count)) + " network namespaces (" +
                     wan.links_->backend_reason() + ")";
  return wan;
}

std::string RunWan::listen_address() const {
  return has_links() ? links_->sites().front().address + ":7700" : "127.0.0.1:0";
}

std::function<int()> RunWan::Entering(size_t place) const {
  if (!has_links()) return {};
  return [fd = namespaces_[place].get()] { return ::setns(fd, CLONE_NEWNET); };
}

Json RunWan::LinkReports() {
  Json links = Json::array();
  if (!has_links()) return links;
  for (const wan::TunWan::LinkReport& link : links_->Links()) {
    if (link.from != kServerSite && link.to != kServerSite) continue;
    const wan::LinkCounters& c = link.counters;
    links.push_back(
        {{"from", link.from},
         {"to", link.to},
         {"packets", c.packets_in},
         {"bytes", c.bytes_in},
         {"dropped_loss", c.dropped_loss},
         {"dropped_queue", c.dropped_queue},
         {"loss",
          c.packets_in == 0 ? 0.0 : static_cast<double>(c.dropped()) / static_cast<double>(c.packets_in)},
         {"max_queue_ms", static_cast<double>(c.max_queue_delay.count()) / 1e6}});
  }
  return links;
}

Status RunWan::Down() { return has_links() ? links_->Down() : Status::Ok(); }

}  // namespace longhaul::cli
