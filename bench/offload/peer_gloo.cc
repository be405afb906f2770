// A rank of gloo, over TCP on 127.0.0.1 (its way between processes of one host): longhaul_offload_gloo_rank
// TURNS_FILE RANK DIRECTORY
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>
#include <vector>

#include "bench/offload/turns.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  auto* const turns = longhaul::offload::Turns::Map(argv[1]);
  const int rank = std::atoi(argv[2]);
  auto store = gloo::rendezvous::FileStore(argv[3]);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, turns->kRanks);
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  context->connectFullMesh(store, device);
  const size_t count = turns->bytes / sizeof(float);
  std::vector<float> send(count, 1), receive(count);
  turns->Take(static_cast<size_t>(rank), receive.data(), true, [&] {
    gloo::AllreduceOptions options(context);
    options.setInput(send.data(), count);
    options.setOutput(receive.data(), count);
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
  });
  return 0;
}
