#include "health/metric_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "health/health_port.h"
#include "longhaul/offload.h"
#include "offload/udp/udp_counters.h"
#include "server/report/server_metrics.h"
#include "tests/health/exposition_reader.h"

namespace longhaul::health {
namespace {

// A page with every table that there is, and what is counted in it set to 1, 2, 3, ...
class Everything {
 public:
  Everything() {
    Fill<server::ServerStats>(server::kServerCounters, &server_);
    Fill<transport::EndpointStats>(transport::kEndpointCounters, &server_.endpoint);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      server::MemberStats& member = server_.members.emplace_back();
      member.rank = rank;
      member.state = server::Member::State::kJoined;
      member.site = "site" + std::to_string(rank);
      Fill<transport::ConnectionStats>(transport::kConnectionCounters, &member.traffic);
    }
    server_.members.emplace_back();  // a rank that has never been in
    Fill<ClientStats>(kClientCounters, &client_);
    Fill<OffloadStats>(offload::kOffloadCounters, &offload_);
    Fill<offload::UdpCounters>(offload::kUdpCounters, &udp_);
    server::AddMetrics({{"", server_}}, &page_);
    page_.Add<ClientStats>("client", kClientCounters, {{&client_}});
    page_.Add<OffloadStats>("offload", offload::kOffloadCounters, {{&offload_, {{"node", "3"}}}});
    page_.Add<offload::UdpCounters>("offload_udp", offload::kUdpCounters, {{&udp_}});
    page_.Add<HealthCounters>("health", kHealthCounters, {{&health_}});
  }

  std::string Text() const { return page_.Text(); }
  server::ServerStats& server() { return server_; }

 private:
  using OffloadStats = offload::OffloadStats;

  template <typename S>
  void Fill(std::span<const Counter<S>> table, S* values) {
    int next = 1;
    for (const Counter<S>& counter : table) {
      std::visit(
          [&]<typename T>(T S::*member) {
            if constexpr (std::is_convertible_v<T, std::string_view>) {
              values->*member = "word";
            } else if constexpr (std::is_same_v<T, Bandwidth>) {
              values->*member = Bandwidth::Mbps(8 * next);
            } else if constexpr (std::is_same_v<T, Duration>) {
              values->*member = std::chrono::milliseconds(next);
            } else {
              values->*member = T(next);
            }
          },
          counter.field);
      ++next;
    }
  }

  server::ServerStats server_;
  ClientStats client_;
  OffloadStats offload_;
  offload::UdpCounters udp_;
  HealthCounters health_;
  MetricPage page_;
};

// The value that Fill gave to the counter at this place of its table, as Prometheus wants it.
template <typename S>
double Expected(const Counter<S>& counter, int place) {
  if (std::holds_alternative<Duration S::*>(counter.field)) return place * 1e-3;
  if (std::holds_alternative<Bandwidth S::*>(counter.field)) return place * 1e6;
  const bool word = std::holds_alternative<std::string S::*>(counter.field) ||
                    std::holds_alternative<std::string_view S::*>(counter.field);
  return word ? 1 : place;
}

template <typename S>
void ExpectTable(const ExpositionReader& page, const std::string& part, std::span<const Counter<S>> table,
                 const std::map<std::string, std::string>& labels) {
  int place = 0;
  for (const Counter<S>& counter : table) {
    ++place;
    // Exactly one family is the counter's: its name is that of the table, but for unit and _total.
    const std::string name = "longhaul_" + part + "_" + std::string(counter.name);
    std::vector<std::string> found;
    for (const char* unit : {"", "_seconds", "_bytes", "_bytes_per_second"}) {
      for (const char* total : {"", "_total"}) {
        const auto family = page.families.find(name + unit + total);
        if (family != page.families.end() && family->second.help == counter.help)
          found.push_back(family->first);
      }
    }
    ASSERT_EQ(found.size(), 1u) << name;
    const bool total = found[0].ends_with("_total");
    EXPECT_EQ(page.families.at(found[0]).type, total ? "counter" : "gauge") << found[0];
    auto with_word = labels;
    with_word["state"] = "word";
    auto value = page.Value(found[0], labels);
    if (!value) value = page.Value(found[0], with_word);
    ASSERT_TRUE(value) << found[0];
    EXPECT_DOUBLE_EQ(*value, Expected(counter, place)) << found[0];
  }
}

TEST(MetricPage, HasEveryCounterOfEveryTableWithItsValueAndItsSentence) {
  const ExpositionReader page(Everything().Text());
  ASSERT_EQ(page.error, "");
  ExpectTable<server::ServerStats>(page, "server", server::kServerCounters, {});
  ExpectTable<transport::EndpointStats>(page, "endpoint", transport::kEndpointCounters, {});
  for (const char* rank : {"0", "1"}) {
    ExpectTable<transport::ConnectionStats>(page, "connection", transport::kConnectionCounters,
                                            {{"rank", rank}, {"site", std::string("site") + rank}});
  }
  ExpectTable<ClientStats>(page, "client", kClientCounters, {});
  ExpectTable<offload::OffloadStats>(page, "offload", offload::kOffloadCounters, {{"node", "3"}});
  ExpectTable<offload::UdpCounters>(page, "offload_udp", offload::kUdpCounters, {});
  EXPECT_EQ(page.families.at("longhaul_member_joined").samples.size(), 2u)
      << "none of a rank without a member";
  EXPECT_EQ(page.families.at("longhaul_connection_limited_seconds_total").samples.size(),
            2 * transport::kRateLimiters);
}

// What grows and shrinks would be read by rate() as the restart of a process.
TEST(MetricPage, WhatMayShrinkIsNoCounter) {
  const ExpositionReader page(Everything().Text());
  for (const char* state : {"server_tensors",
                            "server_elements",
                            "server_memory_bytes",
                            "server_memory_member_bytes",
                            "server_memory_budget_bytes",
                            "server_longest_event_elements",
                            "server_strangers",
                            "server_bench_connections",
                            "server_checkpoint_rounds",
                            "server_checkpoint_bytes",
                            "server_longest_event_seconds",
                            "server_checkpoint_write_seconds",
                            "endpoint_half_open",
                            "connection_bytes_in_flight",
                            "connection_smoothed_rtt_seconds",
                            "connection_loss",
                            "client_bandwidth_bytes_per_second",
                            "client_fit_samples",
                            "offload_segs_in_use",
                            "offload_segs_most",
                            "health_open"}) {
    const auto family = page.families.find(std::string("longhaul_") + state);
    ASSERT_NE(family, page.families.end()) << state;
    EXPECT_EQ(family->second.type, "gauge") << state;
  }
  for (const char* count :
       {"server_rounds_total", "client_bytes_sent_total", "client_limited_by_grant_seconds_total",
        "connection_packets_expected_total", "offload_udp_bytes_received_total"}) {
    EXPECT_TRUE(page.families.contains(std::string("longhaul_") + count)) << count;
  }
}

// A worker says what its site is called: one byte that is no UTF-8 would cost the whole scrape.
TEST(MetricPage, AHostileNameIsHarmless) {
  Everything everything;
  everything.server().members[0].site = "a\"b\\c\nlonghaul_forged 1\n\xff\xc0\x80";
  MetricPage page;
  server::AddMetrics({{"", everything.server()}}, &page);
  const ExpositionReader read(page.Text());
  ASSERT_EQ(read.error, "");
  EXPECT_FALSE(read.families.contains("longhaul_forged"));
  const auto& samples = read.families.at("longhaul_member_joined").samples;
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_THAT(samples[0].labels.at("site"), ::testing::StartsWith("a\"b\\c\\x0alonghaul_forged 1"));
  everything.server().members[0].site = std::string(100'000, 'x');
  MetricPage longer;
  server::AddMetrics({{"", everything.server()}}, &longer);
  EXPECT_LT(longer.Text().size(), 100'000u);
}

// Families come once, whatever the number of jobs.
TEST(MetricPage, JobsOfOneProcessAreToldApartByTheirLabel) {
  Everything one, two;
  one.server().job = "a";
  two.server().job = "b";
  two.server().members[0].site = "other";
  MetricPage page;
  server::AddMetrics({{"a", one.server()}, {"b", two.server()}}, &page);
  const ExpositionReader read(page.Text());
  ASSERT_EQ(read.error, "");
  for (const auto& [name, family] : read.families) {
    EXPECT_EQ(family.samples.size() % 2, 0u) << name;
    for (const ReadSample& sample : family.samples) EXPECT_TRUE(sample.labels.contains("job")) << name;
  }
  EXPECT_TRUE(read.Value("longhaul_member_joined", {{"job", "b"}, {"rank", "0"}, {"site", "other"}}));
  EXPECT_FALSE(read.Value("longhaul_member_joined", {{"job", "a"}, {"rank", "0"}, {"site", "other"}}));
  EXPECT_EQ(read.Value("longhaul_server_rounds_total", {{"job", "a"}}),
            read.Value("longhaul_server_rounds_total", {{"job", "b"}}));
}

TEST(MetricPage, AWordWithoutContentIsLeftOut) {
  ClientStats client;
  MetricPage page;
  page.Add<ClientStats>("client", kClientCounters, {{&client}});
  const ExpositionReader read(page.Text());
  EXPECT_EQ(read.error, "");
  EXPECT_FALSE(read.families.contains("longhaul_client_fit_state"));
  EXPECT_TRUE(read.families.contains("longhaul_client_loss"));
}

// The page is written by LONGHAUL_WRITE_DOCS=1 test_health --gtest_filter='HealthCounters.*'
TEST(HealthCounters, ThePageHasEveryCounter) {
  const std::string path = std::string(LONGHAUL_SOURCE_DIR) + "/docs/reference/counters.md";
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string page = text.str(), begin = "<!-- counters: health -->\n";
  const size_t from = page.find(begin), to = page.find("<!-- end -->", from);
  ASSERT_NE(to, std::string::npos);
  const std::string expected =
      page.substr(0, from + begin.size()) + CounterPage<HealthCounters>(kHealthCounters) + page.substr(to);
  if (std::getenv("LONGHAUL_WRITE_DOCS") != nullptr) std::ofstream(path) << expected;
  EXPECT_TRUE(page == expected) << path << " is old; LONGHAUL_WRITE_DOCS=1 writes it anew";
}

TEST(HealthCounters, TheTableHasEveryField) {
  EXPECT_EQ(sizeof(HealthCounters), std::size(kHealthCounters) * sizeof(uint64_t));
}

TEST(ExpositionReader, RefusesWhatIsNotTheFormat) {
  const std::string head = "# HELP a b\n# TYPE a counter\n";
  EXPECT_EQ(ExpositionReader(head + "a 1\n").error, "");
  for (const std::string& wrong :
       {std::string("a 1\n"), head + "a 1\na 1\n", head + "b 1\n", head + "a x\n", head + "a{x=\"\\q\"} 1\n",
        head + "a{x=\"1} 1\n", head + "a 1", head + "a{x=\"\xff\"} 1\n", head + head,
        std::string("# TYPE a counter\na 1\n"), std::string("# HELP a b\n# TYPE a total\n")}) {
    EXPECT_NE(ExpositionReader(wrong).error, "") << wrong;
  }
}

}  // namespace
}  // namespace longhaul::health
