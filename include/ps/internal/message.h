// What two nodes say to each other. Of liblonghaul; programs see SimpleData and KVMeta.
#pragma once

#include <cstdint>
#include <string>

#include "ps/base.h"
#include "ps/sarray.h"

namespace ps {

struct Message {
  int app_id = 0;
  int customer_id = 0;  // the one that asked
  int sender = 0;       // node
  int recver = 0;       // node
  int timestamp = 0;    // of the request, at the one that asked
  int head = 0;         // SimpleData::head, KVMeta::cmd
  bool request = false;
  bool push = false;
  bool pull = false;
  bool simple_app = false;
  uint32_t value_bytes = 0;  // of one value
  SArray<Key> keys;
  SArray<char> vals;  // or the body of a SimpleData
  SArray<int> lens;
};

}  // namespace ps
