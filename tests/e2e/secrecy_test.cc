// That no secret shows anywhere: in arguments, environments, output, logs, and files that programs write.
//
// Looked for are the pre-shared key and the private keys of certificates, whole and in halves, as bytes and
// as text. This test does not know the keys that a handshake makes; that they are wiped is tested in
// tests/crypto.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/e2e/support/job.h"

namespace longhaul::e2e {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kBase64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string Hex(const std::string& bytes, const std::string& between, bool upper) {
  const char* digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    if (!text.empty()) text += between;
    text += digits[static_cast<uint8_t>(c) >> 4];
    text += digits[static_cast<uint8_t>(c) & 15];
  }
  return text;
}

// Of a multiple of three bytes.
std::string ToBase64(const std::string& bytes) {
  std::string text;
  for (size_t i = 0; i + 3 <= bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) group = group << 8 | static_cast<uint8_t>(bytes[i + j]);
    for (int shift = 18; shift >= 0; shift -= 6) text += kBase64[group >> shift & 63];
  }
  return text;
}

std::string FromBase64(const std::string& text) {
  const std::string alphabet = kBase64;
  std::string bytes;
  uint32_t group = 0;
  int bits = 0;
  for (const char c : text) {
    const size_t digit = alphabet.find(c);
    if (digit == std::string::npos) continue;
    group = group << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits >= 8) bytes += static_cast<char>(group >> (bits -= 8) & 0xff);
  }
  return bytes;
}

std::string FromHex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 2 <= text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::string Decimal(const std::string& bytes, const std::string& between) {
  std::string text;
  for (const char c : bytes) text += (text.empty() ? "" : between) + std::to_string(static_cast<uint8_t>(c));
  return text;
}

// 32 bytes that must not be seen, and how they could look.
class Secret {
 public:
  Secret(std::string name, const std::string& bytes) : name_(std::move(name)) {
    EXPECT_EQ(bytes.size(), 32u) << name_;
    for (const std::string& half : {bytes.substr(0, 16), bytes.substr(16, 16)}) {
      forms_.emplace_back("bytes", half);
      for (const bool upper : {false, true}) {
        for (const char* between : {"", ":", " "}) forms_.emplace_back("hex", Hex(half, between, upper));
      }
      for (const char* between : {",", ", ", " "}) forms_.emplace_back("decimal", Decimal(half, between));
      // Wherever in a longer text it begins.
      for (size_t at = 0; at < 3; ++at) forms_.emplace_back("base64", ToBase64(half.substr(at, 12)));
    }
  }
  // "" when it is not in there; else how it looks. The text itself is not for messages.
  std::string In(const std::string& text) const {
    for (const auto& [form, needle] : forms_) {
      if (text.find(needle) != std::string::npos) return name_ + " as " + form;
    }
    return "";
  }

 private:
  std::string name_;
  std::vector<std::pair<std::string, std::string>> forms_;
};

class SecrecyTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    // What OpenSSL's own tools would write session keys to.
    ASSERT_EQ(::setenv("SSLKEYLOGFILE", KeyLog().c_str(), 1), 0);
  }
  void TearDown() override {
    ::unsetenv("SSLKEYLOGFILE");
    JobTest::TearDown();
  }
  std::string Path(const std::string& name) const { return directory() + "/" + name; }
  std::string KeyLog() const { return Path("sslkeylog"); }

  Program& Keygen(std::vector<std::string> words) {
    words.insert(words.begin(), "keygen");
    Program& keygen = Start("longhaul", words);
    Look(keygen);
    ExpectEnd(keygen, 0);
    return keygen;
  }
  // The private key of a PEM file (Ed25519: its last 32 bytes) or of a PSK file.
  void Guard(const std::string& file) {
    key_files_.push_back(file);
    const std::string text = ReadFile(file);
    std::string bytes;
    if (const size_t psk = text.find("psk = "); psk != std::string::npos) {
      bytes = FromHex(text.substr(psk + 6, 64));
    } else {
      const std::string begin = "-----BEGIN PRIVATE KEY-----";
      const size_t from = text.find(begin);
      ASSERT_NE(from, std::string::npos) << file;
      const std::string der =
          FromBase64(text.substr(from + begin.size(), text.find("-----END", from) - from - begin.size()));
      ASSERT_GE(der.size(), 32u);
      bytes = der.substr(der.size() - 32);
    }
    secrets_.emplace_back(fs::path(file).filename().string(), bytes);
    ASSERT_NE(secrets_.back().In(text), "") << "whoever looks for it would not find it";
  }
  void ExpectNone(const std::string& text, const std::string& where) const {
    for (const Secret& secret : secrets_) EXPECT_EQ(secret.In(text), "") << where;
  }
  // What ps and its like show of a running program.
  void Look(Program& program) {
    const fs::path process = "/proc/" + std::to_string(program.pid());
    const std::string arguments = ReadFile(process / "cmdline");
    if (!arguments.empty()) ++looked_at_;
    ExpectNone(arguments, "arguments");
    for (const char* file : {"environ", "comm", "status"}) ExpectNone(ReadFile(process / file), file);
    std::error_code gone;
    for (const auto& thread : fs::directory_iterator(process / "task", gone)) {
      ExpectNone(ReadFile(thread.path() / "comm"), "a thread's name");
    }
    programs_.push_back(&program);
  }
  // Everything that the programs have said or written until now.
  void ExpectNothingShown() const {
    for (const Program* program : programs_) ExpectNone(program->Everything(), "output");
    size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(directory())) {
      ExpectNone(entry.path().string(), "a file's name");
      const bool key = std::ranges::find(key_files_, entry.path().string()) != key_files_.end();
      if (!entry.is_regular_file() || key) continue;
      ++files;
      ExpectNone(ReadFile(entry.path()), entry.path());
    }
    EXPECT_GT(files, 3u);
    EXPECT_FALSE(fs::exists(KeyLog())) << "session keys are written to whatever file the environment names";
  }
  // A job, its load generator, and one that is refused, as talkative as they can be.
  void RunEverything(const std::string& server_key, const std::vector<std::string>& worker_keys,
                     const std::string& tool_key, const std::string& wrong_key) {
    Look(StartServer(
        {{"--key", server_key}, {"--log-level", "debug"}, {"--json", Path("server.json")}, {"--once", ""}}));
    Program& flow = Start("longhaul", {"bench", "flow", "--join", address(), "--key", tool_key, "--seconds",
                                       "0.5", "--series", "0.1", "--json", Path("flow.json")});
    Look(flow);
    ExpectEnd(flow, 0);
    const auto worker = [&](uint32_t rank, const std::string& key, const Flags& more) -> Program& {
      return StartWorker(rank, Merged({{"--key", key},
                                       {"--rounds", "100"},
                                       {"--fault", "delay=5ms"},
                                       {"--log-level", "trace"},
                                       {"--json", Path("worker" + std::to_string(rank) + ".json")}},
                                      more));
    };
    Program& refused = worker(0, wrong_key, {{"--connect-timeout", "2"}});
    ExpectEnd(refused, 1);
    Look(refused);
    looked_at_ = 0;
    Program& a = worker(0, worker_keys[0], {});
    Program& b = worker(1, worker_keys[1], {});
    ASSERT_TRUE(server().WaitForEvent("start")) << server().Everything();
    for (Program* program : {&server(), &a, &b}) Look(*program);
    EXPECT_EQ(looked_at_, 3) << "they are running";
    EXPECT_THAT(ReadFile("/proc/" + std::to_string(a.pid()) + "/environ"), HasSubstr("LONGHAUL_KEY="));
    ExpectEnd(a, 0);
    ExpectEnd(b, 0);
    ExpectEnd(server(), 0);
    for (const char* file : {"server.json", "worker0.json", "worker1.json", "flow.json"}) {
      EXPECT_FALSE(ReadFile(Path(file)).empty()) << file;
    }
    EXPECT_THAT(server().Errors(), AllOf(HasSubstr("security"), HasSubstr("[debug]")))
        << "else logs say nothing";
    ExpectNothingShown();
  }

 private:
  std::vector<Secret> secrets_;
  std::vector<std::string> key_files_;
  std::vector<const Program*> programs_;
  int looked_at_ = 0;
};

TEST_F(SecrecyTest, NoSecretIsShownWithASharedKey) {
  Guard(key_file());
  Keygen({"--out", Path("other.key")});
  Guard(Path("other.key"));
  RunEverything(key_file(), {key_file(), key_file()}, key_file(), Path("other.key"));
}

TEST_F(SecrecyTest, NoSecretIsShownWithCertificates) {
  Guard(key_file());
  Keygen({"--ca", "--out", Path("ca.pem")});
  Guard(Path("ca.pem"));
  for (const auto& [role, name, job] : {std::tuple{"server", "ams", "default"},
                                        {"worker", "fra", "default"},
                                        {"worker", "nyc", "default"},
                                        {"tool", "ops", "default"},
                                        {"worker", "oslo", "pears"}}) {
    const std::string file = Path(std::string(name) + ".pem");
    Keygen({"--from", Path("ca.pem"), "--role", role, "--name", name, "--job", job, "--out", file});
    Guard(file);
  }
  RunEverything(Path("ams.pem"), {Path("fra.pem"), Path("nyc.pem")}, Path("ops.pem"), Path("oslo.pem"));
}

// A key file that is damaged is described, not quoted.
TEST_F(SecrecyTest, NoSecretIsShownOfAKeyFileThatCannotBeRead) {
  Guard(key_file());
  const std::string good = ReadFile(key_file());
  const size_t hex = good.find("psk = ") + 6;
  std::vector<std::string> bad = {
      good.substr(0, hex + 63),         good.substr(0, hex + 64) + "00\n", good + good,
      good.substr(good.find('\n') + 1), "psk: " + good.substr(hex),        good.substr(hex)};
  bad.push_back(good);
  bad.back()[hex + 40] = 'x';
  int number = 0;
  for (const std::string& text : bad) {
    const std::string file = Path("bad" + std::to_string(number++) + ".key");
    std::ofstream(file) << text;
    fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
    Program& refused =
        Start("longhaul-server", {"--listen", "127.0.0.1:0", "--key", file, "--log-level", "debug"});
    ExpectEnd(refused, 2);
    EXPECT_THAT(refused.Errors(), HasSubstr(file));
    ExpectNone(refused.Everything(), "what is said of " + file);
  }
}

}  // namespace
}  // namespace longhaul::e2e
