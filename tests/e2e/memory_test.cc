// A server refuses tensors that need more memory than it has, by name; a job beside it goes on.
#include <sys/resource.h>

#include <thread>

#include "longhaul/client.h"
#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

using testing::HasSubstr;

struct Memory : JobTest {
  // With so much address space, and two clients of this process in it.
  void Begin(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--listen", "127.0.0.1:0", "--key", key_file(), "--workers", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    server_program = &Start("longhaul-server", arguments, [] {
      const rlimit less{900'000'000, 900'000'000};
      return setrlimit(RLIMIT_AS, &less);
    });
    ASSERT_TRUE(server_program->WaitForLine("listening on "));
    const std::string said = server_program->Output();
    const size_t at = said.find("127.0.0.1:");
    ASSERT_NE(at, std::string::npos) << said;
    address = said.substr(at, said.find_first_not_of("0123456789.:", at) - at);
    std::thread other([this] { a = Connect(0); });
    b = Connect(1);
    other.join();
    ASSERT_TRUE(a && b);
  }
  std::optional<Client> Connect(uint32_t rank) {
    ConnectOptions options;
    options.servers = {address};
    options.key_file = key_file();
    options.rank = rank;
    options.world_size = 2;
    auto client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    if (!client.ok()) return std::nullopt;
    return *std::move(client);
  }
  // One of a gigabyte's half is refused, in words that name it; a small one works.
  void ExpectRefusal(const std::string& why) {
    TensorOptions large;
    large.count = 125'000'000;
    large.optimizer = "adam:lr=0.1";
    const auto refused = b->Declare("embedding", large);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(refused.status().message(), HasSubstr("\"embedding\" does not fit"));
    EXPECT_THAT(refused.status().message(), HasSubstr(why));
    TensorOptions small = large;
    small.count = 1000;
    std::thread other([&] { Round(*a, small); });
    Round(*b, small);
    other.join();
    EXPECT_TRUE(server_program->running());
  }
  static void Round(Client& client, const TensorOptions& options) {
    const auto tensor = client.Declare("small", options);
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    const std::vector<float> gradient(options.count, 1.0f);
    std::vector<float> out(options.count);
    const Status done = client.PushPull(*tensor, gradient, out).Wait();
    EXPECT_TRUE(done.ok()) << done.ToString();
    EXPECT_LT(out[0], 0.0f);
  }

  Program* server_program = nullptr;
  std::string address;
  std::optional<Client> a, b;
};

TEST_F(Memory, ATensorBeyondWhatTheMachineHadAtTheStartIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Begin({}));
  ExpectRefusal(
      "are left (the server's --max-memory-bytes, by default 7/8 of what its machine had at the start)");
}

TEST_F(Memory, ATensorThatTheMachineDoesNotGiveIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Begin({"--max-model-bytes", "2gb", "--max-memory-bytes", "100gb"}));
  ExpectRefusal("the server's machine has not so much left");
}

// With too little to start, a worker says so in its own words; no signal ends it. What the dynamic loader
// says where not even the libraries fit (below some 32 MB) is not ours.
TEST_F(Memory, AWorkerWithoutMemoryToStartEndsInWords) {
  int ours = 0;
  for (const rlim_t megabytes : {30, 36, 40, 45, 50, 60, 80, 120}) {
    const std::vector<std::string> arguments = {"--insecure", "--join", "127.0.0.1:1", "--connect-timeout",
                                                "1",          "--data", dataset()};
    Program& program = Start("longhaul-worker", arguments, [megabytes] {
      const rlimit less{megabytes << 20, megabytes << 20};
      return setrlimit(RLIMIT_AS, &less);
    });
    const auto code = program.WaitForEnd();
    ASSERT_TRUE(code) << megabytes << " MB";
    const std::string said = program.Everything();
    if (*code == 127) {
      EXPECT_THAT(said, HasSubstr("error while loading shared libraries")) << megabytes << " MB";
      continue;
    }
    ++ours;
    EXPECT_GT(*code, 0) << megabytes << " MB: " << said;
    EXPECT_LE(*code, 126) << megabytes << " MB: " << said;
    EXPECT_THAT(said, HasSubstr("longhaul-trainer: ")) << megabytes << " MB";
  }
  EXPECT_GE(ours, 4) << "else this has tried too little";
}

}  // namespace
}  // namespace longhaul::e2e
