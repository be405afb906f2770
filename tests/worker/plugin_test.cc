// Rules of the user's at a server, in a program and in shared objects.
//
//   worker ── server ── plugin_sgd.so, which was built as outside of the tree
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "base/random.h"
#include "server/daemon.h"
#include "tests/worker/client_harness.h"

namespace longhaul {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Values = std::vector<float>;

constexpr size_t kCount = 3001;  // some chunks, of which the last one is short
constexpr int kRounds = 12;

const longhaul_plugin* Example() {
  const auto plugin = LoadPlugin(LONGHAUL_EXAMPLE_PLUGIN);
  EXPECT_TRUE(plugin.ok()) << plugin.status().ToString();
  return plugin.ok() ? *plugin : nullptr;
}

Values Gradient(int round) {
  Random random(static_cast<uint64_t>(100 + round));
  Values values(kCount);
  for (float& value : values) value = static_cast<float>(random.Normal());
  return values;
}

class Directory {
 public:
  Directory() {
    char pattern[] = "/tmp/longhaul-plugin-XXXXXX";
    EXPECT_NE(mkdtemp(pattern), nullptr);
    path = pattern;
  }
  ~Directory() { std::filesystem::remove_all(path); }
  std::string path;
};

struct PluginTest : testing::Test {
  ServerOptions Options(bool with_plugin = true) const {
    ServerOptions options = EverythingReliable();
    options.checkpoint_dir = directory.path;
    if (with_plugin) options.plugins = {Example()};
    return options;
  }
  // Rounds first..last-1 at a server of their own; the values after the last one. The server then stops.
  Values Rounds(const std::string& optimizer, int first, int last, bool with_plugin = true) {
    Server server = StartServer(1, Options(with_plugin));
    Client client = MustConnect(OptionsFor(server, 0, 1));
    const Values initial = Gradient(-1);
    auto w = client.Declare("w", {.count = kCount, .optimizer = optimizer, .initial = initial});
    EXPECT_TRUE(w.ok()) << w.status().ToString();
    Values values(kCount);
    for (int round = first; w.ok() && round < last; ++round) {
      const Status done = client.PushPull(*w, Gradient(round), values).Wait();
      EXPECT_TRUE(done.ok()) << done.ToString();
    }
    EXPECT_TRUE(client.Leave().ok());
    server.Stop();
    return values;
  }
  Status Declared(const std::string& optimizer, bool with_plugin = true) const {
    Server server = StartServer(1, Options(with_plugin));
    Client client = MustConnect(OptionsFor(server, 0, 1));
    return client.Declare("w", {.count = kCount, .optimizer = optimizer}).status();
  }
  Directory directory;
};

bool SameBits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class PluginBits : public PluginTest, public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Settings, PluginBits,
                         testing::Values("lr=0.1", "lr=0.1,momentum=0.9", "lr=0.1,momentum=0.9,nesterov",
                                         "lr=0.3,momentum=0.5,weight_decay=0.01"));

TEST_P(PluginBits, AreThoseOfTheBuiltInOptimizerAlsoAfterARestart) {
  const auto of = [&](const std::string& name, bool restart) {
    std::filesystem::remove_all(directory.path);
    const std::string optimizer = name + ":" + GetParam();
    if (restart) Rounds(optimizer, 0, kRounds / 2);
    return Rounds(optimizer, restart ? kRounds / 2 : 0, kRounds);
  };
  const Values wanted = of("sgd", false);
  EXPECT_NE(wanted, Gradient(-1)) << "it has moved";
  EXPECT_TRUE(SameBits(of("my_sgd", false), wanted));
  EXPECT_TRUE(SameBits(of("my_sgd", true), wanted));
}

// The job of a server that has handed it over goes on from the round log, with the plug-in's state.
TEST_F(PluginTest, GoesOnFromTheRoundLog) {
  const std::string optimizer = "my_sgd:lr=0.1,momentum=0.9";
  const Values wanted = Rounds(optimizer, 0, kRounds);
  std::filesystem::remove_all(directory.path);
  ServerOptions options = Options();
  options.round_log = true;
  std::optional<Server> server(StartServer(1, options));
  ConnectOptions connect = OptionsFor(*server, 0, 1);
  connect.reconnect_timeout = std::chrono::seconds(60);
  Client client = MustConnect(connect);
  const Values initial = Gradient(-1);
  const auto w = client.Declare("w", {.count = kCount, .optimizer = optimizer, .initial = initial});
  ASSERT_TRUE(w.ok()) << w.status().ToString();
  Values values(kCount);
  for (int round = 0; round < kRounds; ++round) {
    if (round == kRounds / 2) {
      ASSERT_EQ(server::Daemon::BeginHandOver(*server), Status());
      ASSERT_EQ(server->WaitFor(std::chrono::seconds(20)), Status());
      options.listen = server->address();
      options.insecure = true;
      server.reset();
      auto next = Server::Start(options);
      ASSERT_TRUE(next.ok()) << next.status().ToString();
      server.emplace(*std::move(next));
    }
    ASSERT_EQ(client.PushPull(*w, Gradient(round), values).Wait(), Status());
  }
  EXPECT_TRUE(SameBits(values, wanted));
}

// Of two servers the second one lacks the plug-in.
TEST_F(PluginTest, EveryServerOfAJobNeedsIt) {
  ServerOptions options = Options();
  options.checkpoint_dir = "";
  options.servers = 2;
  Server first = StartServer(1, options);
  ServerOptions other;
  other.listen = "127.0.0.1:0";
  other.insecure = true;
  other.first_server = first.address();
  const auto second = Server::Start(other);
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  Client client = MustConnect(OptionsFor(first, 0, 1));
  const Status status = client.Declare("w", {.count = 1 << 20, .optimizer = "my_sgd:lr=1"}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("\"my_sgd:lr=1\": unknown"));
}

TEST_F(PluginTest, ItsStateIsTheBuiltInOnesWhereTheNamesAreTheSame) {
  const Values wanted = Rounds("sgd:lr=0.1,momentum=0.9", 0, kRounds);
  std::filesystem::remove_all(directory.path);
  Rounds("my_sgd:lr=0.1,momentum=0.9", 0, kRounds / 2);
  EXPECT_TRUE(
      SameBits(Rounds("sgd:lr=0.1,momentum=0.9", kRounds / 2, kRounds, /*with_plugin=*/false), wanted))
      << "the checkpoint is read without the plug-in, and goes on with the built-in optimizer";
}

TEST_F(PluginTest, ARestartThatCannotGoOnIsRefusedByName) {
  Rounds("my_sgd:lr=0.1,momentum=0.9", 0, 2);
  const Status other = Declared("adam:lr=0.1");
  EXPECT_EQ(other.code(), StatusCode::kSettingsMismatch);
  EXPECT_THAT(other.message(), AllOf(HasSubstr("which keeps exp_avg, exp_avg_sq here"),
                                     HasSubstr("my_sgd:lr=0.1,momentum=0.9, which keeps momentum_buffer")));
  const Status fewer = Declared("my_sgd:lr=0.1");
  EXPECT_EQ(fewer.code(), StatusCode::kSettingsMismatch) << fewer.ToString();
  const Status none = Declared("my_sgd:lr=0.1,momentum=0.9", /*with_plugin=*/false);
  EXPECT_EQ(none.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(none.message(),
              HasSubstr("\"my_sgd:lr=0.1,momentum=0.9\": unknown; known are aggregate, sgd:lr"));
}

// --- Of the program's own, and failing ---

constexpr longhaul_optimizer kThrows = {.name = "throws",
                                        .settings = nullptr,
                                        .setting_count = 0,
                                        .state = nullptr,
                                        .state_count = 0,
                                        .flags = 0,
                                        .states = nullptr,
                                        .check = nullptr,
                                        .prepare = nullptr,
                                        .step = [](const longhaul_step* s) -> int32_t {
                                          if (s->steps > 1) throw std::runtime_error("in C++");
                                          std::copy_n(s->gradient, s->count, s->updated);
                                          return 0;
                                        }};
constexpr const longhaul_optimizer* kOwnRules[] = {&kThrows};
constexpr longhaul_plugin kOwn = {LONGHAUL_PLUGIN_API, 1, kOwnRules, 0, nullptr};

TEST_F(PluginTest, AStepThatThrowsEndsTheJobAndNotTheServer) {
  ServerOptions options = Options(false);
  options.plugins = {&kOwn};
  Server server = StartServer(1, options);
  for (int job = 0; job < 2; ++job) {
    Client client = MustConnect(OptionsFor(server, 0, 1));
    const auto w = client.Declare("w" + std::to_string(job), {.count = kCount, .optimizer = "throws"});
    ASSERT_TRUE(w.ok()) << w.status().ToString();
    Values values(kCount);
    ASSERT_TRUE(client.PushPull(*w, Gradient(0), values).Wait().ok());
    EXPECT_TRUE(SameBits(values, Gradient(0)));
    const Status failed = client.PushPull(*w, Gradient(1), values).Wait();
    EXPECT_EQ(failed.code(), StatusCode::kAborted);
    EXPECT_THAT(failed.message(), HasSubstr("in round 1: the step of its optimizer throws threw"));
  }
}

constexpr longhaul_aggregation kDouble = {
    .name = "twice_the_first",
    .scratch = nullptr,
    .aggregate = [](const longhaul_contributions* in, float* out) -> int32_t {
      for (uint64_t i = 0; i < in->count; ++i) out[i] = 2 * in->values[0][i];
      return 0;
    }};
constexpr const longhaul_aggregation* kOwnAggregations[] = {&kDouble};
constexpr longhaul_plugin kAggregates = {LONGHAUL_PLUGIN_API, 0, nullptr, 1, kOwnAggregations};

TEST_F(PluginTest, AnAggregationIsTakenByItsName) {
  ServerOptions options = EverythingReliable();
  options.listen = "127.0.0.1:0";
  options.insecure = true;
  options.plugins = {&kAggregates};
  options.plugin_aggregation = "none";
  const auto why = [&] { return Server::Start(options).status().message(); };
  EXPECT_THAT(why(), HasSubstr("no plug-in has the aggregation \"none\""));
  options.plugin_aggregation = "twice_the_first";
  EXPECT_THAT(why(), HasSubstr("aggregation plugin needs a policy whose contributions are single gradients"));
  options.job_spec.policy = LossPolicy::kZero;
  options.job_spec.aggregation = Aggregation::kTrimmedMean;
  EXPECT_THAT(why(), HasSubstr("'plugin_aggregation' is instead of aggregation trimmed-mean"));
  options.plugin_aggregation = "";
  options.job_spec.aggregation = Aggregation::kPlugin;
  EXPECT_THAT(why(), HasSubstr("aggregation plugin needs the name of one"));
  options.plugin_aggregation = "twice_the_first";
  Server server = StartServer(1, options);
  Client client = MustConnect(OptionsFor(server, 0, 1));
  const auto w = client.Declare("w", {.count = kCount});
  ASSERT_TRUE(w.ok()) << w.status().ToString();
  Values values(kCount), wanted = Gradient(0);
  ASSERT_EQ(client.PushPull(*w, Gradient(0), values).Wait(), Status());
  for (float& value : wanted) value *= 2;
  EXPECT_TRUE(SameBits(values, wanted));
}

// The first server says its name, and the others need it.
TEST_F(PluginTest, AnAggregationIsThatOfAllServers) {
  ServerOptions options = EverythingReliable();
  options.servers = 2;
  options.plugins = {&kAggregates};
  options.plugin_aggregation = "twice_the_first";
  options.job_spec.policy = LossPolicy::kZero;
  Server first = StartServer(1, options);
  ServerOptions other;
  other.listen = "127.0.0.1:0";
  other.insecure = true;
  other.first_server = first.address();
  EXPECT_THAT(Server::Start(other).status().message(),
              HasSubstr("no plug-in has the aggregation \"twice_the_first\""));
  other.plugins = options.plugins;
  const auto second = Server::Start(other);
  EXPECT_TRUE(second.ok()) << second.status().ToString();
}

// --- Shared objects that are none, and plug-ins that cannot be ---

TEST_F(PluginTest, WhatIsNoPluginIsRefusedInWords) {
  const auto load = [](const std::string& file) { return LoadPlugin(file).status(); };
  const std::string wrong = LONGHAUL_WRONG_PLUGINS;
  EXPECT_EQ(load("/nowhere/x.so").code(), StatusCode::kNotFound);
  EXPECT_THAT(load("/nowhere/x.so").message(), HasSubstr("plug-in /nowhere/x.so: No such file"));
  EXPECT_EQ(load("libm.so.6").code(), StatusCode::kNotFound) << "not what the system has of that name";
  const std::string text = directory.path + "/text.so";
  std::ofstream(text) << "no library\n";
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path);
  std::ofstream("libm.so.6") << "no library\n";
  EXPECT_THAT(load("libm.so.6").message(), HasSubstr("cannot be loaded: ")) << "the file of that name, here";
  std::filesystem::current_path(before);
  for (const auto& [file, words] :
       {std::pair(text, "cannot be loaded: "), std::pair(wrong + "LACKS.so", "there_is_none"),
        std::pair(wrong + "NO_SYMBOL.so", "has no function longhaul_get_plugin")}) {
    const Status status = load(file);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("plug-in " + file), HasSubstr(words)));
  }
}

TEST_F(PluginTest, AServerDoesNotStartWithOneThatCannotBe) {
  const auto start = [&](std::vector<const longhaul_plugin*> plugins) {
    ServerOptions options = Options(false);
    options.listen = "127.0.0.1:0";
    options.insecure = true;
    options.plugins = std::move(plugins);
    return Server::Start(options).status();
  };
  const auto load = [](const std::string& kind) {
    return *LoadPlugin(LONGHAUL_WRONG_PLUGINS + kind + ".so");
  };
  EXPECT_EQ(start({load("OTHER_VERSION")}).code(), StatusCode::kVersionMismatch);
  EXPECT_THAT(start({load("TAKEN")}).message(), HasSubstr("\"sgd\" of a plug-in: the name is taken"));
  EXPECT_EQ(start({Example(), Example()}).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(start({nullptr}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(start({Example()}).code(), StatusCode::kOk);
}

}  // namespace
}  // namespace longhaul
