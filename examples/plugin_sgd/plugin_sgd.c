/* SGD with momentum as a plug-in: the same bits as the built-in optimizer sgd (docs/howto/your_own_optimizer.md).
 *
 *   cc -std=c99 -O2 -ffp-contract=off -shared -fPIC plugin_sgd.c -o plugin_sgd.so
 *   longhaul-server --plugin ./plugin_sgd.so ...
 *   longhaul-worker --optimizer my_sgd:lr=0.1,momentum=0.9 ...
 *
 * -ffp-contract=off: a compiler may make one instruction of a product and a sum, which rounds once instead of
 * twice. With longhaul's headers in no system folder add -I to where they are. */
#include <longhaul/plugin_api.h>

enum { kLr, kMomentum, kNesterov, kWeightDecay };

static const longhaul_setting kSettings[] = {
    {"lr", "0.1", 0, 0, LONGHAUL_SETTING_REQUIRED},
    {"momentum", "0.9", 0, 1, 0},
    {"nesterov", 0, 0, 0, LONGHAUL_SETTING_FLAG},
    {"weight_decay", "0.0001", 0, 0, 0},
};

static const char* const kState[] = {"momentum_buffer"};

static uint32_t States(const double* settings) { return settings[kMomentum] > 0 ? 1 : 0; }

static const char* Check(const double* settings) {
  return settings[kNesterov] != 0 && settings[kMomentum] == 0 ? "nesterov needs momentum" : 0;
}

static int32_t Step(const longhaul_step* s) {
  const float lr = (float)(s->settings[kLr] * s->rate);
  const float momentum = (float)s->settings[kMomentum];
  const float weight_decay = (float)s->settings[kWeightDecay];
  for (uint64_t i = 0; i < s->count; ++i) {
    const float w = s->values[i];
    const float g = s->gradient[i] + weight_decay * w;
    float step = g;
    if (momentum > 0) {
      const float v = momentum * s->state[0][i] + g;
      s->new_state[0][i] = v;
      step = s->settings[kNesterov] != 0 ? g + momentum * v : v;
    }
    s->updated[i] = w - lr * step;
  }
  return 0;
}

static const longhaul_optimizer kSgd = {.name = "my_sgd",
                                        .settings = kSettings,
                                        .setting_count = sizeof kSettings / sizeof *kSettings,
                                        .state = kState,
                                        .state_count = 1,
                                        .states = States,
                                        .check = Check,
                                        .step = Step};
static const longhaul_optimizer* const kOptimizers[] = {&kSgd};
static const longhaul_plugin kPlugin = {LONGHAUL_PLUGIN_API, 1, kOptimizers, 0, 0};

const longhaul_plugin* longhaul_get_plugin(void) { return &kPlugin; }
