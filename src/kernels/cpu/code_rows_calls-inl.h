// The entries of code_rows.cc and code_rows_vnni.cc, which include it behind their dot_many and
// add_many, in their namespace; PITH_CODES_ATTR is the instructions that those are made of.

template <int kBits, bool kSigned>
void dot_all(float* out, size_t ld, const float* q, size_t queries, const CodeRows& rows,
             const CodeSides& sides, size_t count, float scale) {
  for_query_blocks<kQueries>(queries, [&]<size_t Q>(size_t m) PITH_CODES_ATTR {
    dot_many<kBits, kSigned, Q>(out + m * ld, ld, q + m * rows.dim, rows, sides, count, scale);
  });
}

void dot_codes(float* out, size_t ld, const float* q, size_t queries, const CodeRows& rows,
               const CodeSides& sides, size_t count, float scale) {
  PITH_VISIT_CODES(rows.bits, sides.numbers && !sides.minima,
                   (dot_all<kBits, kSigned>(out, ld, q, queries, rows, sides, count, scale)));
}

void add_codes(float* acc, const float* p, size_t ld, size_t queries, const CodeRows& rows,
               const CodeSides& sides, size_t count) {
  PITH_VISIT_CODES(rows.bits, !sides.minima,
                   (add_many<kBits, kSigned>(acc, p, ld, queries, rows, sides, count)));
}

#undef PITH_CODES_ATTR
