// What the operator decides about a server and its job; the JobSpec in it goes to every worker.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/allow_list.h"
#include "codec/policy/optimizer.h"
#include "longhaul/job.h"
#include "longhaul/units.h"

namespace longhaul::server {

class LinkShare;  // server/grants/link_share.h

// How the link into the server is shared (server/grants/grants.h).
struct GrantSettings {
  bool enabled = true;
  Bandwidth capacity = {};        // of the link, IP headers included; zero: estimated from what arrives
  Bandwidth capacity_floor = {};  // bounds of the estimate
  Bandwidth capacity_cap = Bandwidth::Max();
  Bandwidth worker_floor = {};              // no worker is granted less, as far as the capacity goes
  Bandwidth worker_cap = Bandwidth::Max();  // ... nor more
  std::shared_ptr<LinkShare> link = {};     // the job's part of a given capacity; none: all of it
};

// Who may connect and stay; a reload replaces it whole.
struct AccessRules {
  AllowList allow = {};  // of certificates; empty: all
  std::vector<std::string> trusts =
      {};               // PeerIdentity::trust of those that may stay; empty: without keys, any
  int64_t expires = 0;  // of the server's own certificate, seconds since 1970; 0: never
};

// Where this server stands among those of its job (decision 0029).
struct ServerPlace {
  uint32_t servers = 1;           // that the job has
  uint32_t server = 0;            // which one this is; the first, 0, lets workers and the other servers in
  uint64_t map_epoch = 0;         // of the shard map; 0: there is one server, and no map
  std::string first_server = {};  // HOST:PORT, of the others
  std::string address =
      {};  // HOST:PORT at which workers reach this server, as the operator says; may be empty
};

// A job's settings, and what only the server needs to know of it.
struct ServerSettings : JobSpec {
  std::string job = "default";
  std::string security = "insecure";  // tls-psk | tls-certificates | insecure
  std::string identity = "insecure";  // for people: the key or certificate that this server has
  uint32_t world_size = 1;
  uint32_t min_workers = 1;      // fewer abort a started job; 1..world_size
  uint32_t start_workers = 0;    // so many begin without the others; 0: only all
  uint64_t min_incarnation = 0;  // of workers that are let in
  ByteCount max_datagram{1452};  // UDP payload
  ByteCount max_model{int64_t{1} << 30};
  uint64_t memory = 0;  // bytes that the job's tensors may take at most, whatever max_model; 0: no bound
  uint32_t checkpoint_every = 0;                           // rounds between two images of the job; 0: none
  codec::Rules rules = {};                                 // the built-in ones, and those of plug-ins
  const longhaul_aggregation* aggregation_rule = nullptr;  // of Aggregation::kPlugin
  GrantSettings grants = {};
  AccessRules access = {};
  uint64_t first_job = 0;  // its number in Welcome; later ones count on
  ServerPlace place = {};
};

}  // namespace longhaul::server
