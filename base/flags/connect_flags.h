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
  std::string join;  // of a worker
  double idle_timeout_s = 10;
  double connect_timeout_s = 0;
  double wait_timeout_s = 1800;
  double reconnect_timeout_s = 0;
  std::string rate_cap;
  std::string rate_floor;
  bool allow_core_dump = false;
};

// Where a worker's job is: at a server, or behind this site's relay; and what is the worker's own.
inline void AddWorkerFlags(CLI::App& app, ConnectFlags* flags) {
  ConnectOptions& c = flags->connect;
  app.add_option("--join", flags->join, "Address of the server; this or --offload")->type_name("HOST:PORT");
  app.add_option(
         "--offload", c.offload,
         "Instead of --join: unix:PATH of this site's longhaul-offload --server, which is the site's one "
         "connection. What concerns the connection is given there")
      ->type_name("unix:PATH");
  app.add_option("--site-rank", c.site_rank,
                 "With --offload: this worker among its site's [the first that is free]")
      ->check(CLI::Range(0, 62));
  app.add_option(
      "--weight", c.weight,
      "Weight of this worker's gradients, 1e-6..1e9 [by the size of its shard; 1 = even; 1 with --offload]");
  app.add_option("--state-dir", c.state_dir,
                 "Keep this worker's state here (what it owes, its place in its data) and go "
                 "on from it")
      ->type_name("DIR");
}

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

// The server, or the relay, which decides the rest. kInvalidArgument names the flags that do not go together.
inline Status TakeAddress(const CLI::App& app, ConnectFlags* flags) {
  if (flags->join.empty() == flags->connect.offload.empty()) {
    return {StatusCode::kInvalidArgument, "one of --join and --offload is needed"};
  }
  if (!flags->join.empty()) {
    flags->connect.servers = {flags->join};
    if (app.count("--site-rank") == 0) return {};
    return {StatusCode::kInvalidArgument, "--site-rank needs --offload"};
  }
  const std::string given =
      FirstGiven(app, {"--rank", "--world-size", "--job", "--site", "--incarnation", "--datagram-size",
                       "--rate-controller", "--rate-cap", "--rate-floor", "--key", "--server-name",
                       "--cipher", "--insecure", "--allow-core-dump", "--fault"});
  if (given.empty()) return {};
  return {StatusCode::kInvalidArgument,
          given + " has no meaning with --offload: the site's longhaul-offload decides it"};
}

}  // namespace longhaul::cli
