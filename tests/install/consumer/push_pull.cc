// A program with its server inside: push_pull KEY_FILE. The examples of the header comments are in
// examples.h.
#include <longhaul/client.h>
#include <longhaul/server.h>

#include <cstdio>
#include <string>
#include <vector>

#include "examples.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string key = argv[1];
  if (!longhaul::JobSpec().Validate().ok()) return 1;
  auto server =
      longhaul::Server::Start({.listen = "127.0.0.1:0", .key_file = key, .workers = 1, .once = true});
  if (!server.ok()) {
    std::fprintf(stderr, "server: %s\n", server.status().ToString().c_str());
    return 1;
  }
  const std::vector<float> gradient(1000, 1.0f);
  std::vector<float> weights(gradient.size());
  const longhaul::Status pushed = ClientExample(server->address(), key, gradient, weights);
  if (!pushed.ok()) std::fprintf(stderr, "client: %s\n", pushed.ToString().c_str());
  const longhaul::Status outcome = server->Wait();
  if (!outcome.ok()) std::fprintf(stderr, "job: %s\n", outcome.ToString().c_str());
  // sgd:lr=0.1 from zero, by a gradient of one.
  const bool right = weights.front() == -0.1f && weights.back() == -0.1f;
  std::printf("w[0] = %g\n", static_cast<double>(weights.front()));
  return pushed.ok() && outcome.ok() && right ? 0 : 1;
}
