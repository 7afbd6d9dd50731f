// Codecs written in Python.

#include "pith/own_codec.h"

#include <algorithm>

#include "binding.h"

namespace pith::python {
namespace {

PyObject* codecs = nullptr;  // a list of the module's: (row_bytes, encode, decode) each

/// The result of a function, of one dtype and shape.
template <class T>
void copy_result(const nb::object& given, const char* dtype, const std::string& who, size_t rows,
                 size_t columns, T* out) {
  const nb::object array = nb::module_::import_("numpy").attr("ascontiguousarray")(given);
  const auto text = [&](const char* attribute) {
    const nb::object value = array.attr(attribute);
    return std::string(nb::str(value).c_str());
  };
  const auto wanted = "(" + std::to_string(rows) + ", " + std::to_string(columns) + ")";
  if (text("dtype") != dtype || text("shape") != wanted)
    throw Error(ErrorCode::kInvalidArgument, who + " has to return " + dtype + " of shape " +
                                                 wanted + "; it returned " + text("dtype") +
                                                 " of " + text("shape"));
  const auto values = nb::cast<Array<const T, nb::ndim<2>, nb::c_contig>>(array);
  std::copy_n(values.data(), rows * columns, out);
}

nb::object function_of(size_t index, int which) {
  return nb::borrow<nb::tuple>(nb::borrow<nb::list>(codecs)[index])[which];
}

size_t row_bytes(size_t index, const std::string& name, size_t head_dim) {
  const nb::gil_scoped_acquire lock;
  const nb::object given = function_of(index, 0);
  const nb::object bytes = PyCallable_Check(given.ptr()) ? given(head_dim) : given;
  size_t out = 0;
  if (!nb::try_cast(bytes, out))
    throw Error(ErrorCode::kInvalidArgument,
                "row_bytes of the codec " + name +
                    " is a whole number, or a function of head_dim that returns one");
  return out;
}

void add(const std::string& name, const nb::object& encode, const nb::object& decode,
         const nb::object& bytes, const std::string& summary) {
  // The library outlives the interpreter, so that the module owns the functions.
  nb::list held = nb::borrow<nb::list>(codecs);
  const size_t index = nb::len(held);
  held.append(nb::make_tuple(bytes, encode, decode));
  OwnCodec codec{.name = name, .summary = summary};
  codec.row_bytes = [index, name](size_t head_dim) { return row_bytes(index, name, head_dim); };
  codec.encode = [index, name](const RowsToCode& rows, const float* x, uint8_t* codes) {
    const nb::gil_scoped_acquire lock;
    std::vector<float> copy(x, x + rows.rows * rows.head_dim);  // which the function may keep
    const nb::object given = function_of(index, 1)(
        nb::cast(matrix_of(std::move(copy), rows.rows, rows.head_dim)), nb::cast(rows));
    copy_result(given, "uint8", name + ".encode", rows.rows, rows.row_bytes, codes);
  };
  codec.decode = [index, name](const RowsToCode& rows, const uint8_t* codes, float* x) {
    const nb::gil_scoped_acquire lock;
    std::vector<uint8_t> copy(codes, codes + rows.rows * rows.row_bytes);
    const nb::object given = function_of(index, 2)(
        nb::cast(matrix_of(std::move(copy), rows.rows, rows.row_bytes)), nb::cast(rows));
    copy_result(given, "float32", name + ".decode", rows.rows, rows.head_dim, x);
  };
  add_codec(codec);
}

}  // namespace

void bind_own_codec(nb::module_& m) {
  const nb::list all;
  m.attr("_codecs") = all;
  codecs = all.ptr();
  nb::class_<RowsToCode>(m, "RowsToCode", "Whose rows a codec of yours codes or decodes.")
      .def_ro("layer", &RowsToCode::layer)
      .def_ro("head", &RowsToCode::head)
      .def_ro("keys", &RowsToCode::keys, "True for keys, which come after RoPE; else values")
      .def_ro("head_dim", &RowsToCode::head_dim)
      .def("__len__", [](const RowsToCode& r) { return r.rows; });
  m.def("add_codec", &add, "name"_a, "encode"_a, "decode"_a, "row_bytes"_a, "summary"_a = "",
        "Makes two functions a codec that policies may name, on the CPU. encode(x, rows) gets "
        "float32 [rows, head_dim] and returns uint8 [rows, row_bytes]; decode(codes, rows) gives "
        "float32 back. Each row is coded by itself. row_bytes: a number, or a function of "
        "head_dim. They run while the engine is held and must not call it.");
}

}  // namespace pith::python
