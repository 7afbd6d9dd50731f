#include "policy/device_room.h"

#include <algorithm>
#include <cmath>

#include "rows/device_growth.h"

namespace pith {
namespace {

/// Room of one head's stores, and rows in it.
struct Room {
  size_t dense = 0;  ///< rows of dense stores
  size_t codes = 0;  ///< rows of coded ones
  size_t sides = 0;  ///< rows with numbers beside them
};

class HeadOnGpu {
 public:
  HeadOnGpu(const CohortPolicy& c, const DeviceRows& held)
      : c_(c),
        rows_(held.rows),
        asked_(c.asked()),
        coded_(asked_.coded()),
        exact_(rows_.of.sink + rows_.of.window),
        most_(std::max(rows_.body, c.selector.rule->most_rows(rows_.of.body))) {}

  bool straight() const { return c_.selector.needs.all() && !coded_ && c_.slides == 0; }
  /// Rows that leave the window go into a store of their own, or nowhere; or perhaps they do, which
  /// the selector's half on the GPU decides.
  bool flows() const { return body() == Needs::Body::kAll || body() == Needs::Body::kNone; }
  bool may_flow() const { return body() != Needs::Body::kSelected; }

  Room of_straight() const {
    return {device_rows(c_.budget.context).most_for(exact_ + rows_.body)};
  }

  Room of_flow() const {
    // Rows come to a selector's store together, if tables are made of them.
    const size_t waiting = flows() ? 0 : asked_.learns();
    const size_t window = device_window_rows(c_.schedule, waiting);
    const bool has_body = body() != Needs::Body::kNone && (coded_ || !flows());
    Room room{c_.schedule.sink + device_window(window, has_body).most_with_front(window)};
    if (has_body) add_body(room);
    return room;
  }

  Room of_run() const {
    const Needs& needs = c_.selector.needs;
    // Rows that are not selected from any more may wait dense for their codes.
    const bool packs = coded_ && (needs.again() || needs.evicts > 0);
    size_t dense = exact_;
    if (packs)
      dense += kCodedTogether + asked_.learns();
    else
      dense += most_;
    Room room{device_rows().most_for(device_run_rows(dense, coded_))};
    if (coded_) room.codes = codes_for(most_);
    room.sides = room.dense + room.codes;
    // Heavy rows have a store apart, and what leaves them; rows that heads share one for all heads.
    if (needs.evicts > 0) add_body(room);
    if (needs.shared) {
      if (coded_)
        room.codes += codes_for(rows_.body + kCodedTogether - 1);
      else
        room.dense += rows_.body;
    }
    return room;
  }

  /// Bytes of room beyond those of the rows.
  double free(const Room& room, double coded_bytes) const {
    const auto row = static_cast<double>(c_.exact_row_bytes());
    const double each = rows_.body > 0 ? coded_bytes / static_cast<double>(rows_.body) : row;
    const size_t held_dense = exact_ + (coded_ ? 0 : rows_.body);
    const size_t held_codes = coded_ ? rows_.body : 0;
    const double dense = static_cast<double>(room.dense) - static_cast<double>(held_dense);
    const double codes = static_cast<double>(room.codes) - static_cast<double>(held_codes);
    // Position, mass, and a weight that heads share or have each.
    constexpr double kSides = 3 * sizeof(float);
    return dense * row + codes * each + static_cast<double>(room.sides) * kSides;
  }

  /// Protected rows are in a store of their own.
  double free_of_protected() const {
    const size_t rows = rows_.protected_rows, room = device_rows().most_for(rows);
    return static_cast<double>(room - rows) * static_cast<double>(c_.exact_row_bytes());
  }
  size_t tables() const {
    if (!coded_ || rows_.body >= asked_.learns()) return 0;
    return asked_.keys.tables + asked_.values.tables;
  }
  /// The descriptors of a token, and numbers of rows that stay by contents.
  static constexpr double kNumbers = 512;

 private:
  Needs::Body body() const { return c_.selector.needs.body; }
  size_t codes_for(size_t rows) const {
    return kCodedTogether * device_codes(c_.budget.context).most_for(device_blocks(rows));
  }
  void add_body(Room& room) const {
    const Rule& rule = *c_.selector.rule;
    const size_t context = std::max<size_t>(c_.budget.context, 1);
    // One that is bounded may have all its room from the first row on.
    const bool bounded = rule.most_rows(context) == rule.most_rows(2 * context);
    const size_t rows = bounded && !flows() ? std::max(most_, rule.most_rows(context)) : most_;
    if (coded_) {
      room.codes += codes_for(rows);
      // Old rows and young ones are two stores.
      if (c_.keys.offers.aged || c_.values.offers.aged) room.codes += codes_for(kCodedTogether);
      // A sample's groups are filled, and coded apart, head by head.
      if (rule.by_contents()) {
        const size_t group = std::max(asked_.block(), kCodedTogether);
        room.dense += device_sample_rows(group);
        room.codes += codes_for(group);
      }
    } else {
      room.dense += device_rows().most_for(rows);
    }
    if (!flows()) room.sides += device_rows().most_for(rows);
    const size_t learns = asked_.learns();
    if (coded_ && rows_.of.body > 0 && rows_.of.body < learns) room.dense += learns;
  }

  const CohortPolicy& c_;
  const HeldRows& rows_;
  Asked asked_;
  bool coded_;
  size_t exact_, most_;
};

}  // namespace

BesideRows beside_rows_on_gpu(const CohortPolicy& policy, const DeviceRows& held) {
  const HeadOnGpu head(policy, held);
  double free = 0;
  if (head.straight())
    free = head.free(head.of_straight(), held.coded);
  else if (head.flows())
    free = head.free(head.of_flow(), held.coded);
  else
    free = head.free(head.of_run(), held.coded);
  if (!head.straight() && !head.flows() && head.may_flow())
    free = std::max(free, head.free(head.of_flow(), held.coded));
  free += head.free_of_protected() + HeadOnGpu::kNumbers;
  return {static_cast<size_t>(std::ceil(std::max(free, 0.0))), head.tables()};
}

}  // namespace pith
