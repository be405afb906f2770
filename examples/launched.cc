// A program whose ranks longhaul-worker starts: where the job is and which rank this one is says its
// environment.
//
//   longhaul-server --listen 127.0.0.1:7700 --workers 4 --insecure &
//   longhaul-worker --join 127.0.0.1:7700 --insecure --world-size 4 --ranks 4 -- example_launched
//
// The server steps down a constant slope, the mean of the ranks' numbers.

#include <longhaul/client.h>

#include <cstdio>
#include <vector>

int main() {
  const auto fail = [](const longhaul::Status& status) {
    std::fprintf(stderr, "example_launched: %s\n", status.ToString().c_str());
    return 1;
  };
  const auto options = longhaul::OptionsFromEnvironment();
  if (!options.ok()) return fail(options.status());
  auto client = longhaul::Client::Connect(*options);
  if (!client.ok()) return fail(client.status());
  longhaul::TensorOptions tensor{.high_share = 1, .count = 10, .optimizer = "sgd:lr=1"};
  const auto weights = client->Declare("w", tensor);
  if (!weights.ok()) return fail(weights.status());
  const std::vector<float> gradient(10, static_cast<float>(client->rank()));
  std::vector<float> w(10);
  for (int round = 0; round < 3; ++round) {
    if (const auto status = client->PushPull(*weights, gradient, w).Wait(); !status.ok()) return fail(status);
  }
  std::printf("%u %u %g\n", client->rank(), client->world_size(), static_cast<double>(w[0]));
  const auto status = client->Leave();
  return status.ok() ? 0 : fail(status);
}
