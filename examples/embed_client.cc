// A program of your own that trains with longhaul: it embeds the client and needs one header.
//
//   longhaul keygen --out job.key
//   longhaul-server --listen 127.0.0.1:7700 --workers 1 --key job.key --once &
//   embed_client 127.0.0.1:7700
//
// It fits w to the target (0, 1, 2, ...) by gradient descent; the parameters and the optimizer live on the
// server.

#include <longhaul/client.h>

#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  // Everything that can fail returns a Status or a Result: nothing throws, and no wait outlasts the server's
  // silence.
  const auto fail = [](const longhaul::Status& status) {
    std::fprintf(stderr, "embed_client: %s\n", status.ToString().c_str());
    return 1;
  };

  // Join the job as worker 0 of 1, with the key that the server has: everything on the way is encrypted.
  longhaul::ConnectOptions options;
  options.servers = {argc > 1 ? argv[1] : "127.0.0.1:7700"};
  options.key_file = argc > 2 ? argv[2] : "job.key";
  longhaul::Result<longhaul::Client> client = longhaul::Client::Connect(options);
  if (!client.ok()) return fail(client.status());

  // A tensor by name. Its optimizer runs on the server; without initial values the parameters start at zero.
  std::vector<float> w(10'000), gradient(w.size());
  longhaul::TensorOptions tensor{.count = w.size(), .optimizer = "sgd:lr=0.5"};
  longhaul::Result<longhaul::Tensor> weights = client->Declare("w", tensor);
  if (!weights.ok()) return fail(weights.status());

  for (int round = 1; round <= 20; ++round) {
    // The gradient of |w - target|^2 / 2.
    for (size_t i = 0; i < w.size(); ++i) gradient[i] = w[i] - static_cast<float>(i);
    // Gradient out, updated parameters in. Both spans are borrowed until the operation is done: compute
    // something else meanwhile, or start the next tensor's operation.
    longhaul::Operation step = client->PushPull(*weights, gradient, w);
    if (longhaul::Status status = step.Wait(); !status.ok()) return fail(status);
    std::printf("round %2d: w[9999] = %8.2f  (%.1f ms)\n", round, static_cast<double>(w.back()),
                step.stats().seconds * 1e3);
  }
  // The orderly end: the server knows that this worker has finished.
  if (longhaul::Status status = client->Leave(); !status.ok()) return fail(status);
  return 0;
}
