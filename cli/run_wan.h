// The WAN of `longhaul run`: a namespace for the server and one for each site, with links between them; or
// nothing but loopback, with fault injectors in those that cross it.
//
//   site A: server ══ link of B ══ site B: ranks
//                  ══ link of C ══ site C: ranks
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.h"
#include "cli/run.h"
#include "wan/link_options.h"
#include "wan/tun/tun_wan.h"

namespace longhaul::cli {

// "B", "C", ...: those with workers, from 0.
std::string SiteName(uint32_t site);

// What the options say of every link. kInvalidArgument.
Result<wan::LinkOptions> LinkOf(const RunOptions& options);

class RunWan {
 public:
  // Errors: those of TunWan::Up; with --wan auto loopback instead of one.
  static Result<RunWan> Make(const RunOptions& options, const wan::LinkOptions& link);

  bool has_links() const { return links_ != nullptr; }
  // HOST:PORT for the server to listen on; port 0: any.
  std::string listen_address() const;
  // For each that crosses the WAN, when there are no links; else empty.
  const std::string& fault_spec() const { return fault_spec_; }
  // One line for the user.
  const std::string& description() const { return description_; }

  // What a child does before it starts in there; the namespaces are open as long as this lives.
  std::function<int()> EnteringServer() const { return Entering(0); }
  std::function<int()> EnteringSite(uint32_t site) const { return Entering(site + 1); }

  // Of the links between the server and the sites: from, to, packets, bytes, dropped_loss, dropped_queue,
  // loss, max_queue_ms. Empty without links.
  nlohmann::json LinkReports();
  Status Down();

 private:
  std::function<int()> Entering(size_t place) const;

  std::unique_ptr<wan::TunWan> links_;
  std::vector<FileDescriptor> namespaces_;  // the server's, then the sites'
  std::string fault_spec_;
  std::string description_;
};

}  // namespace longhaul::cli
