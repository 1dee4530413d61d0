// Opening a session while signals are heeded.
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>

#include "cmd/session.h"
#include "cmd/status_line.h"
#include "cmd/streams.h"
#include "core/base/error.h"
#include "core/base/interrupt.h"

namespace bolt {

std::unique_ptr<Session> open_session(const ModelOptions& model, const HowOptions& how,
                                      const ReceiptOptions& receipt, bool quiet) {
  constexpr auto kLook = std::chrono::milliseconds(20), kGrace = std::chrono::milliseconds(500);
  StatusLine status(!quiet);
  std::promise<std::unique_ptr<Session>> promise;
  std::future<std::unique_ptr<Session>> session = promise.get_future();
  std::thread loader([&] {
    try {
      promise.set_value(std::make_unique<Session>(model, how, receipt));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  });
  const auto start = std::chrono::steady_clock::now();
  while (session.wait_for(kLook) != std::future_status::ready) {
    if (interrupt_flag() && session.wait_for(kGrace) != std::future_status::ready) {
      status.clear();
      write_err("bolt: interrupted while loading; nothing was run, so there is no receipt\n");
      ::_exit(static_cast<int>(Exit::interrupted));  // the loader still runs: no destructor may
    }
    if (std::chrono::steady_clock::now() - start > std::chrono::milliseconds(300)) {
      status.show("loading the package");
    }
  }
  loader.join();
  return session.get();
}

}  // namespace bolt
