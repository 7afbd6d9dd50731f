#include "model/loaders/config_rope.h"

#include <cmath>

namespace pith {
namespace {

using nlohmann::json;

constexpr const char* kPartial = "partial_rotary_factor";
constexpr const char* kOriginal = "original_max_position_embeddings";

void read_rotated(const Fields& fields, const Fields& rope, ConfigFile& out) {
  const Fields& from = rope.find(kPartial) ? rope : fields;
  if (!from.find(kPartial)) return;
  const double part = from.number(kPartial, 0, 1);
  if (part == 1) return;
  const int rotated = static_cast<int>(out.model.head_dim * part);
  if (!out.architecture->partial_rotary || rotated == 0 || rotated % 2 != 0) {
    from.unsupported(
        fmt::format("{} is {} of a {}: {} of {} channels; supported: the whole head, or an even "
                    "number of channels of a Phi 3",
                    kPartial, part, out.architecture->name, rotated, out.model.head_dim));
  }
  out.rope.rotated = static_cast<size_t>(rotated);
}

std::vector<double> read_divisors(const Fields& rope, const char* name, size_t count) {
  const json& list = rope.need(name);
  std::vector<double> divisors;
  for (const json& value : list) {
    if (value.is_number() && value.get<double>() > 0) divisors.push_back(value.get<double>());
  }
  if (!list.is_array() || list.size() != count || divisors.size() != count) {
    rope.corrupt(name, fmt::format("is {}; expected a list of {} positive numbers",
                                   Fields::dump(list), count));
  }
  return divisors;
}

/// LongRoPE (Ding et al. 2024): one list of divisors for contexts up to the original one, another
/// for longer ones.
void read_long_rope(const Fields& fields, const Fields& rope, ConfigFile& out) {
  const Fields& from = rope.find(kOriginal) ? rope : fields;
  const int64_t original = from.integer(kOriginal, 2, kMaxContext);
  const auto dim = static_cast<size_t>(out.model.head_dim);
  const size_t pairs = (out.rope.rotated == 0 ? dim : out.rope.rotated) / 2;
  out.rope.original_context = original;
  out.short_rope = out.rope;
  out.rope.divisors = read_divisors(rope, "long_factor", pairs);
  out.short_rope->divisors = read_divisors(rope, "short_factor", pairs);
  if (rope.find("attention_factor")) {
    out.rope_magnitude = static_cast<float>(rope.number("attention_factor", 0, 1e6));
    return;
  }
  const double stretch =
      rope.find("factor") ? rope.number("factor", 0, 1e6)
                          : static_cast<double>(out.model.context) / static_cast<double>(original);
  if (stretch > 1) {
    out.rope_magnitude = static_cast<float>(
        std::sqrt(1 + std::log(stretch) / std::log(static_cast<double>(original))));
  }
}

void read_llama3(const Fields& rope, ConfigFile& out) {
  out.rope.factor = static_cast<float>(rope.number("factor", 0, 1e6));
  out.rope.low_freq_factor = static_cast<float>(rope.number("low_freq_factor", 0, 1e6));
  out.rope.high_freq_factor = static_cast<float>(rope.number("high_freq_factor", 0, 1e6));
  out.rope.original_context = rope.integer(kOriginal, 1, kMaxContext);
  if (out.rope.high_freq_factor <= out.rope.low_freq_factor) {
    rope.corrupt("high_freq_factor", "is not above 'low_freq_factor'");
  }
}

std::string type_of(const Fields& rope) {
  return rope.text("rope_type", rope.text("type", "default"));
}

/// Layers with a sliding window have a base of their own, in a field or beside the others'.
void read_sliding_theta(const Fields& fields, const Fields* own, ConfigFile& out) {
  out.sliding_theta = out.architecture->sliding_theta;
  if (fields.find("rope_local_base_freq")) {
    out.sliding_theta = fields.number("rope_local_base_freq", 0, 1e15);
  }
  if (!own) return;
  if (const std::string type = type_of(*own); type != "default") {
    own->unsupported(
        fmt::format("RoPE scaling '{}' of layers with a sliding window; supported: "
                    "default",
                    type));
  }
  if (own->find("rope_theta")) out.sliding_theta = own->number("rope_theta", 0, 1e15);
}

}  // namespace

void read_rope(const Fields& fields, ConfigFile& out) {
  const json* parameters = fields.find("rope_parameters");
  const json* scaling = parameters ? parameters : fields.find("rope_scaling");
  std::string name = fields.where() + (parameters ? ": rope_parameters" : ": rope_scaling");
  if (scaling && !scaling->is_object()) {
    fields.corrupt(parameters ? "rope_parameters" : "rope_scaling",
                   fmt::format("is {}; expected an object", Fields::dump(*scaling)));
  }
  const json none = json::object();
  const json* sliding = nullptr;
  for (const auto& [key, value] : scaling ? scaling->items() : none.items()) {
    if (!value.is_object()) continue;
    if (out.architecture->sliding_theta == 0 ||
        (key != "full_attention" && key != "sliding_attention")) {
      fields.unsupported(
          fmt::format("RoPE of its own per layer type ('{}'); supported: one for all layers", key));
    }
    (key == "full_attention" ? parameters : sliding) = &value;
  }
  if (parameters && parameters != scaling) scaling = parameters, name += ": full_attention";
  const Fields rope(scaling ? *scaling : none, name);
  const Fields& theta = rope.find("rope_theta") ? rope : fields;
  out.model.rope_theta = 10000;
  if (theta.find("rope_theta")) out.model.rope_theta = theta.number("rope_theta", 0, 1e15);
  if (out.architecture->sliding_theta != 0) {
    const Fields own(sliding ? *sliding : none, fields.where() + ": sliding_attention");
    read_sliding_theta(fields, sliding ? &own : nullptr, out);
  }
  read_rotated(fields, rope, out);

  const std::string type = type_of(rope);
  if (type == "default") return;
  if (type == "linear") {
    out.rope.linear = true;
    out.rope.factor = static_cast<float>(rope.number("factor", 0, 1e6));
  } else if (type == "llama3") {
    read_llama3(rope, out);
  } else if (type == "longrope" || type == "su") {
    read_long_rope(fields, rope, out);
  } else {
    fields.unsupported(
        fmt::format("RoPE scaling '{}'; supported: default, linear, llama3, longrope", type));
  }
}

}  // namespace pith
