// `longhaul keygen`: makes what --key FILE wants: a key that a whole job shares, or a certificate of one's
// own for every server and worker, signed by an authority that only the operator has.
#pragma once

#include <cstdint>
#include <string>

namespace longhaul::cli {

struct KeygenOptions {
  std::string out;         // new file, mode 0600
  std::string job;         // whose members the key is for, not of an authority; empty: "default"
  bool authority = false;  // make an authority (CA)
  std::string from;        // make a certificate signed by the authority in this file
  std::string role;        // with `from`: server | worker | tool; empty: worker
  std::string name;        // with `from`: of the machine or site, as in the server's --allow
  std::string ranks;       // with `from`, of a worker: "3" or "1-3"; empty: the certificate does not say
  // Of an authority or a certificate; 0: 3650 of an authority, 365 of a certificate or as long as its
  // authority lives.
  uint32_t days = 0;
};

// Exit code: 0 fine, 1 the file cannot be written, 2 bad options, among them those that mean nothing
// together.
int RunKeygen(const KeygenOptions& options);

}  // namespace longhaul::cli
