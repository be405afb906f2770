// Local-steps training with the client API: H optimizer steps on this worker between two rounds, old - new as
// the gradient of the round, and an outer optimizer on the server (docs/howto/local_steps.md).
//
//   longhaul-server --listen 127.0.0.1:7700 --workers 1 --key job.key --once &
//   example_local_steps 127.0.0.1:7700
//
// It fits w to the target (0, 1, 2, ...).

#include <longhaul/client.h>

#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  constexpr int kLocalSteps = 8;      // H
  constexpr float kLocalRate = 0.1f;  // of the local optimizer, plain SGD here
  const auto fail = [](const longhaul::Status& status) {
    std::fprintf(stderr, "example_local_steps: %s\n", status.ToString().c_str());
    return 1;
  };

  longhaul::ConnectOptions options;
  options.servers = {argc > 1 ? argv[1] : "127.0.0.1:7700"};
  options.key_file = argc > 2 ? argv[2] : "job.key";
  longhaul::Result<longhaul::Client> client = longhaul::Client::Connect(options);
  if (!client.ok()) return fail(client.status());

  // The outer optimizer is the tensor's: it steps on the mean of what the workers push.
  std::vector<float> w(10'000), old(w.size()), difference(w.size());
  longhaul::TensorOptions tensor{.count = w.size(), .optimizer = "sgd:lr=0.7,momentum=0.5,nesterov"};
  longhaul::Result<longhaul::Tensor> weights = client->Declare("w", tensor);
  if (!weights.ok()) return fail(weights.status());
  // Another worker's values may have been taken as the initial ones, or the job may be under way.
  if (longhaul::Status status = client->Pull(*weights, w).Wait(); !status.ok()) return fail(status);

  for (int round = 1; round <= 30; ++round) {
    old = w;
    for (int step = 0; step < kLocalSteps; ++step) {
      // Any optimizer with state of its own may stand here; the state stays with this worker.
      for (size_t i = 0; i < w.size(); ++i) w[i] -= kLocalRate * (w[i] - static_cast<float>(i));
    }
    for (size_t i = 0; i < w.size(); ++i) difference[i] = old[i] - w[i];
    // The round's parameters replace the local ones.
    longhaul::Operation outer = client->PushPull(*weights, difference, w);
    if (longhaul::Status status = outer.Wait(); !status.ok()) return fail(status);
    std::printf("round %2d: w[9999] = %8.2f\n", round, static_cast<double>(w.back()));
  }
  if (longhaul::Status status = client->Leave(); !status.ok()) return fail(status);
  return 0;
}
