#include "form/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/json_file.h"
#include "form/schema_reader.h"
#include "pith/error.h"

namespace pith::form {
namespace {

constexpr int kNever = 1 << 20;

int least_height(const Schema& schema, const Node& node) {
  const auto of = [&](int32_t child) { return schema.nodes[static_cast<size_t>(child)].height; };
  int height = 0;
  switch (node.kind) {
    case Kind::kAnyOf:
      height = kNever;
      for (const int32_t child : node.children) height = std::min(height, of(child));
      return height;
    case Kind::kObject:
      for (const Property& p : node.properties)
        if (p.required) height = std::max(height, of(p.node));
      return std::min(1 + height, kNever);
    case Kind::kArray:
      if (node.least > 0) height = of(node.item);
      return std::min(1 + height, kNever);
    default: return 0;
  }
}

/// The least fixed point: a schema whose every document holds another of itself has none.
void set_heights(Schema& schema) {
  for (Node& node : schema.nodes) node.height = kNever;
  for (bool changed = true; changed;) {
    changed = false;
    for (Node& node : schema.nodes) {
      const int height = least_height(schema, node);
      changed = changed || height != node.height;
      node.height = height;
    }
  }
  if (schema.nodes[static_cast<size_t>(schema.value)].height > kMostNest)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("JSON schema: no document of at most {} levels follows it; a list "
                            "without an end needs an alternative",
                            kMostNest));
}

void set_beginnings(Schema& schema) {
  for (Node& node : schema.nodes) {
    if (node.kind != Kind::kObject) continue;
    const auto state = [&](const std::string& beginning) {
      const auto next = static_cast<int32_t>(node.spelled.size());
      const auto [at, added] = node.beginnings.emplace(beginning, next);
      if (added) {
        node.spelled.push_back(beginning);
        node.ends.push_back(false);
      }
      return at->second;
    };
    state("");
    for (const Property& p : node.properties) {
      const std::string& key = schema.literals[static_cast<size_t>(p.key)];
      const std::string name = key.substr(1, key.size() - 3);
      for (size_t n = 1; n < name.size(); ++n) state(name.substr(0, n));
      node.ends[static_cast<size_t>(state(name))] = true;
    }
  }
}

void finish(Schema& schema) {
  set_heights(schema);
  set_beginnings(schema);
}

Schema empty_schema() {
  Schema out;
  out.nodes.emplace_back();  // any value
  return out;
}

int32_t any_object(Schema& schema) {
  Node node;
  node.kind = Kind::kObject;
  node.others = 0;
  schema.nodes.push_back(node);
  return static_cast<int32_t>(schema.nodes.size()) - 1;
}

}  // namespace

int32_t Schema::literal(std::string text) {
  const auto found = std::find(literals.begin(), literals.end(), text);
  if (found != literals.end()) return static_cast<int32_t>(found - literals.begin());
  literals.push_back(std::move(text));
  return static_cast<int32_t>(literals.size()) - 1;
}

Schema read_schema(std::string_view text) {
  Schema out = empty_schema();
  out.value = SchemaReader(out, text, "JSON schema", true).read();
  finish(out);
  return out;
}

Schema object_schema() {
  Schema out = empty_schema();
  out.value = any_object(out);
  finish(out);
  return out;
}

Schema calls_schema(const std::vector<FormTool>& tools, const FormCalls& calls) {
  Schema out = empty_schema();
  Node any;
  any.kind = Kind::kAnyOf;
  for (const FormTool& tool : tools) {
    const std::string what = fmt::format("the parameters of the tool '{}'", tool.name);
    const int32_t arguments = tool.parameters.empty()
                                  ? any_object(out)
                                  : SchemaReader(out, tool.parameters, what, tool.strict).read();
    Node name;
    name.kind = Kind::kLiterals;
    name.children = {out.literal(Json(tool.name).dump(-1, ' ', false))};
    out.nodes.push_back(name);
    Node call;
    call.kind = Kind::kObject;
    call.properties = {{out.literal("\"name\":"), static_cast<int32_t>(out.nodes.size()) - 1, true},
                       {out.literal("\"arguments\":"), arguments, true}};
    out.nodes.push_back(call);
    any.children.push_back(static_cast<int32_t>(out.nodes.size()) - 1);
  }
  out.nodes.push_back(any);
  out.value = static_cast<int32_t>(out.nodes.size()) - 1;
  if (!calls.begun) out.before = out.literal("\n");
  out.after = out.literal("\n" + calls.closes);
  finish(out);
  return out;
}

}  // namespace pith::form
