#include "binding.h"

namespace pith::python {
void bind_layer(nb::module_&) {}
}  // namespace pith::python
