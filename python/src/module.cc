// pith._pith: the C++ engine under its own names. python/pith has the facades.

#include "binding.h"
#include "pith/version.h"

namespace pith::python {

Progress Watch::progress() {
  return [this](size_t done, size_t total) {
    nb::gil_scoped_acquire lock;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (progress_.is_none()) return true;
      const nb::object answer = progress_(done, total);
      return answer.is_none() || nb::cast<bool>(answer);
    } catch (...) {
      raised_ = std::current_exception();
      return false;
    }
  };
}

std::string to_json(nb::handle value) {
  return nb::cast<std::string>(
      nb::module_::import_("json").attr("dumps")(value, "ensure_ascii"_a = false));
}

nb::object from_json(const std::string& text) {
  return nb::module_::import_("json").attr("loads")(text);
}

Device device_of(const std::string& name) {
  if (name == "cpu") return Device::kCpu;
  if (name == "cuda") return Device::kCuda;
  throw Error(ErrorCode::kInvalidArgument,
              "device='" + name + "': there is 'cpu', and 'cuda' for an NVIDIA GPU");
}

}  // namespace pith::python

NB_MODULE(_pith, m) {
  namespace python = pith::python;
  m.attr("__version__") = PITH_VERSION;
  m.attr("has_cuda") = static_cast<bool>(PITH_HAS_CUDA);
  python::bind_errors(m);
  python::bind_values(m);
  python::bind_model(m);
  python::bind_session(m);
  python::bind_generate(m);
  python::bind_layer(m);
  python::bind_own_codec(m);
  python::bind_own_selector(m);
}
