/* Shared objects that are no plug-in of this version: -DNO_SYMBOL, -DLACKS (needs what is not there),
 * -DOTHER_VERSION, -DTAKEN (a built-in one's name). */
#include <longhaul/plugin_api.h>

#ifdef LACKS
extern int there_is_none(void);
#else
static int there_is_none(void) { return 1; }
#endif

static int32_t Step(const longhaul_step* s) { return s->count == 0 ? there_is_none() : 0; }

static const longhaul_optimizer kRule = {.name = "sgd", .step = Step};
static const longhaul_optimizer* const kRules[] = {&kRule};
#ifdef OTHER_VERSION
static const longhaul_plugin kPlugin = {LONGHAUL_PLUGIN_API + 1, 1, kRules, 0, 0};
#else
static const longhaul_plugin kPlugin = {LONGHAUL_PLUGIN_API, 1, kRules, 0, 0};
#endif

#ifdef NO_SYMBOL
#define longhaul_get_plugin of_another_name
const longhaul_plugin* of_another_name(void);
#endif
const longhaul_plugin* longhaul_get_plugin(void) { return &kPlugin; }
