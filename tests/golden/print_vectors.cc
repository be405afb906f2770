// Writes vectors.txt and vectors.jsonl to the folder given. Only for a deliberate change of the wire format,
// together with proto/version.h, docs/reference/wire_format.md and the CHANGELOG.
#include <fstream>
#include <iostream>

#include "proto/version.h"
#include "tests/golden/samples.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: print_vectors FOLDER\n";
    return 2;
  }
  const std::string folder = argv[1];
  std::ofstream vectors(folder + "/vectors.txt"), text(folder + "/vectors.jsonl");
  vectors << "# name, bytes in hex. Wire version " << longhaul::wire::kVersion << ". See README.md.\n";
  for (const auto& sample : longhaul::wire::GoldenSamples()) {
    vectors << sample.name << " " << longhaul::wire::ToHex(longhaul::wire::EncodeGolden(sample.value))
            << "\n";
    text << longhaul::wire::GoldenText(sample) << "\n";
  }
  return vectors.good() && text.good() ? 0 : 1;
}
