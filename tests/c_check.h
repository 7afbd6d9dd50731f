#ifndef PITH_TESTS_C_CHECK_H_
#define PITH_TESTS_C_CHECK_H_

#include <stdio.h>

/* Ends the calling function with 1, and says where and which, if it does not hold. */
#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                       \
    }                                                                 \
  } while (0)

#endif /* PITH_TESTS_C_CHECK_H_ */
