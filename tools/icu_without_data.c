// libicudata without data, 15 KB in place of 31 MB. ICU's library itself holds all that Pith asks it for (properties of
// characters, NFC, regular expressions); what would need more, such as locales, finds an empty table of contents.
// tools/wheel.sh compiles it with -DENTRY=icudt72_dat, the name in the version that it bundles.
#include <stdint.h>

// As in unicode/udata.h: a header, then a table of `entries` names.
struct Data {
  uint16_t header_size;
  uint8_t magic[2];
  uint16_t info_size, reserved;
  uint8_t big_endian, charset, size_of_unit, reserved_too;
  uint8_t format[4], format_version[4], data_version[4];
  uint8_t padding[8];
  uint32_t entries, padding_after;
};

__attribute__((visibility("default"), aligned(16))) const struct Data ENTRY = {
    32, {0xda, 0x27}, 20, 0, 0, 0, 2, 0, {'T', 'o', 'C', 'P'}, {1, 0, 0, 0}, {0, 0, 0, 0}, {0}, 0, 0};
