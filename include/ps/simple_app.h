// Requests and responses of a number and a text.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ps/internal/customer.h"
#include "ps/internal/postoffice.h"

namespace ps {

struct SimpleData {
  int head = 0;
  std::string body;
  int sender = 0;  // node
  int timestamp = 0;
  int customer_id = 0;  // the sender's
};

namespace internal {

// A function that one thread sets while another calls it.
template <typename F>
class SharedHandle {
 public:
  void Set(const F& function) {
    auto fresh = std::make_shared<const F>(function);
    const std::lock_guard<std::mutex> lock(mutex_);
    function_ = std::move(fresh);
  }
  // Null: none was set.
  std::shared_ptr<const F> Get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return function_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const F> function_;
};

}  // namespace internal

class SimpleApp {
 public:
  using Handle = std::function<void(const SimpleData& received, SimpleApp* app)>;

  // app_id: the other end's, too. customer_id: unique in this process; requests find only app_id's at servers
  // and at the scheduler.
  SimpleApp(int app_id, int customer_id) : SimpleApp() { Open(app_id, customer_id); }
  explicit SimpleApp(int app_id) : SimpleApp(app_id, app_id) {}
  virtual ~SimpleApp() { Close(); }
  SimpleApp(const SimpleApp&) = delete;
  SimpleApp& operator=(const SimpleApp&) = delete;

  // To a node or to all of a group. The time stamp of the request.
  virtual int Request(int head, const std::string& body, int receiver) {
    const int timestamp = obj_->NewRequest(receiver);
    for (const int node : Postoffice::Get()->GetNodeIDs(receiver)) {
      Message message = Of(head, body, timestamp, node);
      message.customer_id = obj_->customer_id();
      message.request = true;
      obj_->Send(message);
    }
    return timestamp;
  }
  // Until all have responded. Errors: Error, by name, also when a node dies meanwhile.
  virtual void Wait(int timestamp) { obj_->WaitRequest(timestamp); }
  void Response(const SimpleData& request, const std::string& body = "") {
    Message message = Of(request.head, body, request.timestamp, request.sender);
    message.customer_id = request.customer_id;
    obj_->Send(message);
  }
  // From the next message on. Until then requests are answered with nothing.
  void set_request_handle(const Handle& handle) {
    CHECK(handle) << "an empty request handle";
    request_handle_.Set(handle);
  }
  virtual void set_response_handle(const Handle& handle) {
    CHECK(handle) << "an empty response handle";
    response_handle_.Set(handle);
  }
  virtual Customer* get_customer() { return obj_; }

 protected:
  SimpleApp() {
    request_handle_.Set([](const SimpleData& request, SimpleApp* app) { app->Response(request); });
    response_handle_.Set([](const SimpleData&, SimpleApp*) {});
  }

  void Open(int app_id, int customer_id) {
    obj_ = new Customer(app_id, customer_id, [this](const Message& message) { Process(message); });
  }
  // By the destructor of the class whose Process is called.
  void Close() {
    delete obj_;
    obj_ = nullptr;
  }
  virtual void Process(const Message& message) {
    SimpleData data;
    data.head = message.head;
    data.body.assign(message.vals.data(), message.vals.size());
    data.sender = message.sender;
    data.timestamp = message.timestamp;
    data.customer_id = message.customer_id;
    const auto handle = (message.request ? request_handle_ : response_handle_).Get();
    (*handle)(data, this);
  }

  Customer* obj_ = nullptr;

 private:
  Message Of(int head, const std::string& body, int timestamp, int receiver) const {
    Message message;
    message.app_id = obj_->app_id();
    message.recver = receiver;
    message.timestamp = timestamp;
    message.head = head;
    message.simple_app = true;
    message.value_bytes = 1;
    message.vals.CopyFrom(body.data(), body.size());
    return message;
  }

  internal::SharedHandle<Handle> request_handle_;
  internal::SharedHandle<Handle> response_handle_;
};

}  // namespace ps
