#include "serve/status_endpoints.h"

#include "serve/heap.h"
#include "serve/page.h"

namespace pith::serve {

void StatusEndpoints::health(Visit& v) {
  if (scheduler_.draining()) throw Refusal(503, "draining", "the server is about to end");
  v.reply->send(json_response(R"({"status":"ok"})"));
}

void StatusEndpoints::metrics(Visit& v) {
  Gauges now = scheduler_.gauges();
  now.heap = heap_bytes();
  v.reply->send(
      {200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}}, metrics_.text(now)});
}

void StatusEndpoints::page(Visit& v) {
  const std::string name = v.rest.empty() ? "index.html" : v.rest;
  for (const PageFile& file : page_files()) {
    if (file.name != name) continue;
    // Nothing from elsewhere is loaded, and no other page may frame this one.
    return v.reply->send({200,
                          {{"Content-Type", std::string(file.type)},
                           {"Cache-Control", "no-cache"},
                           {"Content-Security-Policy",
                            "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
                            "form-action 'self'"},
                           {"Referrer-Policy", "no-referrer"}},
                          std::string(file.text)});
  }
  throw Refusal(404, "not_found", "the page has no such file");
}

void StatusEndpoints::status(Visit& v) {
  const Gauges g = scheduler_.gauges();
  v.reply->json({{"running", g.running},
                 {"waiting", g.waiting},
                 {"idle", g.idle},
                 {"budget", g.budget},
                 {"reserved", g.reserved},
                 {"in_use", g.in_use},
                 {"scratch", g.scratch},
                 {"weights", g.weights},
                 {"snapshots", g.snapshots},
                 {"snapshot_bytes", g.snapshot_bytes},
                 {"tokens_reused", g.tokens_reused}});
}

}  // namespace pith::serve
