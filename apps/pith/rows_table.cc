#include "rows_table.h"

#include "console.h"

namespace pith::cli {

std::string rows_table(const Session& session) {
  const ModelConfig& config = session.model().config();
  Table table({"layer", "KV head", "rows", "oldest", "newest"});
  for (int layer = 0; layer < config.layers; ++layer) {
    for (int head = 0; head < config.kv_heads; ++head) {
      const auto positions = session.rows(layer, head).positions;
      const auto at = [&](bool back) {
        if (positions.empty()) return std::string("-");
        return std::to_string(back ? positions.back() : positions.front());
      };
      table.add({std::to_string(layer), std::to_string(head), std::to_string(positions.size()),
                 at(false), at(true)});
    }
  }
  return table.text();
}

}  // namespace pith::cli
