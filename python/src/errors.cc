// pith::Error as Python's exceptions: PithError, and below it one class for each code, which is
// also the built-in one that people catch.

#include <array>

#include "binding.h"

namespace pith::python {
namespace {

struct Kind {
  const char* name;
  PyObject** also;  // the built-in class
};

// In the order of ErrorCode.
const std::array<Kind, 10> kKinds = {{{"InvalidArgument", &PyExc_ValueError},
                                      {"NotFound", &PyExc_FileNotFoundError},
                                      {"Corrupt", &PyExc_ValueError},
                                      {"Unsupported", &PyExc_NotImplementedError},
                                      {"OutOfMemory", &PyExc_MemoryError},
                                      {"ContextFull", &PyExc_ValueError},
                                      {"NonFinite", &PyExc_ArithmeticError},
                                      {"IoError", &PyExc_OSError},
                                      {"Internal", &PyExc_RuntimeError},
                                      {"BufferTooSmall", &PyExc_ValueError}}};

// Borrowed from the module, which lives as long as the interpreter.
std::array<PyObject*, kKinds.size()> classes;
PyObject* busy_class = nullptr;

PyObject* make_class(nb::module_& m, const char* name, const nb::tuple& bases, const char* code) {
  nb::dict members;
  members["code"] = code;
  PyObject* made =
      PyErr_NewException((std::string("pith._pith.") + name).c_str(), bases.ptr(), members.ptr());
  if (made == nullptr) throw nb::python_error();
  m.attr(name) = nb::steal(made);
  return made;
}

}  // namespace

void bind_errors(nb::module_& m) {
  PyObject* base = make_class(m, "PithError", nb::make_tuple(nb::handle(PyExc_Exception)), "error");
  for (size_t i = 0; i < kKinds.size(); ++i) {
    const nb::tuple bases = nb::make_tuple(nb::handle(base), nb::handle(*kKinds[i].also));
    classes[i] = make_class(m, kKinds[i].name, bases, to_string(static_cast<ErrorCode>(i)));
  }
  busy_class =
      make_class(m, "SessionBusy", nb::make_tuple(nb::handle(base), nb::handle(PyExc_RuntimeError)),
                 "session busy");
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& e) {
      PyErr_SetString(classes[static_cast<size_t>(e.code())], e.what());
    }
  });
}

void raise_busy(const char* why) {
  PyErr_SetString(busy_class, why);
  throw nb::python_error();
}

}  // namespace pith::python
