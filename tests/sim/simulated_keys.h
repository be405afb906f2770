// Real TLS and AEAD in a simulated run: keys of the simulated jobs, and OpenSSL's chance made an argument, so
// that a seed gives the same bytes again.
#pragma once

#include <cstdint>
#include <memory>

#include "tests/sim/plan.h"
#include "transport/core/security/security.h"

namespace longhaul::sim {

// All that OpenSSL draws in this process comes from `seed` from now on. Not thread-safe; never outside of
// tests: keys made like that are no secret.
void SeedOpenSsl(uint64_t seed);

// Of the job's server, or of one of its workers. Null without keys.
std::unique_ptr<transport::Security> ServerSecurity(Protection protection, uint32_t job);
std::unique_ptr<transport::Security> WorkerSecurity(Protection protection, uint32_t job, uint32_t rank);

}  // namespace longhaul::sim
