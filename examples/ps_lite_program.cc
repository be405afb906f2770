// A program of ps-lite, built against longhaul: logistic regression by workers that hold different samples,
// on servers that hold the weights and apply gradients as they come.
//
//   longhaul keygen --out job.key
//   export LONGHAUL_KEY=job.key DMLC_PS_ROOT_URI=127.0.0.1 DMLC_PS_ROOT_PORT=8000 DMLC_NUM_SERVER=2 DMLC_NUM_WORKER=2
//   for role in scheduler server server worker worker; do DMLC_ROLE=$role example_ps_lite_program & done; wait
//
// First the sums: what all workers push, by the default handle of app 0. Then the regression, by a handle of
// app 1 that makes a step of each gradient. Keys are what they are: no server knows them before.

#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "ps/ps.h"

using namespace ps;

namespace {

constexpr int kFeatures = 20;
constexpr int kRounds = 60;
constexpr float kRate = 0.5f;

// w -= rate * gradient for what is pushed; w for what is pulled.
struct Descent {
  void operator()(const KVMeta& meta, const KVPairs<float>& pairs, KVServer<float>* server) {
    KVPairs<float> answer;
    for (size_t i = 0; meta.push && i < pairs.keys.size(); ++i)
      weights[pairs.keys[i]] -= kRate * pairs.vals[i];
    if (meta.pull) {
      answer.keys = pairs.keys;
      for (const Key key : pairs.keys) answer.vals.push_back(weights[key]);
    }
    server->Response(meta, answer);
  }
  std::unordered_map<Key, float> weights;
};

void StartServer() {
  if (!IsServer()) return;
  auto* sums = new KVServer<float>(0);
  sums->set_request_handle(KVServerDefaultHandle<float>());
  auto* model = new KVServer<float>(1);
  model->set_request_handle(Descent());
  RegisterExitCallback([sums, model] {
    delete sums;
    delete model;
  });
}

// Every worker adds the same to the same keys, which lie in all servers' ranges.
void Sum() {
  KVWorker<float> kv(0, 0);
  const size_t count = 5000;
  const int times = 20;
  std::vector<Key> keys(count);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    keys[i] = kMaxKey / count * i;
    values[i] = static_cast<float>(i % 17);
  }
  std::vector<int> pushes;
  for (int i = 0; i < times; ++i) pushes.push_back(kv.Push(keys, values));
  for (const int push : pushes) kv.Wait(push);
  Postoffice::Get()->Barrier(0, kWorkerGroup);

  std::vector<float> sums;
  kv.Wait(kv.Pull(keys, &sums));
  CHECK_EQ(sums.size(), count);
  for (size_t i = 0; i < count; ++i) CHECK_EQ(sums[i], values[i] * static_cast<float>(times * NumWorkers()));
  LOG(INFO) << "worker " << MyRank() << ": " << count << " sums are right";
}

// Labels by a hidden direction; features are there or not, as in a table with many columns.
void Regression() {
  KVWorker<float> kv(1, 1);
  std::mt19937 random(static_cast<unsigned>(MyRank()) + 1);
  std::vector<Key> keys(kFeatures);
  for (Key i = 0; i < kFeatures; ++i) keys[i] = kMaxKey / kFeatures * i + i;
  double right = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<float> w, gradient(kFeatures, 0.0f);
    kv.Wait(kv.Pull(keys, &w));
    right = 0;
    const int samples = 200;
    for (int sample = 0; sample < samples; ++sample) {
      std::vector<int> on;
      float logit = 0, truth = 0;
      for (int i = 0; i < kFeatures; ++i) {
        if (random() % 4 != 0) continue;
        on.push_back(i);
        logit += w[static_cast<size_t>(i)];
        truth += i % 2 == 0 ? 1.0f : -1.0f;
      }
      const float label = truth > 0 ? 1.0f : 0.0f;
      const float error = 1 / (1 + std::exp(-logit)) - label;
      for (const int i : on) gradient[static_cast<size_t>(i)] += error / samples;
      right += (logit > 0) == (label > 0.5f) ? 1.0 / samples : 0;
    }
    kv.Wait(kv.Push(keys, gradient));
  }
  CHECK_GT(right, 0.9) << "of the last round's samples";
  LOG(INFO) << "worker " << MyRank() << ": " << 100 * right << " % of the samples are right";
}

}  // namespace

int main() {
  Start(0);
  StartServer();
  if (IsWorker()) {
    Sum();
    Regression();
  }
  Finalize(0, true);
  return 0;
}
