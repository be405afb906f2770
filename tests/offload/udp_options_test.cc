// The options of longhaul-offload --node, and its answers to wrong ones.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "offload/udp/open_link.h"
#include "tests/offload/udp_support.h"
#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"

extern char** environ;

namespace longhaul::offload {
namespace {

const std::string kKey = "longhaul-psk-v1\njob = test\npsk = " + std::string(64, 'a');

TEST(UdpOptions, PeersAreReadOrNamed) {
  const auto peers = ParsePeers("0=10.0.0.1:7500,2=[::1]:7500", 3);
  ASSERT_TRUE(peers.ok());
  EXPECT_EQ((*peers)[0], "10.0.0.1:7500");
  EXPECT_EQ((*peers)[1], "");
  EXPECT_EQ((*peers)[2], "[::1]:7500");
  for (const char* bad : {"1", "=h:1", "1=", "x=h:1", "1x=h:1", "3=h:1", "16=h:1", "-1=h:1", "0=h:1,0=h:2",
                          ",0=h:1", "99999999999999999999=h:1"}) {
    const auto refused = ParsePeers(bad, 3);
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(refused.status().message().find("--peers"), std::string::npos) << bad;
  }
}

TEST(UdpOptions, WhatIsWrongIsSaid) {
  const TemporaryFolder folder;
  ASSERT_TRUE(keys::WriteKeyFile(folder.path("key"), kKey).ok());
  const SiteOptions site{.nodes = 2};
  UdpChoice good{.node = 0, .peers = "0=127.0.0.1:0,1=127.0.0.2:7500", .key_file = folder.path("key")};
  EXPECT_TRUE(OpenLink(good, site).ok());
  const auto says = [&](void (*change)(UdpChoice&), const std::string& what) {
    UdpChoice choice = good;
    change(choice);
    const auto link = OpenLink(choice, site);
    ASSERT_FALSE(link.ok()) << what;
    EXPECT_NE(link.status().message().find(what), std::string::npos) << link.status().message();
  };
  says([](UdpChoice& c) { c.node = 2; }, "nodes are 0..1");
  says([](UdpChoice& c) { c.peers = "0=127.0.0.1:0"; }, "where node 1 is");
  says([](UdpChoice& c) { c.peers = "1=127.0.0.2:7500"; }, "where does node 0 listen");
  says([](UdpChoice& c) { c.peers = "0=127.0.0.1:0,1=127.0.0.2:0"; }, "127.0.0.2:0");
  says([](UdpChoice& c) { c.bind = "nonsense"; }, "nonsense");
  says([](UdpChoice& c) { c.peers = "0=127.0.0.1:0,1=[::1]:7500"; }, "bind to [::]");
  says([](UdpChoice& c) { c.key_file = ""; }, "no key");
  says([](UdpChoice& c) { c.key_file = "/nowhere"; }, "/nowhere");
  says([](UdpChoice& c) { c.insecure = true; }, "say one of them");
  says([](UdpChoice& c) { c.key_file = "", c.insecure = true, c.bind = "0.0.0.0:0"; }, "insecure_bind");
  UdpChoice insecure = good;
  insecure.key_file = "";
  insecure.insecure = true;
  EXPECT_TRUE(OpenLink(insecure, site).ok());
  insecure.bind = "0.0.0.0:0";
  insecure.insecure_bind = true;
  EXPECT_TRUE(OpenLink(insecure, site).ok());
}

// 512 segs of 8192 bytes from 15 nodes: 8336 bytes and 8304 of the kernel's, half of which a socket asks for.
TEST(UdpOptions, AWindowBeyondTheReceiveBufferIsSaidWithItsRemedies) {
  const SiteOptions large{.nodes = 16, .seg_bytes = 8192, .window_segs = 512};
  const int64_t wanted = 512 * (16384 + 256) / 2 * 15;
  EXPECT_EQ(WindowBytes(large, true).value(), wanted);
  EXPECT_EQ(WindowWarning(large, true, ByteCount(wanted)), "");
  const std::string warning = WindowWarning(large, true, ByteCount(4 << 20));
  for (const std::string part : {"net.core.rmem_max=63897600", "has 4194304", "--window-segs 33"}) {
    EXPECT_NE(warning.find(part), std::string::npos) << warning;
  }
  SiteOptions remedied = large;
  remedied.window_segs = 33;
  EXPECT_EQ(WindowWarning(remedied, true, ByteCount(4 << 20)), "");
  EXPECT_EQ(WindowWarning({.nodes = 16}, true, ByteCount(4 << 20)), "");  // as it comes
  // As much is asked for; whether it is granted is the system's choice.
  UdpChoice choice{.peers = "0=127.0.0.1:0", .insecure = true};
  for (int node = 1; node < 16; ++node) choice.peers += "," + std::to_string(node) + "=127.0.0.2:7500";
  const auto link = OpenLink(choice, large);
  ASSERT_TRUE(link.ok()) << link.status().ToString();
  const bool granted = (*link)->receive_buffer() >= WindowBytes(large, false);
  const std::string instead = "instead of " + std::to_string(WindowBytes(large, false).value());
  EXPECT_EQ(granted,
            (*link)->warnings().empty() || (*link)->warnings()[0].find(instead) == std::string::npos);
  EXPECT_EQ(granted, WindowWarning(large, false, (*link)->receive_buffer()).empty());
}

TEST(UdpOptions, ACertificateIsNoSharedKey) {
  const TemporaryFolder folder;
  const crypto::Validity always{.not_before = 0, .not_after = 4'000'000'000};
  const auto ca = crypto::NewCa("test", always);
  ASSERT_TRUE(ca.ok());
  const auto certificate =
      crypto::IssueCertificate(ca->text(), "test", crypto::Role::kServer, "node0", always);
  ASSERT_TRUE(certificate.ok());
  UdpChoice choice{.node = 0, .peers = "0=127.0.0.1:0", .key_file = folder.path("key")};
  ASSERT_TRUE(keys::WriteKeyFile(choice.key_file, certificate->text()).ok());
  const Status refused = OpenLink(choice, {}).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("a shared key of the job is needed"), std::string::npos)
      << refused.ToString();
}

struct Ended {
  int code = 0;
  std::string output;
};

Ended RunProgram(std::vector<std::string> words, const std::string& output) {
  words.insert(words.begin(), LONGHAUL_OFFLOAD_PROGRAM);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, words[0].c_str(), &files, nullptr, arguments.data(), environ), 0);
  posix_spawn_file_actions_destroy(&files);
  int status = 0;
  waitpid(pid, &status, 0);
  std::stringstream text;
  text << std::ifstream(output).rdbuf();
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), text.str()};
}

TEST(UdpOptions, TheProgramSaysWhatIsWrong) {
  const TemporaryFolder folder;
  const std::string out = folder.path("out"), socket = folder.path("site.sock");
  ASSERT_TRUE(keys::WriteKeyFile(folder.path("key"), kKey).ok());
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--listen", socket, "--nodes", "2"});
    return RunProgram(words, out);
  };
  const std::string peers = "0=127.0.0.1:0,1=127.0.0.2:7500";
  EXPECT_EQ(run({"--peers", peers}).code, 2);
  EXPECT_NE(run({"--peers", peers}).output.find("--node"), std::string::npos);
  EXPECT_EQ(run({"--node", "0", "--peers", peers}).code, 2);
  EXPECT_NE(run({"--node", "0", "--peers", peers}).output.find("give --key"), std::string::npos);
  EXPECT_EQ(run({"--node", "0", "--peers", peers, "--insecure", "--key", folder.path("key")}).code, 2);
  EXPECT_EQ(run({"--node", "7", "--peers", peers, "--insecure"}).code, 2);
  EXPECT_EQ(run({"--node", "0", "--peers", peers, "--key", folder.path("none")}).code, 2);
  EXPECT_NE(run({"--help"}).output.find("--peers"), std::string::npos);
  const UdpSite other(SiteOptions{.nodes = 1});
  const Ended taken =
      run({"--node", "0", "--peers", peers, "--bind", other.address(0).ToString(), "--insecure"});
  EXPECT_EQ(taken.code, 3);
  EXPECT_NE(taken.output.find("in use"), std::string::npos) << taken.output;
}

// A process that gets no work request: the tree's root by a configuration packet, under seccomp; its
// counters.
TEST(UdpOptions, AHostlessAggregatorServesAndLeavesItsCounters) {
  const SiteOptions site{.nodes = 1, .ranks_per_node = 2, .aggregator = true};
  const TemporaryFolder folder;
  ASSERT_TRUE(keys::WriteKeyFile(folder.path("key"), kKey).ok());
  const int pid = getpid();
  const std::string net =
      "127." + std::to_string(16 + pid / 256 % 200) + "." + std::to_string(pid % 256) + ".";
  const std::string peers = "0=" + net + "1:7501,1=" + net + "2:7501";
  const auto words = [&](const char* node) {
    return std::vector<std::string>{"--node",  node,
                                    "--peers", peers,
                                    "--key",   folder.path("key"),
                                    "--json",  folder.path("json" + std::string(node))};
  };
  ProcessSite aggregator(site, words("1"), false), node(site, words("0"));
  std::vector<Device> devices;
  for (const uint8_t rank : {uint8_t{0}, uint8_t{1}}) devices.push_back(node.Open(rank));
  EXPECT_EQ(Device::Open(node.where(), {.node = 1}).status().code(), StatusCode::kInvalidArgument);
  ConfigureAll(devices, site, {.route = Route::kTree, .root_node = 1});
  RankArrays x(devices[0], 5000, 1), y(devices[1], 5000, 2);
  ASSERT_TRUE(x.Post(1, 0).ok());
  ASSERT_TRUE(y.Post(1, 0).ok());
  for (Device& device : devices) EXPECT_EQ(NextOf(device).status, WorkStatus::kSuccess);
  EXPECT_EQ(x.receive[4000], 2 * 4000 + 3);
  EXPECT_FALSE(std::filesystem::exists(aggregator.path()));
  devices.clear();
  EXPECT_EQ(node.End(SIGTERM), 0);
  EXPECT_EQ(aggregator.End(SIGTERM), 0);
  const auto json = nlohmann::json::parse(std::ifstream(folder.path("json1")));
  ASSERT_EQ(json["nodes"].size(), 1u);
  EXPECT_EQ(json["nodes"][0]["node"], 1);
  EXPECT_EQ(json["nodes"][0]["requests"], 0);
  EXPECT_GT(json["nodes"][0]["packets_received"], 19);
  EXPECT_GT(json["udp"]["opened"], 19);
  EXPECT_EQ(json["udp"]["forged"], 0);
  EXPECT_EQ(json["udp"].size(), kUdpCounters.size());
}

}  // namespace
}  // namespace longhaul::offload
