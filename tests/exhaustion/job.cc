#include "tests/exhaustion/job.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <vector>

#include "longhaul/client.h"
#include "longhaul/server.h"

namespace longhaul::exhaustion {
namespace {

using std::chrono::seconds;

constexpr Duration kEnds = seconds(8);  // idle time-outs and what the end of a job takes, and a busy machine

// What the child says, of fixed size.
struct Report {
  bool struck = false;
  bool finished = false;
  char text[400] = {};
};

// Empty: all went well. "hangs" when something comes to no end.
std::string Work() {
  ServerOptions options{.listen = "127.0.0.1:0", .insecure = true, .once = true};
  options.job_spec.idle_timeout = seconds(1);
  auto server = Server::Start(options);
  if (!server.ok()) return server.status().ToString();
  ConnectOptions connect{.servers = {server->address()}, .insecure = true};
  connect.idle_timeout = seconds(1);
  auto client = Client::Connect(connect);
  if (!client.ok()) return client.status().ToString();
  TensorOptions declaration{.count = 3000, .optimizer = "sgd:lr=1"};
  declaration.high_share = 1;  // all of it arrives: the values are exact
  const auto tensor = client->Declare("w", declaration);
  if (!tensor.ok()) return tensor.status().ToString();
  std::vector<float> gradient(3000, 1.0f), out(3000);
  const auto wait = [](const Operation& operation) {
    const Status outcome = operation.WaitFor(kEnds);
    return outcome.code() == StatusCode::kDeadlineExceeded ? "hangs" : outcome.ok() ? "" : outcome.ToString();
  };
  for (int round = 0; round < 2; ++round) {
    if (std::string wrong = wait(client->PushPull(*tensor, gradient, out)); !wrong.empty()) return wrong;
  }
  if (std::string wrong = wait(client->Pull(*tensor, out, {})); !wrong.empty()) return wrong;
  for (const float value : out) {
    if (value != -2.0f) return "wrong value " + std::to_string(value);
  }
  if (Status left = client->Leave(); !left.ok()) return left.ToString();
  const auto over = server->WaitFor(kEnds);
  if (!over) return "hangs: the server";
  return over->ok() ? "" : over->ToString();
}

constexpr int kInJson = 77;

// Destructors of nlohmann::json allocate; one that fails there ends any program.
[[noreturn]] void OnTerminate() {
  Disarm();
  if (IsOnTheStack({"nlohmann"})) ::_exit(kInJson);
  std::abort();
}

Report Child(What what, uint64_t n) {
  Report report;
  Arm(what, n);
  std::string text;
  try {
    text = Work();
  } catch (const std::bad_alloc&) {  // thrown in the caller's own thread
    Disarm();
    text = "std::bad_alloc at the caller";
  }
  Disarm();
  report.struck = Struck();
  report.finished = text.empty();
  std::strncpy(report.text, text.c_str(), sizeof report.text - 1);
  return report;
}

}  // namespace

Ending RunJob(What what, uint64_t n) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) return {.crashed = true, .text = "no pipe"};
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    std::set_terminate(OnTerminate);
    const Report report = Child(what, n);
    const ssize_t written = ::write(pipe_ends[1], &report, sizeof report);
    ::_exit(written == sizeof report ? 0 : 1);
  }
  ::close(pipe_ends[1]);
  Report report;
  const bool told = ::read(pipe_ends[0], &report, sizeof report) == sizeof report;
  ::close(pipe_ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  Ending ending{report.struck, report.finished, !told, report.text};
  if (!told && WIFEXITED(status) && WEXITSTATUS(status) == kInJson)
    return {.struck = true, .text = "a destructor of JSON"};
  if (!told)
    ending.text = WIFSIGNALED(status) ? std::string("signal ") + ::strsignal(WTERMSIG(status)) : "no report";
  return ending;
}

}  // namespace longhaul::exhaustion
