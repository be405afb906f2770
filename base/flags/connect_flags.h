// The options of a program that is a member of a job: a worker, or the relay of a site.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/flags/job_flags.h"
#include "base/flags/number_checks.h"
#include "base/units_text.h"
#include "longhaul/options.h"
#include "longhaul/tensor.h"

namespace longhaul::cli {

struct ConnectFlags {
  ConnectOptions connect;
  double idle_timeout_s = 10;
  double connect_timeout_s = 0;
  double wait_timeout_s = 1800;
  double reconnect_timeout_s = 0;
  std::string rate_cap;
  std::string rate_floor;
  bool allow_core_dump = false;
};

// Who it is.
inline void AddMemberFlags(CLI::App& app, ConnectFlags* flags) {
  ConnectOptions& c = flags->connect;
  app.add_option("--rank", c.rank, "This worker among its peers, 0..world-size-1 [0]");
  app.add_option("--world-size", c.world_size, "Workers of the job, as the server has it [1]")
      ->check(CLI::Range(1, 65536));
  app.add_option("--job", c.job, "Name of the job, as the server has it")->capture_default_str();
  app.add_option("--site", c.site, "Where this worker runs, for messages and statistics");
  app.add_option("--incarnation", c.incarnation,
                 "Higher takes the rank over at once [a restart takes it from a predecessor that is silent]");
}

// Its connection.
inline void AddConnectionFlags(CLI::App& app, ConnectFlags* flags) {
  ConnectOptions& c = flags->connect;
  app.add_option("--datagram-size", c.datagram_bytes, "UDP payload per datagram, bytes")
      ->capture_default_str()
      ->check(CLI::Range(1200, 65507));
  AddEnum(app, "--rate-controller", &c.rate_controller, "What decides how fast to send");
  app.add_option("--rate-cap", flags->rate_cap, "Never send faster, for example 100mbit")->check(IsRate());
  app.add_option("--rate-floor", flags->rate_floor, "Never send slower, whatever is lost [100kbit]")
      ->check(IsRate());
  app.add_option("--idle-timeout", flags->idle_timeout_s, "Silence after which the server is dead, seconds")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0));
  app.add_option("--connect-timeout", flags->connect_timeout_s,
                 "Time to join, seconds; 0 = the idle time-out")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
  app.add_option("--wait-timeout", flags->wait_timeout_s,
                 "How long to wait for other workers that do not come, seconds; 0 = for ever")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 31536000.0));
  app.add_option(
         "--reconnect-timeout", flags->reconnect_timeout_s,
         "How long to wait for a server that is lost in mid-job to come back, seconds; 0 = not at all")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
  app.add_option(
         "--key", c.key_file,
         "Key file of the job (longhaul keygen): one that all of it share, or this worker's certificate")
      ->type_name("FILE");
  app.add_option("--server-name", c.server_name,
                 "With a certificate: the name that the server's certificate must have; none = any");
  AddEnum(app, "--cipher", &c.cipher, "Of the packets; any = the first that both sides have");
  app.add_flag("--insecure", c.insecure, "Instead of a key: no encryption and no authentication")
      ->excludes("--key");
  app.add_flag("--allow-core-dump", flags->allow_core_dump,
               "With a key: a crash may leave a core dump, which contains it");
  app.add_option("--fault", c.fault,
                 "Faults to inject into own traffic, for example drop=2%,delay=25ms,seed=7")
      ->type_name("SPEC");
}

// What was given, as ConnectOptions. kInvalidArgument names the flags that do not go together.
inline Status TakeConnectFlags(ConnectFlags* flags) {
  ConnectOptions& c = flags->connect;
  c.idle_timeout = FromSeconds(flags->idle_timeout_s);
  c.connect_timeout = FromSeconds(flags->connect_timeout_s);
  c.wait_timeout = FromSeconds(flags->wait_timeout_s);
  c.reconnect_timeout = FromSeconds(flags->reconnect_timeout_s);
  if (!flags->rate_cap.empty()) c.rate_cap = *ParseRate(flags->rate_cap);
  if (!flags->rate_floor.empty()) c.rate_floor = *ParseRate(flags->rate_floor);
  if (!flags->rate_cap.empty() && c.rate_floor > c.rate_cap) {
    return {StatusCode::kInvalidArgument,
            "--rate-floor " + flags->rate_floor + " is above --rate-cap " + flags->rate_cap};
  }
  if (c.rank < c.world_size) return {};
  return {StatusCode::kInvalidArgument,
          "--rank " + std::to_string(c.rank) + " is not below --world-size " + std::to_string(c.world_size)};
}

// The first of these that was given; empty: none.
inline std::string FirstGiven(const CLI::App& app, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (app.count(name) > 0) return name;
  }
  return {};
}

}  // namespace longhaul::cli
