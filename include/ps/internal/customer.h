// One end of requests and responses in a process: counts what is answered, and handles what comes in a thread
// of its own, one message at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "ps/base.h"
#include "ps/sarray.h"

namespace ps {

// What two nodes say to each other. Programs see it as SimpleData, or as KVMeta and KVPairs.
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

class Customer {
 public:
  using RecvHandle = std::function<void(const Message&)>;

  // May stand before Start. An exception of `handle` ends the job, by name. Errors: Error (there is a
  // customer with these numbers).
  Customer(int app_id, int customer_id, RecvHandle handle);
  // Ends the thread, after the message that it handles.
  ~Customer();
  Customer(const Customer&) = delete;
  Customer& operator=(const Customer&) = delete;

  int app_id() const;
  int customer_id() const;

  // A time stamp for a request to a node or a group, which is over after as many responses. Waits while
  // kMaxRequests are open, but for this customer's own thread. Errors: Error (the job has failed).
  int NewRequest(int recver);
  static constexpr int kMaxRequests = 4096;
  // Errors: Error, by name, also when a node dies meanwhile, and in this customer's own thread.
  void WaitRequest(int timestamp);
  int NumResponse(int timestamp);
  void AddResponse(int timestamp, int count = 1);
  // To message.recver. May wait while too much is unsent: of a KVServer's thread and of the program's, never
  // of a worker's own. Errors: Error.
  void Send(const Message& message);

 private:
  friend class Postoffice;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ps
