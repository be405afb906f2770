#include "tests/attack/support/attack_test.h"

#include <fstream>

namespace longhaul::attack {
namespace {

constexpr size_t kElements = 5000;

// What a client gives in a round; another value everywhere, so that nothing of an earlier round fits.
std::vector<float> Gradient(size_t client, int round) {
  std::vector<float> values(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    values[i] =
        static_cast<float>(client * 8192 + static_cast<size_t>(round) * 2) + static_cast<float>(i % 7);
  }
  return values;
}

nlohmann::json EndpointOf(const nlohmann::json& status) {
  return status.value("endpoint", nlohmann::json::object());
}

// A name that is not there is a mistake of the test, and not a zero.
int64_t Counter(const nlohmann::json& object, const std::string& name) {
  const auto it = object.find(name);
  const bool found = it != object.end() && it->is_number_integer();
  EXPECT_TRUE(found) << "no counter \"" << name << "\" in " << object.dump();
  return found ? it->get<int64_t>() : 0;
}

}  // namespace

void AttackTest::StartTarget(const e2e::Flags& more) {
  StartServer(e2e::Merged({{"--high-share", "1"}, {"--idle-timeout", "10"}, {"--deterministic", ""}}, more));
}

void AttackTest::StartPair(Wiretap::Rule rule) {
  tensors_.clear();
  rounds_ = 0;
  tap_ = std::make_unique<Wiretap>(port());
  if (rule) tap_->SetRule(std::move(rule));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ConnectOptions options;
    options.servers = {rank == 0 ? tap_->address() : address()};
    options.rank = rank;
    options.world_size = 2;
    options.key_file = client_key(rank);
    options.connect_timeout = kPatience;
    auto client = Client::Connect(options);
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    clients_.emplace_back(*std::move(client));
  }
  for (const auto& client : clients_) {
    auto tensor = const_cast<Client&>(*client).Declare("w", {.count = kElements, .optimizer = "aggregate"});
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    tensors_.push_back(*tensor);
  }
}

void AttackTest::Round() {
  ASSERT_EQ(tensors_.size(), 2u);
  e2e::Pause(Duration(0));  // a server whose output is not read waits for its reader
  const std::vector<float> given[2] = {Gradient(0, given_), Gradient(1, given_)};
  ++given_;
  ++rounds_;
  std::vector<float> results[2] = {std::vector<float>(kElements), std::vector<float>(kElements)};
  Operation operations[2];
  for (size_t i = 0; i < 2; ++i) operations[i] = clients_[i]->PushPull(tensors_[i], given[i], results[i]);
  for (const Operation& operation : operations) {
    const Status done = operation.WaitFor(kPatience);
    ASSERT_TRUE(done.ok()) << "round " << rounds_ << ": " << done.ToString();
  }
  for (const auto& result : results) {
    for (size_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(result[i], (given[0][i] + given[1][i]) / 2) << "element " << i << " of round " << rounds_;
    }
  }
}

Status AttackTest::PushAlone() {
  const std::vector<float> given = Gradient(0, given_++);
  std::vector<float> result(kElements);
  return clients_[0]->PushPull(tensors_[0], given, result).WaitFor(kPatience);
}

void AttackTest::FinishPair() {
  const nlohmann::json status = AskServer();
  EXPECT_EQ(status.value("rounds", -1), rounds_);
  EXPECT_EQ(status.value("duplicate_contributions", -1), 0);
  EXPECT_EQ(status.value("rejected_chunks", -1), 0);
  EXPECT_EQ(status.value("joined", -1), 2);
  for (const nlohmann::json& member : status["members"]) {
    EXPECT_EQ(member.value("chunks", 0), status["members"][0].value("chunks", 1))
        << "one gave more than the other";
  }
  for (auto& client : clients_) EXPECT_TRUE(client->Leave().ok());
  clients_.clear();
  EXPECT_TRUE(server().WaitForEvent("finished")) << server().Everything();
}

nlohmann::json AttackTest::AskServer() {
  const auto status = AskStatus(port(), tool_key(), kPatience);
  EXPECT_TRUE(status) << "the server does not answer";
  return status.value_or(nlohmann::json::object());
}

int64_t AttackTest::Change(const nlohmann::json& before, const nlohmann::json& after,
                           const std::string& counter) {
  return Counter(EndpointOf(after), counter) - Counter(EndpointOf(before), counter);
}

int64_t AttackTest::Dropped(const nlohmann::json& status) {
  int64_t sum = 0;
  for (const char* counter :
       {"unknown_connection_dropped", "malformed_dropped", "not_authentic_dropped", "late_long_dropped",
        "failures_limited", "inits_limited", "half_open_refused", "version_refused"}) {
    sum += Counter(EndpointOf(status), counter);
  }
  for (const char* counter : {"duplicates_dropped", "bad_tag_dropped", "malformed_dropped"}) {
    sum += Counter(status.value("traffic", nlohmann::json::object()), counter);
  }
  return sum;
}

int64_t AttackTest::Memory() {
  std::ifstream in("/proc/" + std::to_string(server().pid()) + "/statm");
  int64_t size = 0, resident = 0;
  EXPECT_TRUE(in >> size >> resident);
  return resident * 4096;
}

void AttackTest::ExpectNoAmplifier(const SpoofingSocket& socket) {
  for (const auto& [host, bytes] : socket.received()) {
    const auto sent = socket.sent().find(host);
    ASSERT_TRUE(sent != socket.sent().end()) << "answered somebody who never asked";
    EXPECT_LE(bytes, 3 * sent->second) << "host " << std::hex << host;
  }
}

}  // namespace longhaul::attack
