#pragma once
// How the server is: for probes, dashboards, and its own page.

#include "serve/metrics.h"
#include "serve/scheduler.h"
#include "serve/visit.h"

namespace pith::serve {

class StatusEndpoints {
 public:
  StatusEndpoints(Scheduler& scheduler, const Metrics& metrics)
      : scheduler_(scheduler), metrics_(metrics) {}

  void health(Visit& v);
  void metrics(Visit& v);
  /// The page's files.
  void page(Visit& v);
  /// For the page's side panel.
  void status(Visit& v);

 private:
  Scheduler& scheduler_;
  const Metrics& metrics_;
};

}  // namespace pith::serve
