/* Selectors and codecs of the program's own, for C. own_selector.h and own_codec.h have more
 * detail. Errors and structs are as in pith.h. What is added stays until the program ends: `user`
 * and the functions must live as long. */
#ifndef PITH_PITH_EXTEND_H_
#define PITH_PITH_EXTEND_H_

#include "pith/pith.h"

/* C's names, not this house's. NOLINTBEGIN(readability-identifier-naming,modernize-*) */
#pragma GCC visibility push(default) /* all of this is exported */
#ifdef __cplusplus
extern "C" {
#endif

/* The rows of one KV head between sink and window. */
typedef struct pith_rows_to_score {
  size_t size;
  int32_t layer, head;
  size_t rows, head_dim;
  const float *keys, *values; /* [rows, head_dim] each, as attention reads them */
  const int64_t* positions;   /* [rows] ascending */
  const double* mass;         /* [rows] attention received; NULL unless asked for */
} pith_rows_to_score;

/* Whose attention `mass` sums. */
typedef enum pith_mass {
  PITH_MASS_NONE = 0,
  PITH_MASS_ALL = 1, /* every query's so far */
  PITH_MASS_LAST = 2 /* that of the last `queries` ones before a selection */
} pith_mass;

typedef struct pith_own_selector {
  size_t size;
  const char *name, *summary; /* name: lower-case letters, digits and _ */
  int32_t mass;               /* a pith_mass */
  size_t queries;             /* for PITH_MASS_LAST */
  /* Writes a score for each row, scores [rows]; the larger stays. Called on the thread that runs
   * the pass; it must not call the engine. Return 0; anything else ends the pass
   * (PITH_INVALID_ARGUMENT), after which the session is of no use. */
  int (*score)(const pith_rows_to_score* rows, double* scores, void* user);
  void* user;
} pith_own_selector;

/* Makes a selector known under its name to every policy, on the CPU. It keeps the `budget` best
 * rows of each KV head. PITH_INVALID_ARGUMENT for names that are taken or none. */
pith_status pith_add_selector(const pith_own_selector* selector, pith_error* error);

/* Rows of one KV head, keys or values. */
typedef struct pith_rows_to_code {
  size_t size;
  int32_t layer, head;
  int32_t keys; /* not 0: keys */
  size_t rows, head_dim;
  size_t row_bytes; /* of a coded row */
} pith_rows_to_code;

typedef struct pith_own_codec {
  size_t size;
  const char *name, *summary;
  /* Bytes of a coded row, 1 to 2^20. */
  size_t (*row_bytes)(size_t head_dim, void* user);
  /* codes [rows, row_bytes] from x [rows, head_dim], and back to finite numbers. A row's code
   * follows from that row alone. Several threads call them at once. Returns are `score`'s. */
  int (*encode)(const pith_rows_to_code* rows, const float* x, uint8_t* codes, void* user);
  int (*decode)(const pith_rows_to_code* rows, const uint8_t* codes, float* x, void* user);
  void* user;
} pith_own_codec;

/* Makes a codec known under its name to every policy, on the CPU. */
pith_status pith_add_codec(const pith_own_codec* codec, pith_error* error);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming,modernize-*) */

#endif /* PITH_PITH_EXTEND_H_ */
