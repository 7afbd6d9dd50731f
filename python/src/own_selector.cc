// Selectors written in Python.

#include "pith/own_selector.h"

#include <algorithm>

#include "binding.h"

namespace pith::python {
namespace {

/// The argument of a function, a copy: the function may keep it.
struct Rows {
  int layer, head;
  nb::object keys, values, positions, mass;
};

Rows rows_of(const RowsToScore& r) {
  const auto matrix = [&](const float* x) {
    return nb::cast(matrix_of(std::vector<float>(x, x + r.rows * r.head_dim), r.rows, r.head_dim));
  };
  return {r.layer,
          r.head,
          matrix(r.keys),
          matrix(r.values),
          nb::cast(array_of(std::vector<int64_t>(r.positions, r.positions + r.rows))),
          r.mass.empty() ? nb::none()
                         : nb::cast(array_of(std::vector<double>(r.mass.begin(), r.mass.end())))};
}

PyObject* functions = nullptr;  // a list of the module's

void call(size_t index, const std::string& name, const RowsToScore& rows,
          std::span<double> scores) {
  const nb::gil_scoped_acquire lock;
  const nb::object given = nb::borrow<nb::list>(functions)[index](nb::cast(rows_of(rows)));
  const nb::object array = nb::module_::import_("numpy").attr("ascontiguousarray")(
      given, "dtype"_a = nb::str("float64"));
  const auto values = nb::cast<nb::ndarray<const double, nb::c_contig, nb::device::cpu>>(array);
  if (values.ndim() != 1 || values.shape(0) != scores.size())
    throw Error(ErrorCode::kInvalidArgument,
                "the selector " + name + " has to return " + std::to_string(scores.size()) +
                    " numbers, one for each row; it returned " + std::to_string(values.size()) +
                    " in " + std::to_string(values.ndim()) + " dimensions");
  std::copy_n(values.data(), scores.size(), scores.begin());
}

void add(const std::string& name, nb::object function, const std::string& summary,
         std::optional<std::string> mass, size_t queries) {
  OwnSelector selector{.name = name, .summary = summary};
  if (mass && *mass != "all" && *mass != "last")
    throw Error(ErrorCode::kInvalidArgument, "mass is None, 'all' or 'last'");
  if (mass) selector.mass = *mass == "all" ? OwnSelector::Mass::kAll : OwnSelector::Mass::kLast;
  selector.queries = queries;
  // The library outlives the interpreter, so that the module owns the functions.
  nb::list held = nb::borrow<nb::list>(functions);
  const size_t index = nb::len(held);
  selector.score = [index, name](const RowsToScore& rows, std::span<double> scores) {
    call(index, name, rows, scores);
  };
  add_selector(selector);
  held.append(function);
}

}  // namespace

void bind_own_selector(nb::module_& m) {
  const nb::list all;
  m.attr("_functions") = all;
  functions = all.ptr();
  nb::class_<Rows>(m, "RowsToScore", "The rows of one KV head that a selector of yours scores.")
      .def_ro("layer", &Rows::layer)
      .def_ro("head", &Rows::head)
      .def_ro("keys", &Rows::keys, "float32 [rows, head_dim], decoded, after RoPE")
      .def_ro("values", &Rows::values, "float32 [rows, head_dim], decoded")
      .def_ro("positions", &Rows::positions, "int64 [rows], ascending")
      .def_ro("mass", &Rows::mass, "float64 [rows]: attention received; None unless asked for")
      .def("__len__", [](const Rows& r) { return nb::len(r.positions); });
  m.def("add_selector", &add, "name"_a, "function"_a, "summary"_a = "", "mass"_a = nb::none(),
        "queries"_a = 0,
        "Makes function(rows: RowsToScore) -> scores a selector that policies may name, on the "
        "CPU. The larger scores stay. mass: 'all' sums the attention of every query so far, "
        "'last' that of the last `queries` ones. It runs while the engine is held and must not "
        "call it.");
}

}  // namespace pith::python
