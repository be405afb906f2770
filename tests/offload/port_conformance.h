// What every port has to do, whatever lies between a rank and its engine: the suite runs on devices that a
// factory opens. A port's test instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(InProcess, PortConformance, testing::Values(PortUnderTest{"in process", OpenSite}));
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "longhaul/offload.h"

namespace longhaul::offload {

// All ranks of a site, in this process; a port may have other processes and sockets behind them.
class PortSite {
 public:
  virtual ~PortSite() = default;
  virtual Device& device(uint8_t node, uint8_t rank) = 0;
  // Opens a rank that is open already, or that the site does not have.
  virtual Status OpenAgain(uint8_t node, uint8_t rank) = 0;
};

struct PortUnderTest {
  std::string name;
  std::function<std::unique_ptr<PortSite>(const SiteOptions&)> open;
  bool loses_datagrams = false;  // ordinary ones, which are not repeated
  friend void PrintTo(const PortUnderTest& port, std::ostream* out) { *out << port.name; }
};

class PortConformance : public testing::TestWithParam<PortUnderTest> {};

}  // namespace longhaul::offload
