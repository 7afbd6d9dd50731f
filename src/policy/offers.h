#pragma once
// Combinations, as data: what a selector needs, what each side of a codec offers on a device,
// what the device does at all; and the one comparison of these. Whether a policy can be, why not,
// what would do instead, the support page and the tests' lists of refusals all follow from it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pith/device.h"
#include "pith/dtype.h"
#include "pith/policy.h"

namespace pith {

/// A parameter of which a device takes fewer values than the method does.
struct Limit {
  std::string parameter;   ///< "rank"
  std::string there;       ///< what the device takes: "up to 8"
  std::string asked = {};  ///< "gear(rank=16)", where that is something else; empty: it fits

  static Limit of(const std::string& method, const std::string& parameter, size_t value, bool fits,
                  std::string there);
  /// Of rows of `dim` channels that share something on the GPU: whole blocks of 32. `none`: 0 will
  /// do too.
  static Limit of_group(const std::string& method, const std::string& parameter, size_t rows,
                        bool none, size_t dim);
};

/// A selector's needs of codecs and devices.
struct Needs {
  /// The fate of rows that leave the window.
  enum class Body : uint8_t {
    kAll,       ///< all stay, one after the other
    kNone,      ///< none stays
    kDrawn,     ///< each stays or goes as it comes; heads hold different numbers of them
    kHalved,    ///< halved until they are final, exact on the GPU, and only then coded there
    kSelected,  ///< selected again while they are stored
    kCoreset    ///< many at once go through a coreset, which selects and halves them again
  } body = Body::kSelected;
  bool mass = false;         ///< attention mass of each row
  bool queries = false;      ///< statistics of the queries
  bool rope = false;         ///< the RoPE that queries came with: they are rotated back
  bool weighs = false;       ///< all rows of the body have one log-weight
  bool row_weights = false;  ///< rows have log-weights one by one
  bool roles = false;        ///< rows that count for one of softmax's two sums alone
  bool shared = false;       ///< heads share a budget: each holds as many rows as its own are worth
  size_t stores = 1;         ///< runs of rows that a head's body comes to have
  size_t halves = 0;         ///< the most rows that are halved at once; 0: none are
  bool gathered = false;     ///< prompts are read with prompt=once
  size_t evicts =
      0;  ///< heavy rows are kept apart, and so many of them leave together; 0: none are
  bool cache_positions = false;  ///< keys stand at positions inside the cache

  bool all() const { return body == Body::kAll; }
  bool again() const { return body == Body::kSelected || body == Body::kCoreset; }
  /// In words.
  std::string text() const;
};

/// One side of a codec, with its parameters, on one device at one head_dim.
struct Offers {
  std::string codec = {};    ///< as in a policy
  bool there = true;         ///< the device has it
  std::string code = {};     ///< sides whose codes are equal share kernels
  bool levels = true;        ///< kernels take it beside any other side with `levels`
  bool coded = true;         ///< not plain numbers
  bool before_rope = false;  ///< keys are rotated when they are read
  bool aged = false;         ///< rows change their form with age, in the order of the stream
  bool shares = false;       ///< what `block` rows share is found when they are coded
  size_t block = 32;         ///< rows that are coded together
  size_t learns = 0;         ///< first rows that tables are made of
  size_t tables = 0;         ///< bytes of those per head, which are there before them
  std::vector<Limit> limits = {};

  std::string text() const;
};

/// The abilities of a device, whatever the codec.
struct DeviceOffers {
  const char* name;       ///< "the GPU"
  std::vector<int> dims;  ///< head_dims; none: all
  bool any_type;          ///< rows of f32, and several types of number in one cache
  bool roles;             ///< rows that count for one of softmax's two sums alone
  bool shares;            ///< budgets that heads share: over codes, and of any heads
  bool selects_sliding;   ///< selectors in layers that slide over a window of their own
  bool positions;         ///< every row has its position beside it
  bool turns_protected;   ///< keys of protected rows that stand at positions inside the cache
  bool gathers;           ///< prompts whose rows are kept until their end, and then selected from
  size_t halves;  ///< the most rows that are halved at once, half as many above head_dim 128; 0:
                  ///< any number

  size_t most_halves(int head_dim) const { return head_dim > 128 ? halves / 2 : halves; }
  static const DeviceOffers& of(Device device);
};

/// A rule of a policy at one place.
struct Asked {
  Device device = Device::kCpu;
  int head_dim = 0;
  size_t slides = 0;     ///< rows that a query sees, its own among them; 0 = all
  std::string selector;  ///< its name
  bool selector_there = true;
  Needs needs;
  Offers keys, values;
  DType key_rows = DType::kF16, value_rows = DType::kF16;  ///< of exact rows
  DType key_body = DType::kF16, value_body = DType::kF16;  ///< of bodies without a codec
  size_t unselected =
      0;  ///< rows of a body when it may first be selected from; only where tables are learnt
  bool protect = false;  ///< rows are protected
  PromptReading prompt = PromptReading::kChunks;
  bool apart = false;  ///< heads of other rules lie between the rule's own

  bool coded() const { return needs.body != Needs::Body::kNone && (keys.coded || values.coded); }
  /// Rows of both sides that are coded together, and that tables are made of.
  size_t block() const;
  size_t learns() const;
};

struct Difference {
  std::string asked;  ///< what is not there
  std::string there;  ///< what is instead, and why
  bool operator==(const Difference&) const = default;
};

/// Why not: empty if it can be.
std::vector<Difference> compare(const Asked& asked);

}  // namespace pith
