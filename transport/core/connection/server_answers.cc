#include "transport/core/connection/server_answers.h"

#include <utility>

namespace longhaul::transport {

ServerAnswers::Answer* ServerAnswers::Of(Instant now, const Handshake& first, wire::ConnectionId remote,
                                         const wire::TransportParametersFrame& parameters) {
  const auto known = std::ranges::find_if(answers_, [&](const std::unique_ptr<Answer>& a) {
    return a->remote == remote && a->parameters == parameters;
  });
  if (known != answers_.end()) return known->get();
  if (!rate_.Take(now)) return nullptr;
  std::unique_ptr<Handshake> handshake = first.Again(in_order_);
  if (handshake == nullptr) return nullptr;
  if (answers_.size() == kMaxAnswers) answers_.erase(answers_.begin());
  answers_.push_back(std::make_unique<Answer>(Answer{remote, parameters, std::move(handshake)}));
  return answers_.back().get();
}

void ServerAnswers::Drop(const Answer* answer) {
  in_order_ = true;
  std::erase_if(answers_, [&](const std::unique_ptr<Answer>& a) { return a.get() == answer; });
}

ServerAnswers::Answer ServerAnswers::Choose(Answer* answer) {
  Answer chosen = std::move(*answer);
  answers_.clear();
  return chosen;
}

ServerAnswers::Answer* ServerAnswers::Sender() {
  const auto sender = std::ranges::find_if(
      answers_, [](const std::unique_ptr<Answer>& a) { return a->handshake->WantsToSend(); });
  return sender == answers_.end() ? nullptr : sender->get();
}

Instant ServerAnswers::Deadline() const {
  Instant next = Instant::Infinite();
  for (const std::unique_ptr<Answer>& a : answers_) next = std::min(next, a->handshake->Deadline());
  return next;
}

void ServerAnswers::OnTimeout(Instant now) {
  for (const std::unique_ptr<Answer>& a : answers_) a->handshake->OnTimeout(now);
}

}  // namespace longhaul::transport
