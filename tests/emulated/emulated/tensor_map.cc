#include "emulated/tensor_map.h"

#include <cstring>

#include "emulated/block.h"
#include "kernels/cuda/tensor_map.h"

namespace emulated {
namespace {

/// The contents of the 128 bytes of a map here.
struct Map {
  pith::cuda::HeadRows of;
  int box_rows;
};
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

}  // namespace

int copy_box(void* shared, const CUtensorMap& map, int channel, int row, int head) {
  Map m;
  std::memcpy(static_cast<void*>(&m), &map, sizeof m);
  auto* to = static_cast<unsigned char*>(shared);
  const auto at = static_cast<size_t>(to - launched_shared);
  if (at % 1024) fail("a box is copied to between multiples of 1024 bytes");
  const auto dim = static_cast<size_t>(m.of.dim);
  for (int r = 0; r < m.box_rows; ++r) {
    for (int piece = 0; piece < 8; ++piece) {
      unsigned char* place = to + 128 * r + ((piece ^ r) & 7) * 16;
      const auto from_row = static_cast<size_t>(row + r), first = size_t(channel + 8 * piece);
      std::memset(place, 0, 16);
      if (from_row >= m.of.rows || first >= dim || size_t(head) >= m.of.heads) continue;
      std::memcpy(place,
                  static_cast<const unsigned char*>(m.of.data) + from_row * m.of.row_bytes +
                      size_t(head) * m.of.head_bytes + 2 * first,
                  16);
    }
  }
  return 128 * m.box_rows;
}

}  // namespace emulated

namespace pith::cuda {

CUtensorMap tensor_map(const HeadRows& of, int box_rows) {
  if (reinterpret_cast<uintptr_t>(of.data) % 16 || of.row_bytes % 16 || of.head_bytes % 16 ||
      of.rows == 0 || box_rows > 256)
    emulated::fail("a tensor map that a driver would refuse");
  const emulated::Map m{of, box_rows};
  CUtensorMap map{};
  std::memcpy(&map, &m, sizeof m);
  return map;
}

}  // namespace pith::cuda
