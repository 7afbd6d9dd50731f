// Types that are returned or compared by value: policies, methods, ledgers, rows, estimates.

#include "binding.h"
#include "pith/policy.h"
#include "pith/rows.h"
#include "pith_tools/results.h"

namespace pith::python {
namespace {

nb::dict as_dict(const Ledger& l) {
  nb::dict d;
  d["payload"] = l.payload, d["metadata"] = l.metadata, d["shared"] = l.shared;
  d["slack"] = l.slack, d["staging"] = l.staging, d["scratch"] = l.scratch, d["probe"] = l.probe;
  d["tokens"] = l.tokens, d["rows_seen"] = l.rows_seen, d["rows_kept"] = l.rows_kept;
  d["cache_bytes"] = l.cache_bytes(), d["total_bytes"] = l.total_bytes();
  d["effective_bits"] = l.effective_bits(), d["retained_bits"] = l.retained_bits();
  return d;
}

std::string repr(const Ledger& l) {
  return "Ledger(tokens=" + std::to_string(l.tokens) +
         ", rows_kept=" + std::to_string(l.rows_kept) + "/" + std::to_string(l.rows_seen) +
         ", cache_bytes=" + std::to_string(l.cache_bytes()) +
         ", effective_bits=" + std::to_string(l.effective_bits()).substr(0, 5) + ")";
}

void bind_ledger(nb::module_& m) {
  nb::class_<Ledger>(m, "Ledger", "Every byte of a compressed cache, by what it is for.")
      .def_ro("payload", &Ledger::payload, "coded keys and values")
      .def_ro("metadata", &Ledger::metadata, "norms, scales, positions, weights")
      .def_ro("shared", &Ledger::shared, "dictionaries and projections, once per cache")
      .def_ro("slack", &Ledger::slack, "allocated for the above but not used yet")
      .def_ro("staging", &Ledger::staging, "rows on their way into a coded form")
      .def_ro("scratch", &Ledger::scratch, "temporary results of one step")
      .def_ro("probe", &Ledger::probe, "exact rows that the error probe keeps aside")
      .def_ro("tokens", &Ledger::tokens, "tokens seen")
      .def_ro("rows_seen", &Ledger::rows_seen, "tokens * layers * KV heads")
      .def_ro("rows_kept", &Ledger::rows_kept, "rows held, over all layers and KV heads")
      .def_prop_ro("cache_bytes", &Ledger::cache_bytes, "payload + metadata + shared")
      .def_prop_ro("total_bytes", &Ledger::total_bytes)
      .def_prop_ro("effective_bits", &Ledger::effective_bits,
                   "bits per number of the uncompressed cache")
      .def_prop_ro("retained_bits", &Ledger::retained_bits,
                   "bits per number of the rows that are still there")
      .def("as_dict", &as_dict)
      .def(
          "__add__",
          [](Ledger self, const Ledger& other) {
            self += other;
            return self;
          },
          nb::is_operator(), "of two caches together; tokens are the larger's")
      .def("__repr__", &repr);
}

std::string codec_of(const Policy& policy) {
  const PolicyRule& rule = policy.rules.at(0);
  const std::string dense = to_string(rule.dtype.value_or(DType::kF16));
  const std::string k = rule.key_codec ? rule.key_codec->name : dense;
  const std::string v = rule.value_codec ? rule.value_codec->name : dense;
  return k == v ? k : k + "/" + v;
}

void bind_policy(nb::module_& m) {
  nb::class_<Policy>(m, "Policy",
                     "Which rows of the cache stay and how they are stored, e.g. "
                     "\"snapkv(budget=25%)+int4,sink=4\".")
      .def(
          "__init__",
          [](Policy* self, const std::string& text) { new (self) Policy(Policy::parse(text)); },
          "text"_a)
      .def(
          "with_budget",
          [](const Policy& self, const std::string& budget) {
            Policy sized = self;
            sized.set_budget(budget);
            return sized;
          },
          "budget"_a, "The policy of this size: \"1024\" rows, \"25%\" or \"16MiB\".")
      .def_prop_ro(
          "selector", [](const Policy& p) { return p.rules.at(0).selector.name; },
          "the name of what chooses rows, of the first rule")
      .def_prop_ro("codec", &codec_of,
                   "the name of what stores them: \"f16\", \"int4\", \"int8/int4\"")
      .def("__str__", &Policy::to_string)
      .def("__repr__", [](const Policy& p) { return "Policy('" + p.to_string() + "')"; })
      .def("__hash__", [](const Policy& p) { return std::hash<std::string>()(p.to_string()); })
      .def("__eq__",
           [](const Policy& a, nb::object b) {
             return nb::isinstance<Policy>(b) &&
                    a.to_string() == nb::cast<const Policy&>(b).to_string();
           })
      .def("__getstate__", [](const Policy& p) { return p.to_string(); })
      .def("__setstate__",
           [](Policy& self, const std::string& text) { new (&self) Policy(Policy::parse(text)); });

  nb::class_<ParameterInfo>(m, "ParameterInfo", "One parameter of a method.")
      .def_ro("name", &ParameterInfo::name)
      .def_ro("default_value", &ParameterInfo::default_value)
      .def_ro("help", &ParameterInfo::help)
      .def("__repr__",
           [](const ParameterInfo& p) { return p.name + "=" + p.default_value + ": " + p.help; });
  nb::class_<MethodInfo>(m, "MethodInfo", "A selector or a codec that policies may name.")
      .def_ro("name", &MethodInfo::name)
      .def_ro("is_selector", &MethodInfo::is_selector)
      .def_ro("summary", &MethodInfo::summary)
      .def_ro("source", &MethodInfo::source)
      .def_ro("parameters", &MethodInfo::parameters)
      .def_ro("size_parameter", &MethodInfo::size_parameter)
      .def_ro("needs_mass", &MethodInfo::needs_mass)
      .def_ro("needs_queries", &MethodInfo::needs_queries)
      .def_ro("weighted", &MethodInfo::weighted)
      .def_ro("ragged", &MethodInfo::ragged)
      .def_ro("needs_rope", &MethodInfo::needs_rope)
      .def_ro("on_gpu", &MethodInfo::on_gpu)
      .def_ro("block_rows", &MethodInfo::block_rows,
              "Codecs: rows that are coded together; 1: each alone; 0: a selector.")
      .def_ro("learns_rows", &MethodInfo::learns_rows,
              "Codecs: first rows of a stream that tables are made of.")
      .def_ro("shares", &MethodInfo::shares, "Codecs: rows of a block share numbers.")
      .def_ro("keys_before_rope", &MethodInfo::keys_before_rope,
              "Codecs: keys are rotated when they are read.")
      .def_ro("needs", &MethodInfo::needs, "Selectors: all of their needs, in words.")
      .def_ro("offers", &MethodInfo::offers, "Codecs: their offers, in words.")
      .def("__repr__", [](const MethodInfo& i) { return i.name + ": " + i.summary; });
  m.def("methods", &methods, "Every selector and codec of this build, selectors first.");
}

}  // namespace

void bind_values(nb::module_& m) {
  bind_ledger(m);
  bind_policy(m);
  nb::class_<HeadRows>(m, "Rows", "What one KV head of one layer holds.")
      .def_prop_ro(
          "positions", [](const HeadRows& r) { return array_of(r.positions); }, nb::rv_policy::move,
          "true positions, ascending: int64 [rows]")
      .def_prop_ro(
          "log_weights", [](const HeadRows& r) { return array_of(r.log_weights); },
          nb::rv_policy::move, "float32 [rows]; 0 = the row counts once")
      .def_prop_ro(
          "roles",
          [](const HeadRows& r) {
            std::vector<uint8_t> roles;
            for (const Role role : r.roles) roles.push_back(static_cast<uint8_t>(role));
            return array_of(std::move(roles));
          },
          nb::rv_policy::move,
          "uint8 [rows]; 0: both sums of the softmax, 1: the numerator, 2: the denominator")
      .def("__len__", [](const HeadRows& r) { return r.positions.size(); })
      .def("__repr__", [](const HeadRows& r) {
        return "Rows(" + std::to_string(r.positions.size()) + " rows)";
      });
  nb::class_<AttentionError>(m, "AttentionError",
                             "|policy - exact| / |exact| of one layer's attention, estimated.")
      .def_ro("layer", &AttentionError::layer)
      .def_ro("steps", &AttentionError::steps)
      .def_ro("estimate", &AttentionError::estimate)
      .def_ro("low", &AttentionError::low)
      .def_ro("high", &AttentionError::high)
      .def("__repr__", [](const AttentionError& e) {
        return "AttentionError(layer=" + std::to_string(e.layer) +
               ", estimate=" + std::to_string(e.estimate) + ")";
      });
  m.def("result_lines", &result_lines, "files"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Files of `pith eval --out`, `pith probe --json` and `pith bench select --csv`, put "
        "together\n"
        "as `pith report --lines` writes them: seeds averaged, a JSON line for each policy.");
}

}  // namespace pith::python
