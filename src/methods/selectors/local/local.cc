// local keeps the window.

#include "methods/keep_none.h"
#include "methods/methods.h"

namespace pith {
namespace {

struct LocalOptions {
  Budget window = Budget::rows(1024);
  Fields fields();
};

constexpr const char* kLocal = "local";

Fields LocalOptions::fields() { return {rows("window", window, "rows kept")}; }

}  // namespace

SelectorRow local_row() {
  SelectorRow row;
  row.info = {kLocal, true,    "the last rows only", "BUZZ (arXiv 2410.23079), baselines",
              {},     "window"};
  row.takes<LocalOptions>();
  row.default_window = window_rows<LocalOptions>;
  row.owns_window = true;
  row.on_gpu = true;
  row.resolve = [](const SelectorPlace& r) { return resolve_keep_none<LocalOptions>(r, kLocal); };
  return row;
}

}  // namespace pith
